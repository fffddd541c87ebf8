"""What the main metric costs in bytes."""

from collections.abc import Sequence
from typing import Any

from fedclade.display import size_in_words
from fedclade.experiments import experiments
from fedclade.report.accuracy import is_local, named, title_of
from fedclade.report.reading import for_each_experiment
from fedclade.report.sections import (
    Section,
    View,
    hover_format,
    make_figure,
    mean_and_std,
    metric_axis,
    short,
    titled,
    trace,
)
from fedclade.result import DIRECTIONS, Result


def traffic(runs: Sequence[Result]) -> Section:
    """The mean over clients against what was sent for it."""
    words = (
        "Every dot is a round in which clients were measured; diamonds are locally trained models. What is sent only "
        "to measure is not counted."
    )
    views = [
        View(_figure(mine, runs), words, {"experiment": name} if name else {})
        for name, mine in experiments(runs).items()
    ]
    table = _by_phase(runs[0]) if len(runs) == 1 else []
    return Section("traffic", f"Bytes against {title_of(runs)}", for_each_experiment(runs, _words), views, table)


def _figure(runs: Sequence[Result], all_runs: Sequence[Result]) -> Any:
    told: set[str] = set()  # a method is named once, however many seeds it has
    traces = []
    for run in runs:
        for column, model in run.models.items():
            name, tint = named(run.label, column, all_runs)
            form = hover_format(run.metric)
            local, means = is_local(column), run.by_round(column)["mean"]
            sent = run.traffic.sum(axis=1).loc[means.index] / 1e6
            who = f"{run.label}, seed {run.seed}: {model}" if len(runs) > 1 else model
            traces.append(trace("scatter", 
                x=short(sent), y=short(means), customdata=[int(number) for number in means.index], name=name,
                mode="markers" if local else "lines+markers", line={"color": tint},
                marker={"symbol": "diamond" if local else "circle", "size": 9 if local else 4, "color": tint},
                hovertemplate=f"round %{{customdata}}: %{{y:{form}}} after %{{x:.4~g}} MB<extra>{who}</extra>",
                meta={"method": run.label}, legendgroup=name, showlegend=name not in told,
            ))  # fmt: skip
            told.add(name)
    xaxis = {**titled("MB sent so far, up and down, all clients"), "rangemode": "tozero"}
    return make_figure(traces, 400, xaxis=xaxis, yaxis=metric_axis(runs[0].metric, "mean"))


def _words(runs: Sequence[Result]) -> str:
    def cost(run: Result) -> int:
        return sum(run.bytes.values())

    def told(run: Result) -> str:
        return f"{run.label} ({size_in_words(cost(run))}, cluster models {mean_and_std(run.score, run.metric)})"

    if len(runs) > 1:
        return f"The least was sent by {told(min(runs, key=cost))}, the most by {told(max(runs, key=cost))}."
    (run,) = runs
    up, down = map(size_in_words, run.bytes.values())
    reached = "" if run.score["mean"] is None else f", for cluster models with {mean_and_std(run.score, run.metric)}"
    return f"{up} went up to the server and {down} down to clients{reached}."


def _by_phase(run: Result) -> list[list[str]]:
    """What was sent for what."""
    sums = run.sent.sum()
    phases = dict.fromkeys(str(phase) for _, phase in sums.index)
    rows = [[phase, *(size_in_words(sums.get((way, phase), 0)) for way in DIRECTIONS)] for phase in phases]
    return [["phase", *DIRECTIONS], *rows] if rows else []
