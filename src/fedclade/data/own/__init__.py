"""A person's own data as a federation: what each client gave -> labels, test rows and features that fit together.

`gather` reads, numbers the labels and holds out test rows; `Gathered.federation` makes the features. Between the two,
where clients are apart, each can tell its `Gathered.statistics`, from which all get the same preprocessing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedclade.data.federation import Client, Federation, natural_order
from fedclade.data.options import DataOptions
from fedclade.data.own.features import columns_in, features_of, training_statistics
from fedclade.data.own.files import clients_in, clients_of_table, path_of
from fedclade.data.own.given import is_frame, rows_given
from fedclade.data.own.labels import WHOLE, Amounts, agreed_labels, taken_for_places, whole_number
from fedclade.data.own.roles import rows_by_client
from fedclade.data.own.rows import OwnRows
from fedclade.data.own.suspicions import lookalikes
from fedclade.data.own.tables import Table, column_order
from fedclade.data.partition.test_views import check_own_view, is_too_small, on_own_rows
from fedclade.data.preprocessing import Columns, Preprocessing, Statistics, lopsided, statistics
from fedclade.errors import FedcladeError, listed

__all__ = ["Gathered", "column_order", "gather", "path_of"]


@dataclass(frozen=True)
class Gathered:
    """Own data that were read: labels are numbers and test rows are known, features are still as they were given."""

    data: str
    options: DataOptions
    clients: Sequence[OwnRows]
    members: Sequence[Client]  # the rows they train and are tested on, counted from 0 for each client
    y: Sequence[np.ndarray]
    classes: tuple[str, ...]
    remarks: tuple[str, ...]

    def columns(self) -> tuple[list[str], list[str]]:
        """The names of the columns of numbers and of text."""
        return columns_in(self.clients, self.options.categorical)

    def statistics(self, numbers: Sequence[str], texts: Sequence[str]) -> list[Statistics]:
        """Each client's, of its training rows."""
        training = [member.train for member in self.members]
        return training_statistics(self.clients, training, numbers, texts, self.options.missing == "median")

    def federation(self, known: Preprocessing | None = None) -> Federation:
        """The federation with its features, by a known preprocessing or by one that is worked out now."""
        training = [member.train for member in self.members]
        x, preprocessing, remarks = features_of(self.clients, training, self.options, known)
        starts = np.cumsum([0, *(len(rows) for rows in x[:-1])], dtype=np.int32)
        numbers = [
            np.arange(len(y)) if c.numbers is None else c.numbers for c, y in zip(self.clients, self.y, strict=True)
        ]
        return Federation(
            np.concatenate(x),
            np.concatenate(self.y),
            tuple(replace(m, train=m.train + k, test=m.test + k) for m, k in zip(self.members, starts, strict=True)),
            self.classes,
            self.data,
            columns=preprocessing.features if preprocessing and isinstance(self.clients[0].x, Table) else (),
            row_numbers=np.concatenate(numbers).astype(np.int32),
            preprocessing=preprocessing,
            remarks=(*self.remarks, *remarks),
            labels=self.options.labels or "classes",
            is_text=self.clients[0].is_text,
        ).checked()


def gather(
    data: Any,
    options: DataOptions,
    n_clients: int | None = None,
    seed: int = 0,
    test_view: str | None = None,
    classes: Sequence[Any] | None = None,
) -> Gathered:
    """From `folder:PATH`, `table:PATH`, a pandas table that names the client of each row, or a dict of clients.

    The first `n_clients` of them; `classes` are those of a run that the data shall fit.
    """
    check_own_view(test_view)
    found, remarks = _read(data, options)
    if options.scaling is None:  # whoever gives arrays in Python has prepared them, and gives the model such rows later
        is_prepared = not isinstance(data, str) and all(isinstance(client.x, np.ndarray) for client in found)
        options = options.model_copy(update={"scaling": "none" if is_prepared else "federated"})
    found = sorted(found, key=lambda client: natural_order(client.name))
    if len({client.name for client in found}) < len(found):
        raise FedcladeError("two clients have the same name: give each its own")
    members = _members(found, options, n_clients, test_view, remarks)
    clients = [client for client in found if client.name in members]
    remarks += _said_of(clients)
    labels = {client.where: client.labels for client in clients}
    coarse = [client.name for client in clients if isinstance(client.labels, Amounts) and client.labels.is_coarse]
    if coarse:
        remarks.append(
            f"{listed(coarse, 3)}: amounts differ by so little that single precision rounds it away: subtract what "
            "they have in common"
        )
    if classes is not None and taken_for_places(labels, classes):
        places = listed((f"{place} is {name}" for place, name in enumerate(classes)), 6)
        remarks.append(f"labels are whole numbers, taken for places in the list of classes: {places}")
    y, names = agreed_labels(labels, classes, options.max_classes)
    n_rows = sum(map(len, y))
    if classes is None and options.labels in (None, "classes") and n_rows >= 20 and 2 * len(names) > n_rows:
        remarks.append(f"{len(names):,} classes in {n_rows:,} rows: if labels are amounts, set task=regression")
    for place, client in enumerate(clients):
        if client.is_text:
            clients[place] = replace(client, x=y[place][:, :-1].astype(np.int32))
            y[place] = y[place][:, 1:]
    tested = [
        on_own_rows([member], own, test_view, seed, options.holdout, options.holdout_rows == "last")[0]
        for member, own in zip(members.values(), y, strict=True)
    ]
    if classes is None:
        remarks += _on_labels(tested, y, names, options)
    return Gathered(data if isinstance(data, str) else "own", options, clients, tested, y, names, tuple(remarks))


def _said_of(clients: Sequence[OwnRows]) -> list[str]:
    """Each remark once, with those whom it concerns unless these are all."""
    whom: dict[str, list[str]] = {}
    for client in clients:
        for remark in dict.fromkeys(client.remarks):
            whom.setdefault(remark, []).append(client.name)
    return [remark if len(names) == len(clients) else f"{listed(names, 3)}: {remark}" for remark, names in whom.items()]


def _on_labels(
    members: Sequence[Client], y: Sequence[np.ndarray], names: Sequence[str], options: DataOptions
) -> list[str]:
    """What is odd about the labels of training rows."""
    training = [own[member.train] for own, member in zip(y, members, strict=True)]
    if options.labels == "numbers":
        told = {m.name: statistics(Columns(own, {})) for m, own in zip(members, training, strict=True)}
        return lopsided(names, told, "Mend it, or leave those rows out")
    if options.labels == "sets":
        return []
    seen = set(np.unique(np.concatenate([own.ravel() for own in training])).tolist())
    alike = lookalikes(names) if options.rows != "tokens" else []
    unseen = [name for place, name in enumerate(names) if place not in seen]
    remarks = [f"no training row has the label {listed(unseen, 6)}"] if unseen and options.rows != "tokens" else []
    if alike:
        remarks.append(f"{listed(alike, 3)} are different labels: if they mean the same, write them alike")
    if len(seen) == 1:
        remarks.append("all training rows have the same label: there is nothing to learn")
    return remarks


def _read(data: Any, options: DataOptions) -> tuple[list[OwnRows], list[str]]:
    """The clients, and remarks on what was left out."""
    if isinstance(data, Mapping):
        return [rows_given(str(name), value, options) for name, value in data.items()], []
    if is_frame(data):
        return rows_by_client(Table.of_frame(data), options, "the table"), []
    if not isinstance(data, str):
        kind = type(data).__name__
        raise FedcladeError(
            f"cannot make clients of {kind}: give a name, a dict of clients, a DataFrame or a Federation"
        )
    path = path_of(data)
    try:
        return (clients_of_table(path, options), []) if data.startswith("table:") else clients_in(path, options)
    except OSError as error:  # no right to look into a folder, or a name too long for one
        raise FedcladeError(f"{error.filename or path}: it cannot be opened ({error.strerror or error})") from error


def _members(
    clients: Sequence[OwnRows], options: DataOptions, n_clients: int | None, test_view: str | None, remarks: list[str]
) -> dict[str, Client]:
    """The first clients by name with the rows they gave, without those who are too small."""
    groups = _numbered_groups({client.name: client.group for client in clients if client.group is not None})
    members = {}
    for client in clients:
        is_test = np.zeros(len(client.labels), bool) if client.test is None else client.test
        train, test = (np.flatnonzero(part).astype(np.int32) for part in (~is_test, is_test))
        members[client.name] = Client(client.name, train, test, groups.get(client.name))
    small = {name: len(member.train) for name, member in members.items() if is_too_small(member, test_view)}
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
    if n_clients is not None and n_clients > len(usable):
        raise FedcladeError(f"{n_clients} clients asked for, but the data have {len(usable)}")
    return dict(list(usable.items())[:n_clients])


def _numbered_groups(groups: Mapping[str, Any]) -> dict[str, int]:
    """Groups as whole numbers: as given, or by the sorted order of their names."""
    if all(WHOLE.fullmatch(str(group)) for group in groups.values()):
        return {name: whole_number(str(group)) for name, group in groups.items()}
    order = sorted({str(group) for group in groups.values()}, key=natural_order)
    return {name: order.index(str(group)) for name, group in groups.items()}
