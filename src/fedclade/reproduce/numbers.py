"""What the papers' tables say, read from the data file beside each paper's items."""

import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, reduce
from importlib.resources import files
from typing import Any

Numbers = Mapping[tuple[str, ...], float]  # by the words of a row, and by the column


def stated(
    paper: str,
    table: str,
    ours: Mapping[str, Sequence[str]] | None = None,
    columns: Mapping[str, Sequence[str]] | None = None,
) -> Numbers:
    """A table of a paper, by its name (`table2`, or `table2.rounds` where it has several kinds of numbers).

    `ours` and `columns` have the names of our rows and columns for those of the paper's beside which several stand.
    """
    values = reduce(lambda part, name: part[name], table.split("."), _file(paper))
    return {
        (name, *words, place): float(number)
        for (first, *words), row in _rows(values["rows"])
        for name in (ours or {}).get(first, (first,))
        for column, number in zip(values["columns"], row, strict=True)
        if not math.isnan(number)
        for place in (columns or {}).get(column, (column,))
    }


@cache
def _file(paper: str) -> dict[str, Any]:
    return tomllib.loads((files("fedclade.reproduce.papers") / f"{paper}.toml").read_text(encoding="utf-8"))


def _rows(table: Mapping[str, Any], *words: str) -> Iterator[tuple[tuple[str, ...], Sequence[float]]]:
    """The rows of tables inside tables: their words, and their numbers."""
    for word, row in table.items():
        if isinstance(row, Mapping):
            yield from _rows(row, *words, word)
        else:
            yield (*words, word), row
