"""Data: official files to arrays (`sources`), one data set to many clients (`partition`), a person's own (`own`)."""

import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedclade.data.federation import Client, Dataset, Federation
from fedclade.data.options import DataOptions
from fedclade.data.preprocessing import Preprocessing
from fedclade.errors import FedcladeError, imported

DEFAULT_CLIENTS = 20
# Options that the known data sets do not look at, and what they are unless somebody sets them.
OF_TABLES = {
    name: DataOptions.model_fields[name].default
    for name in (
        "label",
        "client",
        "split",
        "group",
        "ignore",
        "categorical",
        "gaps",
        "missing",
        "scaling",
        "holdout_rows",
    )
}


def federation_of(
    data: Any,
    split: str | None = None,
    clients: int | None = None,
    seed: int = 0,
    test_view: str | None = None,
    data_dir: Path | str | None = None,
    classes: Sequence[str] | None = None,
    options: DataOptions | None = None,
    preprocessing: Preprocessing | None = None,
) -> Federation:
    """A federation from anything that can be one.

    `data` is the name of a source (`"mnist"`, `"motionsense:rows"`), `"folder:PATH"`, `"table:PATH"`,
    `"my_module:make_data"`, a Dataset, a Federation, a pandas DataFrame, a dict of clients with arrays, DataFrames
    or torch Datasets, or what Hugging Face, flwr-datasets and torchvision have (`fedclade.data.others`).
    `options` say how own data are read; `classes` and `preprocessing` are those of a run that own
    data shall fit.
    """
    from fedclade.data import own
    from fedclade.data.others import recognised
    from fedclade.data.partition import partition
    from fedclade.data.sources import load, sources

    options = options or DataOptions()
    if isinstance(data, str) and not data.startswith(("folder:", "table:")):
        name, colon, _ = data.partition(":")
        if name in sources() and (odd := [each for each in OF_TABLES if getattr(options, each) != OF_TABLES[each]]):
            raise FedcladeError(f"data.{odd[0]} is for files and tables of your own, not for {data}: leave it out")
        data = _made(data) if colon and name not in sources() else load(data, data_dir)
    data = recognised(data, options)
    if not isinstance(data, Dataset) and split not in (None, "natural", "own"):
        raise FedcladeError(f"split {split!r}: these data come divided among clients already; leave --split out")
    if isinstance(data, Federation):
        return _fitting(_as_given(data, clients, seed, test_view, options), options)
    if not isinstance(data, Dataset):
        return own.gather(data, options, clients, seed, test_view, classes).federation(preprocessing)
    if split is None:
        split = "natural" if data.owner is not None else "iid"
    if clients is None and split != "natural":
        clients = DEFAULT_CLIENTS
    return _fitting(partition(data, split, clients, seed, test_view, options.holdout), options)


def _fitting(federation: Federation, options: DataOptions) -> Federation:
    """A federation whose labels and rows are such as the task needs."""
    if federation.labels != (options.labels or "classes"):
        raise FedcladeError(
            f"the task needs labels that are {options.labels}, but those of the data are {federation.labels}"
        )
    if (federation.x.dtype == np.int32) != (options.rows == "tokens"):
        kind = "tokens" if federation.x.dtype == np.int32 else "numbers"
        raise FedcladeError(f"the task needs rows of {options.rows or 'features'}, but those of the data are {kind}")
    return federation


def _made(path: str) -> Any:
    """What `my_module:make_data` makes, or what lies there ready made."""
    made = imported(path, "data")
    try:
        return made() if callable(made) else made
    except FedcladeError:
        raise
    except Exception as error:
        raise FedcladeError(f"data {path!r}: it raised {type(error).__name__}: {error}") from error


def _as_given(
    federation: Federation, clients: int | None, seed: int, test_view: str | None, options: DataOptions
) -> Federation:
    """A federation that was given as such: its first clients, tested as asked."""
    from fedclade.data.partition.test_views import check_own_view, on_own_rows

    check_own_view(test_view)
    if clients is not None and clients > len(federation):
        raise FedcladeError(f"{clients} clients asked for, but the data have {len(federation)}")
    first, in_order = federation.clients[:clients], options.holdout_rows == "last"
    tested = on_own_rows(first, federation.y, test_view, seed, options.holdout, in_order)
    return replace(federation, clients=tuple(tested)).checked()


def fingerprint(federation: Federation) -> str:
    """A short mark of rows, labels and who holds which: a run must go on with the data it began with."""
    mark = zlib.crc32(np.ascontiguousarray(federation.x).data.cast("B"))
    mark = zlib.crc32(np.ascontiguousarray(federation.y).data.cast("B"), mark)
    for client in federation.clients:
        mark = zlib.crc32(client.name.encode(), mark)
        for rows in (client.train, client.test):
            mark = zlib.crc32(np.ascontiguousarray(rows, np.int64).data.cast("B"), mark)
    return f"{mark:08x}"


__all__ = ["Client", "DataOptions", "Dataset", "Federation", "Preprocessing", "federation_of", "fingerprint"]
