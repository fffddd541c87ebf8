"""Files that are whole or absent: write beside, flush to the disk, rename."""

import ctypes
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fedclade.errors import FedcladeError


def write_atomically(path: Path, write: Callable[[Path], object], *, flush: bool = True) -> None:
    """Let `write` fill a temporary file beside `path`, flush it to the disk and rename it to `path`.

    Where many files belong together, write them with `flush=False` and call `flush_all` once: that is ten times faster.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".", suffix=".part", dir=path.parent)
        os.close(handle)
        part = Path(name)
        try:
            write(part)
            if flush:
                with part.open("rb+") as file:
                    os.fsync(file.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        if flush:
            _flush_folder(path.parent)
    except OSError as error:
        reason = error.strerror or str(error)
        raise FedcladeError(f"cannot write {path}: {reason}; free some space or choose another folder") from error


def _flush_folder(folder: Path) -> None:
    """Make a rename durable: the folder's own entry must reach the disk too (not possible on Windows)."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def flush_all(folder: Path) -> None:
    """Bring everything written so far to the disk on which a folder lies."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        flush_disk = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
        if flush_disk is None:
            os.sync()
        elif flush_disk(handle) != 0:
            reason = os.strerror(ctypes.get_errno())
            raise FedcladeError(f"cannot write to {folder}: {reason}; free some space or choose another folder")
    finally:
        os.close(handle)


def write_json(path: Path, value: Any) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))


def safe_name(name: str) -> str:
    """A file name for any client name; different names give different files."""
    return quote(name, safe=" ") if name not in (".", "..") else name.replace(".", "%2E")
