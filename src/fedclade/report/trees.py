"""Where clusters come from: the tree of splits or the dendrogram, with a cut that can be moved."""

from typing import Any

import numpy as np

from fedclade.display import counted
from fedclade.report.sections import ROUND_AXIS, Section, View, cluster_colours, colour, make_figure, trace
from fedclade.result import Result


def dendrogram(run: Result) -> Section | None:
    """The merges of the last clustering; the page draws them, coloured by the cut."""
    kept = run.kept("dendrogram")
    if not kept:
        return None
    number = max(kept)
    record = kept[number]
    merges, labels = np.asarray(record["merges"], float), np.asarray(record["labels"])
    if not len(merges):
        return None
    clients, found = list(record["clients"]), len(np.unique(labels))
    threshold = used_threshold(merges[:, 2], found)
    heights = np.array([0.0, *merges[:, 2]])
    widest = int(np.argmax(np.diff(heights)))
    words = (
        f"In round {number}, {len(clients)} clients were merged by {record['linkage']} linkage, and the tree was cut "
        f"into {counted(found, 'cluster')} (a threshold near {threshold:.3g}). The widest gap between two merges, from "
        f"{heights[widest]:.3g} to {heights[widest + 1]:.3g}, would give {counted(len(clients) - widest, 'cluster')}. "
        "Move the cut to see who would be together at another threshold."
    )
    measure = run.kept("proximity").get(number, {}).get("measure", "distance")
    tree = {
        "kind": "dendrogram",
        "clients": clients,
        "merges": [[int(a), int(b), round(height, 6)] for a, b, height, _ in merges.tolist()],
        "used": threshold,
        "axis": measure,
        "groups": _groups(run, clients),
    }
    return Section("dendrogram", "The dendrogram and its cut", words, tree=tree)


def used_threshold(heights: np.ndarray, found: int) -> float:
    """The middle of the thresholds that give so many clusters."""
    done = len(heights) + 1 - found
    low = heights[done - 1] if done else 0.0
    high = heights[done] if done < len(heights) else 1.05 * heights[-1]
    return float((low + high) / 2)


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
        "groups": _groups(run, clients),
    }
    figure = _split_figure(run) if run.tree else _moves_figure(run, steps)
    return Section("splits", "Clusters over the rounds", _split_words(run), [View(figure)], tree=tree)


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


def _split_figure(run: Result) -> Any:
    """Time runs to the right; a cluster is a line that ends where it is split."""
    children = {branch["parent"]: branch for branch in run.tree}
    born = {child: branch["round"] for branch in run.tree for child in branch["children"]}
    heights: dict[int, float] = {}

    def placed(cluster: int) -> float:
        """Leaves take the next free place; a split cluster stands in the middle of its parts."""
        if cluster not in children:
            heights[cluster] = float(sum(1 for known in heights if known not in children))
        else:
            heights[cluster] = float(np.mean([placed(child) for child in children[cluster]["children"]]))
        return heights[cluster]

    roots = [k for k in sorted({*children, *run.clusters}) if k not in born]
    for root in roots:
        placed(root)
    traces, tints = [], cluster_colours(run)
    for cluster, height in heights.items():
        end = children[cluster]["round"] if cluster in children else run.round
        tint = tints.get(cluster, "#8c8c8c")
        size = len(run.clusters.get(cluster, ()))
        about = counted(size, "client") if cluster in run.clusters else f"split in round {end}"
        parts = [heights[child] for child in children[cluster]["children"]] if cluster in children else []
        ends = [y for part in parts for y in (height, part)]
        traces.append(
            trace(
                "scatter",
                x=[born.get(cluster, 0), end] + [end] * len(ends),
                y=[height, height, *ends],
                mode="lines",
                line={"color": tint, "width": 3},
                name=f"cluster {cluster}",
                hovertemplate=f"cluster {cluster}: {about}<br>round %{{x}}<extra></extra>",
                showlegend=False,
            )
        )
    leaves = [k for k in run.clusters if k in heights]
    ticks = {
        "tickvals": [heights[k] for k in leaves],
        "ticktext": [f"cluster {k} ({len(run.clusters[k])})" for k in leaves],
    }
    yaxis = {**ticks, "automargin": True, "autorange": "reversed", "showgrid": False, "zeroline": False}
    xaxis = {**ROUND_AXIS, "range": [-0.3, run.round + 0.3]}
    return make_figure(traces, max(260, min(160 + 26 * len(leaves), 900)), xaxis=xaxis, yaxis=yaxis)


def _moves_figure(run: Result, steps: dict[int, list[int]]) -> Any:
    """Clients from top to bottom, rounds from left to right, clusters as colours."""
    rounds = list(range(run.round + 1))
    known = sorted(steps)
    at = [steps[max(number for number in known if number <= now)] for now in rounds]
    numbers = sorted({label for labels in steps.values() for label in labels if label >= 0})
    final = {cluster: place for place, cluster in enumerate(run.clusters)}
    place = {cluster: final.get(cluster, k) for k, cluster in enumerate(numbers)}
    z = [[place[labels[row]] % 10 if labels[row] >= 0 else None for labels in at] for row in range(len(run.clients))]
    scale = [[edge, colour(k)] for k in range(10) for edge in (k / 10, (k + 1) / 10)]
    cells = trace("heatmap", 
        z=z, x=rounds, y=run.clients, customdata=[[labels[row] for labels in at] for row in range(len(run.clients))],
        colorscale=scale, zmin=0, zmax=10, showscale=False,
        hovertemplate="%{y} in round %{x}: cluster %{customdata}<extra></extra>",
    )  # fmt: skip
    ticks = {"showticklabels": len(run.clients) <= 40, "tickfont": {"size": 9}, "automargin": True}
    yaxis = {"autorange": "reversed", **ticks}
    height = max(300, min(160 + 14 * len(run.clients), 800))
    return make_figure([cells], height, xaxis=ROUND_AXIS, yaxis=yaxis)


def _groups(run: Result, clients: list[str]) -> list[int] | None:
    return [run.groups[client] for client in clients] if run.groups else None
