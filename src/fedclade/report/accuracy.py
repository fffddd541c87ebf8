"""How well clients are served, round by round: by the server's model for them and by their own last model."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedclade.display import counted
from fedclade.report.sections import (
    LEGEND_BELOW,
    ROUND_AXIS,
    Section,
    View,
    cluster_colours,
    colour,
    faint,
    make_figure,
    percent,
    share_axis,
    short,
    spread_out,
    trace,
)
from fedclade.result import Result

if TYPE_CHECKING:
    import pandas as pd

MODES = {"accuracy": "server's model", "accuracy_local": "client's own last model"}
LOW, HIGH = 0.1, 0.9  # the spread that is drawn: all but the worst and the best tenth of the clients
MOST_CELLS = 250_000  # of clients and rounds in one page
MOST_LINES = 24  # clusters with a line of their own


def by_round(runs: Sequence[Result]) -> Section:
    """Every method's median and spread over its clients."""
    traces: list[Any] = []
    together = runs_by_label(runs)
    for place, (label, mine) in enumerate(together.items()):
        for column in MODES:
            name, tint = named(label, place, column, len(together))
            values = pooled([run.measured(column) for run in mine])
            traces += _median_and_spread(
                values, name, label, tint, column == "accuracy_local", 0.2 / len(together) ** 0.5
            )
    axes = {"xaxis": ROUND_AXIS, "yaxis": share_axis()}
    words = (
        "Lines are the median over clients of the server's model for each, bands hold all but the worst and the best "
        "tenth of the clients. Diamonds are the clients' own last trained models, in the rounds in which those were "
        "measured."
    )
    figure = make_figure(traces, 420, **axes, legend=LEGEND_BELOW)
    return Section("accuracy", "Accuracy by round", _outcome(together), [View(figure, words)])


def distribution(runs: Sequence[Result]) -> Section:
    """The last accuracies of all clients, for both models."""
    traces = []
    together = runs_by_label(runs)
    for place, (label, mine) in enumerate(together.items()):
        for column, mode in MODES.items():
            values = _last_of(mine, column)
            traces.append(
                trace(
                    "box",
                    x=short(values),
                    y=[f"{label}<br>{mode}" if len(together) > 1 else mode] * len(values),
                    text=list(values.index),
                    orientation="h",
                    name=f"{label}: {mode}",
                    boxpoints="all" if len(values) <= 200 else "outliers",
                    jitter=0.4,
                    pointpos=0,
                    marker={"size": 4, "opacity": 0.6},
                    line={"color": named(label, place, column, len(together))[1], "width": 1.5},
                    fillcolor="rgba(0,0,0,0)" if column == "accuracy_local" else None,
                    hovertemplate="%{text}: %{x:.1%}<extra>" + mode + "</extra>",
                    meta={"method": label},
                    showlegend=False,
                )
            )
    height = 140 + 70 * len(traces)
    yaxis = {"automargin": True, "autorange": "reversed"}
    figure = make_figure(traces, height, xaxis=share_axis(), yaxis=yaxis)
    words = "Every dot is a client at its last measurement; boxes hold the middle half of the clients."
    return Section("distribution", "Who is served how well", _extremes(runs), [View(figure, words)])


def inside(run: Result, cells: int = MOST_CELLS) -> Section:
    """One run's accuracies by cluster and by client."""
    views = [
        View(_clusters_figure(run), _clusters_words(run), {"by": "cluster"}),
        View(*_clients_figure(run, cells), {"by": "client"}),
    ]
    final = {k: run.last("accuracy").reindex(part).median() for k, part in run.clusters.items()}
    known = {k: value for k, value in final.items() if value == value}
    words = "No accuracy has been measured yet."
    if known:
        best, worst = max(known, key=known.__getitem__), min(known, key=known.__getitem__)
        words = f"All clients are in one cluster, with a median of {percent(known[best])}."
        if len(known) > 1:
            words = (
                f"Of {counted(len(run.clusters), 'cluster')}, cluster {best} is served best (median "
                f"{percent(known[best])}) and cluster {worst} worst ({percent(known[worst])})."
            )
    return Section("inside", "Accuracy by cluster and by client", words, views)


# What is drawn


def _median_and_spread(
    values: "pd.DataFrame", name: str, label: str, tint: str, own: bool, share: float = 0.1
) -> Iterator[Any]:
    """A line for the median over clients with a band around it, or diamonds with bars for the clients' own models."""
    rounds = [int(number) for number in values.columns]
    low, middle, high = (values.quantile(share).to_numpy() for share in (LOW, 0.5, HIGH))
    common = {"legendgroup": name, "meta": {"method": label}}
    template = "round %{x}: median %{y:.1%}, %{customdata[0]:.1%} to %{customdata[1]:.1%}<extra>" + name + "</extra>"
    bounds = [list(pair) for pair in zip(short(low), short(high), strict=True)]
    if not own:
        yield trace("scatter", 
            x=rounds + rounds[::-1], y=short(low) + short(high)[::-1], fill="toself", fillcolor=faint(tint, share),
            line={"width": 0}, mode="lines", hoverinfo="skip", showlegend=False, **common,
        )  # fmt: skip
    yield trace("scatter", 
        x=rounds, y=short(middle), name=name, customdata=bounds, hovertemplate=template,
        mode="lines+markers" if own or len(rounds) <= 40 else "lines",
        line={"color": tint, "width": 1 if own else 2.5, "dash": "dot" if own else "solid"},
        marker={"symbol": "diamond" if own else "circle", "size": 9 if own else 5},
        error_y={"array": short(high - middle), "arrayminus": short(middle - low), "thickness": 1} if own else None,
        **common,
    )  # fmt: skip


def _clusters_figure(run: Result) -> Any:
    import pandas as pd

    traces: list[Any] = []
    tints = cluster_colours(run)
    largest = sorted(run.clusters, key=lambda k: -len(run.clusters[k]))[:MOST_LINES]
    for cluster in (k for k in run.clusters if k in largest):
        for column in MODES:
            own = column == "accuracy_local"
            values = run.measured(column)
            mine = values.reindex([c for c in run.clusters[cluster] if c in values.index])
            name = f"cluster {cluster}" + (", own" if own else "")
            frame = mine if len(mine) else pd.DataFrame()
            traces += _median_and_spread(frame, name, run.label, tints[cluster], own)
    axes = {"xaxis": ROUND_AXIS, "yaxis": share_axis()}
    return make_figure(traces, 420, **axes, legend=LEGEND_BELOW)


def _clusters_words(run: Result) -> str:
    words = "Medians over those in a cluster at the end: lines for the server's model, diamonds for the clients' own."
    hidden = len(run.clusters) - MOST_LINES
    return words + (
        f" The {MOST_LINES} largest clusters are drawn, {hidden} smaller ones are not." if hidden > 0 else ""
    )


def _clients_figure(run: Result, cells: int) -> tuple[Any, str]:
    """Accuracy as a colour, clients (cluster by cluster) from top to bottom, both models side by side."""
    values = {column: run.measured(column).reindex(run.clients) for column in MODES}
    most = max(2, cells // max(len(run.clients), 1))
    rounds = {column: spread_out(list(table.columns), most) for column, table in values.items()}
    names = [f"{client} (cluster {run.assignment[client]})" for client in run.clients]
    traces = [
        trace(
            "heatmap",
            z=short(values[column][rounds[column]].to_numpy(), 3),
            x=[str(number) for number in rounds[column]],
            y=names,
            xaxis=axis,
            coloraxis="coloraxis",
            hovertemplate="%{y}, round %{x}: %{z:.1%}<extra>" + mode + "</extra>",
        )
        for (column, mode), axis in zip(MODES.items(), ("x", "x2"), strict=True)
    ]
    share = 0.72 if len(rounds["accuracy"]) > 2 * len(rounds["accuracy_local"]) else 0.5
    figure = make_figure(
        traces,
        max(360, min(200 + 14 * len(names), 900)),
        xaxis={
            "title": {"text": "server's model"},
            "domain": [0, share - 0.02],
            "type": "category",
            "nticks": 12,
        },
        xaxis2={"title": {"text": "own"}, "domain": [share + 0.02, 1], "type": "category", "nticks": 6},
        yaxis={
            "autorange": "reversed",
            "showticklabels": len(names) <= 40,
            "tickfont": {"size": 9},
            "automargin": True,
        },
        coloraxis={"colorscale": "Viridis", "colorbar": {"tickformat": ".0%", "thickness": 10}},
    )
    thinned = len(rounds["accuracy"]) < len(values["accuracy"].columns)
    words = (
        "A row is a client, a column a round, and the brighter, the better; clients of a cluster lie together. On the "
        "left is the server's model, on the right the client's own last one."
    )
    if thinned:
        words += (
            f" To keep the page small, {len(rounds['accuracy'])} of {len(values['accuracy'].columns)} rounds are drawn."
        )
    return figure, words


# What is said


def _outcome(together: Mapping[str, Sequence[Result]]) -> str:
    medians = {
        label: [float(_last_of(runs, column).median()) for column in MODES]
        for label, runs in together.items()
        if any(len(run.last("accuracy")) for run in runs)
    }
    if not medians:
        return "No accuracy has been measured yet."
    served = {label: pair[0] for label, pair in medians.items()}
    own = {label: pair[1] for label, pair in medians.items() if pair[1] == pair[1]}
    best = max(served, key=served.__getitem__)
    if len(medians) == 1:
        words = f"At the last measurement the server's model gives its median client {percent(served[best])}"
        mine = f", the client's own last model {percent(own[best])}" if own else "; own models are not measured yet"
        gap = f" ({100 * (served[best] - own[best]):+.1f} points for the server's)" if own else ""
        return f"{words}{mine}{gap}."
    worst = min(served, key=served.__getitem__)
    words = (
        f"With the server's model {best} serves its median client best ({percent(served[best])}), "
        f"{worst} worst ({percent(served[worst])})."
    )
    if own:
        first = max(own, key=own.__getitem__)
        words += f" With clients' own last models it is {first} that is best ({percent(own[first])})."
    return words


def _extremes(runs: Sequence[Result]) -> str:
    lows = [(value, client, run) for run in runs for client, value in run.last("accuracy").items()]
    if not lows:
        return "No accuracy has been measured yet."
    value, client, run = min(lows, key=lambda low: low[0])
    whose = f" of {run.label}, seed {run.seed}" if len(runs) > 1 else ""
    own = run.last("accuracy_local").get(client)
    words = f"The worst served client is {client}{whose}: {percent(value)} with the server's model"
    return f"{words}, {percent(own)} with its own." if own is not None else f"{words}."


def named(label: str, place: int, column: str, n_labels: int) -> tuple[str, str]:
    """Name and colour of one of a method's two accuracies; of a single method they tell the two apart."""
    own = column == "accuracy_local"
    if n_labels == 1:
        return MODES[column], colour(int(own))
    return (f"{label}, own" if own else label), colour(place)


def _last_of(runs: Sequence[Result], column: str) -> "pd.Series":
    """The last accuracies of all clients of some runs."""
    import pandas as pd

    return pd.concat([run.last(column) for run in runs])


def runs_by_label(runs: Sequence[Result]) -> dict[str, list[Result]]:
    together: dict[str, list[Result]] = {}
    for run in runs:
        together.setdefault(run.label, []).append(run)
    return together


def pooled(tables: "Sequence[pd.DataFrame]") -> "pd.DataFrame":
    """Clients of several seeds, one below the other."""
    import pandas as pd

    return pd.concat(tables).sort_index(axis=1)
