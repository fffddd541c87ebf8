"""Where halves of clients decide: whether clients differ, in what, why so many clusters, how sure each client's is; and
what serves it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedclade.display import counted
from fedclade.report.sections import Section, View, colour, make_figure, short, titled, trace
from fedclade.result import Result

WHY = {
    "alike": "They are not told apart from clients that are all alike, and share one model.",
    "no clear groups": "They differ, but form no clear groups, and share one model.",
    "groups": "",
}
SURE = 0.01  # the p-value from which on a difference is said to be sure
SEEN = {"labels": "their labels", "features": "their rows of the same label", "updates": "what training changes"}


def groups(run: Result) -> Section | None:
    """The evidence of every look: p-values, reliability by layer, what each number of clusters explains."""
    kept = run.kept("groups")
    if not kept:
        return None
    last = kept[max(kept)]
    words = f"Do clients differ? The chance that clients which are alike look so unlike is p = {last['p']:.3g}. "
    words += WHY[last["why"]]
    if last["views"]:
        seen = " and in ".join(SEEN.get(view, view) for view in last["views"])
        margins = np.asarray(last["margins"], float)
        words += (
            f"They form {counted(int(last['clusters']), 'group')} that differ in {seen}. A client's margin says how "
            f"much nearer it is to its own group than to the next: {margins.mean():.2f} on average, "
            f"{margins.min():.2f} for {last['clients'][int(margins.argmin())]}."
        )
    little = [look["view"] for look in last["looks"] if not look.get("matters", True) and look["p"] < SURE]
    if little:
        words += (
            f" In {' and in '.join(SEEN.get(v, v) for v in little)} they differ for sure, but too little to matter."
        )
    if last.get("shares_body"):
        words += " The groups share all layers but the last."
    views = [
        View(_curves(look), _told(look), {"round": str(number), "what differs": str(look["view"])})
        for number, record in kept.items()
        for look in record["looks"]
        if look["explained"]
    ]
    return Section("groups", "Whether clients differ, and in what", words, views, _looks(last))


def _curves(look: Mapping[str, Any]) -> Any:
    """What each number of clusters explains, and what it would of one cloud, with the steps that were taken."""
    explained = {int(k): float(v) for k, v in look["explained"].items()}
    usual = {int(k): float(v) for k, v in look["usual"].items()}
    taken = [int(step[0]) for step in look["steps"]]
    ring = {"size": 14, "symbol": "circle-open", "color": colour(1), "line": {"width": 3}}
    lines = [("the clients", explained, 0), ("a cloud of the same spread", usual, 3)]
    traces = [
        trace(
            "scatter",
            x=list(values),
            y=short(list(values.values())),
            mode="lines+markers",
            name=name,
            line={"color": colour(tint)},
            hovertemplate="%{x} clusters: %{y:.1%}",
        )
        for name, values, tint in lines
    ]
    marked = [k for k in taken[-1:] if k in explained]
    traces.append(
        trace("scatter", x=marked, y=[explained[k] for k in marked], mode="markers", name="taken", marker=ring)
    )
    axis = {**titled("explained of what is real"), "tickformat": ".1~%", "automargin": True}
    return make_figure(traces, 340, showlegend=True, xaxis=titled("clusters"), yaxis=axis)


def _told(look: Mapping[str, Any]) -> str:
    forks = "; ".join(
        f"{int(k)} clusters: {beyond:.1f} standard deviations beyond clouds, {needed:.1f} needed, p = {p:.3g}"
        for k, beyond, needed, p in look["steps"]
    )
    return (
        f"Reliability {look['reliability']:.2f} (the share of the differences that repeats itself in both halves of "
        f"the rows), clearness {look['clearness']:.2f} (0: a cloud, 1: members of a group do not differ). {forks}"
    )


def _looks(record: Mapping[str, Any]) -> list[list[str]]:
    rows = [["what", "seen as", "layer", "standard deviations from alike", "weight", "p", "reliability"]]
    for look in record["looks"]:
        for layer, far in look["z"].items():
            rows.append(
                [
                    str(look["view"]),
                    str(look["picture"]),
                    str(layer),
                    f"{far:.1f}",
                    f"{look['weights'][layer]:.2f}",
                    f"{look['p']:.3g}",
                    f"{look['reliability']:.2f}",
                ]
            )
    return rows


def serving(run: Result) -> Section | None:
    """What each client was offered, and what it took."""
    kept = run.kept("serving")
    if not kept:
        return None
    number = max(kept)
    last = kept[number]
    names, losses = list(last["candidates"]), np.asarray(last["losses"], float)
    picked = [names[int(place)] for place in last["picked"]]
    counts = ", ".join(f"{name}: {counted(picked.count(name), 'client')}" for name in names if name in picked)
    words = (
        f"After round {number} clients judged models by the rows they had held out until then; each takes the one of "
        f"lowest loss, its own losses being mixed with those of all. Taken: {counts}."
    )
    means = np.nanmean(np.minimum(losses, 3.0), axis=0)
    bars = trace(
        "bar", x=names, y=short(means), marker={"color": colour(0)}, hovertemplate="%{x}: %{y:.3f}<extra></extra>"
    )
    figure = make_figure([bars], 320, xaxis={"type": "category"}, yaxis=titled("mean loss on held-out rows"))
    margins = _margins(run)
    table = [["client", "taken", "margin", *names]]
    for client, choice, row in zip(last["clients"], picked, losses, strict=True):
        cells = ["-" if np.isnan(value) else f"{value:.3f}" for value in row]
        table.append([str(client), choice, margins.get(str(client), "-"), *cells])
    return Section("serving", "What serves each client", words, [View(figure)], table, folded=True)


def _margins(run: Result) -> dict[str, str]:
    record = run.last_kept("groups")
    if not record:
        return {}
    return {str(c): f"{float(m):.2f}" for c, m in zip(record["clients"], record["margins"], strict=True)}
