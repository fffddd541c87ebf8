"""Groups among any number of clients: of very many some are looked at, and the others join the nearest cluster.

Trees and clouds compare every two clients. A random sample of clients that are alike is alike, so the chance to split
them stays what `evidence` states. Groups of which the sample holds only a few clients may be missed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedclade.clustering.evidence import Evidence, find_groups
from fedclade.clustering.views import Statistics, Told, positions

EXACT = 1_000  # clients: so many are looked at, each beside all others
AT_ONCE = 2_000  # clients whose numbers are laid out side by side


@dataclass(frozen=True)
class Centres:
    """Where clusters are, in every view that they were found by."""

    beside: Mapping[str, np.ndarray]  # everybody's means of each class: features are seen beside them
    pictures: Mapping[str, str]
    weights: Mapping[str, Mapping[str, float]]
    scales: Mapping[str, float]  # the real spread of a client in each view
    points: Mapping[str, np.ndarray]  # (clusters, numbers)

    @classmethod
    def of(
        cls,
        known: Statistics,
        labels: np.ndarray,
        pictures: Mapping[str, str],
        weights: Mapping[str, Mapping[str, float]],
    ) -> "Centres":
        """Those of the clusters 0, 1, ... of some clients."""
        empty = cls(known.means(), pictures, weights, {}, {})
        scales, points = {}, {}
        for view in pictures:
            a, b = empty.halves(known, view)
            scales[view] = max(float(((a - a.mean(0)) * (b - b.mean(0))).sum()), 1e-300) / len(labels)
            parts = [labels == cluster for cluster in range(labels.max() + 1)]
            points[view] = np.stack([(a[part].mean(0) + b[part].mean(0)) / 2 for part in parts])
        return replace(empty, scales=scales, points=points)

    def halves(self, clients: Statistics, view: str) -> tuple[np.ndarray, np.ndarray]:
        seen = clients.labels() if view == "labels" else clients.features(self.beside)
        return positions(seen, self.pictures[view], self.weights[view])

    def squares(self, clients: Statistics) -> tuple[np.ndarray, np.ndarray]:
        """How far clients are from each centre, squared and free of the halves' noise (clients, clusters); and the
        noise (clients, 1), by which the means of their halves are farther."""
        count, n_clusters = len(clients.counts), len(next(iter(self.points.values())))
        squares, noise = np.zeros((count, n_clusters)), np.zeros((count, 1))
        for view, points in self.points.items():
            x, y = self.halves(clients, view)
            squares += np.stack([((x - c) * (y - c)).sum(1) for c in points], axis=1) / self.scales[view]
            noise += ((x - y) ** 2).sum(1, keepdims=True) / 4 / self.scales[view]
        return squares, noise

    def at_home(self, members: Statistics, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same of members, each from the centre of the *others* of its cluster, to which newcomers can be compared;
        not a number for those who are alone."""
        squares, noise = np.zeros(len(labels)), np.zeros(len(labels))
        sizes = np.bincount(labels)[labels][:, None].astype(float)
        with np.errstate(divide="ignore", invalid="ignore"):
            for view, points in self.points.items():
                x, y = self.halves(members, view)
                others = (sizes * points[labels] - (x + y) / 2) / (sizes - 1)
                squares += ((x - others) * (y - others)).sum(1) / self.scales[view]
                noise += ((x - y) ** 2).sum(1) / 4 / self.scales[view]
        return np.where(sizes[:, 0] > 1, squares, np.nan), noise


def find_groups_of(told: Sequence[Told], seed: int = 0, *, exact: int = EXACT) -> tuple[Evidence, np.ndarray]:
    """The clusters of everybody, and who was looked at: the evidence's looks are theirs."""
    count = len(told)
    if count <= exact:
        return find_groups(Statistics.of(list(told)).views(), seed), np.arange(count)
    seen = np.sort(np.random.default_rng([seed, count]).permutation(count)[:exact])
    known = Statistics.of([told[place] for place in seen])
    found = find_groups(known.views(), seed)
    if found.n_clusters == 1:
        return replace(found, labels=np.zeros(count, np.int64), margins=np.ones(count)), seen
    looks = {view: found.looks[view] for view in found.views}
    pictures, weights = {v: look.picture for v, look in looks.items()}, {v: look.scales for v, look in looks.items()}
    centres = Centres.of(known, found.labels, pictures, weights)
    labels, margins = np.empty(count, np.int64), np.empty(count)
    for start in range(0, count, AT_ONCE):
        squares, noise = centres.squares(Statistics.of(list(told[start : start + AT_ONCE])))
        near, following = np.sqrt(np.maximum(np.sort(squares, axis=1)[:, :2] + noise, 0.0)).T
        labels[start : start + AT_ONCE] = squares.argmin(axis=1)
        margins[start : start + AT_ONCE] = np.clip(1 - near / np.maximum(following, 1e-300), 0.0, 1.0)
    labels[seen], margins[seen] = found.labels, found.margins
    return replace(found, labels=labels, margins=margins), seen
