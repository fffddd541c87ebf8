"""How many training rows of each label each client gets: what a split is asked, what it answers, and how to divide."""

from dataclasses import dataclass

import numpy as np

from fedclade.errors import FedcladeError

SMALLEST = 10  # rows: a Dirichlet draw that leaves a client with fewer is drawn again, as in NIID-Bench


@dataclass(frozen=True)
class Request:
    """What a split is asked: so many clients out of so many training rows of each label."""

    sizes: np.ndarray  # (classes,) training rows of each label
    clients: int
    colour: bool  # the papers split grey images (MNIST) and colour images (CIFAR-10) into different numbers of groups
    rng: np.random.Generator

    @property
    def classes(self) -> int:
        return len(self.sizes)

    @property
    def smallest(self) -> int:
        """The fewest rows a client may be left with by chance."""
        return int(min(SMALLEST, self.sizes.sum() // self.clients))

    def groups_side_by_side(self, groups: int, what: str) -> np.ndarray:
        """(clients,) the group of each client: groups of equal size (to within one), one after the other."""
        if groups > self.clients:
            raise FedcladeError(
                f"{what} has {groups} groups but there are {self.clients} clients: give {groups} or more"
            )
        return np.arange(self.clients) * groups // self.clients

    def need_labels(self, needed: int, what: str) -> None:
        if self.classes < needed:
            raise FedcladeError(
                f"{what} needs {needed} or more labels, the data have {self.classes}: take another split"
            )

    def counted(self, client: np.ndarray, label: np.ndarray) -> np.ndarray:
        """(clients, classes) counts from the client and the label of each row."""
        cells = np.bincount(client * self.classes + label, minlength=self.clients * self.classes)
        return cells.reshape(self.clients, self.classes)


@dataclass(frozen=True)
class Allocation:
    """Who gets how many rows of which label."""

    counts: np.ndarray  # (clients, classes)
    group: np.ndarray | None = None  # (clients,) the hidden groups, where there are any
    turns: tuple[int, ...] = ()  # quarter turns of the images of group 0, 1, ...


def apportion(total: np.ndarray | int, weights: np.ndarray, offset: np.ndarray | float) -> np.ndarray:
    """Divide totals over the last axis in proportion to weights, in whole numbers.

    The parts add up to the total, and each is within one of its quota. An offset drawn evenly from [0, 1) makes each
    right on average too, however small the total is.
    """
    share = np.cumsum(weights, axis=-1, dtype=np.float64)
    share /= share[..., -1:]
    totals = np.expand_dims(total, -1)
    cuts = np.minimum(np.floor(share * totals + np.expand_dims(offset, -1)), totals).astype(np.int64)
    return np.diff(cuts, axis=-1, prepend=0)


def by_weight(request: Request, weights: np.ndarray) -> np.ndarray:
    """Counts where each label's rows are divided among the clients in proportion to weights (clients, classes)."""
    counts = np.zeros(weights.shape, dtype=np.int64)
    for label in np.flatnonzero(weights.any(axis=0)):
        counts[:, label] = apportion(request.sizes[label], weights[:, label], request.rng.random())
    return counts


def dirichlet_in_groups(request: Request, group: np.ndarray, held: np.ndarray, alpha: float = 1.0) -> np.ndarray:
    """Counts where groups that hold a label get equal parts of it, and its clients Dirichlet(alpha) parts of those.

    `held` is (groups, classes). Clients of a group have the same labels, in numbers and proportions that are the more
    alike the larger alpha is.
    """
    weights = np.where(held[group], gamma_weights(request, alpha), 0)
    for number in range(len(held)):
        members = group == number
        weights[members] /= np.where(held[number], weights[members].sum(axis=0), 1)
    return topped_up(by_weight(request, weights), request.smallest, held[group])


def gamma_weights(request: Request, alpha: float) -> np.ndarray:
    """(clients, classes) weights above 0 that, divided by their sum over either, are a draw of Dirichlet(alpha)."""
    return np.maximum(request.rng.standard_gamma(alpha, (request.clients, request.classes)), np.finfo(float).tiny)


def topped_up(counts: np.ndarray, smallest: int, allowed: np.ndarray) -> np.ndarray:
    """Counts where the largest clients gave rows of an allowed label to each client with too few."""
    counts = counts.copy()
    sizes = counts.sum(axis=1)
    for small in np.flatnonzero(sizes < smallest).tolist():
        while sizes[small] < smallest:
            useful = counts * allowed[small]
            donor = int(np.argmax(np.where(useful.any(axis=1), sizes, 0)))
            label = int(np.argmax(useful[donor]))
            spare = sizes[donor] - smallest
            spare = spare if spare > 0 else (sizes[donor] - sizes[small]) // 2  # too few rows for all: they share
            rows = min(smallest - sizes[small], spare, useful[donor, label])
            if rows <= 0:
                break
            counts[[donor, small], label] += (-rows, rows)
            sizes[[donor, small]] += (-rows, rows)
    return counts


def dominated(
    request: Request, group: np.ndarray, fraction: float, label_weights: np.ndarray, size_weights: np.ndarray
) -> np.ndarray:
    """Counts where `fraction` of each client's rows have its group's number as label, exact to rounding.

    The other rows follow the data set, weighted by the client's label_weights (clients, classes). Clients are as large
    as the scarcest label allows, in proportion to size_weights (clients,).
    """
    own = np.arange(request.classes) == group[:, None]
    rest = np.where(own, 0, label_weights * request.sizes)
    if not rest.any(axis=1).all():
        raise FedcladeError("the training rows have one label only: give data with two or more, or split them iid")
    rest = rest / rest.sum(axis=1, keepdims=True)
    demand = size_weights @ np.where(own, fraction, (1 - fraction) * rest)
    scale = float(np.min(request.sizes[demand > 0] / demand[demand > 0]))
    offset = request.rng.random(request.clients)
    while True:  # ends: as the scale falls so do all counts, and no rows at all always fit
        rows = np.floor(scale * size_weights).astype(np.int64)
        dominant = np.floor(fraction * rows + 0.5).astype(np.int64)
        counts = np.where(own, dominant[:, None], apportion(rows - dominant, rest, offset))
        if (counts.sum(axis=0) <= request.sizes).all():
            return counts
        scale *= 0.99  # rounding asked for a few rows too many
