"""What a source is: the official files of one data set, where they come from, and how they are read.

A `Source` is a plain record; a `LocalCopy` is its files in one folder of this machine, wherever in it they lie: loose,
in the folder that the official archive unpacks to, or still inside that archive.
"""

import hashlib
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np

from fedclade.data.federation import Dataset, natural_order
from fedclade.data.sources.archives import members
from fedclade.errors import FedcladeError


@dataclass(frozen=True)
class Source:
    """One data set of the catalogue."""

    name: str
    description: str  # one line
    licence: str
    page: str  # the official page, for people
    read: Callable[["LocalCopy", str], Dataset]  # the official files in one form -> rows
    files: tuple[str, ...] = ()  # what it needs, named as in its folder; `*` stands for anything
    addresses: tuple[
        str, ...
    ] = ()  # where the files (or the archive) lie on the web, to try in order; (): not one by one
    archive: str = ""  # the official archive that holds the files, if they do not lie there one by one
    unpacks_to: tuple[str, ...] = ()  # folders inside the archive: files may lie in them as well
    forms: tuple[str, ...] = ()  # what may follow the name and a colon; N stands for a number
    hashes: Mapping[str, str] = field(default_factory=dict)  # file or archive -> what `fingerprint` gives for it
    package: str = ""  # the Python package that carries the data, where nothing has to be fetched


class LocalCopy:
    """The files of one source in one folder of this machine."""

    def __init__(self, source: Source, folder: Path) -> None:
        self.source = source
        self.folder = folder

    def paths(self, name: str) -> dict[str, Path]:
        """Where needed files lie loose: under their own name, or without its `.gz`; `*` stands for anything."""
        for place in (self.folder, *(self.folder / inner for inner in self.source.unpacks_to)):
            for spelling in (name, name.removesuffix(".gz")):
                if "*" in spelling and (
                    found := sorted(place.glob(spelling), key=lambda path: natural_order(path.name))
                ):
                    return {path.relative_to(place).as_posix(): path for path in found}
                if (place / spelling).is_file():
                    return {name: place / spelling}
        return {}

    @property
    def archive(self) -> Path | None:
        path = self.folder / self.source.archive
        return path if self.source.archive and path.is_file() else None

    @property
    def loose(self) -> dict[str, Path]:
        return {name: path for wanted in self.source.files for name, path in self.paths(wanted).items()}

    @property
    def missing(self) -> list[str]:
        """Files that are neither loose nor (as far as one can tell without opening it) in the archive."""
        return [] if self.archive else [name for name in self.source.files if not self.paths(name)]

    def streams(self) -> Iterator[tuple[str, Path, IO[bytes]]]:
        """(needed name, path to blame in errors, open file) of every needed file; from an archive, in its order."""
        loose = self.loose
        for name, path in loose.items():
            with self.reading(path), path.open("rb") as file:
                yield name, path, file
        wanted = [name for name in self.source.files if not self.paths(name)]
        if wanted and self.archive:
            with self.reading(self.archive):
                for name, stream in members(self.archive, wanted):
                    wanted.remove(name)
                    yield name, self.archive / name, stream
        if wanted:
            raise self.damaged(self.archive or self.folder, f"{wanted[0]} is not in it")

    def damaged(self, path: Path, what: str) -> FedcladeError:
        again = f"with `fedclade data get {self.source.name}`" if self.source.addresses else f"from {self.source.page}"
        return FedcladeError(f"{path}: {what}: it is not the official file; delete it and get it again {again}")

    @contextmanager
    def reading(self, path: Path) -> Iterator[None]:
        """Turns whatever a parser raises on bad bytes into one line that names the file."""
        try:
            yield
        except FedcladeError:
            raise
        except Exception as error:  # the parsers of five formats raise a dozen unrelated kinds
            if isinstance(error, OSError) and error.errno:  # no right to read, no room on the disk
                raise FedcladeError(f"{error.filename or path}: {error.strerror}: the file cannot be used") from error
            raise self.damaged(path, f"cannot be read ({one_line(error)})") from error

    def checked_labels(self, path: Path, labels: np.ndarray, n_classes: int) -> np.ndarray:
        """The labels as int64, after making sure that they are 0 .. n_classes - 1."""
        if len(labels) and (labels.min() < 0 or labels.max() >= n_classes):
            raise self.damaged(path, f"its labels run from {labels.min()} to {labels.max()}, not 0 to {n_classes - 1}")
        return labels.astype(np.int64)

    def checked_values(self, path: Path, values: np.ndarray) -> np.ndarray:
        """The values as float32, after making sure that each is a finite number."""
        values = np.asarray(values, dtype=np.float32)
        if not np.isfinite(values).all():
            raise self.damaged(path, "it holds a NaN or infinite value")
        return values


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def fingerprint(path: Path, kind: str) -> str:
    """`kind:hex`, where kind is `md5` or `sha256` of a file, or `contents` of a zip archive.

    `contents` hashes the names, sizes and checksums of what is in the archive, so it stays the same when somebody
    packs the same files again.
    """
    if kind != "contents":
        with path.open("rb") as stream:
            return f"{kind}:{hashlib.file_digest(stream, kind).hexdigest()}"
    with zipfile.ZipFile(path) as archive:
        kept = [member for member in archive.infolist() if member.file_size and not _left_by_a_mac(member.filename)]
    lines = sorted(f"{member.filename} {member.file_size} {member.CRC:08x}" for member in kept)
    return f"contents:{hashlib.sha256(chr(10).join(lines).encode()).hexdigest()}"


def _left_by_a_mac(path: str) -> bool:
    return "__MACOSX" in path or path.endswith(".DS_Store")


def verdict(path: Path, known: str | None) -> str:
    """`right`, `wrong` or (where no hash is known) `unknown`."""
    if known is None:
        return "unknown"
    try:
        return "right" if fingerprint(path, known.partition(":")[0]) == known else "wrong"
    except zipfile.BadZipFile:
        return "wrong"
