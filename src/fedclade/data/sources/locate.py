"""Where on this machine the files of a data set are looked for.

In the data folder that the caller names, in the one that the environment variable FEDCLADE_DATA names, and in the
user's cache; in each of them first in the folder with the data set's name, then in the place itself.
"""

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

from fedclade.data.sources.catalogue import source_named, sources
from fedclade.data.sources.source import LocalCopy, Source, fingerprint
from fedclade.errors import FedcladeError, listed


def find(name: str, data_dir: Path | str | None = None) -> Path:
    """The folder that holds a data set's files."""
    return found(source_named(name), data_dir).folder


def data_folders(data_dir: Path | str | None = None) -> list[Path]:
    """The data folders, in the order of the search. New files go to the first."""
    import pooch

    named = [data_dir, os.environ.get("FEDCLADE_DATA"), pooch.os_cache("fedclade")]
    return [Path(place).expanduser() for place in named if place]


def found(source: Source, data_dir: Path | str | None = None) -> LocalCopy:
    """The first complete set of a source's files."""
    if source.package:
        return LocalCopy(source, package_folder(source))
    for copy in _copies(source, data_dir):
        if not copy.missing:
            return copy
    raise missing_files(fullest(source, data_dir), data_dir)


def fullest(source: Source, data_dir: Path | str | None = None) -> LocalCopy:
    """The copy that lacks the fewest files, the first of them if several do."""
    return min(_copies(source, data_dir), key=lambda copy: len(copy.missing))


def missing_files(copy: LocalCopy, data_dir: Path | str | None) -> FedcladeError:
    source, missing = copy.source, copy.missing or copy.source.files
    others = [str(place) for place in data_folders(data_dir) if place not in (copy.folder, copy.folder.parent)]
    return FedcladeError(
        f"{source.name}: missing {listed(missing, 6)} in {copy.folder}"
        f"{f' (also looked in {listed(others)})' if others else ''}: "
        f"{f'run `fedclade data get {source.name}`, or ' if source.addresses else ''}"
        f"put {'it' if len(missing) == 1 else 'them'} there yourself, from {source.page}"
    )


def package_folder(source: Source) -> Path:
    spec = importlib.util.find_spec(source.package)
    if spec is None or spec.origin is None:
        raise FedcladeError(f"{source.name}: it comes with the Python package {source.package}: install that")
    return Path(spec.origin).parent


def _copies(source: Source, data_dir: Path | str | None) -> Iterator[LocalCopy]:
    for place in data_folders(data_dir):
        yield LocalCopy(source, place / source.name)
        itself = LocalCopy(source, place)
        if itself.archive or (itself.loose and not _holds_another(itself)):
            yield itself


def _holds_another(copy: LocalCopy) -> bool:
    """Whether these are another data set's files: MNIST and Fashion-MNIST, for one, name their files alike."""
    others = [source for source in sources().values() if source.name != copy.source.name]
    if copy.folder.name in (source.name for source in others):
        return True
    smallest = min(copy.loose.values(), key=lambda path: path.stat().st_size)
    known = {source.hashes.get(smallest.name) for source in others}
    return any(digest and fingerprint(smallest, digest.partition(":")[0]) == digest for digest in known)
