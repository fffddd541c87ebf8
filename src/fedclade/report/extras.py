"""What single methods add to a round: FedSCCS selects clients, FedStack stacks models."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedclade.clients.objective import ACCURACY
from fedclade.display import counted
from fedclade.report.sections import (
    ROUND_AXIS,
    Section,
    View,
    cluster_colours,
    colour,
    make_figure,
    metric_axis,
    names_axis,
    percent,
    short,
    titled,
    trace,
)
from fedclade.result import Result


def selection(run: Result) -> Section | None:
    """FedSCCS: how often each client was chosen to train."""
    kept = run.kept("selection")
    if not kept:
        return None
    times = Counter({client: int(count) for client, count in kept[max(kept)]["times"].items()})
    tints = cluster_colours(run)
    traces = [
        trace(
            "bar",
            x=part,
            y=[times[client] for client in part],
            name=f"cluster {cluster}",
            marker={"color": tints[cluster], "line": {"width": 0}},
            hovertemplate=f"%{{x}}: chosen %{{y}} times<extra>cluster {cluster}</extra>",
        )
        for cluster, part in run.clusters.items()
    ]
    figure = make_figure(traces, xaxis=names_axis(), yaxis=titled("times chosen"))
    counts = [times[client] for client in run.clients]
    words = (
        f"Clients were chosen {_range(counts)} in {counted(len(kept), 'round')}, "
        f"{run.clients[int(np.argmax(counts))]} most often; {counts.count(0) or 'none'} were never chosen."
    )
    return Section("selection", "Who was selected how often", words, [View(figure)])


def stacking(run: Result) -> Section | None:
    """FedStack: locally trained models against the stacked ones, over all test rows."""
    names = {
        "own": "locally trained models",
        "global": "stacked over all clients",
        "vote": "mean vote of the cluster's networks",  # aligned
        "cluster": "stacked over the cluster",
    }
    kept = {number: record["all"] for number, record in run.kept("stacking").items() if record["all"]}
    if not kept:
        return None
    names = {which: name for which, name in names.items() if which in kept[max(kept)]}
    traces = [
        trace(
            "scatter",
            x=list(kept),
            y=short([scores[which]["accuracy"] for scores in kept.values()]),
            mode="lines+markers",
            name=name,
            line={"color": colour(place)},
            hovertemplate="round %{x}: %{y:.1%}",
        )
        for place, (which, name) in enumerate(names.items())
    ]
    final = ", ".join(f"{name} {percent(kept[max(kept)][which]['accuracy'])}" for which, name in names.items())
    words = (
        f"Over all test rows after round {max(kept)}: {final}. The table holds the scores of each cluster's stacked "
        "model on its members' test rows; over all classes they are means, that of recall is the balanced accuracy."
    )
    figure = make_figure(traces, 360, xaxis=ROUND_AXIS, yaxis=metric_axis(ACCURACY))
    table = _scores(run.kept("stacking")[max(kept)]["clusters"], run.record["classes"])
    return Section("stacking", "What stacking adds", words, [View(figure)], table, folded=len(table) > 20)


def _scores(parts: Sequence[Mapping[str, Any]], classes: Sequence[str]) -> list[list[str]]:
    """A row for each cluster, and one for each class that its members are tested on."""
    rows = [["cluster", "class", "test rows", "precision", "recall", "F1"]]
    for part in parts:
        if "cluster" not in part:  # none of its members answered
            continue
        seen, by_class = part["cluster"], part["cluster"]["by_class"]
        means = [percent(seen[name]) for name in ("precision", "recall", "f1")]
        rows.append([str(part["number"]), "all", str(int(np.sum(by_class["rows"]))), *means])
        for place, label in enumerate(by_class["class"]):
            single = [percent(float(by_class[name][place])) for name in ("precision", "recall", "f1")]
            rows.append([str(part["number"]), str(classes[int(label)]), str(int(by_class["rows"][place])), *single])
    return rows


def _range(counts: list[int]) -> str:
    least, most = min(counts), max(counts)
    return counted(most, "time") if least == most else f"{least} to {most} times"
