"""Files that are whole or absent: write beside, flush to the disk, rename."""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fedclade.errors import FedcladeError

LONGEST = 200  # letters of a client's file name; file systems take 255, endings included


def write_atomically(path: Path, write: Callable[[Path], object], *, flush: bool = True) -> None:
    """Let `write` fill a temporary file beside `path`, flush it to the disk and rename it to `path`.

    Where many files belong together, write them with `flush=False` and call `flush_all` on them once.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):  # to rename would do away with a device or a pipe
        raise FedcladeError(f"cannot write {path}: it is no regular file; choose another")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".", suffix=".part", dir=path.parent)
        os.close(handle)
        part = Path(name)
        try:
            write(part)
            part.chmod(0o666 & ~_umask())  # temporary files are private, ours are as the user wants them
            if flush:
                with part.open("rb+") as file:
                    os.fsync(file.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        if flush:
            _flush(path.parent)
    except OSError as error:
        raise unwritable(path, error) from error


def unwritable(path: Path, error: Exception) -> FedcladeError:
    reason = getattr(error, "strerror", None) or error
    return FedcladeError(f"cannot write {path}: {reason}; free some space or choose another folder")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _flush(path: Path) -> None:
    """A file, or a folder: a rename lasts once the folder has reached the disk too (not possible on Windows)."""
    if os.name == "posix":
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def flush_all(paths: Iterable[Path]) -> None:
    """Bring files to the disk, many at a time: the disk then does in one go what it would do one by one."""
    fresh = list(paths)

    def flush(path: Path) -> None:
        try:
            _flush(path)
        except OSError as error:
            raise unwritable(path, error) from error

    with ThreadPoolExecutor(16) as hands:
        for _ in hands.map(flush, [*fresh, *{path.parent for path in fresh}]):
            pass


def write_json(path: Path, value: Any) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))


def safe_name(name: str) -> str:
    """A file name for any client name; different names give different files, also where they are too long for one."""
    quoted = quote(name, safe=" ") if name not in (".", "..") else name.replace(".", "%2E")
    if len(quoted) <= LONGEST:
        return quoted
    return f"{quoted[: LONGEST - 33]}-{hashlib.sha256(name.encode()).hexdigest()[:32]}"
