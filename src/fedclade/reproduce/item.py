"""A paper is a list of items, its tables and figures.

An item declares what is run (rows and columns of settings) and what is read from finished runs; everything else
(scales, run folders, pages) is the same for all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedclade.reproduce.finished import Finished
from fedclade.reproduce.page import Draw, Line
from fedclade.reproduce.scale import Layer, Scale, combined, merged

if TYPE_CHECKING:
    pass


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

    def drawing(self, cells: Cells) -> Draw | None:
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
