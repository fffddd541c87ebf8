"""What a page is made of: sections with words for every picture, in a form that the page and the summary share."""

import colorsys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedclade.clients.objective import Metric
from fedclade.errors import FedcladeError
from fedclade.result import Result

Figure = dict[str, Any]  # as Plotly's JSON has it

# Seen well on white and on black; clusters and methods take them in turn.
FIRST_COLOURS = (
    "#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#d4a72c", "#9d755d", "#ff7f9f", "#3969c6",
)  # fmt: skip
NO_CLUSTER = "#8c8c8c"
AMOUNT = [[0, "rgba(76,120,168,0)"], [1, "rgb(76,120,168)"]]  # nothing is the colour of the page, light or dark


def titled(name: str) -> dict[str, Any]:
    """An axis with a title."""
    return {"title": {"text": name}}


def metric_axis(metric: Metric, words: str = "") -> dict[str, Any]:
    """An axis of a metric, `words` before its name."""
    axis = {**titled(f"{words} {metric.words}".strip()), "automargin": True}
    if not metric.is_share:
        return axis
    # Around a line that never moves plotly shows as much again above and below: beyond 100 %, too.
    return {**axis, "tickformat": ".1~%", "minallowed": -0.02, "maxallowed": 1.02}


def hover_format(metric: Metric) -> str:
    """How Plotly writes a value."""
    return ".1%" if metric.is_share else ".4g"


def names_axis(**more: Any) -> dict[str, Any]:
    """An axis with a name for each row or column; where there is no room for all, Plotly leaves some out."""
    return {"type": "category", "automargin": True, "tickfont": {"size": 10}, **more}


ROUND_AXIS = titled("round")


@dataclass(frozen=True)
class View:
    """One figure of a section, what is seen in it, and the choices that lead to it."""

    figure: Figure
    words: str = ""
    choice: Mapping[str, str] = field(default_factory=dict)  # {"round": "5", "layer": "fc"}


@dataclass(frozen=True)
class Section:
    id: str
    title: str
    words: str
    views: Sequence[View] = ()
    table: Sequence[Sequence[str]] = ()  # the header first
    tree: Mapping[str, Any] | None = None  # what the page needs to move a cut
    folded: bool = False  # the table is long: shown when asked for


def make_figure(traces: Iterable[Figure], height: int = 380, **layout: Any) -> Figure:
    """A figure without colours of its own for paper and ink: the page gives it those of its theme, and a legend."""
    return {"data": list(traces), "layout": {"height": height, "hovermode": "closest", "showlegend": False, **layout}}


def trace(kind: str, **values: Any) -> Figure:
    """A trace of a figure. It is a plain dict: Plotly's own classes check every number, which takes a minute for some
    pages. The tests let them check."""
    return {"type": kind, **{name: value for name, value in values.items() if value is not None}}


def need_plotly() -> None:
    try:
        import plotly  # noqa: F401
    except ImportError:
        raise FedcladeError("a report needs plotly: install it with `pip install 'fedclade[report]'`") from None


def colour(number: int) -> str:
    """No two numbers have the same one: after the first few, hues go round by the golden angle and shades vary."""
    if number < len(FIRST_COLOURS):
        return FIRST_COLOURS[number]
    rgb = colorsys.hls_to_rgb(number * 0.618034 % 1, (0.5, 0.62, 0.4)[number % 3], 0.4 + 0.35 * (number * 0.754878 % 1))
    return "#" + "".join(f"{round(255 * part):02x}" for part in rgb)


def cluster_colours(run: Result) -> dict[int, str]:
    """A colour for each cluster, whatever its number."""
    return {cluster: colour(place) for place, cluster in enumerate(run.clusters)}


def faint(colour: str, share: float = 0.18) -> str:
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},{share})"


def short(values: Any, digits: int = 4) -> list[Any]:
    """Numbers as lists with few digits, which keeps the page small; None where there is no number."""
    array = np.asarray(values, float)
    if array.ndim > 1:
        return [short(row, digits) for row in array]
    return [round(value, digits) if np.isfinite(value) else None for value in array.tolist()]


def percent(share: float | None) -> str:
    """`97.3 %`, or `-` where nothing was measured."""
    return "-" if share is None or share != share else f"{100 * share:.1f}\N{NO-BREAK SPACE}%"


def value(amount: float | None, metric: Metric) -> str:
    """`97.3 %`, or `2.31` where a metric is no share; `-` where nothing was measured."""
    return percent(amount) if metric.is_share else metric.written(amount)


def mean_and_std(seen: Mapping[str, Any], metric: Metric) -> str:
    """`97.3 ± 1.2 %`: what is said of many clients' scores, wherever it is said."""
    if seen["mean"] is None:
        return "-"
    if not metric.is_share:
        mean, std = (metric.written(seen[what]) for what in ("mean", "std"))
        return f"{mean}\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{std}"
    return f"{100 * seen['mean']:.1f}\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{percent(seen['std'])}"


def evenly(items: Sequence[Any], most: int) -> list[Any]:
    """At most so many items at even distances, with the first and the last among them."""
    if len(items) <= most:
        return list(items)
    places = np.unique(np.linspace(0, len(items) - 1, max(most, 1)).round().astype(int))
    return [items[place] for place in places]
