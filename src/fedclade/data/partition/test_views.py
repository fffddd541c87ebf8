"""On which rows a client is tested: the views of a common test set, and the one rule by which rows are held out."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedclade.data.federation import Client, Dataset
from fedclade.data.partition.allocation import apportion
from fedclade.errors import FedcladeError, listed, unknown
from fedclade.randomness import stream

TEST_VIEWS = {
    "label-support": "all test rows of every label the client trains on",
    "proportional": "test rows in the label proportions of the client's training rows; its share of the test rows is "
    "its share of the training rows (less where a label runs out)",
    "holdout": "a fifth of the client's own training rows, at least one, of every label alike",
}
HOLDOUT = 0.2


def check_own_view(view: str | None) -> None:
    """Raise where clients that bring their own rows cannot be tested by a view."""
    if view is not None and view not in TEST_VIEWS:
        raise unknown("test view", view, TEST_VIEWS)
    if view not in (None, "holdout"):
        raise FedcladeError(
            f"the test view {view!r} looks at a test set that all clients share, and these have none: "
            "leave it out, or use 'holdout'"
        )


def on_common_rows(
    clients: Sequence[Client], dataset: Dataset, view: str, seed: int, by_group: bool = False
) -> list[Client]:
    """The clients with their view of the data set's test rows; `by_group`: each group has its own copy of these."""
    test_y = dataset.y[dataset.n_train :]
    shared: dict[tuple[bytes, int], np.ndarray] = {}  # clients with equal views share one array
    tested = []
    for client in clients:
        first = dataset.n_train + (len(test_y) * (client.group or 0) if by_group else 0)
        counts = np.bincount(dataset.y[client.train], minlength=dataset.n_classes)
        if not counts[test_y].any():
            labels = listed(dataset.classes[label] for label in np.flatnonzero(counts))
            raise FedcladeError(f"no test row has a label of {client.name!r} ({labels}): use the test view 'holdout'")
        if view == "proportional":
            rng = stream(seed, "proportional", client.name)
            test = (first + _in_proportion(counts, test_y, dataset.n_train, rng)).astype(np.int32)
        else:
            key = ((counts > 0).tobytes(), first)
            if key not in shared:
                shared[key] = (first + np.flatnonzero(counts[test_y])).astype(np.int32)
            test = shared[key]
        tested.append(replace(client, test=test))
    return tested


def _in_proportion(counts: np.ndarray, test_y: np.ndarray, n_train: int, rng: np.random.Generator) -> np.ndarray:
    """Positions among the test rows, in the proportions of a client's label counts."""
    there = np.bincount(test_y, minlength=len(counts))
    wanted = np.where(there > 0, counts, 0)
    fair = wanted.sum() * len(test_y) / n_train
    possible = wanted.sum() * np.min(there[wanted > 0] / wanted[wanted > 0])
    drawn = apportion(max(1, int(min(fair, possible) + 1e-9)), wanted, rng.random())
    rows = [rng.permutation(np.flatnonzero(test_y == label))[: drawn[label]] for label in np.flatnonzero(drawn)]
    return np.sort(np.concatenate(rows))


def on_own_rows(
    clients: Sequence[Client],
    y: np.ndarray,
    view: str | None,
    seed: int,
    fraction: float = HOLDOUT,
    in_order: bool = False,
) -> list[Client]:
    """The clients with their own test rows; those who have none (with the view `holdout`, all) hold some out."""
    return [held_out(c, y, seed, fraction, in_order) if _holds_out(c, view) else c for c in clients]


def _holds_out(client: Client, view: str | None) -> bool:
    return view == "holdout" or not len(client.test)


def is_too_small(client: Client, view: str | None) -> bool:
    """Whether a client has nothing to train on once it can be tested on its own rows."""
    return len(client.train) < (2 if _holds_out(client, view) else 1)


def held_out(client: Client, y: np.ndarray, seed: int, fraction: float = HOLDOUT, in_order: bool = False) -> Client:
    """The client with a fraction of its training rows, of every label alike, set aside for testing.

    They are drawn at random, or are the last of each label where rows stand in the order of time: neighbouring rows of
    a sensor are almost copies, and must not stand on both sides.
    """
    if len(client.train) < 2:
        raise FedcladeError(
            f"client {client.name!r} has one row, so none can be held out to test it: use fewer clients"
        )
    rng = stream(seed, "holdout", client.name)
    rows = client.train if in_order else rng.permutation(client.train)
    n_test = min(max(1, int(len(rows) * fraction + 1e-9)), len(rows) - 1)
    labels = y[rows] if y.ndim == 1 else np.zeros(len(rows), np.int64)  # amounts, sets and texts are not alike
    aside = apportion(n_test, np.bincount(labels), rng.random())
    test = np.concatenate([rows[labels == label][-aside[label] :] for label in np.flatnonzero(aside)])
    return replace(client, train=np.setdiff1d(rows, test), test=np.sort(test), held_out=True)
