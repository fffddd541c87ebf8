"""Tables, and what their columns hold: numbers or text, alike for all clients."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedclade.data.options import DataOptions
from fedclade.data.preprocessing import Columns
from fedclade.errors import FedcladeError, listed

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["number", "text", "empty"]


@dataclass(frozen=True)
class Table:
    """Columns as Arrow arrays."""

    names: list[str]
    columns: list[Any]
    raw: bool = False  # all is text, from a file that does not tell numbers from text
    remarks: tuple[str, ...] = ()

    @classmethod
    def of_frame(cls, frame: "pd.DataFrame") -> "Table":
        return cls([str(name) for name in frame.columns], [_arrow(frame.iloc[:, k]) for k in range(frame.shape[1])])

    def __len__(self) -> int:
        return len(self.columns[0]) if self.columns else 0

    @cached_property
    def by_name(self) -> dict[str, Any]:
        return dict(zip(self.names, self.columns, strict=True))

    def __getitem__(self, name: str) -> Any:
        return self.by_name[name]

    def without(self, names: Iterable[str]) -> "Table":
        gone = set(names)
        kept = [k for k, name in enumerate(self.names) if name not in gone]
        return replace(self, names=[self.names[k] for k in kept], columns=[self.columns[k] for k in kept])

    def read_as(self, options: DataOptions) -> "Table":
        """As a person says: nothing where a value means that it is missing, and numbers of categories written alike."""
        columns = (
            [_with_gaps(column, self.raw, options.gaps) for column in self.columns] if options.gaps else self.columns
        )
        if self.raw and options.categorical:  # where others are missing, programs write 1 as 1.0
            pairs = zip(self.names, columns, strict=True)
            columns = [_without_points(column) if name in options.categorical else column for name, column in pairs]
        return replace(self, columns=columns)

    def take(self, rows: np.ndarray) -> "Table":
        return replace(self, columns=[column.take(rows) for column in self.columns])


def _arrow(series: "pd.Series[Any]") -> Any:
    import pyarrow as pa

    try:
        return pa.chunked_array([pa.array(series, from_pandas=True)])
    except pa.ArrowException:
        values = [None if value is None or value != value else value for value in series]
    if all(isinstance(value, str | int | float | None) for value in values):  # numbers and text in one column
        return pa.chunked_array([pa.array([None if value is None else str(value) for value in values], pa.string())])
    return pa.chunked_array([pa.nulls(len(values), pa.binary())])  # refused, unless the column is left out


def _with_gaps(column: Any, raw: bool, gaps: Sequence[str]) -> Any:
    import pyarrow as pa
    from pyarrow import compute

    if is_text(column):
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        is_gap = compute.is_in(column.cast(pa.string()), value_set=pa.array(gaps, pa.string()))
        column = compute.if_else(is_gap, pa.scalar(None, column.type), column)
    numbers = numbers_of(column, raw)
    if numbers is None:
        return column
    written = np.array([float(gap) for gap in gaps if is_written_number(gap)])
    return compute.if_else(pa.array(np.isin(numbers, written)), pa.scalar(None, column.type), column)


def _without_points(texts: Any) -> Any:
    from pyarrow import compute

    return compute.replace_substring_regex(texts, r"^([+-]?[0-9]+)\.0*$", r"\1")


def is_written_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


# --- what a column holds ----------------------------------------------------------------------------------------------


def is_number(column: Any, raw: bool) -> bool:
    return numbers_of(column, raw) is not None


def numbers_of(column: Any, raw: bool) -> np.ndarray | None:
    """As float64, NaN where one is missing; None where it is text."""
    import pyarrow as pa
    from pyarrow import compute

    kind = column.type
    if pa.types.is_null(kind):
        return np.full(len(column), np.nan)
    is_numeric = pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind)
    if not (is_numeric or pa.types.is_boolean(kind) or raw):
        return None
    try:
        values = compute.cast(column, pa.float64(), safe=raw)
    except pa.ArrowInvalid:
        values = _truths(column)
    return None if values is None else np.asarray(values.to_numpy(), np.float64)


def _truths(texts: Any) -> Any:
    """`true` and `false`, as programs write them in text files, as 1 and 0; None where there is any other text."""
    import pyarrow as pa
    from pyarrow import compute

    if not set(compute.utf8_lower(compute.unique(texts)).to_pylist()) <= {"true", "false", None}:
        return None
    return compute.cast(compute.cast(texts, pa.bool_()), pa.float64())


def is_text(column: Any) -> bool:
    """Whether it holds text, or categories of whatever kind."""
    import pyarrow as pa

    kind = column.type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind)


def is_exact(column: Any) -> bool:
    """Whether it holds whole numbers or truths, which float64 would round or rename."""
    import pyarrow as pa

    return bool(pa.types.is_integer(column.type) or pa.types.is_boolean(column.type))


def check_readable(column: Any, raw: bool, where: str) -> None:
    if not is_text(column) and not is_number(column, raw):
        raise FedcladeError(
            f"{where} holds neither numbers nor text but {column.type}: write it as one of these, or leave it out "
            "(data.ignore)"
        )


def texts_of(column: Any) -> np.ndarray:
    """As str, None where one is missing; whole numbers without a point."""
    if is_text(column):
        import pyarrow as pa
        from pyarrow import compute

        coded = column if pa.types.is_dictionary(column.type) else compute.dictionary_encode(column)
        coded = coded.unify_dictionaries().combine_chunks()
        found = coded.dictionary.to_pylist()
        words = [_written(word) if isinstance(word, float) else word if word is None else str(word) for word in found]
        return np.array([*words, None], dtype=object)[compute.fill_null(coded.indices, len(words)).to_numpy()]
    if is_exact(column):
        return np.array([None if value is None else str(value) for value in column.to_pylist()], dtype=object)
    numbers = numbers_of(column, raw=False)
    assert numbers is not None
    return np.array([_written(number) for number in numbers.tolist()], dtype=object)


def _written(number: float) -> str | None:
    if np.isnan(number):
        return None
    return str(int(number)) if number.is_integer() else str(number)


# --- columns of all clients -------------------------------------------------------------------------------------------


def kinds_of(table: Table) -> dict[str, Kind]:
    """What each column of a table holds."""
    kinds: dict[str, Kind] = {}
    for name, column in zip(table.names, table.columns, strict=True):
        numbers = numbers_of(column, table.raw)
        kinds[name] = "text" if numbers is None else "empty" if np.isnan(numbers).all() else "number"
    return kinds


def agreed_kinds(tables: Iterable[Mapping[str, Kind]], categorical: Sequence[str] = ()) -> dict[str, Kind]:
    """What each column holds for all clients: text where anybody has text in it."""
    kinds: dict[str, Kind] = {}
    for table in tables:
        for name, kind in table.items():
            kinds[name] = "text" if "text" in (kind, kinds.get(name)) or name in categorical else "number"
    return kinds


def columns_of(table: Table, numbers: Sequence[str], texts: Sequence[str], where: str) -> Columns:
    """The columns of a table in a given order, as what they hold for all clients."""
    block = np.empty((len(table), len(numbers)))
    for place, name in enumerate(numbers):
        found = numbers_of(table[name], table.raw)
        if found is None:
            raise FedcladeError(f"{where}: column {name!r} holds text, but numbers in the run: make them alike")
        block[:, place] = found
    return Columns(block, {name: texts_of(table[name]) for name in texts})


def column_order(own: Sequence[str], wanted: Sequence[str], who: str, whose: str) -> list[int]:
    """Where the wanted columns are among a table's own, or one line on what is missing or too much."""
    if set(own) != set(wanted):
        odd = sorted(set(own) ^ set(wanted))
        hint = header_hint(own) or header_hint(wanted) or ", or leave some out (data.ignore)"
        raise FedcladeError(f"{who}: its columns differ from those of {whose} in {listed(odd)}: make them alike{hint}")
    place = {name: number for number, name in enumerate(own)}
    return [place[name] for name in wanted]


def header_hint(names: Sequence[str]) -> str:
    """Where columns are named like numbers, the file probably begins with a row."""
    try:
        list(map(float, names))
    except ValueError:
        return ""
    return " (names that are numbers may be a row: the first line must name the columns)"
