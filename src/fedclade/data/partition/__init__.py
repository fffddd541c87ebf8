"""One data set -> many clients, as the papers partition it.

A split is a table: how many training rows of each label each client gets (`schemes`). Which rows those are is the same
for every split: the rows of a label are shuffled and handed out in the order of the clients. So no row has two owners,
counts are exact, and everything follows from the seed. Only `natural` has no table: the data say whose row it is.
"""

from collections.abc import Sequence

import numpy as np

from fedclade.data.federation import Client, Dataset, Federation
from fedclade.data.partition import schemes
from fedclade.data.partition.allocation import Request
from fedclade.data.partition.registry import Split, parsed, splits
from fedclade.data.partition.test_views import HOLDOUT, TEST_VIEWS, is_too_small, on_common_rows, on_own_rows
from fedclade.errors import FedcladeError, unknown
from fedclade.randomness import stream

__all__ = ["TEST_VIEWS", "Split", "partition", "schemes", "splits"]


def partition(
    dataset: Dataset,
    spec: str,
    clients: int | None,
    seed: int = 0,
    test_view: str | None = None,
    holdout: float = HOLDOUT,
) -> Federation:
    """Partition a data set among clients, e.g. `partition(mnist, "label-skew:0.2", 100)`.

    `clients` may be None for `natural` only: every owner with enough rows to be trained and tested.
    `test_view` is one of `TEST_VIEWS`. Left out, it is `label-support`, or `holdout` where the data set has no test
    rows; under `natural` a client is tested on its owner's own test rows, or on a holdout if it has none.
    """
    split, arguments = parsed(spec)
    _check_request(dataset, split, clients, test_view)
    if split.allocate is None:
        return _natural(dataset, clients, seed, test_view, holdout).checked()
    assert clients is not None
    sizes = np.bincount(dataset.y[: dataset.n_train], minlength=dataset.n_classes)
    colour = dataset.x.ndim == 4 and dataset.x.shape[1] == 3
    allocation = split.allocate(Request(sizes, int(clients), colour, stream(seed, "split")), *arguments)
    empty = int((allocation.counts.sum(axis=1) == 0).sum())
    if empty:
        raise FedcladeError(
            f"split {spec!r} leaves {empty} of {clients} clients without rows: use fewer clients or another split"
        )

    width, group = max(3, len(str(clients - 1))), allocation.group
    members = [
        Client(f"client-{number:0{width}}", rows, rows[:0], None if group is None else int(group[number]))
        for number, rows in enumerate(_allocated(dataset, allocation.counts, seed))
    ]
    turns = allocation.turns
    x, y = _turned(dataset, turns, members) if turns else (dataset.x, dataset.y)
    view = test_view or ("label-support" if len(dataset.y) > dataset.n_train else "holdout")
    if view == "holdout":
        members = on_own_rows(members, y, view, seed, holdout)
    else:
        members = on_common_rows(members, dataset, view, seed, by_group=bool(turns))
    return Federation(x, y, tuple(members), dataset.classes, dataset.name, spec, remarks=dataset.remarks).checked()


def _check_request(dataset: Dataset, split: Split, clients: int | None, test_view: str | None) -> None:
    """Raise where the data set cannot be split as asked."""
    if dataset.n_train == 0:
        raise FedcladeError(f"data set {dataset.name!r} has no training rows: give it some")
    if test_view is not None and test_view not in TEST_VIEWS:
        raise unknown("test view", test_view, TEST_VIEWS)
    if test_view not in (None, "holdout") and len(dataset.y) == dataset.n_train:
        raise FedcladeError(f"data set {dataset.name!r} has no test rows for the view {test_view!r}: use 'holdout'")
    if clients is not None and (not isinstance(clients, int | np.integer) or clients < 1):
        raise FedcladeError(f"{clients} clients: give a whole number, 1 or more")
    if split.allocate is None:
        if dataset.owner is None:
            raise FedcladeError(
                f"data set {dataset.name!r} does not say who owns its rows: take another split, e.g. iid"
            )
    elif clients is None:
        raise FedcladeError(f"split {split.name!r} needs a number of clients: give one, e.g. 20")
    elif clients > dataset.n_train:
        raise FedcladeError(f"{clients} clients but {dataset.n_train} training rows: give at most {dataset.n_train}")
    elif split.turns_images and (dataset.x.ndim != 4 or len(set(dataset.x.shape[2:])) > 1):
        shape = "x".join(map(str, dataset.x.shape[1:]))
        raise FedcladeError(f"split {split.name!r} turns square images, not rows of {shape}: take another split")


def _allocated(dataset: Dataset, counts: np.ndarray, seed: int) -> list[np.ndarray]:
    """The training rows of each client, by these counts."""
    rng = stream(seed, "split rows")
    holder = np.full(dataset.n_train, -1)
    for label, wanted in enumerate(counts.T):
        rows = rng.permutation(np.flatnonzero(dataset.y[: dataset.n_train] == label))
        holder[rows[: wanted.sum()]] = np.repeat(np.arange(len(counts)), wanted)
    return _rows_by(holder, len(counts))


def _rows_by(holder: np.ndarray, holders: int) -> list[np.ndarray]:
    """The row numbers of holder 0, 1, ..., each in ascending order; a row with holder -1 is nobody's."""
    order = np.argsort(holder, kind="stable").astype(np.int32)
    return np.split(order, np.searchsorted(holder[order], np.arange(holders + 1)))[1:-1]


def _turned(dataset: Dataset, turns: Sequence[int], clients: Sequence[Client]) -> tuple[np.ndarray, np.ndarray]:
    """The pool with every client's images turned, and the test rows once for each group, one group after the other."""
    n_train, n_test = dataset.n_train, len(dataset.y) - dataset.n_train
    x = np.empty((n_train + len(turns) * n_test, *dataset.x.shape[1:]), dtype=dataset.x.dtype)
    x[:n_train] = dataset.x[:n_train]
    for group, quarters in enumerate(turns):
        mine = np.concatenate([client.train for client in clients if client.group == group])
        first = n_train + group * n_test
        x[mine] = np.rot90(dataset.x[mine], quarters, axes=(2, 3))
        x[first : first + n_test] = np.rot90(dataset.x[n_train:], quarters, axes=(2, 3))
    return x, np.concatenate([dataset.y[:n_train], np.tile(dataset.y[n_train:], len(turns))])


def _natural(dataset: Dataset, clients: int | None, seed: int, test_view: str | None, holdout: float) -> Federation:
    """Owners as clients. One who has a single row and would have to hold it out is left out."""
    assert dataset.owner is not None
    train, test = (_rows_by(part, len(dataset.owners)) for part in np.split(dataset.owner, [dataset.n_train]))
    owners = [
        Client(
            name,
            train[number],
            test[number] + np.int32(dataset.n_train),
            dataset.groups[number] if dataset.groups else None,
        )
        for number, name in enumerate(dataset.owners)
    ]
    on_own = test_view in (None, "holdout")
    usable = [owner for owner in owners if len(owner.train) and not (on_own and is_too_small(owner, test_view))]
    if clients is not None and clients > len(usable):
        raise FedcladeError(f"{clients} clients but {len(usable)} owners with enough rows: give at most {len(usable)}")
    richest = {owner.name for owner in sorted(usable, key=lambda owner: -len(owner.train))[:clients]}
    members = [owner for owner in usable if owner.name in richest]
    if on_own:
        members = on_own_rows(members, dataset.y, test_view, seed, holdout, in_order=True)
    else:
        members = on_common_rows(members, dataset, str(test_view), seed)
    small = len(owners) - len(usable)
    said = (f"{small} of {len(owners)} owners have too few rows to be clients",) if small else ()
    remarks = (*dataset.remarks, *said)
    return Federation(dataset.x, dataset.y, tuple(members), dataset.classes, dataset.name, "natural", remarks=remarks)
