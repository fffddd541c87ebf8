"""What a method decided by: the stability of updates, how well pictures repeat, the lengths of updates, the BIC."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedclade.display import counted
from fedclade.report.sections import (
    NO_CLUSTER,
    ROUND_AXIS,
    Section,
    View,
    cluster_colours,
    colour,
    make_figure,
    short,
    titled,
    trace,
)
from fedclade.result import Result

FEW_CLIENTS = 60  # so many have a stability line of their own


def stability(run: Result) -> Section | None:
    """HiCFL: how far the direction of each client's updates still changes, layer by layer."""
    kept = run.kept("stability")
    if not kept or "agreement" in rules(run):  # that rule looks at something else
        return None
    last = kept[max(kept)]
    layers, epsilon = list(last["layers"]), float(last["epsilon"])
    views = [View(_stability_figure(run, kept, k, epsilon), "", {"layer": name}) for k, name in enumerate(layers)]
    values = np.asarray(last["values"], float)[:, -1]
    words = (
        f"A client is stable in a layer once its value is below {epsilon:.3g} (dotted). In the last test, round "
        f"{max(kept)}, {int((values < epsilon).sum())} of {counted(len(values), 'client')} were stable in "
        f"{layers[-1]}"
    )
    known = values[np.isfinite(values)]
    words += (
        f", with a mean of {known.mean():.3g} and a standard deviation of {known.std():.3g}." if len(known) else "."
    )
    return Section("stability", "Stability of updates", words, views[::-1])  # the last layer shows most


def rules(run: Result) -> set[str]:
    """The rules by which clusters were split."""
    return {str(branch["rule"]) for branch in run.tree if branch.get("rule")}


def _stability_figure(run: Result, kept: Mapping[int, Any], layer: int, epsilon: float) -> Any:
    """A line for each client, or of many clients one for each cluster's mean."""
    import pandas as pd

    values = {
        k: dict(zip(r["clients"], np.asarray(r["values"], float)[:, layer], strict=True)) for k, r in kept.items()
    }
    table, tints = pd.DataFrame(values), cluster_colours(run)
    traces: list[Any] = []
    for cluster, part in run.clusters.items():
        mine = table.reindex(part)
        lines = dict(mine.iterrows()) if len(run.clients) <= FEW_CLIENTS else {"mean": mine.mean()}
        for row, (name, values_of) in enumerate(lines.items()):
            line = _line(dict(zip(kept, values_of, strict=True)), f"cluster {cluster}", tints[cluster])
            told = f"{name}, round %{{x}}: %{{y:.3f}}<extra>cluster {cluster}</extra>"
            traces.append({**line, "showlegend": row == 0, "hovertemplate": told})
    return make_figure(traces, xaxis=ROUND_AXIS, yaxis=_from_zero("stability"), shapes=[_level(epsilon)])


def agreement(run: Result) -> Section | None:
    """Our rule: how well the picture of who is near whom repeats, layer by layer."""
    kept = run.kept("agreement")
    if not kept:
        return None
    needed = float(run.last_kept("agreement")["needed"])
    lines: dict[str, dict[tuple[int, str], dict[int, float]]] = {}
    for number, record in kept.items():
        for row in record["rows"]:
            layer = lines.setdefault(str(row["layer"]), {})
            layer.setdefault((int(row["cluster"]), str(row["look"])), {})[number] = float(row["agreement"])
    views = [View(_agreement_figure(run, layer, needed), "", {"layer": name}) for name, layer in lines.items()]
    last, values = max(kept), [float(row["agreement"]) for row in kept[max(kept)]["rows"]]
    clear = sum(value >= needed for value in values)
    words = (
        "A cluster is looked at for groups in a layer once the distances between its members repeat themselves from "
        f"round to round: from {needed:.3g} on (dotted; 1 is the same picture again). In the last test, round {last}, "
        f"{clear} of {counted(len(values), 'picture')} did."
    )
    return Section("agreement", "How well the pictures repeat", words, views[::-1])  # the last layer shows most


def _agreement_figure(run: Result, lines: Mapping[tuple[int, str], dict[int, float]], needed: float) -> Any:
    tints = cluster_colours(run)
    traces = []
    for (cluster, look), line in lines.items():
        how = "unit by unit" if look == "units" else "as a whole"
        drawn = _line(
            line, f"cluster {cluster}, {how}", tints.get(cluster, NO_CLUSTER), "dot" if look == "units" else "solid"
        )
        traces.append({**drawn, "hovertemplate": "round %{x}: %{y:.3f}"})
    return make_figure(traces, xaxis=ROUND_AXIS, yaxis=titled("agreement"), shapes=[_level(needed)])


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
        {
            **_line(
                line,
                f"cluster {cluster}: {name}",
                colour(numbers.index(cluster)),
                "solid" if name == "mean update" else "dot",
            ),
            "hovertemplate": "round %{x}: %{y:.3g}",
        }
        for (cluster, name), line in lines.items()
    ]
    last = kept[max(kept)]
    words = (
        "A cluster is looked at for a split when its mean update (solid) is short while single updates (dotted) are "
        f"still long. In round {max(kept)} the mean was {np.nanmean(last['mean']):.3g} long, the longest update "
        f"{np.nanmax(last['max']):.3g}."
    )
    figure = make_figure(traces, 360, xaxis=ROUND_AXIS, yaxis=_from_zero("length of updates"))
    return Section("norms", "Lengths of updates", words, [View(figure)])


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
    return make_figure(traces, 340, xaxis={**titled("clusters"), "dtick": 1}, yaxis=titled("BIC"))


def _line(values: Mapping[int, float], name: str, tint: str, dash: str = "solid") -> dict[str, Any]:
    return trace("scatter", 
        x=list(values), y=short(list(values.values())), name=name, legendgroup=name, mode="lines+markers",
        line={"color": tint, "width": 1.5, "dash": dash}, marker={"size": 4},
    )  # fmt: skip


def _level(value: float) -> dict[str, Any]:
    """A dotted line across a figure."""
    ends = {"xref": "paper", "x0": 0, "x1": 1, "y0": value, "y1": value}
    return {"type": "line", **ends, "line": {"dash": "dot", "color": NO_CLUSTER}}


def _from_zero(name: str) -> dict[str, Any]:
    return {**titled(name), "automargin": True, "rangemode": "tozero"}
