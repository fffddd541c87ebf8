"""A person's own data as a federation: what each client gave -> labels, test rows and features that fit together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedclade.data.federation import Client, Federation, natural_order
from fedclade.data.options import DataOptions
from fedclade.data.own.features import features_of
from fedclade.data.own.files import clients_in, clients_of_table, path_of
from fedclade.data.own.given import rows_given
from fedclade.data.own.labels import numbered, numbered_as
from fedclade.data.own.rows import OwnRows
from fedclade.data.own.tables import Table, column_order, rows_by_client
from fedclade.data.partition.test_views import check_own_view, is_too_small, on_own_rows
from fedclade.data.preprocessing import Preprocessing, Scaling
from fedclade.errors import FedcladeError, listed

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Wish", "column_order", "from_files", "from_given", "from_table", "path_of"]


@dataclass(frozen=True)
class Wish:
    """What is asked of a federation, besides how its data are read."""

    clients: int | None = None  # the first so many
    seed: int = 0
    test_view: str | None = None
    classes: Sequence[Any] | None = None  # those of a run that the data shall fit
    preprocessing: Preprocessing | None = None  # likewise


def from_files(data: str, options: DataOptions, wish: Wish) -> Federation:
    """A federation of `folder:PATH`, with a file for each client, or `table:PATH`, with all clients in one table."""
    path, remarks = path_of(data), list[str]()
    try:
        if data.startswith("table:"):
            clients = clients_of_table(path, options)
        else:
            clients, remarks = clients_in(path, options)
    except OSError as error:  # no right to look into a folder, or a name too long for one
        raise FedcladeError(f"{error.filename or path}: it cannot be opened ({error.strerror or error})") from error
    return _federation(clients, options, options.scaling or "federated", data, remarks, wish)


def from_table(table: "pd.DataFrame", options: DataOptions, wish: Wish) -> Federation:
    """A federation of one pandas table that names the client of each row."""
    if not (hasattr(table, "columns") and hasattr(table, "iloc")):
        kind = type(table).__name__
        raise FedcladeError(
            f"cannot make clients of {kind}: give a name, a dict of clients, a DataFrame or a Federation"
        )
    clients = rows_by_client(Table.of_frame(table), options, "the table")
    return _federation(clients, options, options.scaling or "federated", "own", [], wish)


def from_given(clients: Mapping[Any, Any], options: DataOptions, wish: Wish) -> Federation:
    """A federation of a dict of clients: arrays, pandas tables or torch data sets."""
    rows = [rows_given(str(name), value, options) for name, value in clients.items()]
    has_tables = any(isinstance(client.x, Table) for client in rows)
    return _federation(rows, options, options.scaling or ("federated" if has_tables else "none"), "own", [], wish)


def _federation(
    clients: Sequence[OwnRows],
    options: DataOptions,
    scaling: Scaling,
    data: str,
    remarks: list[str],
    wish: Wish,
) -> Federation:
    check_own_view(wish.test_view)
    given = sorted(clients, key=lambda client: natural_order(client.name))
    members = _members(given, options, wish, remarks)
    clients = [client for client in given if client.name in members]
    remarks += dict.fromkeys(remark for client in clients for remark in client.remarks)
    labels = {client.where: client.labels for client in clients}
    if wish.classes is None:
        y, names = numbered(labels, options.max_classes)
    else:
        y, names = numbered_as(labels, wish.classes)
    tested = [
        on_own_rows([member], own, wish.test_view, wish.seed, options.holdout, options.holdout_rows == "last")[0]
        for member, own in zip(members.values(), y, strict=True)
    ]
    x, preprocessing, said = features_of(
        clients, [member.train for member in tested], scaling, options.missing, options.categorical, wish.preprocessing
    )
    starts = np.cumsum([0, *(len(rows) for rows in x[:-1])], dtype=np.int32)
    own_numbers = [np.arange(len(rows)) if c.numbers is None else c.numbers for c, rows in zip(clients, x, strict=True)]
    return Federation(
        np.concatenate(x),
        np.concatenate(y),
        tuple(replace(m, train=m.train + start, test=m.test + start) for m, start in zip(tested, starts, strict=True)),
        names,
        data,
        columns=preprocessing.features if preprocessing and isinstance(clients[0].x, Table) else (),
        row_numbers=np.concatenate(own_numbers).astype(np.int32),
        preprocessing=preprocessing,
        remarks=(*remarks, *said),
    ).checked()


def _members(clients: Sequence[OwnRows], options: DataOptions, wish: Wish, remarks: list[str]) -> dict[str, Client]:
    """The wished number of clients by name with the rows they gave, without those who are too small."""
    groups = _numbered_groups({client.name: client.group for client in clients if client.group is not None})
    members = {}
    for client in clients:
        is_test = np.zeros(len(client.labels.codes), bool) if client.test is None else client.test
        train, test = (np.flatnonzero(part).astype(np.int32) for part in (~is_test, is_test))
        members[client.name] = Client(client.name, train, test, groups.get(client.name))
    small = {name: len(member.train) for name, member in members.items() if is_too_small(member, wish.test_view)}
    if small and not options.skip_small:
        name, rows = next(iter(small.items()))
        problem = "one row, so none can be held out to test it" if rows else "no training rows"
        raise FedcladeError(
            f"client {name!r} has {problem}: give it more, or leave out such clients (data.skip_small=true)"
        )
    if small:
        remarks.append(f"too few rows, left out: {listed(small, 6)}")
    usable = {name: member for name, member in members.items() if name not in small}
    if not usable:
        raise FedcladeError("there are no clients with rows to train and be tested on: give at least one")
    if wish.clients is not None and wish.clients > len(usable):
        raise FedcladeError(f"{wish.clients} clients asked for, but the data have {len(usable)}")
    return dict(list(usable.items())[: wish.clients])


def _numbered_groups(groups: Mapping[str, Any]) -> dict[str, int]:
    """Groups as whole numbers: as given, or by the sorted order of their names."""
    if all(isinstance(group, int) for group in groups.values()):
        return dict(groups)
    order = sorted({str(group) for group in groups.values()}, key=natural_order)
    return {name: order.index(str(group)) for name, group in groups.items()}
