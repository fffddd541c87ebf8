"""The wanted files of an official archive, one after another, and nothing else of it."""

import tarfile
import zipfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO


def members(archive: Path, wanted: Collection[str]) -> Iterator[tuple[str, IO[bytes]]]:
    """(wanted name, open file) of every wanted file in a tar or zip archive, in the archive's order.

    A file is wanted when its path in the archive ends with a wanted name. What a caller writes to disk is therefore
    named by us and never by the archive: no `../` or absolute path of a crafted archive can leave the folder.
    """
    if archive.name.endswith(".zip"):
        with zipfile.ZipFile(archive) as opened:
            yield from _zip_members(opened, set(wanted))
    else:
        with tarfile.open(archive, "r|*") as tar:
            left = set(wanted)
            for entry in tar:
                name = _wanted_name(entry.name, left)
                stream = tar.extractfile(entry) if name and entry.isfile() else None
                if name and stream:
                    left.discard(name)
                    yield name, stream


def _zip_members(opened: zipfile.ZipFile, left: set[str]) -> Iterator[tuple[str, IO[bytes]]]:
    for entry in sorted(opened.infolist(), key=lambda entry: entry.header_offset):
        name = _wanted_name(entry.filename, left)
        if name:
            left.discard(name)
            with opened.open(entry) as stream:
                yield name, stream
        elif entry.filename.endswith(".zip"):  # UCI packs some data sets twice
            with opened.open(entry) as inner, zipfile.ZipFile(inner) as nested:
                yield from _zip_members(nested, left)


def _wanted_name(path: str, wanted: Collection[str]) -> str | None:
    if "__MACOSX" in path:
        return None
    parts = path.split("/")
    return next((tail for i in range(len(parts)) if (tail := "/".join(parts[i:])) in wanted), None)
