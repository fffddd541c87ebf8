"""Official files -> arrays. `load("mnist")` finds a data set's files on this machine and reads them.

Nothing is ever downloaded unless asked for: that is `get`. What lies on this machine already, and whether it is the
official data, says `check`.
"""

import re
from pathlib import Path

from fedclade.data.federation import Dataset
from fedclade.data.sources.catalogue import source_named, sources
from fedclade.data.sources.download import get
from fedclade.data.sources.locate import find, found
from fedclade.data.sources.report import FileState, Report, check
from fedclade.data.sources.source import Source
from fedclade.errors import FedcladeError, unknown

__all__ = [
    "FileState",
    "Report",
    "Source",
    "check",
    "find",
    "get",
    "load",
    "sources",
]


def load(spec: str, data_dir: Path | str | None = None) -> Dataset:
    """The rows of one data set, given as `name` or `name:form` (`motionsense:rows`, `drug-reviews:tfidf-512`)."""
    name, colon, form = spec.partition(":")
    source = source_named(name)
    if colon and not source.forms:
        raise FedcladeError(f"{name} has no forms: write just {name!r}, not {spec!r}")
    if colon and not any(re.fullmatch(known.replace("N", "[1-9][0-9]{0,3}"), form) for known in source.forms):
        raise unknown(f"form of {name}", form, source.forms)
    return source.read(found(source, data_dir), form)
