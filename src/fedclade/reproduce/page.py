"""What a person sees of an item: a table with the paper's numbers beside ours, notes, and perhaps a figure."""

import math
import platform
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedclade.charts import dots, standalone
from fedclade.files import write_atomically
from fedclade.tables import html_table, paragraph, to_html, to_latex, to_markdown

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

Draw = Callable[["Figure"], None]  # into an empty figure

MISSING = "-"


@dataclass(frozen=True)
class Line:
    """A line of a table: what it is about, our values (one for each seed) and the paper's, by measure."""

    words: tuple[str, ...]
    ours: Mapping[str, Sequence[float | None]]
    paper: Mapping[str, float] = field(default_factory=dict)
    comparable: bool = True  # False: other data than the paper's, so a difference would mean nothing

    @property
    def n_seeds(self) -> int:
        return max((len(values) for values in self.ours.values()), default=0)


@dataclass(frozen=True)
class Page:
    """A finished item."""

    name: str  # fedclust/table1
    title: str
    citation: str
    scale: str
    seeds: tuple[int, ...]
    headings: tuple[str, ...]  # of the words of a line
    digits: Mapping[str, int]  # of each measure
    lines: Sequence[Line]
    notes: Sequence[str] = ()
    draw: Draw | None = None
    series: Sequence[Mapping[str, Any]] = ()  # a figure's points, for the CSV file
    runs: Sequence[Mapping[str, Any]] = ()  # of a table: what was read from each run, for a CSV file
    settings: Sequence[Sequence[str]] = ()  # a table of what each run was told
    seconds: float = 0.0  # of CPU, all runs that it shows
    asked: str = ""  # options that the command had besides
    failures: int = 0  # runs that did not end

    def table(self) -> list[list[str]]:
        """The header and the lines, as words; with the number of seeds where lines differ in it."""
        with_paper = [name for name in self.digits if any(name in line.paper for line in self.lines)]
        header = list(self.headings)
        for name in self.digits:
            header += [name, f"paper's {name}", "difference"] if name in with_paper else [name]
        if len(with_paper) == 1:
            header = ["paper" if word.startswith("paper's ") else word for word in header]
        unequal = len({line.n_seeds for line in self.lines}) > 1
        rows = [[*header, *(["seeds"] if unequal else [])]]
        for line in self.lines:
            row = list(line.words)
            for name, digits in self.digits.items():
                row.append(_mean_and_std(line.ours.get(name, ()), digits))
                if name in with_paper:
                    row += [_number(line.paper.get(name), digits), self._difference(line, name, digits)]
            rows.append([*row, *([str(line.n_seeds)] if unequal else [])])
        return rows

    def _difference(self, line: Line, name: str, digits: int) -> str:
        mean = mean_of(line.ours.get(name, ()))
        if mean is None or name not in line.paper or not line.comparable:
            return MISSING
        return f"{mean - line.paper[name]:+,.{digits}f}"

    @property
    def how(self) -> str:
        """Where the numbers come from."""
        seeds = f"seed{'s' if len(self.seeds) > 1 else ''} {', '.join(map(str, self.seeds))}" if self.seeds else ""
        words = [
            f"`fedclade reproduce {self.name} --scale {self.scale}{self.asked}`",
            f"on a {machine()} machine",
            seeds,
            _time(self.seconds),
        ]
        return f"Made by {', '.join(word for word in words if word)}."

    def markdown(self, figure: str = "") -> str:
        """With the figure of that name beside it."""
        parts = [
            f"# {self.title}",
            f"{self.citation} {self.how}",
            to_markdown(self.table()),
            f"![{self._told()}]({figure})" if figure else "",
            "\n".join(f"- {note}" for note in self.notes),
            f"## Settings\n\n{to_markdown(self.settings)}" if self.settings else "",
        ]
        return "\n\n".join(part for part in parts if part) + "\n"

    def csv(self) -> str:
        """A row for each number, or for each point of a figure's lines."""
        import pandas as pd

        records = list(self.series)
        for line in [] if records else self.lines:
            for name in self.digits:
                record: dict[str, Any] = dict(zip(self.headings, line.words, strict=True))
                record |= {"measure": name, "ours": mean_of(line.ours.get(name, ()))}
                records.append(record | {"paper": line.paper.get(name), "same data": line.comparable})
        return pd.DataFrame(records).to_csv(index=False)

    def terminal(self) -> "Table":
        from fedclade.display import make_table

        header, *rows = self.table()
        table = make_table(*header, right=header[len(self.headings) :])
        for row in rows:
            table.add_row(*row)
        return table

    def write(self, folder: Path) -> list[str]:
        """Put everything into a folder; returns the names of the files."""
        figure = self.figure()
        texts = {
            "table.md": self.markdown("figure.svg" if figure else ""),
            "table.csv": self.csv(),
            "table.tex": to_latex(self.table()) + "\n",
            "page.html": self.html(figure if self.draw else ""),
        }
        if figure:
            texts["figure.svg"] = figure
        if self.runs:
            texts["runs.csv"] = self._csv_of_runs()
        for name, text in texts.items():
            _write(folder / name, text)
        return list(texts)

    def publish(self, path: Path) -> None:
        """The Markdown page at a place of its own; its figure and the CSV table of its runs lie beside it."""
        figure, drawn = self.figure(), path.with_suffix(".svg")
        if figure:
            _write(drawn, figure)
        _write(path, self.markdown(drawn.name if figure else ""))
        _write(path.with_suffix(".csv"), self._csv_of_runs() if self.runs else self.csv())

    def _csv_of_runs(self) -> str:
        import pandas as pd

        return pd.DataFrame(self.runs).to_csv(index=False)

    def html(self, figure: str = "") -> str:
        """A page to look at: the paper's numbers beside ours as a figure too, and ours of the paper's figure."""
        shown = []
        if figure:
            packed = b64encode(figure.encode()).decode()
            shown.append(
                f'<figure><img src="data:image/svg+xml;base64,{packed}" alt="{escape(self._told())}"></figure>'
            )
        table = html_table(self.table(), self.title)
        head = paragraph(f"{self.citation} {self.how}")
        settings = [html_table(self.settings, "Settings")] if self.settings else []
        return to_html(self.title, head, *shown, *self._dots(), table, *map(paragraph, self.notes), *settings)

    def _told(self) -> str:
        return f"{self.title}, as made by us. The table has the numbers."

    def _dots(self) -> list[str]:
        """Our seeds as dots, the paper's number as a diamond: a figure for each of the paper's measures and column.

        Where its figure is a picture without numbers, ours has the first measure of which there are any.
        """
        columns: dict[str, list[Line]] = {}
        for line in self.lines:
            columns.setdefault(", ".join(word for word in line.words[1:] if word), []).append(line)
        shown = [name for name in self.digits if any(name in line.paper for line in self.lines)]
        if not shown and self.name.rpartition("/")[2].startswith("fig"):
            shown = [name for name in self.digits if any(_finite(line.ours.get(name, ())) for line in self.lines)][:1]
        figures = []
        for name in shown:
            for column, lines in columns.items():
                named = {line.words[0]: line for line in lines}
                ours = {row: _finite(line.ours.get(name, ())) for row, line in named.items()}
                if any(ours.values()):
                    paper = {row: float(line.paper[name]) for row, line in named.items() if name in line.paper}
                    title = f"{column}: our seeds (dots, their mean a bar)".removeprefix(": ")
                    title += " and the paper's number (diamonds)" if paper else ""
                    title += "" if all(line.comparable for line in named.values()) else ", which are of other data"
                    figures.append(dots(ours, title, name, paper))
        return figures

    def figure(self) -> str:
        """The text of an SVG file: the paper's figure as made by us, or our numbers beside the paper's."""
        if self.draw is None:
            figures = self._dots()
            return standalone(figures) if figures else ""
        try:
            from matplotlib.figure import Figure
        except ImportError:
            return ""
        figure, text = Figure(layout="constrained"), StringIO()
        self.draw(figure)
        figure.suptitle(self.title, fontsize="medium", wrap=True)
        figure.savefig(text, format="svg", metadata={"Date": None})
        return text.getvalue()


def _write(path: Path, text: str) -> None:
    write_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))


def _time(seconds: float) -> str:
    return "" if seconds < 1 else f"{seconds:.0f} CPU seconds" if seconds < 120 else f"{seconds / 60:.0f} CPU minutes"


def machine() -> str:
    """The kind of machine, without its name."""
    from fedclade.settings import cores

    return f"{cores()}-core {platform.machine()}"


def can_draw() -> bool:
    from importlib.util import find_spec

    return find_spec("matplotlib") is not None


def mean_of(values: Sequence[float | None]) -> float | None:
    """The mean over seeds; None where some seed has no value, for a mean over the others would flatter."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return float(np.mean(known)) if known and len(known) == len(values) else None


def _finite(values: Sequence[float | None]) -> list[float]:
    return [float(value) for value in values if value is not None and math.isfinite(value)]


def _mean_and_std(values: Sequence[float | None], digits: int) -> str:
    mean = mean_of(values)
    if mean is None:
        return MISSING
    more = f" ± {np.std([value for value in values if value is not None]):.{digits}f}" if len(values) > 1 else ""
    return _number(mean, digits) + more


def _number(value: float | None, digits: int) -> str:
    return MISSING if value is None else f"{value:,.{digits}f}"
