"""The kinds of items: a grid of numbers, curves, maps, a tree, cells that a run lists itself, and counts without runs.

A paper is a list of items. An item declares what is run (rows and columns of settings) and what is read from finished
runs; everything else (scales, run folders, pages) is the same for all.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fedclade.reproduce import finished as read
from fedclade.reproduce.finished import Finished, Reader, Series
from fedclade.reproduce.page import Line, mean_of
from fedclade.reproduce.scale import Layer, Scale, combined, merged

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Numbers = Mapping[tuple[str, str], float]  # by row and column


@dataclass(frozen=True)
class Measure:
    """A number that is read from every run."""

    name: str
    read: Reader
    digits: int = 2
    factor: float = 1.0
    paper: Numbers = field(default_factory=dict)  # what the paper has in its place

    def of(self, runs: Sequence[Finished]) -> list[float | None]:
        values = [self.read(run) for run in runs]
        return [None if value is None else float(value) * self.factor for value in values]

    def beside(self, paper: Numbers) -> "Measure":
        return Measure(self.name, self.read, self.digits, self.factor, paper)


LOCAL_AT_THE_END = "locally trained models at the end"
CLUSTER_MODEL = Measure("cluster model, %", lambda run: run.accuracy["mean"], factor=100)
LOCAL_MODEL = Measure("locally trained model, %", lambda run: run.accuracy_local["mean"], factor=100)
CLUSTERS = Measure("clusters", lambda run: len(run.clusters), digits=1)
ARI = Measure("ARI", lambda run: run.agreement["ari"])
LAST_CHANGE = Measure("rounds until clusters are final", lambda run: run.last_change, digits=1)


def numbers(columns: Sequence[str], rows: Mapping[str, str]) -> Numbers:
    """A paper's table as plain text: a line of numbers for each row, `-` and `?` where there is none."""
    table = {}
    for row, text in rows.items():
        for column, word in zip(columns, text.split(), strict=True):
            if word not in ("-", "?"):
                table[row, column] = float(word)
    return table


@dataclass(frozen=True)
class Planned:
    """One cell of an item: the settings of its runs but for the seed, and those that the paper has there."""

    row: str
    column: str
    settings: dict[str, Any]
    papers: dict[str, Any]

    @property
    def same_data(self) -> bool:
        return self.settings["data"] == self.papers["data"]

    @property
    def shown(self) -> str:
        """The column, with the data that stand in for its own."""
        on = "" if self.same_data else f"({self.settings['data']} in its place)"
        return f"{self.column} {on}".strip() if self.column else ""


Cells = Mapping[tuple[str, str], tuple[Planned, Sequence[Finished]]]  # what was planned, and a run for each seed


@dataclass(frozen=True, kw_only=True)
class Item:
    """A table or a figure of a paper. By itself it is one that cannot be made."""

    name: str
    title: str
    says: str = ""  # what the paper's text says of it, where that is all there is to compare with
    notes: tuple[str, ...] = ()
    why_not: str = ""
    but: str = ""  # what of it cannot be compared

    headings: tuple[str, ...] = ()

    @property
    def has_numbers(self) -> bool:
        """Whether the paper's text has numbers to compare with."""
        return False

    @property
    def kind(self) -> str:
        return "table" if self.name.startswith("table") else "figure"

    def planned(self, paper: Layer, scale: Scale, name: str) -> tuple[list[Planned], list[str]]:
        """The cells to run at a scale, and the columns that are left out."""
        return [], []

    def digits(self, lines: Sequence[Line]) -> dict[str, int]:
        """The measures of its lines, with their decimal places."""
        raise NotImplementedError

    def lines(self, cells: Cells) -> list[Line]:
        raise NotImplementedError

    def drawing(self, cells: Cells) -> "Callable[[Figure], None] | None":
        return None

    def series(self, cells: Cells) -> list[dict[str, Any]]:
        return []


@dataclass(frozen=True, kw_only=True)
class Experiment(Item):
    """An item that is made of runs: one for each row, column and seed."""

    rows: Mapping[str, Layer]
    columns: Mapping[str, Layer] = field(default_factory=lambda: {"": {}})
    settings: Layer = field(default_factory=dict)
    scales: Mapping[str, Layer] = field(default_factory=dict)  # further cuts of this item, by scale
    varied: tuple[str, ...] = ()  # settings that its rows vary: no scale cuts them
    headings: tuple[str, ...] = ("method", "data")

    def planned(self, paper: Layer, scale: Scale, name: str) -> tuple[list[Planned], list[str]]:
        base = [paper, self.settings]
        held = {label: merged(*base, column)["data"] for label, column in self.columns.items()}
        fitting = [label for label in self.columns if scale.fits is None or held[label] in scale.fits]
        replaced: Layer = {} if fitting else scale.instead
        kept = (fitting or list(self.columns))[: scale.most_columns]
        cells: list[Planned] = []
        for label in kept:
            column = self.columns[label]
            for row, layer in self.rows.items():
                theirs = combined([*base, column, layer])
                cut = {key: value for key, value in scale.settings.items() if key not in self.varied}
                cuts = [cut, self.scales.get(name, {})]
                ours = combined([*base, merged(column, replaced), layer, *cuts])
                if (row, ours) not in [(known.row, known.settings) for known in cells]:
                    cells.append(Planned(row, label, ours, theirs))
        there = {cell.column for cell in cells}
        return cells, [label for label in self.columns if label not in there]

    def words(self, row: str, column: str) -> tuple[str, ...]:
        return (row, column)[: len(self.headings)]


@dataclass(frozen=True, kw_only=True)
class Grid(Experiment):
    """A table of numbers: some measures of every cell, each perhaps with the paper's number beside it."""

    measures: tuple[Measure, ...]

    @property
    def has_numbers(self) -> bool:
        return any(measure.paper for measure in self.measures)

    def digits(self, lines: Sequence[Line]) -> dict[str, int]:
        return {measure.name: measure.digits for measure in self.measures}

    def lines(self, cells: Cells) -> list[Line]:
        return [
            Line(
                self.words(row, planned.shown),
                {measure.name: measure.of(runs) for measure in self.measures},
                {m.name: m.paper[row, column] for m in self.measures if (row, column) in m.paper},
                planned.same_data,
            )
            for (row, column), (planned, runs) in cells.items()
        ]

    def drawing(self, cells: Cells) -> "Callable[[Figure], None] | None":
        """A figure that shows one number for each cell: bars."""
        if self.kind == "table":
            return None
        measure = self.measures[0]
        bars = {", ".join(word for word in key if word): mean_of(measure.of(runs)) for key, (_, runs) in cells.items()}

        def draw(figure: "Figure") -> None:
            figure.set_size_inches(7, 1.5 + 0.3 * len(bars))
            axes = figure.add_subplot()
            axes.barh(list(bars), [value or 0.0 for value in bars.values()])
            axes.invert_yaxis()
            axes.set_xlabel(measure.name)

        return draw


@dataclass(frozen=True, kw_only=True)
class Curves(Experiment):
    """Lines over rounds (or whatever x is), one panel for each column; the table shows them at four places."""

    read: Callable[[Finished], Series] = read.accuracy_by_round
    x: str = "round"
    y: str = "accuracy of cluster models"
    at: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0)  # where on the x axis the table looks
    headings: tuple[str, ...] = ("line", "panel")

    def digits(self, lines: Sequence[Line]) -> dict[str, int]:
        return {name: 0 if name == f"last {self.x}" else 3 for line in lines for name in line.ours}

    def _curves(self, cells: Cells) -> dict[tuple[str, str], tuple[np.ndarray, np.ndarray]]:
        """Mean over seeds of every line, by its name and panel. Seeds that end early shorten it."""
        curves = {}
        for (row, _), (planned, runs) in cells.items():
            many = [self.read(run) for run in runs]
            for name in many[0] if many else ():
                alike = [series[name] for series in many if name in series]
                length = min(len(x) for x, _ in alike)
                label = " ".join(word for word in (row, name) if word)
                y = np.mean([values[:length] for _, values in alike], axis=0)
                curves[label, planned.shown] = np.array(alike[0][0][:length]), y
        return curves

    def lines(self, cells: Cells) -> list[Line]:
        lines = []
        ends: dict[tuple[str, str], list[float | None]] = {}  # accuracies come in two kinds, of which one has a curve
        if self.read is read.accuracy_by_round:
            ends = {
                (row, planned.shown): [run.accuracy_local["mean"] for run in runs]
                for (row, _), (planned, runs) in cells.items()
            }
        for (label, column), (x, y) in self._curves(cells).items():
            if not len(x):
                continue
            places = [int(np.searchsorted(x, x[0] + share * (x[-1] - x[0]))) for share in self.at]
            shown = [f"at {share:.0%} of {self.x}s" if share < 1 else f"at the last {self.x}" for share in self.at]
            values = {name: [float(y[place])] for name, place in zip(shown, places, strict=True)}
            values = {**values, f"last {self.x}": [float(x[-1])]}
            local = {LOCAL_AT_THE_END: ends[label, column]} if ends else {}
            lines.append(Line(self.words(label, column), {**values, **local}))
        return lines

    def series(self, cells: Cells) -> list[dict[str, Any]]:
        return [
            {"line": label, "panel": column, self.x: float(a), self.y: float(b)}
            for (label, column), (x, y) in self._curves(cells).items()
            for a, b in zip(x, y, strict=True)
        ]

    def drawing(self, cells: Cells) -> "Callable[[Figure], None] | None":
        curves = self._curves(cells)
        panels = list(dict.fromkeys(column for _, column in curves))
        labels = list(dict.fromkeys(label for label, _ in curves))

        def draw(figure: "Figure") -> None:
            from matplotlib import colormaps

            shade = colormaps["tab10" if len(labels) <= 10 else "tab20"]
            colours = {label: shade(place % shade.N) for place, label in enumerate(labels)}
            figure.set_size_inches(max(5, 4.5 * len(panels)) + 2, 3.8 + 0.1 * max(0, len(labels) - 16))
            handles = {}
            for place, panel in enumerate(panels, start=1):
                axes = figure.add_subplot(1, len(panels), place)
                for (label, column), (x, y) in curves.items():
                    if column == panel:
                        marker = "." if len(x) < 30 else None
                        (handles[label],) = axes.plot(x, y, label=label, marker=marker, color=colours[label])
                axes.set(xlabel=self.x, ylabel=self.y, title=panel)
            if any(labels):
                figure.legend(handles=list(handles.values()), loc="outside right center", fontsize="x-small")

        return draw


Picture = tuple[str, np.ndarray, list[str]]  # a title, a matrix, and the clients in its rows and columns


@dataclass(frozen=True, kw_only=True)
class Maps(Experiment):
    """Matrices of how alike clients are; the table says how far they tell the hidden groups apart."""

    read: Callable[[Finished], list[Picture]]
    headings: tuple[str, ...] = ("data", "map")

    def digits(self, lines: Sequence[Line]) -> dict[str, int]:
        return {name: 3 for line in lines for name in line.ours}

    def lines(self, cells: Cells) -> list[Line]:
        lines = []
        for (row, _), (planned, runs) in cells.items():
            for number, (title, _, _) in enumerate(self.read(runs[0])):
                seen = [contrast(run, self.read(run)[number]) for run in runs]
                values = {name: [each[name] for each in seen] for name in seen[0]}
                lines.append(Line((", ".join(word for word in (planned.shown, row) if word), title), values))
        return lines

    def drawing(self, cells: Cells) -> "Callable[[Figure], None] | None":
        pictures = [
            (f"{planned.shown} {title}".strip(), matrix)
            for planned, runs in cells.values()
            for title, matrix, _ in self.read(runs[0])
        ]

        def draw(figure: "Figure") -> None:
            across = min(len(pictures), 4)
            down = -(-len(pictures) // across)
            figure.set_size_inches(3.2 * across, 3.0 * down + 0.4)
            for place, (title, matrix) in enumerate(pictures, start=1):
                axes = figure.add_subplot(down, across, place)
                figure.colorbar(axes.imshow(matrix, cmap="viridis"))
                axes.set_title(title, fontsize="x-small", wrap=True)

        return draw


def contrast(run: Finished, picture: Picture) -> dict[str, float | None]:
    """The mean of a matrix inside and between hidden groups, off the diagonal; of all where groups are not known."""
    _, matrix, clients = picture
    others = ~np.eye(len(matrix), dtype=bool)
    values: dict[str, float | None] = {
        "smallest": float(matrix[others].min(initial=np.inf)),
        "largest": float(matrix[others].max(initial=-np.inf)),
    }
    if run.groups is not None:
        group = np.array([run.groups[client] for client in clients])
        same = group[:, None] == group
        values["mean inside groups"] = float(matrix[same & others].mean()) if (same & others).any() else None
        values["mean between groups"] = float(matrix[~same].mean()) if (~same).any() else None
    return values


@dataclass(frozen=True, kw_only=True)
class Trees(Experiment):
    """The tree of merges that a clustering made; the table has the height below which there are K clusters."""

    headings: tuple[str, ...] = ("method", "K")

    def digits(self, lines: Sequence[Line]) -> dict[str, int]:
        return {"height of the cut": 4}

    def lines(self, cells: Cells) -> list[Line]:
        lines = []
        for (row, _), (_, runs) in cells.items():
            heights = [np.asarray(run.last_kept("dendrogram")["merges"])[::-1, 2] for run in runs]
            for k in range(2, min(len(heights[0]), 10) + 1):
                lines.append(Line((row, str(k)), {"height of the cut": [float(each[k - 2]) for each in heights]}))
        return lines

    def drawing(self, cells: Cells) -> "Callable[[Figure], None] | None":
        records = {row: runs[0].last_kept("dendrogram") for (row, _), (_, runs) in cells.items()}

        def draw(figure: "Figure") -> None:
            from scipy.cluster.hierarchy import dendrogram

            figure.set_size_inches(7, 3.5 * len(records))
            for place, (row, record) in enumerate(records.items(), start=1):
                axes = figure.add_subplot(len(records), 1, place)
                dendrogram(np.asarray(record["merges"], float), labels=list(record["clients"]), ax=axes)
                axes.tick_params("x", rotation=90)
                axes.set(title=row, ylabel="height")

        return draw


@dataclass(frozen=True, kw_only=True)
class Listing(Experiment):
    """Lines that a run itself names (its clusters, its classes): `read` gives words and values of each."""

    read: Callable[[Finished], Mapping[tuple[str, ...], Mapping[str, float]]]
    places: Mapping[str, int]  # the measures that it reads, with their decimal places
    paper: Mapping[tuple[str, ...], Mapping[str, float]] = field(default_factory=dict)  # by row and words

    @property
    def has_numbers(self) -> bool:
        return bool(self.paper)

    def digits(self, lines: Sequence[Line]) -> dict[str, int]:
        return dict(self.places)

    def lines(self, cells: Cells) -> list[Line]:
        lines = []
        for (row, _), (planned, runs) in cells.items():
            # Clusters of unlike seeds have nothing in common, so that a mean over them would mean nothing.
            for words, values in self.read(runs[0]).items():
                ours = {name: [value] for name, value in values.items()}
                lines.append(Line((row, *words), ours, self.paper.get((row, *words), {}), planned.same_data))
        return lines


@dataclass(frozen=True, kw_only=True)
class Counts(Item):
    """What needs no run: sizes, counts, times."""

    count: Callable[[str, str | None], list[Line]]  # from the scale and the data folder
    places: Mapping[str, int]

    @property
    def has_numbers(self) -> bool:
        return self.kind == "table"

    def digits(self, lines: Sequence[Line]) -> dict[str, int]:
        return dict(self.places)


@dataclass(frozen=True)
class Paper:
    """A paper: where it appeared, what it does by default, how it is cut, and its items."""

    name: str
    title: str
    citation: str
    settings: Layer
    scales: Mapping[str, Scale]
    items: tuple[Item, ...]
    notes: tuple[str, ...] = ()
