"""The main metric of cluster models and of locally trained models: by round, by client, by cluster.

Of many clients, the mean and the standard deviation are told, in words, tables and figures alike.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedclade.clients.objective import Metric
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
    hover_format,
    make_figure,
    mean_and_std,
    metric_axis,
    names_axis,
    short,
    trace,
    value,
)
from fedclade.result import MODELS, Result

if TYPE_CHECKING:
    import pandas as pd

MOST_CELLS = 250_000  # of clients and rounds in one page
MOST_LINES = 24  # clusters with a line of their own
MOST_DOTS = 200  # clients with a dot of their own
NOT_YET = "Nothing has been measured yet."


def by_round(runs: Sequence[Result]) -> Section:
    """Every method's mean and standard deviation over its clients."""
    words = (
        "Lines are means over clients of their cluster models, bands reach one standard deviation over clients to "
        "either side. Diamonds are the locally trained models, with bars of one standard deviation, in the "
        "rounds in which those were measured."
    )
    views = [View(_rounds_figure(mine, runs), words, choice) for choice, mine in _choices(runs)]
    return Section("accuracy", f"{_title(runs)} by round", for_each_experiment(runs, _outcome), views)


def distribution(runs: Sequence[Result]) -> Section:
    """The last scores of all clients, for both models."""
    words = (
        "Shapes are as wide as there are clients of a value, at their last measurement; lines and bars are the "
        "mean and one standard deviation over clients. Where there are few clients, each is a dot."
    )
    views = [View(_distribution_figure(mine, runs), words, choice) for choice, mine in _choices(runs)]
    return Section("distribution", f"{_title(runs)} by client", for_each_experiment(runs, _extremes), views)


def inside(run: Result, cells: int = MOST_CELLS) -> Section:
    """One run's scores by cluster and by client."""
    views = [
        View(_clusters_figure(run), _clusters_words(run), {"by": "cluster"}),
        View(*_clients_figure(run, cells), {"by": "client"}),
    ]
    return Section("inside", f"{_title([run])} by cluster and by client", _best_and_worst(run), views)


def title_of(runs: Sequence[Result]) -> str:
    """The main metric, where it is the same for all."""
    names = {run.metric.words for run in runs}
    return names.pop() if len(names) == 1 else "main metric"


def _title(runs: Sequence[Result]) -> str:
    return f"{title_of(runs)[0].upper()}{title_of(runs)[1:]}"


def _choices(runs: Sequence[Result]) -> Iterator[tuple[dict[str, str], list[Result]]]:
    for name, mine in experiments(runs).items():
        yield {"experiment": name} if name else {}, mine


# What is drawn


def _rounds_figure(runs: Sequence[Result], all_runs: Sequence[Result]) -> Any:
    traces: list[Any] = []
    together = by_label(runs)
    for label, mine in together.items():
        for column in mine[0].models:
            name, tint = named(label, column, all_runs)
            table = pooled([run.measured(column) for run in mine])
            traces += _mean_with_band(table, name, label, tint, column, 0.2 / len(together) ** 0.5, mine[0].metric)
    return make_figure(traces, 420, xaxis=ROUND_AXIS, yaxis=metric_axis(runs[0].metric))


def _mean_with_band(
    table: "pd.DataFrame", name: str, label: str, tint: str, column: str, share: float, metric: Metric
) -> Iterator[Any]:
    """A line for the mean over clients with a band around it, or diamonds with bars for locally trained models."""
    rounds, local = [int(number) for number in table.columns], is_local(column)
    mean, std = table.mean(), table.std(ddof=0)
    common = {"legendgroup": name, "meta": {"method": label}}
    if not local:
        low, high = mean - std, mean + std
        if metric.is_share:
            low, high = low.clip(lower=0), high.clip(upper=1)
        yield trace("scatter", 
            x=rounds + rounds[::-1], y=short(low) + short(high)[::-1], fill="toself", fillcolor=faint(tint, share),
            line={"width": 0}, mode="lines", hoverinfo="skip", showlegend=False, **common,
        )  # fmt: skip
    yield trace("scatter", 
        x=rounds, y=short(mean), name=name, customdata=short(std),
        hovertemplate="round %{x}: mean %{y:F}, standard deviation %{customdata:F}<extra>".replace(
            "F", hover_format(metric)) + name + "</extra>",
        mode="lines+markers" if local or len(rounds) <= 40 else "lines",
        line={"color": tint, "width": 1 if local else 2.5, "dash": "dot" if local else "solid"},
        marker={"symbol": "diamond" if local else "circle", "size": 9 if local else 5},
        error_y={**_bars(mean, std, metric), "thickness": 1} if local else None,
        **common,
    )  # fmt: skip


def _distribution_figure(runs: Sequence[Result], all_runs: Sequence[Result]) -> Any:
    traces, several, metric = [], len(by_label(runs)) > 1, runs[0].metric
    for label, mine in by_label(runs).items():
        for column, model in mine[0].models.items():
            values = _last_of(mine, column)
            row = f"{label}<br>{model}" if several else model
            common = {"meta": {"method": label}, "showlegend": False}
            tint, seen = named(label, column, all_runs)[1], metric.over_clients(values)
            traces.append(trace("violin", 
                x=short(values), y=[row] * len(values), text=list(values.index), orientation="h", name=row,
                points="all" if len(values) <= MOST_DOTS else False, jitter=0.4, pointpos=0, spanmode="hard",
                marker={"size": 4, "opacity": 0.6}, line={"color": tint, "width": 1}, fillcolor=faint(tint),
                hoveron="points", hovertemplate=f"%{{text}}: %{{x:{hover_format(metric)}}}<extra>{model}</extra>",
                **common,
            ))  # fmt: skip
            if not len(values):
                continue
            mean, std = np.array([seen["mean"]]), np.array([seen["std"]])
            traces.append(trace("scatter", 
                x=short(mean), y=[row], mode="markers", name=row, error_x={**_bars(mean, std, metric), "thickness": 2},
                marker={"symbol": "line-ns", "size": 18, "color": tint, "line": {"width": 3, "color": tint}},
                hovertemplate=f"{mean_and_std(seen, metric)}<extra>mean ± standard deviation over clients</extra>",
                **common,
            ))  # fmt: skip
    yaxis = {"automargin": True, "autorange": "reversed", "type": "category"}
    return make_figure(traces, 110 + 112 * len(by_label(runs)), xaxis=metric_axis(metric), yaxis=yaxis, violingap=0.3)


def _bars(mean: Any, std: Any, metric: Metric) -> dict[str, Any]:
    """One standard deviation to either side, but not beyond 0 and 1 where there are no such values."""
    if not metric.is_share:
        return {"array": short(std), "arrayminus": short(std)}
    return {"array": short(np.minimum(std, 1 - mean)), "arrayminus": short(np.minimum(std, mean))}


def _clusters_figure(run: Result) -> Any:
    traces: list[Any] = []
    tints, largest = cluster_colours(run), _largest(run)
    for cluster in largest:
        for column, model in run.models.items():
            table = run.measured(column)
            mine = table.reindex([client for client in run.clusters[cluster] if client in table.index])
            name = f"cluster {cluster}, {model}"
            shown = mine if len(mine) else mine.iloc[:, :0]
            faintness = 0.2 / len(largest) ** 0.5
            traces += _mean_with_band(shown, name, run.label, tints[cluster], column, faintness, run.metric)
    return make_figure(traces, 420, xaxis=ROUND_AXIS, yaxis=metric_axis(run.metric))


def _largest(run: Result) -> list[int]:
    largest = sorted(run.clusters, key=lambda cluster: -len(run.clusters[cluster]))[:MOST_LINES]
    return [cluster for cluster in run.clusters if cluster in largest]


def _clients_figure(run: Result, cells: int) -> tuple[Any, str]:
    """The score as a colour, clients (cluster by cluster) from top to bottom, both models side by side."""
    values = {column: run.measured(column).reindex(run.clients) for column in run.models}
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
            hovertemplate="%{y} (cluster %{customdata}), round %{x}: %{z:"
            + hover_format(run.metric)
            + "}<extra>"
            + model
            + "</extra>",
        )
        for (column, model), axis in zip(run.models.items(), ("x", "x2"), strict=True)
    ]
    served, local = run.models
    share = 0.72 if len(rounds[served]) > 2 * len(rounds[local]) else 0.5
    scale = {"tickformat": ".0%", "thickness": 10} if run.metric.is_share else {"thickness": 10}
    figure = make_figure(
        traces,
        max(360, min(200 + 14 * len(run.clients), 900)),
        xaxis={**titled_rounds(run, served), "domain": [0, share - 0.02], "nticks": 12},
        xaxis2={**titled_rounds(run, local), "domain": [share + 0.02, 1], "nticks": 6},
        yaxis=names_axis(autorange="reversed"),
        coloraxis={"colorscale": "Viridis", "colorbar": scale, "reversescale": not run.metric.higher},
    )
    words = (
        "A row is a client, a column a round, and the brighter, the better; clients of a cluster lie together. On the "
        "left are cluster models, on the right locally trained ones."
    )
    drawn, there = len(rounds[served]), len(values[served].columns)
    return figure, words + (f" To keep the page small, {drawn} of {there} rounds are drawn." if drawn < there else "")


def titled_rounds(run: Result, column: str) -> dict[str, Any]:
    return {"title": {"text": f"round, {run.models[column]}"}, "type": "category"}


# What is said


def _clusters_words(run: Result) -> str:
    words = (
        "Means over those in a cluster at the end: lines with bands for the cluster model, diamonds for locally trained"
    )
    hidden = len(run.clusters) - MOST_LINES
    more = f" The {MOST_LINES} largest clusters are drawn, {hidden} smaller ones are not." if hidden > 0 else ""
    return f"{words} models; bands and bars are one standard deviation.{more}"


def _outcome(runs: Sequence[Result]) -> str:
    metric = runs[0].metric
    seen = {
        label: [metric.over_clients(_last_of(mine, column)) for column in runs[0].models]
        for label, mine in by_label(runs).items()
    }
    cluster = {label: pair[0] for label, pair in seen.items() if pair[0]["mean"] is not None}
    local = {label: pair[1] for label, pair in seen.items() if pair[1]["mean"] is not None}
    if not cluster:
        return NOT_YET
    best, worst = _ends(cluster, metric)
    if len(cluster) == 1:
        words = f"Mean and standard deviation over clients: {mean_and_std(cluster[best], metric)} with cluster models"
        if not local:
            return f"{words}; locally trained models are not measured yet."
        gap = _gap(cluster[best]["mean"], local[best]["mean"], metric)
        return f"{words}, {mean_and_std(local[best], metric)} with locally trained models ({gap} for the former)."
    words = (
        f"With cluster models {best} is best ({mean_and_std(cluster[best], metric)}, mean and standard deviation over "
        f"clients), {worst} worst ({mean_and_std(cluster[worst], metric)})."
    )
    if local:
        first, _ = _ends(local, metric)
        words += f" With locally trained models it is {first} that is best ({mean_and_std(local[first], metric)})."
    return words


def _gap(one: float, other: float, metric: Metric) -> str:
    return f"{100 * (one - other):+.1f} points" if metric.is_share else f"{one - other:+.3g}"


def _ends(seen: Mapping[Any, Mapping[str, Any]], metric: Metric) -> tuple[Any, Any]:
    """Who has the best mean and who has the worst."""
    return tuple(choose(seen, key=lambda name: seen[name]["mean"]) for choose in (metric.best, metric.worst))


def _extremes(runs: Sequence[Result]) -> str:
    metric, (served, local) = runs[0].metric, runs[0].models
    lows = [(score, client, run) for run in runs for client, score in run.last(served).items()]
    if not lows:
        return NOT_YET
    score, client, run = metric.worst(lows, key=lambda low: low[0])
    whose = f" of {run.label}, seed {run.seed}" if len(runs) > 1 else ""
    own = run.last(local).get(client)
    words = f"The client with the worst cluster model is {client}{whose}: {value(score, metric)}"
    return f"{words}, and {value(own, metric)} with its locally trained model." if own is not None else f"{words}."


def _best_and_worst(run: Result) -> str:
    last, metric = run.last(run.metric.name), run.metric
    seen = {cluster: metric.over_clients(last.reindex(part).dropna()) for cluster, part in run.clusters.items()}
    known = {cluster: summary for cluster, summary in seen.items() if summary["mean"] is not None}
    if not known:
        return NOT_YET
    best, worst = _ends(known, metric)
    if len(known) == 1:
        return f"All clients are in one cluster, whose model has {mean_and_std(known[best], metric)} over clients."
    return (
        f"Of {counted(len(run.clusters), 'cluster')}, the model of cluster {best} is best for its members "
        f"({mean_and_std(known[best], metric)} over them), that of cluster {worst} worst "
        f"({mean_and_std(known[worst], metric)})."
    )


def is_local(column: str) -> bool:
    return column.endswith("_local")


def named(label: str, column: str, all_runs: Sequence[Result]) -> tuple[str, str]:
    """Name and colour of one of a method's two models; of a single method they tell the two apart."""
    labels, local = list(by_label(all_runs)), is_local(column)
    model = MODELS["_local" if local else ""]
    if len(labels) == 1:
        return model, colour(int(local))
    return (f"{label}, {model}" if local else label), colour(labels.index(label))


def _last_of(runs: Sequence[Result], column: str) -> "pd.Series":
    """The last scores of all clients of some runs."""
    import pandas as pd

    return pd.concat([run.last(column) for run in runs])


def pooled(tables: "Sequence[pd.DataFrame]") -> "pd.DataFrame":
    """Clients of several seeds, one below the other."""
    import pandas as pd

    return pd.concat(tables).sort_index(axis=1)
