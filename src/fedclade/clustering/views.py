"""What clients can differ in, seen from sums over both halves of their rows, class by class.

- *labels*: the share of each class; or which classes there are at all, for clients that hold the same classes in unlike
  shares may still do well with one model;
- *features given labels*: how the rows of a class differ from those of everybody, on average over classes or class by
  class (clients may call the same things by other names). Classes that a client holds count almost alike, so that its
  shares of them hardly show.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedclade.clustering.evidence import Pair, View

RARE = 0.5  # of an equal share: a class of this share counts half
FEW = 5.0  # rows: a class of so many counts half
ODDS = 0.1  # by which shares of classes must differ among clients to matter: closer ones hardly move what is predicted

FEWEST = 4  # clients, of whom most can be asked what is usual
BEYOND = 10.0  # times what rows of one client differ by: no two clients' means are so far apart

Told = Mapping[
    str, np.ndarray
]  # what a client says of itself: counts (halves, classes), sums (halves, classes, numbers)
Form = tuple[tuple[str, tuple[int, ...]], ...]  # its names and shapes


def is_told_enough(told: Told) -> bool:
    """Whether both halves have rows."""
    return bool((np.asarray(told["counts"]).sum(axis=1) > 0).all())


def form_of(told: Told) -> Form:
    return tuple(sorted((name, np.shape(array)) for name, array in told.items()))


def usual_form(told: Iterable[Told]) -> Form | None:
    """That which most of them have."""
    forms = Counter(map(form_of, told))
    return max(forms, key=lambda form: (forms[form], form)) if forms else None


def far_beyond(told: Mapping[str, Told], others: Sequence[Told] = ()) -> set[str]:
    """Whose rows are, on average, so far from the median client's as no rows of anybody are: in other units, or lies.

    By how much rows differ is told by the halves of most clients. One client like that would move everybody's means.
    """
    if len(told) + len(others) < FEWEST:
        return set()
    everybody = Statistics.of([*told.values(), *others])
    rows, halves = np.maximum(everybody.rows, 1.0), np.maximum(everybody.counts.sum(axis=2), 1.0)
    far = np.zeros(len(rows), bool)
    for sums in everybody.sums.values():
        points, half = sums.sum(axis=(1, 2)) / rows[:, None], sums.sum(axis=2) / halves[..., None]
        apart = np.linalg.norm(points - np.median(points, axis=0), axis=1)
        of_rows = ((half[:, 0] - half[:, 1]) ** 2).sum(axis=1) / (1 / halves).sum(axis=1)
        usual = max(float(np.median(apart)), float(np.sqrt(np.median(of_rows))))
        far |= (apart > BEYOND * usual) & (usual > 0)
    return {client for client, is_far in zip(told, far.tolist(), strict=False) if is_far}


@dataclass(frozen=True)
class Statistics:
    """Those of some clients: counts (clients, halves, classes), and of each layer sums (..., numbers)."""

    counts: np.ndarray
    sums: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, told: list[Told]) -> "Statistics":
        counts = np.stack([np.asarray(one["counts"], np.float64) for one in told])
        layers = [name for name in told[0] if name != "counts"]
        return cls(counts, {name: np.stack([np.asarray(one[name], np.float64) for one in told]) for name in layers})

    def means(self) -> dict[str, np.ndarray]:
        """Of each layer, (classes, numbers): the mean over everybody's rows of a class."""
        rows = np.maximum(self.counts.sum(axis=(0, 1)), 1.0)[:, None]
        return {name: sums.sum(axis=(0, 1)) / rows for name, sums in self.sums.items()}

    @property
    def rows(self) -> np.ndarray:
        """How many rows each client has."""
        return np.asarray(self.counts.sum(axis=(1, 2)))

    def shares(self) -> np.ndarray:
        return np.asarray(self.counts / np.maximum(self.counts.sum(axis=2, keepdims=True), 1.0))

    def labels(self) -> View:
        shares = self.shares()
        pictures = {"shares": {"labels": _pair(shares)}, "presence": {"labels": _pair(presence(shares))}}
        return View(pictures, 1 / np.maximum(self.counts.sum(axis=2), 1.0), self.counts.sum(axis=1), ODDS)

    def features(self, means: Mapping[str, np.ndarray] | None = None) -> View:
        """Beside everybody's means of each class, or given ones."""
        beside, weights = means or self.means(), self.counts / (self.counts + FEW)
        weights = weights / np.maximum(weights.sum(axis=2, keepdims=True), 1e-12)
        together, each = {}, {}
        for name, sums in self.sums.items():
            apart = sums / np.maximum(self.counts, 1.0)[..., None] - beside[name]
            apart *= weights[..., None]
            together[name] = _pair(apart.sum(axis=2))
            each[name] = _pair(apart.reshape(*apart.shape[:2], -1))
        noise = (weights**2 / np.maximum(self.counts, 1.0)).sum(axis=2)
        pictures = {"all classes": together, "class by class": each} if self.counts.shape[2] > 1 else {"rows": together}
        return View(pictures, noise)

    def views(self) -> dict[str, View]:
        views = {"features": self.features()}
        return {"labels": self.labels(), **views} if self.counts.shape[2] > 1 else views

    def rows_alone(self) -> dict[str, np.ndarray]:
        """Of each layer that needs no labels, (clients, numbers): the mean of all rows."""
        rows = np.maximum(self.rows, 1.0)[:, None]
        return {name: sums.sum(axis=(1, 2)) / rows for name, sums in self.sums.items() if "labels" not in name}

    def chance_of_rows(self) -> dict[str, float]:
        """Of these layers: the square by which chance moves the mean of one row; that of many is moved by less."""
        rows = np.maximum(self.counts.sum(axis=2), 1.0)[..., None]
        halves = {name: self.sums[name].sum(axis=2) / rows for name in self.rows_alone()}
        # The difference of two halves is moved by both.
        moved = {name: ((half[:, 0] - half[:, 1]) ** 2).sum(axis=1) for name, half in halves.items()}
        return {name: float((square / (1 / rows).sum(axis=(1, 2))).mean()) for name, square in moved.items()}


def presence(shares: np.ndarray) -> np.ndarray:
    """How much a class is there at all, 0 to 1, from its share of the rows."""
    return shares / (shares + RARE / shares.shape[-1])


def overlap_of_classes(counts: np.ndarray, labels: np.ndarray) -> float:
    """Which part of the classes that two clusters hold both of them hold, on average over pairs; 1 for one cluster."""
    held = np.stack([counts[labels == cluster].sum(axis=(0, 1)) for cluster in range(labels.max(initial=0) + 1)])
    there = presence(held / np.maximum(held.sum(axis=1, keepdims=True), 1.0))
    pairs = [(there[j], there[k]) for j in range(len(there)) for k in range(j)]
    return float(np.mean([np.minimum(a, b).sum() / np.maximum(a, b).sum() for a, b in pairs])) if pairs else 1.0


def _pair(values: np.ndarray) -> Pair:
    return values[:, 0], values[:, 1]


def positions(view: View, picture: str, weights: Mapping[str, float]) -> tuple[np.ndarray, np.ndarray]:
    """Both halves' layers of a picture side by side, each layer's distances weighted."""
    layers = view.pictures[picture]
    halves = [[np.sqrt(weights.get(name, 0.0)) * pair[half] for name, pair in layers.items()] for half in (0, 1)]
    return np.concatenate(halves[0], axis=1), np.concatenate(halves[1], axis=1)
