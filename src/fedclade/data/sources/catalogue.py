"""All data sets that `load` knows, by name."""

from pathlib import Path

from fedclade.data.sources import geotec, heart, images, leaf, reviews, sensors, synthetic
from fedclade.data.sources.source import Source
from fedclade.errors import FedcladeError, unknown

_CATALOGUE = {
    source.name: source
    for module in (images, leaf, synthetic, sensors, geotec, reviews, heart)
    for source in module.SOURCES
}


def sources() -> dict[str, Source]:
    """The data sets that can be loaded, by name."""
    return dict(_CATALOGUE)


def source_named(name: str) -> Source:
    if name not in _CATALOGUE and Path(name).expanduser().exists():
        kind = "folder" if Path(name).expanduser().is_dir() else "table"
        raise FedcladeError(f"{name!r} is no known data set, but a {kind} of this name is there: write {kind}:{name}")
    if name not in _CATALOGUE:
        raise unknown("data set", name, _CATALOGUE)
    return _CATALOGUE[name]
