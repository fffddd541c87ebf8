"""What a person hands over in Python -> a client's rows: arrays, pandas tables, torch data sets.

Rows become uint8 images (channels first) or numbers:

- uint8 rows of shape (H, W), (C, H, W) or (H, W, C) are images and stay uint8;
- rows of shape (H, W, C), where the last axis is 1, 3 or 4 and the first is not, become (C, H, W).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedclade.data.options import DataOptions
from fedclade.data.own.labels import Amounts, Labels, as_array, labels_of
from fedclade.data.own.roles import rows_of_table
from fedclade.data.own.rows import OwnRows
from fedclade.data.own.tables import Table
from fedclade.data.sources.source import one_line
from fedclade.errors import FedcladeError, listed

CHANNELS = (1, 3, 4)


def rows_given(name: str, value: Any, options: DataOptions, where: str = "") -> OwnRows:
    """A client's rows: `(x, y)`, `(x, y, x_test, y_test)`, a dict with these names, a DataFrame, or torch data sets."""
    where = where or f"client {name!r}"
    if isinstance(value, str) and options.rows == "tokens":
        return rows_of_text(name, value, options, where)
    if is_frame(value):
        return rows_of_table(name, Table.of_frame(value), options, where)
    if isinstance(value, Mapping):
        if not {"x", "y"} <= set(value) or ("x_test" in value) != ("y_test" in value):
            raise FedcladeError(f"{where}: its dict must hold x and y, and both or none of x_test and y_test")
        arrays = [value[key] for key in ("x", "y", "x_test", "y_test") if key in value]
        return replace(_rows_of_arrays(name, arrays, options, where), group=_single(value.get("group"), where))
    if _holds_arrays(value):
        return _rows_of_arrays(name, value, options, where)
    parts = value if isinstance(value, tuple) and len(value) == 2 else (value,)
    return _rows_of_arrays(
        name, [array for part in parts for array in _arrays_of(part, options, where)], options, where
    )


def is_frame(value: Any) -> bool:
    """Whether it is a pandas table, without loading pandas to find out."""
    return hasattr(value, "columns") and hasattr(value, "iloc")


def _holds_arrays(value: Any) -> bool:
    return isinstance(value, tuple | list) and all(
        hasattr(part, "shape") or isinstance(part, list | int | float) for part in value
    )


def _single(group: Any, where: str) -> Any:
    if group is None:
        return None
    if np.asarray(group).size != 1:
        raise FedcladeError(f"{where}: group is not a single value: give one group for the client")
    return np.asarray(group).item()


def _rows_of_arrays(name: str, arrays: Sequence[Any], options: DataOptions, where: str) -> OwnRows:
    if len(arrays) not in (2, 4):
        raise FedcladeError(f"{where}: give (x, y), (x, y, x_test, y_test) or a dict with these names")
    x = rows_as_numbers(arrays[0], where, options)
    labels = _labels(x, arrays[1], options, where, "rows")
    if len(arrays) == 2 or as_array(arrays[2], f"{where}: its test rows").size == 0:
        return OwnRows(name, x, labels, where=where)
    x_test = rows_as_numbers(arrays[2], where, options)
    test_labels = _labels(x_test, arrays[3], options, where, "test rows")
    if kind_of(x_test) != kind_of(x):
        raise FedcladeError(
            f"{where}: its test rows are {kind_of(x_test)} and its training rows {kind_of(x)}: make them alike"
        )
    both = [as_array(arrays[place], f"{where}: its labels") for place in (1, 3)]
    kinds = {isinstance(found.names[0], str) for found in (labels, test_labels) if len(found)}
    if isinstance(labels, Labels) and len(kinds) > 1:
        raise FedcladeError(f"{where}: some labels are numbers and some are strings: use one kind")
    if both[0].shape[1:] != both[1].shape[1:]:
        raise FedcladeError(f"{where}: labels of training and test rows have unlike shapes: make them alike")
    parts = (len(x), len(x_test))
    return OwnRows(
        name,
        np.concatenate([x, x_test]),
        labels_of(np.concatenate(both), where, options),
        test=np.repeat([False, True], parts),
        numbers=np.concatenate([np.arange(part) for part in parts]),
        where=where,
    )


def _labels(x: np.ndarray, values: Any, options: DataOptions, where: str, what: str) -> Labels | Amounts:
    labels = labels_of(values, where, options)
    if len(x) != len(labels):
        raise FedcladeError(f"{where}: {len(x)} {what} but {len(labels)} labels: give one label for each row")
    return labels


def rows_of_text(name: str, text: str, options: DataOptions, where: str) -> OwnRows:
    """Pieces of a text, of which each character is to be told from those before it."""
    n_rows = (len(text) - 1) // options.length
    if n_rows < 1:
        raise FedcladeError(
            f"{where}: a text of {len(text)} characters has no {options.length + 1} for a row: give more, or set "
            "data.length lower"
        )
    names, codes = np.unique(np.array(list(text)), return_inverse=True)
    starts = options.length * np.arange(n_rows)
    whole = codes[starts[:, None] + np.arange(options.length + 1)].astype(np.int64)
    labels = Labels(whole, tuple(names.tolist()))
    return OwnRows(name, whole[:, :-1].astype(np.int32), labels, is_text=True, where=where)


def rows_as_numbers(values: Any, where: str, options: DataOptions) -> np.ndarray:
    """uint8 images, channels first, or numbers (rows, features, ...), or tokens (rows, length)."""
    x = as_array(values, f"{where}: its rows")
    if options.rows == "tokens":
        if x.dtype.kind not in "iu" or x.ndim != 2 or (x.size and (x.min() < 0 or x.max() >= 2**31)):
            raise FedcladeError(
                f"{where}: its rows are {x.dtype} of shape {x.shape}: give whole numbers, rows by length"
            )
        return x.astype(np.int32)
    if x.dtype.kind not in "biuf":
        raise FedcladeError(f"{where}: its rows are of type {x.dtype}: give numbers")
    if 0 in x.shape[1:]:
        raise FedcladeError(f"{where}: its rows have shape {x.shape[1:]} and hold nothing: give at least one feature")
    if x.ndim == 0:
        raise FedcladeError(f"{where}: its rows are a single number: give an array with one entry for each row")
    is_image = x.dtype == np.uint8 and x.ndim in (3, 4)
    if x.ndim == 1 or (x.ndim == 3 and is_image):
        x = x[:, None]
    elif x.ndim == 4 and x.shape[3] in CHANNELS and x.shape[1] not in CHANNELS:
        x = x.transpose(0, 3, 1, 2)
    return x if is_image or x.dtype.kind == "f" else x.astype(np.float32)


def kind_of(x: np.ndarray) -> str:
    return f"{ {'uint8': 'images', 'int32': 'tokens'}.get(x.dtype.name, 'numbers') } of shape {x.shape[1:]}"


def _arrays_of(dataset: Any, options: DataOptions, where: str) -> tuple[np.ndarray, np.ndarray]:
    """All rows and labels of a torch data set, map-style or iterable."""
    try:
        items = list(dataset) if hasattr(dataset, "__iter__") else [dataset[i] for i in range(len(dataset))]
        rows, labels = [np.asarray(row) for row, _ in items], [np.asarray(label) for _, label in items]
        if options.labels in (None, "classes") and options.rows != "tokens":
            labels = [label.item() for label in labels]
    except Exception as error:  # it is the person's own code that runs here
        raise FedcladeError(
            f"{where}: it is neither arrays (x, y) nor a data set that can be read ({one_line(error)})"
        ) from error
    shapes = {row.shape for row in rows}
    if len(shapes) > 1:
        raise FedcladeError(f"{where}: its rows have unlike shapes {listed(sorted(shapes))}: make them alike")
    return (np.stack(rows) if rows else np.empty((0, 1), np.float32)), np.array(labels)
