"""What all clients gave -> the features of all, by one preprocessing."""

from collections.abc import Sequence

import numpy as np

from fedclade.data.own.given import kind_of
from fedclade.data.own.rows import OwnRows
from fedclade.data.own.tables import Table, agreed_kinds, column_order, columns_of, kinds_of
from fedclade.data.preprocessing import Columns, Missing, Number, Preprocessing, Scaling, Statistics, statistics
from fedclade.errors import FedcladeError, listed


def features_of(
    clients: Sequence[OwnRows],
    training: Sequence[np.ndarray],
    scaling: Scaling,
    missing: Missing,
    categorical: Sequence[str],
    known: Preprocessing | None,
) -> tuple[list[np.ndarray], Preprocessing | None, list[str]]:
    """(each client's features, the preprocessing that made them, remarks).

    `training` are each client's training rows, from which the preprocessing is worked out unless it is `known`.
    """
    first = clients[0].x
    if isinstance(first, np.ndarray):
        _check_alike(clients)
        if first.dtype == np.uint8 or first.ndim > 3:
            return [_plain(client.x) for client in clients], None, []  # images stay as they are
    numbers, texts = _names(clients, categorical, known)
    columns = [_columns(client, numbers, texts) for client in clients]
    found: list[Statistics] = []
    if (
        "client" in (scaling, known and known.scaling)
        or (known is None and (scaling, missing) != ("none", "refuse"))
        or texts
    ):
        found = [statistics(c.take(rows), missing == "median") for c, rows in zip(columns, training, strict=True)]
    if known is not None:
        preprocessing = known
    elif found:
        preprocessing = Preprocessing.fit(numbers, found, scaling, missing)
    else:
        preprocessing = Preprocessing(numbers=tuple(Number(name=name) for name in numbers))
    x = [
        preprocessing.apply(own, found[place] if found else None, client.row)
        for place, (own, client) in enumerate(zip(columns, clients, strict=True))
    ]
    remarks = _unknown_categories(columns, preprocessing)
    if known is None:
        remarks += _remarks(preprocessing)
    is_plain = isinstance(first, np.ndarray) and preprocessing.scaling == "none" and preprocessing.missing == "refuse"
    return x, None if is_plain else preprocessing, remarks


def _plain(x: "np.ndarray | Table") -> np.ndarray:
    assert isinstance(x, np.ndarray)
    with np.errstate(over="ignore"):  # what is too large becomes infinite, which is reported
        return x if x.dtype == np.uint8 else x.astype(np.float32)


def _check_alike(clients: Sequence[OwnRows]) -> None:
    first = clients[0]
    for client in clients:
        if isinstance(client.x, Table):
            raise FedcladeError(f"{client.where} is a table, but {first.where} holds arrays: give all clients one kind")
        assert isinstance(first.x, np.ndarray)
        if kind_of(client.x) != kind_of(first.x):
            raise FedcladeError(
                f"{client.where}: its rows are {kind_of(client.x)}, but those of {first.where} are "
                f"{kind_of(first.x)}: all clients need the same"
            )


def _names(
    clients: Sequence[OwnRows], categorical: Sequence[str], known: Preprocessing | None
) -> tuple[list[str], list[str]]:
    """The columns of numbers and those of text."""
    first = clients[0]
    if isinstance(first.x, np.ndarray):
        names = [str(number) for number in range(first.x.shape[1])]
        if known is not None and len(known.columns) != len(names):
            raise FedcladeError(
                f"{first.where}: its rows have {len(names)} features, those of the run {len(known.columns)}"
            )
        return names, []
    wanted, whose = (first.x.names, first.where) if known is None else (known.columns, "the run")
    for client in clients:
        if not isinstance(client.x, Table):
            raise FedcladeError(f"{client.where} holds arrays, but {first.where} is a table: give all clients one kind")
        column_order(client.x.names, wanted, client.where, whose)
    if known is not None:
        return [number.name for number in known.numbers], [text.name for text in known.texts]
    strange = [name for name in categorical if name not in wanted]
    if strange:
        raise FedcladeError(f"data.categorical names {strange[0]!r}, but the features are {listed(wanted)}")
    kinds = agreed_kinds([kinds_of(client.x) for client in clients if isinstance(client.x, Table)], categorical)
    return [name for name in wanted if kinds[name] != "text"], [name for name in wanted if kinds[name] == "text"]


def _columns(client: OwnRows, numbers: Sequence[str], texts: Sequence[str]) -> Columns:
    if isinstance(client.x, np.ndarray):
        return Columns(client.x, {})
    return columns_of(client.x, numbers, texts, client.where)


def _unknown_categories(columns: Sequence[Columns], preprocessing: Preprocessing) -> list[str]:
    remarks = []
    for text in preprocessing.texts:
        held = {value for own in columns for value in own.texts[text.name] if value is not None}
        if unknown := sorted(held - set(text.categories)):
            remarks.append(
                f"column {text.name!r} holds {listed(unknown, 3)} in no training row: taken for none of its texts"
            )
    return remarks


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
    if preprocessing.marked:
        remarks.append(
            f"the {preprocessing.missing} stands for missing numbers, no category for missing text; a feature marks "
            f"them: {listed(preprocessing.marked)}"
        )
    return remarks
