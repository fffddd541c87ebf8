"""A person's own arrays or torch data sets, one client each, as a federation.

Labels may be any whole numbers or strings: they become 0 .. C-1 in the sorted order of all clients' labels, and
`Federation.classes` keeps their names. Rows become uint8 images (channels first) or float32 features:

- uint8 rows of shape (H, W), (C, H, W) or (H, W, C) are images and stay uint8; all other numbers become float32;
- rows of shape (H, W, C), where the last axis is 1, 3 or 4 and the first is not, become (C, H, W).

A client without test rows holds out a fixed fraction of its own, the same ones for the same seed and name, and at
least one row in each part. A client with a single row uses it for both.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedclade.data.federation import Client, Federation, natural_order
from fedclade.data.sources.source import one_line
from fedclade.errors import FedcladeError, listed
from fedclade.randomness import stream

CHANNELS = (1, 3, 4)


def from_arrays(
    clients: Mapping[str, Any],
    classes: Sequence[Any] | None = None,
    groups: Mapping[str, Any] | None = None,
    holdout: float = 0.2,
    seed: int = 0,
) -> Federation:
    """A federation of `{name: (x, y)}`, `{name: (x, y, x_test, y_test)}` or `{name: {"x": .., "y": .., ...}}`.

    `classes` fixes the classes and their order (labels are then their names, or numbers from 0); `groups` says which
    hidden group a client belongs to, where that is known, by whole numbers or by names.
    """
    if not 0 < holdout < 1:
        raise FedcladeError(f"holdout is {holdout}: it must lie between 0 and 1")
    if not clients:
        raise FedcladeError("there are no clients: give at least one")
    named = {str(name): value for name, value in clients.items()}
    parts = [_client_part(name, named[name], holdout, seed) for name in sorted(named, key=natural_order)]
    _check_alike(parts)
    labels, names = _numbered_labels(parts, classes)
    return _assembled(parts, labels, names, _numbered_groups(groups or {}, named))


def from_datasets(
    clients: Mapping[str, Any],
    classes: Sequence[Any] | None = None,
    groups: Mapping[str, Any] | None = None,
    holdout: float = 0.2,
    seed: int = 0,
) -> Federation:
    """A federation of torch data sets of (row, label): `{name: data}` or `{name: (train, test)}`."""
    arrays = {}
    for name, value in clients.items():
        pair = value if isinstance(value, tuple) else (value,)
        arrays[name] = tuple(array for dataset in pair for array in _dataset_arrays(name, dataset))
    return from_arrays(arrays, classes, groups, holdout, seed)


# --- from what was given to checked arrays ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """One client's rows: all of them, and which of them train and test."""

    name: str
    x: np.ndarray
    y: np.ndarray
    train: np.ndarray
    test: np.ndarray


def _client_part(name: str, value: Any, holdout: float, seed: int) -> _Part:
    x, y, x_test, y_test = _four(name, value)
    x, y = _rows(name, x), _labels(name, y)
    if len(x) != len(y):
        raise FedcladeError(f"client {name!r}: {len(x)} rows but {len(y)} labels: give one label for each row")
    if len(x) == 0:
        raise FedcladeError(f"client {name!r}: it has no training rows: give it some, or leave it out")
    if x_test is None or _array(name, "test rows", x_test).size == 0:
        return _Part(name, x, y, *_held_out(name, len(x), holdout, seed))
    x_test, y_test = _rows(name, x_test), _labels(name, y_test)
    if len(x_test) != len(y_test):
        raise FedcladeError(f"client {name!r}: {len(x_test)} test rows but {len(y_test)} labels: give one for each row")
    if _kind(x_test) != _kind(x):
        raise FedcladeError(
            f"client {name!r}: its test rows are {_kind(x_test)} and its training rows {_kind(x)}: make them alike"
        )
    if y.dtype.kind != y_test.dtype.kind:
        raise FedcladeError(f"client {name!r}: some labels are numbers and some are strings: use one kind")
    numbers = np.arange(len(x) + len(x_test))
    joined = np.concatenate([x, x_test]), np.concatenate([y, y_test])
    return _Part(name, *joined, numbers[: len(x)], numbers[len(x) :])


def _four(name: str, value: Any) -> tuple[Any, Any, Any, Any]:
    """x, y, x_test, y_test of any of the forms in which a client may be given."""
    if isinstance(value, Mapping):
        if "x" in value and "y" in value and ("x_test" in value) == ("y_test" in value):
            return value["x"], value["y"], value.get("x_test"), value.get("y_test")
    elif isinstance(value, Sequence) and len(value) == 2:
        return value[0], value[1], None, None
    elif isinstance(value, Sequence) and len(value) == 4:
        return value[0], value[1], value[2], value[3]
    raise FedcladeError(f"client {name!r}: give (x, y), (x, y, x_test, y_test) or a dict with these names")


def _rows(name: str, values: Any) -> np.ndarray:
    """Rows as the house has them: uint8 images or float32 features, channels first, finite."""
    x = _array(name, "rows", values)
    if x.dtype.kind not in "biuf":
        raise FedcladeError(f"client {name!r}: its rows are of type {x.dtype}: give numbers")
    if x.ndim == 0:
        raise FedcladeError(f"client {name!r}: its rows are a single number: give an array with one entry for each row")
    is_image = x.dtype == np.uint8 and x.ndim in (3, 4)
    if x.ndim == 1 or (x.ndim == 3 and is_image):
        x = x[:, None]
    elif x.ndim == 4 and x.shape[3] in CHANNELS and x.shape[1] not in CHANNELS:
        x = x.transpose(0, 3, 1, 2)
    if is_image:
        return x
    with np.errstate(over="ignore"):  # what is too large for float32 becomes infinite and is reported below
        x = x.astype(np.float32)
    if not np.isfinite(x).all():
        row = int(np.argmin(np.isfinite(x).all(axis=tuple(range(1, x.ndim)))))
        raise FedcladeError(f"client {name!r}: row {row} holds a NaN or infinite value: clean it or leave it out")
    return x


def _labels(name: str, values: Any) -> np.ndarray:
    """Labels as int64 or as strings."""
    y = _array(name, "labels", values)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise FedcladeError(f"client {name!r}: its labels have shape {y.shape}: give one label for each row")
    if y.dtype.kind == "O" and all(isinstance(label, str) for label in y):
        y = y.astype(str)
    if y.dtype.kind in "US":
        y = y.astype(str)
        if (y == "").any():
            row = int(np.argmax(y == ""))
            raise FedcladeError(f"client {name!r}: row {row} has no label: give it one, or leave the row out")
        return y
    if y.dtype.kind in "biu" or (y.dtype.kind == "f" and np.isfinite(y).all() and (y == np.rint(y)).all()):
        return y.astype(np.int64)
    raise FedcladeError(
        f"client {name!r}: its labels are of type {y.dtype}: give whole numbers or strings, none missing"
    )


def _array(name: str, what: str, values: Any) -> np.ndarray:
    try:
        return np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:  # rows of unlike length; a tensor that wants gradients
        raise FedcladeError(f"client {name!r}: its {what} are no array ({one_line(error)})") from error


def _held_out(name: str, n: int, holdout: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(training, test) row numbers of a client that brought no test rows."""
    if n == 1:
        return np.array([0]), np.array([0])
    n_test = min(max(round(n * holdout), 1), n - 1)
    shuffled = stream(seed, "holdout", name).permutation(n)
    return np.sort(shuffled[n_test:]), np.sort(shuffled[:n_test])


# --- from clients to a federation -------------------------------------------------------------------------------------


def _check_alike(parts: list[_Part]) -> None:
    first = parts[0]
    for part in parts:
        if _kind(part.x) != _kind(first.x):
            raise FedcladeError(
                f"client {part.name!r}: its rows are {_kind(part.x)}, but those of {first.name!r} are "
                f"{_kind(first.x)}: all clients need the same"
            )
        if part.y.dtype.kind != first.y.dtype.kind:
            raise FedcladeError(
                f"client {part.name!r}: its labels are {_label_kind(part.y)}, but those of {first.name!r} are "
                f"{_label_kind(first.y)}: all clients need the same"
            )


def _kind(x: np.ndarray) -> str:
    return f"{x.dtype} of shape {x.shape[1:]}"


def _label_kind(y: np.ndarray) -> str:
    return "strings" if y.dtype.kind == "U" else "numbers"


def _numbered_labels(parts: list[_Part], classes: Sequence[Any] | None) -> tuple[np.ndarray, tuple[str, ...]]:
    """All clients' labels as 0 .. C-1, and the names of the classes."""
    y = np.concatenate([part.y for part in parts])
    found, numbers = np.unique(y, return_inverse=True)
    if classes is None:
        return numbers.astype(np.int64), tuple(str(label) for label in found)
    names = tuple(str(label) for label in classes)
    if len(set(names)) < len(names):
        raise FedcladeError(f"classes holds a name twice: {listed(names)}")
    place = {label: i for i, label in enumerate(names)}
    if all(str(label) in place for label in found):
        return np.array([place[str(label)] for label in found])[numbers].astype(np.int64), names
    if y.dtype.kind == "i" and found[0] >= 0 and found[-1] < len(names):
        return y, names
    usable = range(len(names)) if y.dtype.kind == "i" else place
    strange = next(label for label in found if label not in usable)
    owner = next(part.name for part in parts if strange in part.y)
    raise FedcladeError(f"client {owner!r}: label {str(strange)!r} is not among the classes {listed(names)}")


def _numbered_groups(groups: Mapping[str, Any], clients: Iterable[str]) -> dict[str, int]:
    """Groups as whole numbers: as given, or by the sorted order of their names."""
    strange = {str(name) for name in groups} - set(clients)
    if strange:
        raise FedcladeError(f"groups names {sorted(strange)[0]!r}, which is no client: give groups to clients only")
    values = {str(name): np.asarray(group).item() for name, group in groups.items()}
    if all(isinstance(group, int) for group in values.values()):
        return values
    order = sorted({str(group) for group in values.values()}, key=natural_order)
    return {name: order.index(str(group)) for name, group in values.items()}


def _assembled(
    parts: list[_Part], labels: np.ndarray, classes: tuple[str, ...], groups: Mapping[str, int]
) -> Federation:
    starts = np.cumsum([0, *(len(part.x) for part in parts)])
    clients = tuple(
        Client(
            part.name,
            train=(part.train + start).astype(np.int32),
            test=(part.test + start).astype(np.int32),
            group=groups.get(part.name),
        )
        for part, start in zip(parts, starts[:-1], strict=True)
    )
    return Federation(np.concatenate([part.x for part in parts]), labels, clients, classes).checked()


# --- torch data sets --------------------------------------------------------------------------------------------------


def _dataset_arrays(name: str, dataset: Any) -> tuple[np.ndarray, np.ndarray]:
    """All rows and labels of a torch data set, map-style or iterable."""
    try:
        items = list(dataset) if hasattr(dataset, "__iter__") else [dataset[i] for i in range(len(dataset))]
        rows, labels = [np.asarray(row) for row, _ in items], [np.asarray(label).item() for _, label in items]
    except Exception as error:  # it is the person's own code that runs here
        raise FedcladeError(f"client {name!r}: its data set cannot be read ({one_line(error)})") from error
    shapes = {row.shape for row in rows}
    if len(shapes) > 1:
        raise FedcladeError(f"client {name!r}: its rows have unlike shapes {listed(sorted(shapes))}: make them alike")
    return (np.stack(rows) if rows else np.empty((0, 1), np.float32)), np.array(labels)
