"""Where clusters come from: the tree of splits or the dendrogram, with a cut that can be moved."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedclade.display import counted
from fedclade.report.matrices import is_similarity, leaves
from fedclade.report.sections import (
    NO_CLUSTER,
    ROUND_AXIS,
    Section,
    View,
    cluster_colours,
    colour,
    make_figure,
    names_axis,
    trace,
)
from fedclade.result import Result


def dendrogram(run: Result) -> Section | None:
    """The merges of the last clustering; the page draws them, coloured by the cut."""
    kept = run.kept("dendrogram")
    if not kept or not len(kept[max(kept)]["merges"]):
        return None
    number, record = max(kept), kept[max(kept)]
    merges, clients = np.asarray(record["merges"], float), list(record["clients"])
    found = len(np.unique(record["labels"]))
    low, high = gap(merges[:, 2], found)
    between = f"between the heights {low:.3g} and {high:.3g}" if high < np.inf else f"above the height {low:.3g}"
    words = (
        f"In round {number}, {len(clients)} clients were merged by {record['linkage']} linkage, and the tree was cut "
        f"{between}: into {counted(found, 'cluster')}. {_widest_gap(merges[:, 2])}Move the cut, merge by merge, to "
        "see who would be together."
    )
    tree = {
        "kind": "dendrogram",
        "clients": clients,
        "order": leaves(merges).tolist(),
        "merges": [[int(a), int(b), round(height, 6)] for a, b, height, _ in merges.tolist()],
        "used": len(clients) - found,
        "axis": height_axis(record["linkage"], run.kept("proximity").get(number)),
        **_known(run, clients),
    }
    return Section("dendrogram", "The dendrogram and its cut", words, tree=tree)


def _widest_gap(heights: np.ndarray) -> str:
    if len(heights) < 2:
        return ""
    place = int(np.argmax(np.diff(heights)))
    low, high = heights[place : place + 2]
    would = counted(len(heights) - place, "cluster")
    return f"The widest gap between two merges, from {low:.3g} to {high:.3g}, would give {would}. "


def gap(heights: np.ndarray, found: int) -> tuple[float, float]:
    """The heights of the last merge and of the next one, where a tree is cut into so many clusters."""
    done = len(heights) + 1 - found
    return float(heights[done - 1]) if done else 0.0, float(heights[done]) if done < len(heights) else np.inf


def height_axis(linkage: str, proximity: Mapping[str, Any] | None) -> str:
    """Heights are distances between clients only where the linkage leaves those as they are, and the matrix has any."""
    leaves_them = linkage in ("single", "complete", "average", "weighted")
    if proximity is None or not leaves_them or is_similarity(np.asarray(proximity["matrix"], float)):
        return f"height of a merge ({linkage} linkage)"
    return str(proximity["measure"])


def splits(run: Result) -> Section | None:
    """The clusters over the rounds, as a tree where they were split and as bands where clients moved."""
    if not run.tree and len(run.assignments) < 3:
        return None
    clients = run.clients
    steps = {number: [now.get(c, -1) for c in clients] for number, now in run.assignments.items()}
    tree = {
        "kind": "rounds",
        "clients": clients,
        "steps": {str(number): labels for number, labels in steps.items()},
        "last": run.round,
        "used": run.round,
        "axis": "round",
        **_known(run, clients),
    }
    figure = _split_figure(run) if run.tree else _moves_figure(run, steps)
    words, table = _split_words(run), _split_table(run)
    return Section("splits", "Clusters over the rounds", words, [View(figure)], table, tree, folded=len(table) > 20)


def _split_words(run: Result) -> str:
    changes = sorted(run.assignments)[1:]
    end = f"At the end there are {counted(len(run.clusters), 'cluster')}. "
    move = "Move the round to see who was together then."
    if not run.tree:
        when = f"{counted(len(changes), 'time')}, last in round {changes[-1]}"
        return f"Clients changed their clusters {when}. {end}{move}"
    first, last = run.tree[0]["round"], run.tree[-1]["round"]
    layers = sorted({str(branch["layer"]) for branch in run.tree if branch.get("layer")})
    by = f", seen in {', '.join(layers)}" if layers else ""
    when = f"in round {first}" if first == last else f"between rounds {first} and {last}"
    return f"Clusters were split {counted(len(run.tree), 'time')}, {when}{by}. {end}{move}"


def _split_table(run: Result) -> list[list[str]]:
    """Every split, and why it was made."""
    rows = []
    for branch in run.tree:
        why = {name: value for name, value in branch.items() if name not in ("round", "parent", "children")}
        told = ", ".join(f"{name} {_short(value)}" for name, value in why.items() if value is not None)
        into = ", ".join(str(child) for child in branch["children"])
        rows.append([str(branch["round"]), str(branch["parent"]), into, told or "-"])
    return [["round", "cluster", "split into", "why"], *rows] if rows else []


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def parts_by_round(run: Result) -> dict[int, tuple[int, list[int]]]:
    """By cluster, the round in which it was split and all that came of it in that round.

    A cluster that was made and split in one round was never there: its parts are those of the cluster before it.
    """
    branches = {branch["parent"]: branch for branch in run.tree}

    def at_the_end(cluster: int, round: int) -> list[int]:
        if cluster not in branches or branches[cluster]["round"] != round:
            return [cluster]
        return [part for child in branches[cluster]["children"] for part in at_the_end(child, round)]

    born = {child: branch["round"] for branch in run.tree for child in branch["children"]}
    lasting = [parent for parent, branch in branches.items() if born.get(parent) != branch["round"]]
    return {k: (branches[k]["round"], at_the_end(k, branches[k]["round"])) for k in lasting}


def _split_figure(run: Result) -> Any:
    """Time runs to the right; a cluster is a line that ends where it is split."""
    parts = parts_by_round(run)
    born = {child: number for number, children in parts.values() for child in children}
    heights: dict[int, float] = {}

    def placed(cluster: int) -> float:
        """Leaves take the next free place; a split cluster stands in the middle of its parts."""
        if cluster not in parts:
            heights[cluster] = float(sum(1 for known in heights if known not in parts))
        else:
            heights[cluster] = float(np.mean([placed(child) for child in parts[cluster][1]]))
        return heights[cluster]

    for root in (k for k in sorted({*parts, *run.clusters}) if k not in born):
        placed(root)
    traces, tints = [], cluster_colours(run)
    for cluster, height in heights.items():
        end, children = parts.get(cluster, (run.round, []))
        about = counted(len(run.clusters[cluster]), "client") if cluster in run.clusters else f"split in round {end}"
        ends = [y for child in children for y in (height, heights[child])]
        traces.append(trace("scatter", 
            x=[born.get(cluster, 0), end] + [end] * len(ends), y=[height, height, *ends], mode="lines",
            line={"color": tints.get(cluster, NO_CLUSTER), "width": 3}, name=f"cluster {cluster}", showlegend=False,
            hovertemplate=f"cluster {cluster}: {about}<br>round %{{x}}<extra></extra>",
        ))  # fmt: skip
    leaves_of = [k for k in run.clusters if k in heights]
    names = [f"cluster {k} ({len(run.clusters[k])})" for k in leaves_of]
    ticks = {"axis": "yaxis", "at": [heights[k] for k in leaves_of], "text": names}
    yaxis = {"automargin": True, "range": [len(leaves_of) - 0.4, -0.6], "showgrid": False, "zeroline": False}
    xaxis = {**ROUND_AXIS, "range": [-0.3, run.round + 0.3]}
    height = max(260, min(160 + 26 * len(leaves_of), 900))
    return make_figure(traces, height, xaxis=xaxis, yaxis=yaxis, meta={"ticks": ticks})


def _moves_figure(run: Result, steps: dict[int, list[int]]) -> Any:
    """Clients from top to bottom, rounds from left to right, clusters as colours."""
    known = sorted(steps)
    at = [steps[max(number for number in known if number <= now)] for now in range(run.round + 1)]
    numbers = dict.fromkeys([*run.clusters, *sorted({label for labels in at for label in labels if label >= 0})])
    place = {cluster: k for k, cluster in enumerate(numbers)}
    scale = [[edge / len(place), colour(k)] for k in range(len(place)) for edge in (k, k + 1)]
    rows = range(len(run.clients))
    cells = trace("heatmap", 
        z=[[place.get(labels[row]) for labels in at] for row in rows], x=list(range(run.round + 1)), y=run.clients,
        customdata=[[labels[row] for labels in at] for row in rows],
        colorscale=scale, zmin=-0.5, zmax=len(place) - 0.5, showscale=False,
        hovertemplate="%{y} in round %{x}: cluster %{customdata}<extra></extra>",
    )  # fmt: skip
    height = max(300, min(160 + 14 * len(run.clients), 800))
    return make_figure([cells], height, xaxis=ROUND_AXIS, yaxis=names_axis(autorange="reversed"))


def _known(run: Result, clients: list[str]) -> dict[str, Any]:
    """The hidden groups of some clients, and the places of their clusters, which have colours elsewhere on the page."""
    places = {cluster: place for place, cluster in enumerate(run.clusters)}
    home = [places[run.assignment[client]] if client in run.assignment else -1 for client in clients]
    return {"groups": [run.groups[client] for client in clients] if run.groups else None, "home": home}
