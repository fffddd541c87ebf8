"""Accuracies of cluster models and of locally trained models: by round, by client, by cluster.

Of many clients, the mean and the standard deviation are told, in words, tables and figures alike.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedclade.display import counted
from fedclade.experiments import by_label, experiments
from fedclade.report.reading import for_each_experiment
from fedclade.report.sections import (
    ROUND_AXIS,
    Section,
    View,
    cluster_colours,
    colour,
    evenly,
    faint,
    make_figure,
    mean_and_std,
    names_axis,
    percent,
    share_axis,
    short,
    trace,
)
from fedclade.result import MODELS, Result, over_clients

if TYPE_CHECKING:
    import pandas as pd

MOST_CELLS = 250_000  # of clients and rounds in one page
MOST_LINES = 24  # clusters with a line of their own
MOST_DOTS = 200  # clients with a dot of their own
NOT_YET = "No accuracy has been measured yet."


def by_round(runs: Sequence[Result]) -> Section:
    """Every method's mean and standard deviation over its clients."""
    words = (
        "Lines are means over clients of their cluster models, bands reach one standard deviation over clients to "
        "either side. Diamonds are the locally trained models, with bars of one standard deviation, in the "
        "rounds in which those were measured."
    )
    views = [View(_rounds_figure(mine, runs), words, choice) for choice, mine in _choices(runs)]
    return Section("accuracy", "Accuracy by round", for_each_experiment(runs, _outcome), views)


def distribution(runs: Sequence[Result]) -> Section:
    """The last accuracies of all clients, for both models."""
    words = (
        "Shapes are as wide as there are clients of an accuracy, at their last measurement; lines and bars are the "
        "mean and one standard deviation over clients. Where there are few clients, each is a dot."
    )
    views = [View(_distribution_figure(mine, runs), words, choice) for choice, mine in _choices(runs)]
    return Section("distribution", "Accuracy by client", for_each_experiment(runs, _extremes), views)


def inside(run: Result, cells: int = MOST_CELLS) -> Section:
    """One run's accuracies by cluster and by client."""
    views = [
        View(_clusters_figure(run), _clusters_words(run), {"by": "cluster"}),
        View(*_clients_figure(run, cells), {"by": "client"}),
    ]
    return Section("inside", "Accuracy by cluster and by client", _best_and_worst(run), views)


def _choices(runs: Sequence[Result]) -> Iterator[tuple[dict[str, str], list[Result]]]:
    for name, mine in experiments(runs).items():
        yield {"experiment": name} if name else {}, mine


# What is drawn


def _rounds_figure(runs: Sequence[Result], all_runs: Sequence[Result]) -> Any:
    traces: list[Any] = []
    together = by_label(runs)
    for label, mine in together.items():
        for column in MODELS:
            name, tint = named(label, column, all_runs)
            table = pooled([run.measured(column) for run in mine])
            traces += _mean_with_band(table, name, label, tint, column, 0.2 / len(together) ** 0.5)
    return make_figure(traces, 420, xaxis=ROUND_AXIS, yaxis=share_axis())


def _mean_with_band(
    table: "pd.DataFrame", name: str, label: str, tint: str, column: str, share: float
) -> Iterator[Any]:
    """A line for the mean over clients with a band around it, or diamonds with bars for locally trained models."""
    rounds, local = [int(number) for number in table.columns], column == "accuracy_local"
    mean, std = table.mean(), table.std(ddof=0)
    common = {"legendgroup": name, "meta": {"method": label}}
    if not local:
        low, high = short((mean - std).clip(lower=0)), short((mean + std).clip(upper=1))
        yield trace("scatter", 
            x=rounds + rounds[::-1], y=low + high[::-1], fill="toself", fillcolor=faint(tint, share),
            line={"width": 0}, mode="lines", hoverinfo="skip", showlegend=False, **common,
        )  # fmt: skip
    yield trace("scatter", 
        x=rounds, y=short(mean), name=name, customdata=short(std),
        hovertemplate="round %{x}: mean %{y:.1%}, standard deviation %{customdata:.1%}<extra>" + name + "</extra>",
        mode="lines+markers" if local or len(rounds) <= 40 else "lines",
        line={"color": tint, "width": 1 if local else 2.5, "dash": "dot" if local else "solid"},
        marker={"symbol": "diamond" if local else "circle", "size": 9 if local else 5},
        error_y={**_bars(mean, std), "thickness": 1} if local else None,
        **common,
    )  # fmt: skip


def _distribution_figure(runs: Sequence[Result], all_runs: Sequence[Result]) -> Any:
    traces, several = [], len(by_label(runs)) > 1
    for label, mine in by_label(runs).items():
        for column, model in MODELS.items():
            values = _last_of(mine, column)
            row = f"{label}<br>{model}" if several else model
            common = {"meta": {"method": label}, "showlegend": False}
            tint, seen = named(label, column, all_runs)[1], over_clients(values)
            traces.append(trace("violin", 
                x=short(values), y=[row] * len(values), text=list(values.index), orientation="h", name=row,
                points="all" if len(values) <= MOST_DOTS else False, jitter=0.4, pointpos=0, spanmode="hard",
                marker={"size": 4, "opacity": 0.6}, line={"color": tint, "width": 1}, fillcolor=faint(tint),
                hoveron="points", hovertemplate="%{text}: %{x:.1%}<extra>" + model + "</extra>", **common,
            ))  # fmt: skip
            if not len(values):
                continue
            mean, std = np.array([seen["mean"]]), np.array([seen["std"]])
            traces.append(trace("scatter", 
                x=short(mean), y=[row], mode="markers", name=row, error_x={**_bars(mean, std), "thickness": 2},
                marker={"symbol": "line-ns", "size": 18, "color": tint, "line": {"width": 3, "color": tint}},
                hovertemplate=f"{mean_and_std(seen)}<extra>mean ± standard deviation over clients</extra>", **common,
            ))  # fmt: skip
    yaxis = {"automargin": True, "autorange": "reversed", "type": "category"}
    return make_figure(
        traces, 110 + 56 * len(MODELS) * len(by_label(runs)), xaxis=share_axis(), yaxis=yaxis, violingap=0.3
    )


def _bars(mean: Any, std: Any) -> dict[str, Any]:
    """One standard deviation to either side, but not beyond 0 and 1: there are no such accuracies."""
    return {"array": short(np.minimum(std, 1 - mean)), "arrayminus": short(np.minimum(std, mean))}


def _clusters_figure(run: Result) -> Any:
    traces: list[Any] = []
    tints, largest = cluster_colours(run), _largest(run)
    for cluster in largest:
        for column, model in MODELS.items():
            table = run.measured(column)
            mine = table.reindex([client for client in run.clusters[cluster] if client in table.index])
            name = f"cluster {cluster}, {model}"
            shown = mine if len(mine) else mine.iloc[:, :0]
            traces += _mean_with_band(shown, name, run.label, tints[cluster], column, 0.2 / len(largest) ** 0.5)
    return make_figure(traces, 420, xaxis=ROUND_AXIS, yaxis=share_axis())


def _largest(run: Result) -> list[int]:
    largest = sorted(run.clusters, key=lambda cluster: -len(run.clusters[cluster]))[:MOST_LINES]
    return [cluster for cluster in run.clusters if cluster in largest]


def _clients_figure(run: Result, cells: int) -> tuple[Any, str]:
    """Accuracy as a colour, clients (cluster by cluster) from top to bottom, both models side by side."""
    values = {column: run.measured(column).reindex(run.clients) for column in MODELS}
    most = max(2, cells // max(len(run.clients), 1))
    rounds = {column: evenly(list(table.columns), most) for column, table in values.items()}
    traces = [
        trace(
            "heatmap",
            z=short(values[column][rounds[column]].to_numpy(), 3),
            x=[str(number) for number in rounds[column]],
            y=run.clients,
            customdata=[[run.assignment[client]] * len(rounds[column]) for client in run.clients],
            xaxis=axis,
            coloraxis="coloraxis",
            hovertemplate="%{y} (cluster %{customdata}), round %{x}: %{z:.1%}<extra>" + model + "</extra>",
        )
        for (column, model), axis in zip(MODELS.items(), ("x", "x2"), strict=True)
    ]
    share = 0.72 if len(rounds["accuracy"]) > 2 * len(rounds["accuracy_local"]) else 0.5
    figure = make_figure(
        traces,
        max(360, min(200 + 14 * len(run.clients), 900)),
        xaxis={**titled_rounds("accuracy"), "domain": [0, share - 0.02], "nticks": 12},
        xaxis2={**titled_rounds("accuracy_local"), "domain": [share + 0.02, 1], "nticks": 6},
        yaxis=names_axis(autorange="reversed"),
        coloraxis={"colorscale": "Viridis", "colorbar": {"tickformat": ".0%", "thickness": 10}},
    )
    words = (
        "A row is a client, a column a round, and the brighter, the better; clients of a cluster lie together. On the "
        "left are cluster models, on the right locally trained ones."
    )
    drawn, there = len(rounds["accuracy"]), len(values["accuracy"].columns)
    return figure, words + (f" To keep the page small, {drawn} of {there} rounds are drawn." if drawn < there else "")


def titled_rounds(column: str) -> dict[str, Any]:
    return {"title": {"text": f"round, {MODELS[column]}"}, "type": "category"}


# What is said


def _clusters_words(run: Result) -> str:
    words = (
        "Means over those in a cluster at the end: lines with bands for the cluster model, diamonds for locally trained"
    )
    hidden = len(run.clusters) - MOST_LINES
    more = f" The {MOST_LINES} largest clusters are drawn, {hidden} smaller ones are not." if hidden > 0 else ""
    return f"{words} models; bands and bars are one standard deviation.{more}"


def _outcome(runs: Sequence[Result]) -> str:
    seen = {
        label: [over_clients(_last_of(mine, column)) for column in MODELS] for label, mine in by_label(runs).items()
    }
    cluster = {label: pair[0] for label, pair in seen.items() if pair[0]["mean"] is not None}
    local = {label: pair[1] for label, pair in seen.items() if pair[1]["mean"] is not None}
    if not cluster:
        return NOT_YET
    best, worst = _ends(cluster)
    if len(cluster) == 1:
        words = f"Mean and standard deviation over clients: {mean_and_std(cluster[best])} with cluster models"
        if not local:
            return f"{words}; locally trained models are not measured yet."
        gap = 100 * (cluster[best]["mean"] - local[best]["mean"])
        return f"{words}, {mean_and_std(local[best])} with locally trained models ({gap:+.1f} points for the former)."
    words = (
        f"With cluster models {best} is best ({mean_and_std(cluster[best])}, mean and standard deviation over "
        f"clients), {worst} worst ({mean_and_std(cluster[worst])})."
    )
    if local:
        first, _ = _ends(local)
        words += f" With locally trained models it is {first} that is best ({mean_and_std(local[first])})."
    return words


def _ends(seen: Mapping[Any, Mapping[str, Any]]) -> tuple[Any, Any]:
    """Who has the best mean and who has the worst."""
    return tuple(choose(seen, key=lambda name: seen[name]["mean"]) for choose in (max, min))


def _extremes(runs: Sequence[Result]) -> str:
    lows = [(value, client, run) for run in runs for client, value in run.last("accuracy").items()]
    if not lows:
        return NOT_YET
    value, client, run = min(lows, key=lambda low: low[0])
    whose = f" of {run.label}, seed {run.seed}" if len(runs) > 1 else ""
    local = run.last("accuracy_local").get(client)
    words = f"The client with the worst cluster model is {client}{whose}: {percent(value)}"
    return f"{words}, and {percent(local)} with its locally trained model." if local is not None else f"{words}."


def _best_and_worst(run: Result) -> str:
    last = run.last("accuracy")
    seen = {cluster: over_clients(last.reindex(part).dropna()) for cluster, part in run.clusters.items()}
    known = {cluster: summary for cluster, summary in seen.items() if summary["mean"] is not None}
    if not known:
        return NOT_YET
    best, worst = _ends(known)
    if len(known) == 1:
        return f"All clients are in one cluster, whose model has {mean_and_std(known[best])} over clients."
    return (
        f"Of {counted(len(run.clusters), 'cluster')}, the model of cluster {best} is best for its members "
        f"({mean_and_std(known[best])} over them), that of cluster {worst} worst ({mean_and_std(known[worst])})."
    )


def named(label: str, column: str, all_runs: Sequence[Result]) -> tuple[str, str]:
    """Name and colour of one of a method's two accuracies; of a single method they tell the two apart."""
    labels, local = list(by_label(all_runs)), column == "accuracy_local"
    if len(labels) == 1:
        return MODELS[column], colour(int(local))
    return (f"{label}, {MODELS[column]}" if local else label), colour(labels.index(label))


def _last_of(runs: Sequence[Result], column: str) -> "pd.Series":
    """The last accuracies of all clients of some runs."""
    import pandas as pd

    return pd.concat([run.last(column) for run in runs])


def pooled(tables: "Sequence[pd.DataFrame]") -> "pd.DataFrame":
    """Clients of several seeds, one below the other."""
    import pandas as pd

    return pd.concat(tables).sort_index(axis=1)
