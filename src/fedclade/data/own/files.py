"""Files of a person's own: a folder with one file a client, or one folder of images (see `images`)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedclade.data.federation import Federation, natural_order
from fedclade.data.own.arrays import from_arrays
from fedclade.data.own.images import images_in, read_images
from fedclade.data.sources.source import one_line
from fedclade.errors import FedcladeError, listed


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
    found = sorted((path for path in folder.iterdir() if _reader(path)), key=lambda path: natural_order(path.name))
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


def column_order(own: Sequence[str], wanted: Sequence[str], who: str, whose: str) -> list[int]:
    """Where the wanted columns are among a table's own, or one line on what is missing or too much."""
    if set(own) != set(wanted):
        odd = sorted(set(own) ^ set(wanted))
        hint = _header_hint(own) or _header_hint(wanted)
        raise FedcladeError(f"{who}: its columns differ from those of {whose} in {listed(odd)}: make them alike{hint}")
    return [own.index(name) for name in wanted]


def _reader(path: Path) -> Callable[[Path], dict[str, Any]] | None:
    """What reads a client from here, if one is here."""
    if path.is_dir():
        return read_images if any(images_in(path)) else None
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
