"""Files with tables -> Arrow tables: .csv and .tsv (also .gz), .parquet, .feather and .xlsx.

Text files do not tell numbers from text: their columns stay text here, and `tables` finds out. Separators are found in
the first lines; where it is not the comma, numbers may have decimal commas.
"""

import codecs
import csv
import gzip
import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedclade.data.own.limits import Budget
from fedclade.data.own.tables import Table, is_number
from fedclade.errors import FedcladeError

SEPARATORS = ",;\t|"
LOOKED_AT = 1 << 21  # bytes
CELL = 60  # bytes of a value as a Python object
GAPS = (
    *("", "?", "NA", "N/A", "n/a", "#N/A", "#N/A N/A", "#NA", "<NA>", "NULL", "null", "None"),
    *("NaN", "nan", "-NaN", "-nan", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"),
)


def read_text_table(path: Path, budget: Budget) -> Table:
    """A table of lines, packed by gzip or not."""
    import pyarrow as pa
    from pyarrow import compute
    from pyarrow import csv as arrow_csv

    data = _unpacked(path, budget)
    _check_text(path, data)
    separator, header = _separator(data)
    budget.take(path, 2 * len(data) + 12 * (data.count(separator.encode()) + data.count(b"\n")))
    table = arrow_csv.read_csv(
        pa.BufferReader(data),
        arrow_csv.ReadOptions(use_threads=False, block_size=min(len(data) + 1, (1 << 31) - 1)),
        arrow_csv.ParseOptions(delimiter=separator, newlines_in_values=True),
        arrow_csv.ConvertOptions(column_types=dict.fromkeys(header, pa.string()), strings_can_be_null=True),
    )
    names = [name.strip() for name in table.column_names]
    gaps, columns, with_commas = pa.array(GAPS), [], []
    for name, column in zip(names, table.columns, strict=True):
        text = compute.utf8_trim_whitespace(column.cast(pa.string()))
        text = compute.if_else(compute.is_in(text, value_set=gaps), None, text)
        if separator != "," and not is_number(text, raw=True):
            with_points = compute.replace_substring(text, ",", ".")
            if is_number(with_points, raw=True):
                text = with_points
                with_commas.append(name)
        columns.append(text)
    remarks = []
    if separator != "," and ".tsv" not in path.name.lower():
        remarks.append(f"columns are separated by {separator!r}")
    if with_commas:
        remarks.append(f"the comma is the decimal point, as in column {with_commas[0]!r}")
        for name, text in zip(names, columns, strict=True):
            if name not in with_commas and (pointed := _thousand(text)):
                remarks.append(
                    f"column {name!r} holds {pointed}, read with a decimal point: if it means a thousand, leave out "
                    "the point"
                )
    return Table(names, columns, raw=True, remarks=tuple(remarks))


def _thousand(texts: Any) -> str | None:
    """The first number that has a point where thousands have one, if all that have a point have it there."""
    from pyarrow import compute

    pointed = compute.filter(texts, compute.match_substring(texts, "."))
    is_thousand = compute.match_substring_regex(pointed, r"^[+-]?[0-9]{1,3}\.[0-9]{3}$")
    return pointed[0].as_py() if len(pointed) and compute.all(is_thousand).as_py() else None


def _unpacked(path: Path, budget: Budget) -> bytes:
    if path.suffix.lower() != ".gz":
        budget.take(path, 2 * path.stat().st_size, only_check=True)
        data = path.read_bytes()
    else:
        most = budget.left // 2
        with gzip.open(path) as stream:
            data = stream.read(most + 1)
        if len(data) > most:
            raise budget.exceeded(path)
    return data.removeprefix(b"\xef\xbb\xbf")


def _check_text(path: Path, data: bytes) -> None:
    if not data.strip():
        raise FedcladeError(f"{path}: it is empty: write it again, or leave it out")
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for start in range(0, len(data), LOOKED_AT):
            decoder.decode(data[start : start + LOOKED_AT])
    except UnicodeDecodeError:
        raise FedcladeError(f"{path}: it is no UTF-8 text: save it as UTF-8") from None


def _separator(data: bytes) -> tuple[str, list[str]]:
    """What divides the first line into the most columns, and the next lines into as many; and that first line."""
    lines = data[:LOOKED_AT].splitlines(keepends=True)
    whole = lines[:-1] if len(data) > LOOKED_AT and len(lines) > 1 else lines
    head = b"".join(whole[:20]).decode("utf-8", "replace")
    is_cut = len(whole) > 20 or whole is not lines
    best, header = ",", list[str]()
    for separator in SEPARATORS:
        try:
            rows = [row for row in csv.reader(io.StringIO(head), delimiter=separator) if row]
        except csv.Error:  # a field too long for one
            continue
        rows = rows[: max(1, len(rows) - is_cut)]  # a text in quotes may go on in lines that were not looked at
        if rows and len({len(row) for row in rows}) == 1 and len(rows[0]) > max(1, len(header)):
            best, header = separator, rows[0]
    return best, header


def read_parquet(path: Path, budget: Budget) -> Table:
    import pyarrow as pa
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        about, schema = file.metadata, file.schema_arrow
        unpacked = sum(about.row_group(number).total_byte_size for number in range(about.num_row_groups))
        budget.take(path, max(12 * about.num_rows * about.num_columns, unpacked))
    # Repeated text is stored once in the file, and must not be unrolled: it could be of any size.
    texts = [field.name for field in schema if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)]
    return _of_arrow(parquet.read_table(path, use_threads=False, read_dictionary=texts))


def read_feather(path: Path, budget: Budget) -> Table:
    from pyarrow import dataset, feather

    found = dataset.dataset(path, format="feather")
    budget.take(path, max(12 * found.count_rows() * len(found.schema), path.stat().st_size))
    return _of_arrow(feather.read_table(path, use_threads=False, memory_map=False))


def _of_arrow(table: Any) -> Table:
    table.validate(full=True)  # Arrow trusts what a file says of its columns, and a wrong byte could end the process
    return Table(list(table.column_names), list(table.columns))


def read_excel(path: Path, budget: Budget) -> Table:
    """The first sheet. A cell far out makes all rows as wide, so the size is counted on the way."""
    import pandas as pd

    try:
        from openpyxl import load_workbook
    except ImportError:
        raise FedcladeError(f"{path}: Excel files need openpyxl: pip install 'fedclade[excel]'") from None
    with zipfile.ZipFile(path) as parts:
        budget.take(path, sum(part.file_size for part in parts.infolist()))
    book = load_workbook(path, read_only=True, data_only=True)
    try:
        sheet = book.worksheets[0]
        sheet.reset_dimensions()  # what the file says of them may be wrong
        rows: list[tuple[Any, ...]] = []
        width = 0
        for row in sheet.iter_rows(values_only=True):
            rows.append(row)
            width = max(width, len(row))
            budget.take(path, CELL * len(rows) * width, only_check=True)
        names = book.sheetnames
    finally:
        book.close()
    budget.take(path, CELL * len(rows) * width)
    rows = [(*row, *[None] * (width - len(row))) for row in rows if any(value is not None for value in row)]
    if not rows:
        raise FedcladeError(f"{path}: its first sheet is empty: write it again, or leave it out")
    header, *cells = rows
    cells = [tuple(value.strip() if isinstance(value, str) else value for value in row) for row in cells]
    frame = pd.DataFrame([[None if value in GAPS else value for value in row] for row in cells], dtype=object)
    frame = frame.reindex(columns=range(width)).infer_objects()
    table = Table.of_frame(frame.set_axis(["" if name is None else str(name).strip() for name in header], axis=1))
    remarks = (f"only the first sheet, {names[0]!r}, is read",) if len(names) > 1 else ()
    return Table(table.names, table.columns, remarks=remarks)


READERS: dict[str, Callable[[Path, Budget], Table]] = {
    ".csv": read_text_table,
    ".csv.gz": read_text_table,
    ".tsv": read_text_table,
    ".tsv.gz": read_text_table,
    ".parquet": read_parquet,
    ".feather": read_feather,
    ".xlsx": read_excel,
}
