"""Fetching the official files of a data set.

A file gets its name only after it has arrived whole and its hash was found right, so a broken connection or a wrong
answer never leaves something behind that looks like data.
"""

import os
import shutil
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from fedclade.data.sources.archives import members
from fedclade.data.sources.catalogue import source_named
from fedclade.data.sources.locate import data_folders, package_folder
from fedclade.data.sources.source import LocalCopy, Source, one_line, verdict
from fedclade.errors import FedcladeError, listed


def get(name: str, data_dir: Path | str | None = None, progress: bool = True, mirror: str | None = None) -> Path:
    """Downloads what is missing of a data set (or is not the official file) and returns its folder.

    A mirror (or the environment variable FEDCLADE_MIRROR) is a web address that serves a data folder: the files lie
    under `MIRROR/NAME/`. It replaces the official addresses; hashes are checked all the same.
    """
    source = source_named(name)
    if source.package:
        return package_folder(source)
    place = data_folders(data_dir)[0]
    copy = LocalCopy(source, place / name)
    for present in (copy, LocalCopy(source, place)):
        if not _to_fetch(present):
            return present.folder
    mirror = mirror or os.environ.get("FEDCLADE_MIRROR")
    addresses = (f"{mirror.rstrip('/')}/{name}/",) if mirror else source.addresses
    if not source.addresses:
        raise FedcladeError(
            f"{name} cannot be downloaded: put {listed(source.files)} from {source.page} into {copy.folder}"
        )
    try:
        copy.folder.mkdir(parents=True, exist_ok=True)
        for file in _to_fetch(copy):
            _fetch(source, addresses, copy.folder / file, progress)
        if source.archive:
            _unpack(copy)
    except OSError as error:
        raise FedcladeError(
            f"{copy.folder}: cannot be written ({one_line(error)}): choose another data folder"
        ) from error
    return copy.folder


def _to_fetch(copy: LocalCopy) -> list[str]:
    """The files to download: those that are missing or have a wrong hash, or the archive that holds them."""
    hashes = copy.source.hashes
    present = {copy.source.archive: copy.archive} if copy.archive else copy.loose
    wrong = [name for name, path in present.items() if verdict(path, hashes.get(path.name)) == "wrong"]
    lacking = [*copy.missing, *wrong]
    return [copy.source.archive] if lacking and copy.source.archive else lacking


def _fetch(source: Source, addresses: tuple[str, ...], target: Path, progress: bool) -> None:
    problems = []
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    for address in addresses:
        try:
            _download(address + target.name, part, progress)
            if verdict(part, source.hashes.get(target.name)) != "wrong":
                os.replace(part, target)
                return
            problems.append(f"what {address} serves is not the official file (its hash is wrong)")
        except OSError as error:  # the base of all that requests raises
            problems.append(_in_words(error, address))
        finally:
            part.unlink(missing_ok=True)
    raise FedcladeError(
        f"{source.name}: cannot download {target.name}: {'; '.join(problems)}: "
        f"check the connection, or get it by hand from {source.page} and put it into {target.parent}"
    )


def _download(address: str, target: Path, progress: bool) -> None:
    import pooch

    bar = _Bar(address.rsplit("/", 1)[1]) if progress else None
    try:
        # `identity`: a server that calls its .gz files "gzip-encoded" would have them unpacked on the way.
        as_they_are = {"Accept-Encoding": "identity"}
        fetch = pooch.HTTPDownloader(bar or False, chunk_size=1 << 18, timeout=30, headers=as_they_are)
        fetch(address, str(target), None)
    finally:
        if bar:
            bar.close()


def _in_words(error: OSError, address: str) -> str:
    import requests

    host = urlsplit(address).netloc
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"{host} answers {error.response.status_code} {error.response.reason}"
    if isinstance(error, requests.Timeout):
        return f"no answer from {host}"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return f"the connection to {host} broke off"
    if isinstance(error, requests.ConnectionError):
        return f"no connection to {host}"
    return one_line(error)


def _unpack(copy: LocalCopy) -> None:
    """Takes the needed files, and only them, out of the archive, which is not needed any more then."""
    archive = copy.folder / copy.source.archive
    try:
        with copy.reading(archive):
            for name, stream in members(archive, copy.source.files):
                _write(stream, copy.folder / name)
    finally:
        archive.unlink()
    if copy.missing:
        raise copy.damaged(archive, f"{copy.missing[0]} is not in it")


def _write(stream: IO[bytes], target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as output:
            shutil.copyfileobj(stream, output, 1 << 20)
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


class _Bar:
    """A progress bar of rich behind the four names that pooch knows."""

    def __init__(self, label: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._task = self._progress.add_task(label, total=None)
        self.total = 0

    def update(self, amount: int) -> None:
        self._progress.start()
        self._progress.update(self._task, total=self.total or None, advance=amount)

    def reset(self) -> None:
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        self._progress.stop()
