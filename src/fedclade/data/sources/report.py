"""What is here of a data set: its files, whether they are the official ones, and its rows by class."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedclade.data.sources.catalogue import source_named
from fedclade.data.sources.locate import fullest, missing_files, package_folder
from fedclade.data.sources.source import LocalCopy, verdict
from fedclade.errors import FedcladeError


@dataclass(frozen=True)
class FileState:
    name: str
    path: Path | None  # None where it is missing
    size: int  # bytes
    hash: str  # `right`, `wrong`, `unknown` (no official hash is known) or `missing`


@dataclass(frozen=True)
class Report:
    """What `check` found out."""

    name: str
    folder: Path
    files: tuple[FileState, ...] = ()
    rows: dict[str, tuple[int, int]] = field(default_factory=dict)  # class -> (training rows, test rows)
    problem: str = ""  # one line: why the data set cannot be loaded

    @property
    def ok(self) -> bool:
        return not self.problem and all(state.hash in ("right", "unknown") for state in self.files)


def check(name: str, data_dir: Path | str | None = None) -> Report:
    """Which files of a data set are here, whether they are the official ones, and how many rows each class has."""
    source = source_named(name)
    copy = LocalCopy(source, package_folder(source)) if source.package else fullest(source, data_dir)
    files = _file_states(copy)
    if copy.missing:
        return Report(name, copy.folder, files, problem=str(missing_files(copy, data_dir)))
    try:
        data = source.read(copy, "")
    except FedcladeError as error:
        return Report(name, copy.folder, files, problem=str(error))
    train = np.bincount(data.y[: data.n_train], minlength=data.n_classes)
    test = np.bincount(data.y[data.n_train :], minlength=data.n_classes)
    rows = {label: (int(train[i]), int(test[i])) for i, label in enumerate(data.classes)}
    return Report(name, copy.folder, files, rows)


def _file_states(copy: LocalCopy) -> tuple[FileState, ...]:
    loose = copy.loose
    if copy.archive and len(loose) < len(copy.source.files):
        loose = {**loose, copy.source.archive: copy.archive}
    here = [
        FileState(name, path, path.stat().st_size, verdict(path, copy.source.hashes.get(path.name)))
        for name, path in loose.items()
    ]
    return (*here, *(FileState(name, None, 0, "missing") for name in copy.missing))
