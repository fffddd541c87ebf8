"""Data: official files to arrays (`sources`), one data set to many clients (`partition`), a person's own (`own`)."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedclade.data.federation import Client, Dataset, Federation
from fedclade.errors import FedcladeError, imported

DEFAULT_CLIENTS = 20


def federation_of(
    data: Any,
    split: str | None = None,
    clients: int | None = None,
    seed: int = 0,
    test_view: str | None = None,
    data_dir: Path | str | None = None,
    classes: Sequence[str] | None = None,
    columns: Sequence[str] = (),
) -> Federation:
    """A federation from anything that can be one.

    `data` is the name of a source (`"mnist"`, `"motionsense:rows"`), `"folder:PATH"`, `"my_module:make_data"`, a
    Dataset, a Federation, or a dict of clients with arrays or torch Datasets. `classes` fixes the labels of own data,
    `columns` the features of own tables and their order.
    """
    from fedclade.data.own import folder_of, from_folder
    from fedclade.data.partition import partition
    from fedclade.data.sources import load, sources

    if isinstance(data, str):
        name, _, rest = data.partition(":")
        if name == "folder":
            data = from_folder(folder_of(data), classes=classes, columns=columns)
        elif rest and name not in sources():
            data = _made(data)
        else:
            data = load(data, data_dir)
    if isinstance(data, Mapping):
        data = _from_clients(data, classes)
    if isinstance(data, Federation):
        return _as_dealt(data, split, clients)
    if not isinstance(data, Dataset):
        raise FedcladeError(
            f"cannot make clients of {type(data).__name__}: give a name, a dict of clients or a Federation"
        )
    if split is None:
        split = "natural" if data.owner is not None else "iid"
    if clients is None and split != "natural":
        clients = DEFAULT_CLIENTS
    return partition(data, split, clients, seed, test_view).checked()


def _made(path: str) -> Any:
    """What `my_module:make_data` makes, or what lies there ready made."""
    made = imported(path, "data")
    try:
        return made() if callable(made) else made
    except FedcladeError:
        raise
    except Exception as error:
        raise FedcladeError(f"data {path!r}: it raised {type(error).__name__}: {error}") from error


def _from_clients(clients: Mapping[str, Any], classes: Sequence[str] | None) -> Federation:
    from fedclade.data.own import from_arrays, from_datasets

    is_array = [isinstance(value, Mapping) or _holds_arrays(value) for value in clients.values()]
    return (from_arrays if all(is_array) else from_datasets)(dict(clients), classes)


def _holds_arrays(value: Any) -> bool:
    return isinstance(value, tuple | list) and all(hasattr(part, "shape") or isinstance(part, list) for part in value)


def _as_dealt(federation: Federation, split: str | None, clients: int | None) -> Federation:
    if split not in (None, "natural", "own"):
        raise FedcladeError(f"split {split!r}: these data come divided among clients already; leave --split out")
    if clients is not None and clients > len(federation):
        raise FedcladeError(f"{clients} clients asked for, but the data have {len(federation)}")
    if clients is None or clients == len(federation):
        return federation.checked()
    return replace(federation, clients=federation.clients[:clients]).checked()


def fingerprint(federation: Federation) -> str:
    """A short mark of rows, labels and who holds which: a run must go on with the data it began with."""
    mark = zlib.crc32(np.ascontiguousarray(federation.x).data.cast("B"))
    mark = zlib.crc32(np.ascontiguousarray(federation.y).data.cast("B"), mark)
    for client in federation.clients:
        mark = zlib.crc32(client.name.encode(), mark)
        for rows in (client.train, client.test):
            mark = zlib.crc32(np.ascontiguousarray(rows, np.int64).data.cast("B"), mark)
    return f"{mark:08x}"


__all__ = ["Client", "Dataset", "Federation", "federation_of", "fingerprint"]
