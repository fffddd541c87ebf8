"""What all clients gave -> the features of all, by one preprocessing."""

from collections.abc import Sequence

import numpy as np

from fedclade.data.options import DataOptions
from fedclade.data.own.given import kind_of
from fedclade.data.own.rows import OwnRows
from fedclade.data.own.suspicions import lookalikes
from fedclade.data.own.tables import Table, agreed_kinds, column_order, columns_of, kinds_of
from fedclade.data.preprocessing import Columns, Number, Preprocessing, Scaling, Statistics, lopsided, statistics
from fedclade.errors import FedcladeError, listed

LARGE = 30  # images and the like that were scaled hold no larger numbers


def features_of(
    clients: Sequence[OwnRows], training: Sequence[np.ndarray], options: DataOptions, known: Preprocessing | None
) -> tuple[list[np.ndarray], Preprocessing | None, list[str]]:
    """(each client's features, the preprocessing that made them, remarks).

    `training` are each client's training rows, from which the preprocessing is worked out unless it is `known`.
    """
    if _are_ready(clients):
        return _unscaled(clients)
    numbers, texts = columns_in(clients, options.categorical) if known is None else _known_columns(clients, known)
    scaling, missing = (options.scaling or "none", options.missing) if known is None else (known.scaling, known.missing)
    found: list[Statistics] = []
    if scaling == "client" or (known is None and (scaling != "none" or missing != "refuse" or texts)):
        found = training_statistics(clients, training, numbers, texts, missing == "median")
    if known is not None:
        preprocessing = known
    elif found:
        preprocessing = Preprocessing.fit(numbers, found, scaling, missing)
    else:
        preprocessing = Preprocessing(numbers=tuple(Number(name=name) for name in numbers))
    x, held, remarks = [], {name: set[str | None]() for name in texts}, list[str]()
    for place, client in enumerate(clients):
        columns = _columns(client, numbers, texts)
        x.append(preprocessing.apply(columns, found[place] if found else None, client.row))
        for name in texts:
            held[name] |= set(columns.texts[name])
        if known is not None:
            remarks += [f"{client.name}: {remark}" for remark in known.apart(columns)]
    remarks += [] if known else _remarks(preprocessing)
    if known is None and scaling == "federated":
        told = {client.name: own for client, own in zip(clients, found, strict=True)}
        remarks += lopsided(numbers, told)
    remarks += preprocessing.unknown(held)
    is_plain = isinstance(clients[0].x, np.ndarray) and scaling == "none" and missing == "refuse"
    return x, None if is_plain else preprocessing, remarks


def training_statistics(
    clients: Sequence[OwnRows],
    training: Sequence[np.ndarray],
    numbers: Sequence[str],
    texts: Sequence[str],
    median: bool,
) -> list[Statistics]:
    """Each client's statistics of its training rows."""
    return [
        statistics(_columns(client, numbers, texts).take(rows), median)
        for client, rows in zip(clients, training, strict=True)
    ]


def columns_in(clients: Sequence[OwnRows], categorical: Sequence[str]) -> tuple[list[str], list[str]]:
    """The names of the columns of numbers and of text. Arrays have numbers only, named 0, 1, ..."""
    first = clients[0]
    if isinstance(first.x, np.ndarray):
        _check_alike(clients)
        return [str(number) for number in range(first.x.shape[1])], []
    _check_tables(clients, first.x.names, first.where)
    strange = [name for name in categorical if name not in first.x.names]
    if strange:
        raise FedcladeError(f"data.categorical names {strange[0]!r}, but the features are {listed(first.x.names)}")
    kinds = agreed_kinds([kinds_of(client.x) for client in clients if isinstance(client.x, Table)], categorical)
    numbers = [name for name in first.x.names if kinds[name] != "text"]
    return numbers, [name for name in first.x.names if kinds[name] == "text"]


def _known_columns(clients: Sequence[OwnRows], known: Preprocessing) -> tuple[list[str], list[str]]:
    """The same of a run, after making sure that the clients have them."""
    first = clients[0]
    if isinstance(first.x, Table):
        _check_tables(clients, known.columns, "the run")
    else:
        _check_alike(clients)
        own = tuple(str(number) for number in range(first.x.shape[1]))
        if own != known.columns:
            raise FedcladeError(
                f"{first.where}: its rows are {len(own)} features without names, those of the run are made of "
                f"{listed(known.columns, 6)}: give the same"
            )
    return [number.name for number in known.numbers], [text.name for text in known.texts]


def _check_tables(clients: Sequence[OwnRows], wanted: Sequence[str], whose: str) -> None:
    for client in clients:
        if not isinstance(client.x, Table):
            raise FedcladeError(f"{client.where} holds arrays, but {whose} has tables: give all clients one kind")
        column_order(client.x.names, wanted, client.where, whose)


def _check_alike(clients: Sequence[OwnRows]) -> None:
    first = clients[0]
    for client in clients:
        if isinstance(client.x, Table) or isinstance(first.x, Table):
            raise FedcladeError(f"{client.where} is a table, but {first.where} holds arrays: give all clients one kind")
        if kind_of(client.x) != kind_of(first.x):
            raise FedcladeError(
                f"{client.where}: its rows are {kind_of(client.x)}, but those of {first.where} are "
                f"{kind_of(first.x)}: all clients need the same"
            )


def _are_ready(clients: Sequence[OwnRows]) -> bool:
    first = clients[0].x
    if isinstance(first, Table) or (first.dtype not in (np.uint8, np.int32) and first.ndim < 4):
        return False
    _check_alike(clients)
    return True


def _unscaled(clients: Sequence[OwnRows]) -> tuple[list[np.ndarray], None, list[str]]:
    """Images and tokens as they are, and a word on numbers so large that networks hardly learn from them."""
    x = [_as_they_are(client.x) for client in clients]
    largest = max((float(max(own.max(), -own.min())) for own in x if own.dtype == np.float32 and own.size), default=0.0)
    if largest <= LARGE:
        return x, None, []
    return x, None, [f"rows are not scaled and hold numbers up to {largest:g}: give images as uint8, or scale them"]


def _as_they_are(x: "np.ndarray | Table") -> np.ndarray:
    assert isinstance(x, np.ndarray)
    with np.errstate(over="ignore"):  # what is too large becomes infinite, which is reported
        return x if x.dtype in (np.uint8, np.int32) else x.astype(np.float32)


def _columns(client: OwnRows, numbers: Sequence[str], texts: Sequence[str]) -> Columns:
    if isinstance(client.x, np.ndarray):
        return Columns(client.x, {})
    return columns_of(client.x, numbers, texts, client.where)


def _remarks(preprocessing: Preprocessing) -> list[str]:
    """What was done, in words."""
    remarks = []
    whose: dict[Scaling, str] = {"federated": "all clients'", "client": "its client's own"}
    if preprocessing.scaling != "none" and preprocessing.numbers:
        remarks.append(
            f"features are scaled by the mean and standard deviation of {whose[preprocessing.scaling]} training rows "
            "(data.scaling)"
        )
    if preprocessing.texts:
        words = [f"{text.name} ({len(text.categories)})" for text in preprocessing.texts]
        remarks.append(f"columns of text became categories: {listed(words)}")
    for text in preprocessing.texts:
        if alike := lookalikes(text.categories):
            remarks.append(
                f"column {text.name!r}: {listed(alike, 3)} are different texts: if they mean the same, write them alike"
            )
    if preprocessing.marked:
        remarks.append(
            f"the {preprocessing.missing} stands for missing numbers, no category for missing text; a feature marks "
            f"them: {listed(preprocessing.marked)}"
        )
    return remarks
