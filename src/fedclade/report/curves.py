"""Bytes against accuracy, and the curves that single methods keep: stability, BIC, selection, norms, stacking."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedclade.display import counted, size_in_words
from fedclade.report.sections import (
    LEGEND_BELOW,
    ROUND_AXIS,
    Section,
    View,
    cluster_colours,
    colour,
    make_figure,
    percent,
    share_axis,
    short,
    titled,
    trace,
)
from fedclade.result import Result

FEW_CLIENTS = 60  # so many have a stability line of their own
MOST_NAMES = 24  # of clusters in a legend


def traffic(runs: Sequence[Result]) -> Section:
    """What accuracy costs in bytes."""
    labels = list(dict.fromkeys(run.label for run in runs))
    told: set[str] = set()  # a method is named once, however many seeds it has
    traces: list[Any] = []
    for run in runs:
        place = labels.index(run.label)
        traces.append(_cost(run, "accuracy", colour(place), len(runs) > 1, run.label not in told))
        traces.append(
            _cost(run, "accuracy_local", colour(place if len(runs) > 1 else 1), len(runs) > 1, len(runs) == 1)
        )
        told.add(run.label)
    xaxis = {**titled("MB sent so far, up and down, all clients"), "rangemode": "tozero"}
    figure = make_figure(traces, 400, xaxis=xaxis, yaxis=share_axis("mean accuracy"), legend=LEGEND_BELOW)
    words = (
        "Every dot is a round in which accuracy was measured; diamonds are the clients' own last models. Our own "
        "measuring is not counted."
    )
    return Section("traffic", "Bytes against accuracy", _traffic_words(runs), [View(figure, words)])


def _cost(run: Result, column: str, tint: str, several: bool, named: bool) -> Any:
    own = column == "accuracy_local"
    model = "client's own last model" if own else "server's model"
    means, sent = run.measured(column).mean(), run.traffic.sum(axis=1) / 1e6
    told = f"{run.label}, seed {run.seed}: {model}" if several else model
    return trace(
        "scatter",
        x=[round(float(sent[number]), 4) for number in means.index],
        y=short(means),
        customdata=[int(number) for number in means.index],
        name=run.label if several else model,
        mode="markers" if own else "lines+markers",
        line={"color": tint},
        marker={"symbol": "diamond" if own else "circle", "size": 9 if own else 4},
        hovertemplate="round %{customdata}: %{y:.1%} after %{x:.4~g} MB<extra>" + told + "</extra>",
        meta={"method": run.label},
        legendgroup=run.label if several else model,
        showlegend=named,
    )


def _traffic_words(runs: Sequence[Result]) -> str:
    def cost(run: Result) -> float:
        return sum(run.bytes.values())

    def told(run: Result) -> str:
        return f"{run.label} ({size_in_words(cost(run))}, mean accuracy {percent(run.accuracy['mean'])})"

    if len(runs) > 1:
        return f"The least was sent by {told(min(runs, key=cost))}, the most by {told(max(runs, key=cost))}."
    (run,) = runs
    up, down = run.bytes.values()
    mean = run.accuracy["mean"]
    reached = "" if mean is None else f" for a mean accuracy of {percent(mean)}"
    return f"{size_in_words(up)} went up to the server and {size_in_words(down)} down to clients{reached}."


def stability(run: Result) -> Section | None:
    """HiCFL: how far the direction of each client's updates still changes, layer by layer."""
    kept = run.kept("stability")
    if not kept:
        return None
    last = kept[max(kept)]
    layers, epsilon = list(last["layers"]), float(last["epsilon"])
    views = [View(_traces(run, kept, k, epsilon), "", {"layer": layer}) for k, layer in enumerate(layers)]
    values = np.asarray(last["values"], float)[:, -1]
    words = (
        f"A client is stable in a layer once its value is below {epsilon:.3g} (dotted). In the last test, round "
        f"{max(kept)}, {int((values < epsilon).sum())} of {counted(len(values), 'client')} were stable in "
        f"{layers[-1]}, with a median of {np.nanmedian(values):.3g}."
    )
    return Section("stability", "Stability of updates", words, views[::-1])  # the last layer shows most


def _traces(run: Result, kept: Mapping[int, Any], layer: int, epsilon: float) -> Any:
    """A line for each client, or of many clients one for each cluster's median."""
    import pandas as pd

    values = {
        k: dict(zip(r["clients"], np.asarray(r["values"], float)[:, layer], strict=True)) for k, r in kept.items()
    }
    table, tints = pd.DataFrame(values), cluster_colours(run)
    traces: list[Any] = []
    for cluster, part in run.clusters.items():
        mine = table.reindex(part)
        lines = dict(mine.iterrows()) if len(run.clients) <= FEW_CLIENTS else {"median": mine.median()}
        for row, (name, values_of) in enumerate(lines.items()):
            line = trace(
                "scatter",
                x=list(kept),
                y=short(values_of),
                name=f"cluster {cluster}",
                legendgroup=str(cluster),
                showlegend=row == 0,
                mode="lines+markers",
                line={"color": tints[cluster], "width": 1.5},
                marker={"size": 4},
                hovertemplate=f"{name}, round %{{x}}: %{{y:.3f}}<extra>cluster {cluster}</extra>",
            )
            traces.append(line)
    ends = {"xref": "paper", "x0": 0, "x1": 1, "y0": epsilon, "y1": epsilon}
    return make_figure(
        traces,
        xaxis=ROUND_AXIS,
        yaxis=_from_zero("stability"),
        legend=LEGEND_BELOW,
        showlegend=len(run.clusters) <= MOST_NAMES,
        shapes=[{"type": "line", **ends, "line": {"dash": "dot", "color": "#8c8c8c"}}],
    )


def bic(run: Result) -> Section | None:
    """FedStack: the curve by which the number of clusters was chosen."""
    kept = run.kept("bic")
    if not kept:
        return None
    views = [View(_bic_figure(record), "", {"round": str(number)}) for number, record in kept.items()]
    last = kept[max(kept)]
    lowest = list(last["k"])[int(np.nanargmin(np.asarray(last["bic"], float)))]
    words = (
        f"The lower the BIC ({last['rule']}), the better so many clusters explain the clients. It is lowest at "
        f"{lowest}; {counted(int(last['chosen']), 'cluster')} were made."
    )
    return Section("bic", "How many clusters: the BIC curve", words, views)


def _bic_figure(record: Mapping[str, Any]) -> Any:
    values = dict(zip(record["k"], short(record["bic"], 2), strict=True))
    chosen = [k for k in values if k == record["chosen"]]
    ring = {"size": 14, "symbol": "circle-open", "color": colour(1), "line": {"width": 3}}
    traces = [
        trace(
            "scatter",
            x=list(values),
            y=list(values.values()),
            mode="lines+markers",
            name="BIC",
            line={"color": colour(0)},
            hovertemplate="%{x} clusters: BIC %{y}<extra></extra>",
        ),
        trace(
            "scatter",
            x=chosen,
            y=[values[k] for k in chosen],
            mode="markers",
            name="chosen",
            marker=ring,
            hoverinfo="skip",
        ),
    ]
    return make_figure(traces, 340, xaxis={**titled("clusters"), "dtick": 1}, yaxis=titled("BIC"), legend=LEGEND_BELOW)


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
    names = {"showticklabels": len(run.clients) <= 40, "automargin": True, "tickfont": {"size": 9}, "type": "category"}
    legend = {**LEGEND_BELOW, "y": -0.3}
    few = len(traces) <= MOST_NAMES
    figure = make_figure(traces, xaxis=names, yaxis=titled("times chosen"), legend=legend, showlegend=few)
    counts = [times[client] for client in run.clients]
    words = (
        f"Clients were chosen {min(counts)} to {max(counts)} times in {counted(len(kept), 'round')}, "
        f"{run.clients[int(np.argmax(counts))]} most often; {counts.count(0) or 'none'} were never chosen."
    )
    return Section("selection", "Who was selected how often", words, [View(figure)])


def norms(run: Result) -> Section | None:
    """CFL: the lengths of the mean and of the longest update, whose gap decides on a split."""
    kept = run.kept("norms")
    if not kept:
        return None
    lines: dict[tuple[int, str], dict[int, float]] = {}
    for number, record in kept.items():
        for place, cluster in enumerate(record["clusters"]):
            for which, name in (("mean", "mean update"), ("max", "longest update")):
                lines.setdefault((int(cluster), name), {})[number] = float(record[which][place])
    numbers = sorted({cluster for cluster, _ in lines})
    traces = [
        trace(
            "scatter",
            x=list(line),
            y=short(list(line.values())),
            mode="lines",
            name=f"cluster {cluster}: {name}",
            line={"color": colour(numbers.index(cluster)), "dash": "solid" if name == "mean update" else "dot"},
            hovertemplate="round %{x}: %{y:.3g}",
        )
        for (cluster, name), line in lines.items()
    ]
    last = kept[max(kept)]
    words = (
        "A cluster is looked at for a split when its mean update (solid) is short while single updates (dotted) are "
        f"still long. In round {max(kept)} the mean was {np.nanmean(last['mean']):.3g} long, the longest update "
        f"{np.nanmax(last['max']):.3g}."
    )
    figure = make_figure(traces, 360, xaxis=ROUND_AXIS, yaxis=_from_zero("length of updates"), legend=LEGEND_BELOW)
    return Section("norms", "Lengths of updates", words, [View(figure)])


def stacking(run: Result) -> Section | None:
    """FedStack: the client's own model against the stacked ones, over all test rows."""
    names = {"own": "own model", "global": "stacked over all clients", "cluster": "stacked over the cluster"}
    kept = {number: record["all"] for number, record in run.kept("stacking").items() if record["all"]}
    if not kept:
        return None
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
    figure = make_figure(traces, 360, xaxis=ROUND_AXIS, yaxis=share_axis("accuracy"), legend=LEGEND_BELOW)
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


def _from_zero(name: str) -> dict[str, Any]:
    return {**titled(name), "automargin": True, "rangemode": "tozero"}
