"""The kinds of items: a grid of numbers, curves, maps, trees, lines that a run names itself, counts without runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from fedclade.experiments import trained_by_all
from fedclade.reproduce import drawing
from fedclade.reproduce import finished as read
from fedclade.reproduce.finished import Finished, Reader, Series
from fedclade.reproduce.item import Cells, Experiment, Item, Planned
from fedclade.reproduce.numbers import Numbers
from fedclade.reproduce.page import Draw, Line

Measured = dict[tuple[str, str, int], dict[str, float | None]]  # by row, column and seed: numbers by their measure


@dataclass(frozen=True)
class Measure:
    """A number that is read from every run."""

    name: str
    read: Reader
    digits: int = 2
    factor: float = 1.0
    paper: Numbers = field(default_factory=dict)  # what the paper has in its place

    def of(self, run: Finished) -> float | None:
        value = self.read(run)
        return None if value is None else float(value) * self.factor

    def beside(self, paper: Numbers) -> "Measure":
        return replace(self, paper=paper)


LOCAL_AT_THE_END = "locally trained models at the end"
CLUSTER_MODEL = Measure("cluster model, %", lambda run: run.accuracy["mean"], factor=100)
CLUSTER_MEAN = Measure("cluster model, mean over clusters, %", read.over_clusters, factor=100)
LOCAL_MODEL = Measure("locally trained model, %", read.of_local_models, factor=100)
TRAINED = Measure("clients trained", read.clients_with_local_models, digits=0)  # over whom the mean of LOCAL_MODEL is
CLUSTERS = Measure("clusters", lambda run: len(run.clusters), digits=1)
ARI = Measure("ARI", lambda run: run.agreement["ari"])
UNTIL_FINAL = Measure(  # of who was never divided there are none
    "rounds until clusters are final", lambda run: run.last_change if len(run.clusters) > 1 else None, digits=1
)


@dataclass(frozen=True, kw_only=True)
class Grid(Experiment):
    """A table of numbers: some measures of every cell, each perhaps with the paper's number beside it."""

    measures: tuple[Measure, ...]

    @property
    def has_numbers(self) -> bool:
        return any(measure.paper for measure in self.measures)

    def digits(self, lines: Sequence[Line]) -> dict[str, int]:
        return {measure.name: measure.digits for measure in self.measures}

    def measured(self, cells: Cells) -> Measured:
        """What is read from every run."""
        _compare(cells)
        return {
            (row, column, run.seed): {measure.name: measure.of(run) for measure in self.measures}
            for (row, column), (_, runs) in cells.items()
            for run in runs
        }

    def table(self, planned: Sequence[Planned], measured: Measured) -> list[Line]:
        """A line for every cell of which some seed has been measured."""
        lines = []
        for cell in planned:
            seeds = [
                values for (row, column, _), values in measured.items() if (row, column) == (cell.row, cell.column)
            ]
            if seeds:
                ours = {measure.name: [values.get(measure.name) for values in seeds] for measure in self.measures}
                key = cell.row, cell.column
                theirs = {measure.name: measure.paper[key] for measure in self.measures if key in measure.paper}
                lines.append(Line(self.words(cell.row, cell.shown), ours, theirs, cell.same_data))
        return lines


def _compare(cells: Cells) -> None:
    """Tell the runs of a column and seed which clients all of them have trained."""
    beside: dict[tuple[str, int], list[Finished]] = {}
    for (_, column), (_, runs) in cells.items():
        for run in runs:
            beside.setdefault((column, run.seed), []).append(run)
    for alike in beside.values():
        common = trained_by_all(alike)
        for run in alike:
            run.compared = common


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

    def drawing(self, cells: Cells) -> Draw | None:
        return partial(drawing.curves, self._curves(cells), self.x, self.y)


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

    def drawing(self, cells: Cells) -> Draw | None:
        pictures = [
            (f"{planned.shown} {title}".strip(), matrix)
            for planned, runs in cells.values()
            for title, matrix, _ in self.read(runs[0])
        ]

        return partial(drawing.maps, pictures)


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

    def drawing(self, cells: Cells) -> Draw | None:
        records = {row: runs[0].last_kept("dendrogram") for (row, _), (_, runs) in cells.items()}

        return partial(drawing.trees, records)


@dataclass(frozen=True, kw_only=True)
class Listing(Experiment):
    """Lines that a run itself names (its clusters, its classes): `read` gives words and values of each."""

    read: Callable[[Finished], Mapping[tuple[str, ...], Mapping[str, float]]]
    places: Mapping[str, int]  # the measures that it reads, with their decimal places
    paper: Numbers = field(default_factory=dict)  # by row, words and measure

    @property
    def has_numbers(self) -> bool:
        return bool(self.paper)

    def digits(self, lines: Sequence[Line]) -> dict[str, int]:
        return dict(self.places)

    def lines(self, cells: Cells) -> list[Line]:
        lines = []
        for (row, _), (planned, runs) in cells.items():
            # Clusters of different seeds have nothing in common, so that a mean over them would mean nothing.
            for words, values in self.read(runs[0]).items():
                ours = {name: [value] for name, value in values.items()}
                theirs = {name: self.paper[key] for name in values if (key := (row, *words, name)) in self.paper}
                lines.append(Line((row, *words), ours, theirs, planned.same_data))
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
