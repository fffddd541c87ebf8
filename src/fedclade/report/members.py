"""Who is in which cluster, what they hold, and how the hidden groups map on the clusters that were found."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedclade.display import counted
from fedclade.report.sections import (
    AMOUNT,
    NO_CLUSTER,
    Section,
    View,
    cluster_colours,
    faint,
    make_figure,
    mean_and_std,
    names_axis,
    percent,
    titled,
    trace,
)
from fedclade.result import MODELS, Result

NAMES = 400  # characters of names in a table's cell
MOST_BANDS = 30  # groups or clusters between which bands can be followed
WIDEST = 12  # hidden groups that get a column of their own


def clusters(run: Result) -> Section:
    """A row for each cluster."""
    sizes = [len(part) for part in run.clusters.values()]
    measured = [run.last(column) for column in run.models]
    header = ["cluster", "clients", *MODELS.values(), "who"]
    rows = [
        [
            str(cluster),
            str(len(part)),
            *(mean_and_std(run.metric.over_clients(seen.reindex(part).dropna()), run.metric) for seen in measured),
            _named(part),
        ]
        for cluster, part in run.clusters.items()
    ]
    words = f"{counted(len(run.clients), 'client')} are in {counted(len(sizes), 'cluster')}"
    if len(sizes) > 1:
        words += f" of {min(sizes)} to {max(sizes)} clients" if min(sizes) < max(sizes) else f" of {sizes[0]}"
        alone = sum(1 for size in sizes if size == 1)
        words += f"; {alone} of them {'is' if alone == 1 else 'are'} a single client" if alone else ""
    if run.tree:
        words += ". A cluster that is split ends, and its parts get the next free numbers"
    words += f". What is told of models is the {run.metric.words}: means and standard deviations over clients."
    return Section("clusters", "Who is in which cluster", words, table=[header, *rows], folded=len(rows) > 40)


def placements(run: Result) -> Section | None:
    """Clients that missed the clustering, came later or changed, and where they were placed."""
    rows = [
        [str(number), client, "a new one" if placed["cluster"] is None else str(placed["cluster"]), _far(placed)]
        for number, record in run.kept("placements").items()
        for client, placed in record.items()
    ]
    if not rows:
        return None
    new = sum(1 for row in rows if row[2] == "a new one")
    words = f"{counted(len(rows), 'time')} a client was given a place during the run"
    words += f", {counted(new, 'time')} in a new cluster." if new else ", always in a cluster that was there."
    header = ["round", "client", "cluster", "nearest clusters by distance"]
    return Section("placements", "Newcomers and their places", words, table=[header, *rows], folded=len(rows) > 20)


def _far(placed: Mapping[str, Any]) -> str:
    known = sorted((float(distance), str(cluster)) for cluster, distance in placed["distances"].items())
    return ", ".join(f"{cluster}: {distance:.3g}" for distance, cluster in known[:3]) or "-"


def networks(run: Result) -> Section | None:
    """FedStack: which networks the clients of each cluster train, where they train different ones."""
    kept = run.kept("architectures")
    if not kept or len(kept[max(kept)]["networks"]) < 2:
        return None
    last = kept[max(kept)]
    counts = np.asarray(last["counts"])
    rows = [[str(k), *map(str, row)] for k, row in zip(last["clusters"], counts.tolist(), strict=True)]
    mixed = int((counts > 0).sum(axis=1).max())
    words = f"Clients train {counted(len(last['networks']), 'network')}; a cluster holds up to {mixed} of them."
    if mixed == 1:
        words += (
            " So the clusters are the architectures: last layers of unlike networks share no directions. Where groups "
            "of people are wanted, give all clients one network, or compare predictions (signature = 'predictions')."
        )
    return Section("networks", "Networks in the clusters", words, table=[["cluster", *last["networks"]], *rows])


def holdings(run: Result) -> Section | None:
    """Label histograms of clusters and of clients."""
    counts = run.label_counts
    if counts is None:
        return None
    classes = [str(name) for name in run.record["classes"]]
    parts = {k: np.sum([counts[c] for c in part], axis=0) for k, part in run.clusters.items()}
    shares = np.stack([row / max(row.sum(), 1) for row in parts.values()])
    names = [f"cluster {k} ({len(run.clusters[k])})" for k in parts]
    per_client = np.stack([counts[c] for c in run.clients])
    views = [
        View(
            _histograms(shares, names, classes, "%{y}: %{z:.1%} of its rows are %{x}<extra></extra>", ".1~%"),
            "The darker, the larger the share of a cluster's training rows that have a label.",
            {"by": "cluster"},
        ),
        View(
            _histograms(per_client, run.clients, classes, "%{y}: %{z} rows of %{x}<extra></extra>", None),
            "The darker, the more training rows of a label a client began with; clients of a cluster lie together.",
            {"by": "client"},
        ),
    ]
    return Section("holdings", "What the clusters hold", _holding_words(run, shares, classes), views)


def _holding_words(run: Result, shares: np.ndarray, classes: list[str]) -> str:
    held = [int((row > 0.01).sum()) for row in shares]
    pure = int(np.argmax(shares.max(axis=1)))
    cluster, top = list(run.clusters)[pure], int(shares[pure].argmax())
    many = f"{min(held)} to {max(held)}" if min(held) < max(held) else f"{held[0]}"
    return (
        f"Clusters hold {many} of {len(classes)} labels (those with more than 1 % of their rows). The most one-sided "
        f"is cluster {cluster}: {percent(float(shares[pure, top]))} of its rows are {classes[top]!r}."
    )


def _histograms(z: np.ndarray, names: list[str], classes: list[str], hover: str, ticks: str | None) -> Any:
    values = np.round(z, 4).tolist()
    bar = {"thickness": 10, "tickformat": ticks}
    scale = {"colorscale": AMOUNT, "colorbar": bar, "zmin": 0, "zmax": max(float(np.max(values, initial=0.0)), 0.01)}
    cells = trace("heatmap", z=values, x=classes, y=names, hovertemplate=hover, **scale)
    xaxis, yaxis = names_axis(**titled("label")), names_axis(autorange="reversed")
    return make_figure([cells], max(260, min(150 + 20 * len(names), 760)), xaxis=xaxis, yaxis=yaxis)


def mapping(run: Result) -> Section | None:
    """The hidden groups against the found clusters."""
    if run.groups is None:
        return None
    groups = {client: run.groups[client] for client in run.clients}
    hidden = sorted(set(groups.values()))
    flows = Counter((groups[client], run.assignment[client]) for client in run.clients)
    parted = [group for group in hidden if sum(1 for a, _ in flows if a == group) > 1]
    mixed = [cluster for cluster in run.clusters if sum(1 for _, b in flows if b == cluster) > 1]
    ari, nmi = run.agreement.values()
    words = (
        f"{counted(len(hidden), 'hidden group')}, {counted(len(run.clusters), 'cluster')} found: ARI {ari:.3f}, NMI "
        f"{nmi:.3f} (1 is perfect); {_how_many(parted, 'group')} divided among clusters, "
        f"{_how_many(mixed, 'cluster')} made of clients of several groups."
    )
    return Section(
        "mapping",
        "Hidden groups and found clusters",
        words,
        [View((_bands if max(len(hidden), len(run.clusters)) <= MOST_BANDS else _counts)(run, hidden, flows))],
        _table(run, hidden, flows),
    )


def _how_many(which: list[int], word: str) -> str:
    if not which:
        return f"no {word} is"
    return f"{counted(len(which), word)} {'is' if len(which) == 1 else 'are'}"


def _bands(run: Result, hidden: list[int], flows: Counter[tuple[int, int]]) -> Any:
    place = {group: k for k, group in enumerate(hidden)}
    names = [f"group {group}" for group in hidden] + [f"cluster {cluster}" for cluster in run.clusters]
    tints, targets = cluster_colours(run), {cluster: len(hidden) + k for k, cluster in enumerate(run.clusters)}
    bands = trace("sankey", 
        node={"label": names, "color": [NO_CLUSTER] * len(hidden) + list(tints.values()), "pad": 12, "thickness": 14,
              "hovertemplate": "%{label}: %{value} clients<extra></extra>"},
        link={
            "source": [place[group] for group, _ in flows],
            "target": [targets[cluster] for _, cluster in flows],
            "value": list(flows.values()),
            "color": [faint(tints[cluster], 0.4) for _, cluster in flows],
            "hovertemplate": "%{value} clients of %{source.label} are in %{target.label}<extra></extra>",
        },
    )  # fmt: skip
    rows = max(len(hidden), len(run.clusters))
    return make_figure([bands], max(240, min(90 + 30 * rows, 1000)), margin={"l": 4, "r": 4, "b": 16})


def _counts(run: Result, hidden: list[int], flows: Counter[tuple[int, int]]) -> Any:
    """How many clients of each group are in each cluster, as a colour: bands of so many would be a tangle."""
    z = [[flows[group, cluster] or None for group in hidden] for cluster in run.clusters]
    names = [f"cluster {cluster}" for cluster in run.clusters]
    told = "%{z} clients of %{x} are in %{y}<extra></extra>"
    scale = {"colorscale": AMOUNT, "zmin": 0, "colorbar": {"thickness": 10}}
    cells = trace("heatmap", z=z, x=[f"group {group}" for group in hidden], y=names, hovertemplate=told, **scale)
    height = max(300, min(150 + 16 * len(names), 800))
    return make_figure([cells], height, xaxis=names_axis(), yaxis=names_axis(autorange="reversed"))


def _table(run: Result, hidden: list[int], flows: Counter[tuple[int, int]]) -> list[list[str]]:
    if len(hidden) > WIDEST or len(run.clusters) > 2 * WIDEST:
        return []
    rows = [[f"cluster {k}", *(str(flows[group, k] or "·") for group in hidden)] for k in run.clusters]
    return [["clients of", *(f"group {group}" for group in hidden)], *rows]


def _named(names: list[str]) -> str:
    text = ", ".join(names)
    if len(text) <= NAMES:
        return text
    kept = text[:NAMES].rpartition(", ")[0]
    return f"{kept}, … and {len(names) - kept.count(', ') - 1:,} more"
