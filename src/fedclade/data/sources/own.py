"""A person's own data: one client each, from arrays, from torch data sets, or from a folder with one file a client
(or one folder of images, see `pictures`).

Labels may be any whole numbers or strings: they become 0 .. C-1 in the sorted order of all clients' labels, and
`Federation.classes` keeps their names. Rows become uint8 images (channels first) or float32 features:

- uint8 rows of shape (H, W), (C, H, W) or (H, W, C) are images and stay uint8; all other numbers become float32;
- rows of shape (H, W, C), where the last axis is 1, 3 or 4 and the first is not, become (C, H, W).

A client without test rows holds out a fixed fraction of its own, the same ones for the same seed and name, and at
least one row in each part. A client with a single row uses it for both.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedclade.data.federation import Client, Federation
from fedclade.data.sources.pictures import images_in, read_pictures
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
    parts = [_client_part(name, named[name], holdout, seed) for name in sorted(named, key=natural)]
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


def from_folder(
    path: Path | str,
    holdout: float = 0.2,
    seed: int = 0,
    classes: Sequence[Any] | None = None,
    columns: Sequence[str] = (),
) -> Federation:
    """A federation of a folder with one `.npz`, `.csv` or `.parquet` file for each client, or one folder of images.

    A client bears the name of its file or folder.

    A `.npz` holds `x` and `y`, perhaps `x_test` and `y_test`, perhaps a single `group`. A table holds a row a line: the
    label is the column `label` or `y`, else the last one; a column `split` tells `train` from `test` rows; a column
    `group` names the client's group; an index column without a name is left out; all other columns are features.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise FedcladeError(f"{folder}: there is no such folder: give one with a file for each client")
    found = sorted((path for path in folder.iterdir() if _reader(path)), key=lambda path: natural(path.name))
    if not found:
        raise FedcladeError(
            f"{folder}: it holds no clients: put a file for each there ({listed(_READERS)}), "
            "or a folder for each with a folder of images for every class"
        )
    paths: dict[str, Path] = {}
    for path in found:
        name = path.name if path.is_dir() else path.stem
        if name in paths:
            raise FedcladeError(f"{folder}: client {name!r} has more than one file: keep one of them")
        paths[name] = path
    clients = {name: _read(path) for name, path in paths.items()}
    if any(_is_text(client["y"]) for client in clients.values()) or any(map(_is_padded, classes or ())):
        clients = {name: _with_text_labels(paths[name], client) for name, client in clients.items()}
    columns = _align_columns(paths, clients, columns)
    groups = {name: client["group"] for name, client in clients.items() if "group" in client}
    federation = from_arrays(clients, classes, groups, holdout, seed)
    return replace(federation, data=f"folder:{folder}", columns=tuple(columns))


def folder_of(data: str) -> Path:
    """The folder that `folder:PATH` names."""
    path = data.removeprefix("folder:")
    if not path:
        raise FedcladeError(f"data {data!r} names no folder: write folder:PATH")
    return Path(path).expanduser()


def natural(name: str) -> tuple[list[str | int], str]:
    """A sorting key under which client-2 comes before client-10."""
    words = re.split(r"([0-9]+)", name)
    return [int(word) if i % 2 else word for i, word in enumerate(words)], name


def column_order(own: Sequence[str], wanted: Sequence[str], who: str, whose: str) -> list[int]:
    """Where the wanted columns are among a table's own, or one line on what is missing or too much."""
    if set(own) != set(wanted):
        odd = sorted(set(own) ^ set(wanted))
        hint = _header_hint(own) or _header_hint(wanted)
        raise FedcladeError(f"{who}: its columns differ from those of {whose} in {listed(odd)}: make them alike{hint}")
    return [own.index(name) for name in wanted]


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
    order = sorted({str(group) for group in values.values()}, key=natural)
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


# --- files ------------------------------------------------------------------------------------------------------------


def _reader(path: Path) -> Callable[[Path], dict[str, Any]] | None:
    """What reads a client from here, if one is here."""
    if path.is_dir():
        return read_pictures if any(images_in(path)) else None
    return _READERS.get(path.suffix.lower())


def _read(file: Path) -> dict[str, Any]:
    """x, y and perhaps x_test, y_test, group (and the columns' names) of one client's file or folder."""
    read = _reader(file)
    assert read is not None
    try:
        return read(file)
    except FedcladeError:
        raise
    except Exception as error:  # the parsers of three formats raise many unrelated kinds
        raise FedcladeError(f"{file}: cannot be read ({one_line(error)}): write it again, or leave it out") from error


def _read_npz(file: Path) -> dict[str, Any]:
    with np.load(file, allow_pickle=False) as arrays:
        contents = {name: arrays[name] for name in arrays.files}
    if "x" not in contents or "y" not in contents:
        raise FedcladeError(f"{file}: it has no arrays x and y, only {listed(contents)}: save it with both")
    if ("x_test" in contents) != ("y_test" in contents):
        raise FedcladeError(f"{file}: it has only one of x_test and y_test: save both or none")
    if contents.get("group", np.array(0)).size != 1:
        raise FedcladeError(f"{file}: group is not a single value: save one group for the client")
    return {name: contents[name] for name in ("x", "y", "x_test", "y_test", "group") if name in contents}


def _read_csv(file: Path, text: Sequence[str] = ()) -> dict[str, Any]:
    """A table of which some columns are text, whatever they look like."""
    from pyarrow import csv, string

    types = csv.ConvertOptions(column_types=dict.fromkeys(text, string()), strings_can_be_null=bool(text))
    return _from_table(file, csv.read_csv(file, csv.ReadOptions(use_threads=False), convert_options=types))


def _with_text_labels(file: Path, client: dict[str, Any]) -> dict[str, Any]:
    """The same client with its labels as text, where they only look like numbers: a CSV file does not say."""
    is_unsure = file.suffix.lower() == ".csv" and not _is_text(client["y"])
    return _read_csv(file, text=[client["label"]]) if is_unsure else client


def _is_padded(name: Any) -> bool:
    """Whether a class has a name like 01, which would be read as the number 1."""
    return str(name).isdigit() and str(name) != str(int(str(name)))


def _is_text(labels: np.ndarray) -> bool:
    return labels.dtype.kind in "OUS"


def _read_parquet(file: Path) -> dict[str, Any]:
    from pyarrow import parquet

    return _from_table(file, parquet.read_table(file, use_threads=False))


_READERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    ".npz": _read_npz,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}


def _from_table(file: Path, table: Any) -> dict[str, Any]:
    if table.num_rows == 0:
        raise FedcladeError(f"{file}: it has no rows: give the client some, or leave it out")
    names = [name for name in table.column_names if name and not name.startswith("__index_level_")]
    if len(set(names)) < len(names):
        raise FedcladeError(f"{file}: two columns have the same name: give each its own{_header_hint(names)}")
    for name in names:
        if str(table[name].type) == "binary":  # what Arrow makes of text in another encoding
            raise FedcladeError(f"{file}: column {name!r} is not UTF-8 text: save the file as UTF-8")
    columns = {name: table[name].to_numpy() for name in names}
    split, group = columns.pop("split", None), columns.pop("group", None)
    label = next((name for name in ("label", "y") if name in columns), next(reversed(columns), ""))
    y = columns.pop(label, None)
    if y is None or not columns:
        raise FedcladeError(f"{file}: it needs a label column and at least one feature column, not {listed(names)}")
    for name, values in columns.items():
        if values.dtype.kind not in "biuf":
            raise FedcladeError(f"{file}: column {name!r} is not numeric: encode it as numbers, or leave it out")
    x = np.column_stack(list(columns.values()))
    contents: dict[str, Any] = {"x": x, "y": y, "columns": list(columns), "label": label}
    if split is not None:
        contents.update(_split_rows(file, x, y, split))
    if group is not None:
        contents["group"] = _constant(file, group)
    return contents


def _header_hint(names: Sequence[str]) -> str:
    """Where columns are named like numbers, the file probably begins with a row."""
    try:
        list(map(float, names))
    except ValueError:
        return ""
    return " (names that are numbers may be a row: the first line must name the columns)"


def _split_rows(file: Path, x: np.ndarray, y: np.ndarray, split: np.ndarray) -> dict[str, np.ndarray]:
    is_train, is_test = split == "train", split == "test"
    if not np.all(is_train | is_test):
        raise FedcladeError(f"{file}: column 'split' holds something other than train and test: use only these two")
    return {"x": x[is_train], "y": y[is_train], "x_test": x[is_test], "y_test": y[is_test]}


def _constant(file: Path, group: np.ndarray) -> Any:
    values = set(group.tolist())
    if len(values) > 1:
        raise FedcladeError(f"{file}: column 'group' changes from row to row: a client belongs to one group")
    return values.pop() if values else None


def _align_columns(
    paths: Mapping[str, Path], clients: dict[str, dict[str, Any]], columns: Sequence[str]
) -> Sequence[str]:
    """Brings every table's features into one order, given or the first table's, and returns it.

    Rows of unlike order would silently be nonsense.
    """
    tables = {name: client for name, client in clients.items() if "columns" in client}
    whose = "the run" if columns else paths[next(iter(tables))].name if tables else ""
    for name, client in tables.items():
        columns = columns or client["columns"]
        order = column_order(client["columns"], columns, str(paths[name]), whose)
        for part in ("x", "x_test"):
            if part in client:
                client[part] = client[part][:, order]
    return columns
