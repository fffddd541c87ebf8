"""A folder with one file for each client (or one folder of images), or one table with all clients."""

import os
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedclade.data.federation import natural_order
from fedclade.data.options import DataOptions
from fedclade.data.own.given import rows_given, rows_of_text
from fedclade.data.own.images import files_in, read_images
from fedclade.data.own.limits import Budget
from fedclade.data.own.roles import rows_by_client, rows_of_table
from fedclade.data.own.rows import OwnRows
from fedclade.data.own.table_files import READERS as TABLES
from fedclade.data.own.tables import Table
from fedclade.data.sources.source import one_line
from fedclade.errors import FedcladeError, listed

KINDS = (".npz", *TABLES)
TOKENS = (".npz", ".txt")  # of the task tokens
PASSED_OVER = (".", "~$", "README", "LICENSE")  # how names begin of what is nobody's data


def clients_in(folder: Path, options: DataOptions) -> tuple[list[OwnRows], list[str]]:
    """The clients of a folder, each by the name of its file or folder, and remarks on what was left out.

    A `.npz` holds `x` and `y`, perhaps `x_test` and `y_test`, perhaps a single `group`. See `tables` for tables and
    `images` for images.
    """
    if not folder.is_dir():
        raise FedcladeError(f"{folder}: there is no such folder: give one with a file for each client")
    kinds = TOKENS if options.rows == "tokens" else KINDS
    paths: dict[str, Path] = {}
    unread: list[str] = []
    for path in sorted(folder.iterdir(), key=lambda path: natural_order(path.name)):
        if path.name.startswith(PASSED_OVER):
            continue
        name, problems = _client_name(path, kinds)
        unread += problems
        if name in paths:
            raise FedcladeError(f"{folder}: client {name!r} has more than one file: keep one of them")
        if name:
            paths[name] = path
    if unread and not options.skip_unread:
        raise FedcladeError(
            f"{folder}: not read: {listed(unread, 6)}: move these away, or leave them out (data.skip_unread=true)"
        )
    if not paths:
        images = "" if options.rows == "tokens" else ", or a folder for each with a folder of images for every class"
        raise FedcladeError(f"{folder}: it holds no clients: put a file for each there ({listed(kinds)}){images}")
    budget = Budget(options.max_gigabytes)
    clients = [_read(path, name, options, budget) for name, path in paths.items()]
    return clients, [f"not read: {listed(unread, 6)}"] if unread else []


def clients_of_table(path: Path, options: DataOptions) -> list[OwnRows]:
    """The clients of one table that names the client of each row."""
    _check_there(path)
    kind = _kind(path, KINDS)
    if kind not in TABLES or not _is_file(path):
        raise FedcladeError(f"{path}: it is no table: give a file of a kind among {listed(TABLES)}")
    table = _reading(path, lambda: TABLES[kind](path, Budget(options.max_gigabytes)))
    return rows_by_client(table, options, str(path))


def read_rows(path: Path, options: DataOptions) -> Any:
    """Rows without labels: the table of a file, or the array `x` of an .npz."""
    _check_there(path)
    kind = _kind(path, KINDS)
    if not kind or not _is_file(path):
        raise FedcladeError(f"{path}: it is no file with rows: give one of a kind among {listed(KINDS)}")
    budget = Budget(options.max_gigabytes)
    if kind in TABLES:
        return _reading(path, lambda: TABLES[kind](path, budget)).read_as(options)
    return _reading(path, lambda: _arrays_in(path, budget, ("x",)))["x"]


def stem_of(path: Path) -> str:
    """A file's name without the ending that says its kind."""
    return path.name[: len(path.name) - len(_kind(path, (*KINDS, *TOKENS)))]


def path_of(data: str) -> Path:
    """What `folder:PATH` or `table:PATH` names."""
    kind, _, path = data.partition(":")
    if not path:
        raise FedcladeError(f"data {data!r} names no {kind}: write {kind}:PATH")
    return Path(path).expanduser()


def _client_name(path: Path, kinds: tuple[str, ...]) -> tuple[str, list[str]]:
    """The client of a file or folder, if it is one, and what in it is not read."""
    try:
        path.name.encode()
    except UnicodeEncodeError:
        raise FedcladeError(f"{str(path)!a}: its name is not UTF-8: give it another") from None
    if path.is_dir():
        images, others = files_in(path)
        strange = [str(other.relative_to(path.parent)) for other in others]
        return (path.name, strange) if images else ("", [f"{path.name} (a folder without images)"])
    kind = _kind(path, kinds)
    if not kind:
        return "", [path.name]
    return (path.name[: -len(kind)], []) if _is_file(path) else ("", [f"{path.name} (no regular file)"])


def _kind(path: Path, kinds: tuple[str, ...]) -> str:
    """What a file's name ends with, if we read such files."""
    return next((kind for kind in kinds if path.name.lower().endswith(kind) and path.name.lower() != kind), "")


def _check_there(path: Path) -> None:
    if not os.path.lexists(path):
        raise FedcladeError(f"{path}: there is no such file: give the path of one")


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:  # a link that leads nowhere or in a circle
        return False


def _read(path: Path, name: str, options: DataOptions, budget: Budget) -> OwnRows:
    kind = _kind(path, (*KINDS, *TOKENS))
    if kind == ".txt":
        return rows_of_text(name, _reading(path, lambda: _read_text(path, budget)), options, str(path))
    found: Any = _reading(
        path, lambda: (TABLES.get(kind) or (read_images if path.is_dir() else _read_npz))(path, budget)
    )
    if isinstance(found, Table):
        return rows_of_table(name, found, options, str(path))
    return rows_given(name, found, options, str(path))


def _reading(path: Path, read: Callable[[], Any]) -> Any:
    """What a reader finds; whatever it raises on bad bytes becomes one line that names the file."""
    try:
        return read()
    except FedcladeError:
        raise
    except Exception as error:  # the parsers of many formats raise many unrelated kinds
        raise FedcladeError(f"{path}: cannot be read ({one_line(error)}): write it again, or leave it out") from error


def _read_text(path: Path, budget: Budget) -> str:
    budget.take(path, 24 * path.stat().st_size)  # every character becomes two numbers
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise FedcladeError(f"{path}: it is no UTF-8 text: save it as UTF-8") from None


def _read_npz(path: Path, budget: Budget) -> dict[str, np.ndarray]:
    return _arrays_in(path, budget, ("x", "y"))


def _arrays_in(path: Path, budget: Budget, needed: tuple[str, ...]) -> dict[str, np.ndarray]:
    wanted = ("x", "y", "x_test", "y_test", "group")
    with zipfile.ZipFile(path) as parts:
        names = [name.removesuffix(".npy") for name in parts.namelist()]
        if not set(needed) <= set(names):
            raise FedcladeError(
                f"{path}: it has no arrays {' and '.join(needed)}, only {listed(names)}: save it with such"
            )
        for name in names:
            if name in wanted:
                budget.take(path, _unpacked_size(parts, f"{name}.npy"))
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in wanted if name in names}


def _unpacked_size(parts: zipfile.ZipFile, name: str) -> int:
    """The bytes of an array in memory, from its header."""
    with parts.open(name) as stream:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
    if any(length < 0 for length in shape):
        raise ValueError(f"{name} has a length below 0")
    size = dtype.itemsize
    for length in shape:
        size *= length
    return size
