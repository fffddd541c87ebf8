"""Tables -> clients' rows: which column is the label, and which name the client, its group and its test rows."""

import re
from dataclasses import replace
from typing import Any

import numpy as np

from fedclade.data.options import DataOptions
from fedclade.data.own.labels import Amounts, Labels, amounts_of, labels_of_numbers, labels_of_texts
from fedclade.data.own.rows import OwnRows
from fedclade.data.own.suspicions import suspicions
from fedclade.data.own.tables import Table, check_readable, header_hint, is_exact, is_text, numbers_of, texts_of
from fedclade.errors import FedcladeError, listed

UNNAMED = re.compile(r"|Unnamed: [0-9]+")  # as Excel and pandas leave the heads of columns without a name


def rows_of_table(name: str, table: Table, options: DataOptions, where: str) -> OwnRows:
    """A client's rows out of its table."""
    table = _checked(table, options, where)
    test = group = None
    features = table
    if split := _optional(table, options, "split", where):
        test = _is_test(table[split], f"{where}: column {split!r}")
        features = features.without([split])
    if grouping := _optional(table, options, "group", where):
        check_readable(table[grouping], table.raw, f"{where}: column {grouping!r}")
        group = _constant(table[grouping], f"{where}: column {grouping!r}")
        features = features.without([grouping])
    if len(features.names) < 2:
        raise FedcladeError(
            f"{where}: it needs a label column and at least one feature column, not {listed(table.names)}"
        )
    columns, remarks = _label_columns(features, options, where), list(table.remarks)
    if options.label is None and (columns[0] not in ("label", "y") or _is_doubtful(columns[0], features)):
        place = "the last column," if columns[0] == features.names[-1] else "column"
        remarks.append(f"the label is {place} {columns[0]!r} (data.label names another)")
    labels: Labels | Amounts | None = _amounts(table, columns, where, options)
    if labels is None:
        labels = _labels(table[columns[0]], table.raw, f"{where}: column {columns[0]!r}", options)
    features = features.without(columns)
    if not features.names:
        raise FedcladeError(f"{where}: all its columns are labels: leave some as features (data.label)")
    for column_name, column in zip(features.names, features.columns, strict=True):
        check_readable(column, table.raw, f"{where}: column {column_name!r}")
    return OwnRows(name, features, labels, test, group, where=where, remarks=(*remarks, *suspicions(features)))


def _checked(table: Table, options: DataOptions, where: str) -> Table:
    """Without ignored columns, the index that pandas writes, and what means a missing value."""
    unnamed = [name for name in table.names if UNNAMED.fullmatch(name)]
    table = table.without([*unnamed, *(name for name in table.names if name.startswith("__index_level_"))])
    if unnamed:
        table = replace(table, remarks=(*table.remarks, "a column without a name is left out"))
    if len(set(table.names)) < len(table.names):
        twice = next(name for name in table.names if table.names.count(name) > 1)
        raise FedcladeError(
            f"{where}: two columns are named {twice!r}: give each its own name{header_hint(table.names)}"
        )
    strange = [name for name in options.ignore if name not in table.names]
    if strange:
        raise FedcladeError(f"{where}: data.ignore names {strange[0]!r}, but its columns are {listed(table.names)}")
    table = table.without(options.ignore).read_as(options)
    if len(table) == 0 and not options.skip_small:
        raise FedcladeError(
            f"{where}: it has no rows: give the client some, or leave out such clients (data.skip_small=true)"
        )
    return table


def _label_columns(table: Table, options: DataOptions, where: str) -> list[str]:
    if options.label is None:
        return [next((name for name in ("label", "y") if name in table.names), table.names[-1])]
    names = (options.label,) if isinstance(options.label, str) else options.label
    if not names or (len(names) > 1 and options.labels not in ("numbers", "sets")):
        raise FedcladeError(f"data.label = {list(names)}: name one column, or choose task regression or multilabel")
    return [_named(table, name, "label", where) for name in names]


def _is_doubtful(label: str, table: Table) -> bool:
    """Whether a column that is called like a label may be none: a coordinate y, or one of two."""
    return {"label", "y"} <= set(table.names) or (label == "y" and label != table.names[-1])


def _amounts(table: Table, columns: list[str], where: str, options: DataOptions) -> Amounts | None:
    """Labels that are numbers, where the task needs such."""
    if options.labels not in ("numbers", "sets"):
        return None
    found = [numbers_of(table[name], table.raw) for name in columns]
    for name, values in zip(columns, found, strict=True):
        if values is None:
            raise FedcladeError(f"{where}: column {name!r} holds no numbers: name another label (data.label)")
    return amounts_of(np.stack([values for values in found if values is not None], 1), columns, where, options)


def _named(table: Table, name: str, role: str, where: str) -> str:
    if name not in table.names:
        raise FedcladeError(f"{where}: data.{role} is {name!r}, but its columns are {listed(table.names)}")
    return name


def _optional(table: Table, options: DataOptions, role: str, where: str) -> str | None:
    """The column named for a role, or the one that is called like it."""
    chosen = getattr(options, role)
    if chosen is not None:
        return _named(table, chosen, role, where)
    return role if role in table.names else None


def _labels(column: Any, raw: bool, where: str, options: DataOptions) -> Labels:
    numbers = numbers_of(column, raw)
    if is_text(column) and (numbers is None or (np.isnan(numbers) | (numbers == np.rint(numbers))).all()):
        return labels_of_texts(texts_of(column), raw, where, options.max_classes)
    check_readable(column, raw, where)
    assert numbers is not None
    exact = column.to_numpy() if is_exact(column) and not column.null_count else numbers
    return labels_of_numbers(exact, where, options.max_classes)


def _is_test(column: Any, where: str) -> np.ndarray:
    words = texts_of(column) if is_text(column) else np.array([None])
    if not set(words) <= {"train", "test"}:
        raise FedcladeError(f"{where} holds something other than train and test: use only these two")
    return words == "test"


def _constant(column: Any, where: str) -> Any:
    values = list(dict.fromkeys(texts_of(column)))
    if len(values) > 1:
        raise FedcladeError(f"{where} changes from row to row: a client belongs to one group")
    return values[0]


def rows_by_client(table: Table, options: DataOptions, where: str) -> list[OwnRows]:
    """The rows of every client out of one table that names the client of each row."""
    import pandas as pd

    if options.client is None:
        raise FedcladeError(f"{where}: say which column names the client of a row (data.client): {listed(table.names)}")
    column = table[_named(table, options.client, "client", where)]
    if len(table) == 0:
        raise FedcladeError(f"{where}: it has no rows: give it some")
    check_readable(column, table.raw, f"{where}: column {options.client!r}")
    codes, names = pd.factorize(texts_of(column))
    if (codes < 0).any():
        raise FedcladeError(f"{where}: row {int(np.argmax(codes < 0))} names no client in column {options.client!r}")
    order = np.argsort(codes, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)
    features = table.without([options.client])
    return [
        replace(rows_of_table(str(name), features.take(rows), options, f"client {str(name)!r}"), numbers=rows)
        for name, rows in zip(names, parts, strict=True)
    ]
