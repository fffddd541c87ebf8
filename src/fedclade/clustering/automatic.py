"""How many clusters? One rule for every method that leaves the number to the data. It can also answer: one.

1. Every partition on offer (the cuts of a tree, say) is seen along the main axes of the clients: K groups differ along
   K - 1 directions, while what is particular to each client spreads over all the others. So for K clusters only the
   first K - 1 principal axes count, brought halfway to equal spread: pieces of one long line differ along the line
   alone, groups along every axis.
2. There, the clusters must stand apart: their mean silhouette (Rousseeuw 1987) must exceed `required_separation`, which
   lies above what cutting a single cloud of clients into K pieces gives. Each cluster counts the same, and a client
   alone counts 0, so that a few odd clients do not make a partition.
3. Of the partitions that pass, the one with the highest mean silhouette of its clients, on the distances as they are,
   is taken; if none passes, all clients are one cluster.

Only ratios of distances enter: scale, origin and, up to 1,000 clients, their order do not matter. Of more clients the
rule looks at 1,000, spread over the partition with the most clusters: it compares means over so many that others would
give the same answer. Limits: groups must have two members on average; fewer than four clients
are always one cluster; one odd client among otherwise equal ones stays with them, for it may as well be a noisy one;
clients strung along a bent curve are often cut into pieces of it.
"""

from collections.abc import Callable, Sequence

import numpy as np

from fedclade.clustering.labels import in_order
from fedclade.clustering.similarity import distance_matrix

LOOKED_AT = 1000  # clients
DECIMALS = 9  # scores that agree so far are equal, and fewer clusters win
ROUGHLY = 0.2  # more than the rough separation was ever below the exact one (0.12, on clouds and groups of 30 to 1,000)


def choose_partition(
    distances: np.ndarray, candidates: Sequence[np.ndarray], looked_at: np.ndarray | None = None
) -> np.ndarray:
    """The labels of the best candidate partition, or all zeros when no partition shows separate groups.

    `distances` are lengths, Euclidean or nearly so: for cosine distances give their square roots. `looked_at` are the
    clients that decide, if not those that `spread` takes.
    """
    count = len(distances)
    offered = sorted((in_order(labels) for labels in candidates), key=np.max)
    offered = [labels for labels in offered if 1 <= labels.max() < most_clusters(count)]
    if not offered:
        return np.zeros(count, dtype=np.int64)
    if looked_at is None:
        looked_at = spread(offered[-1])
    seen = distances if len(looked_at) == count else distances[np.ix_(looked_at, looked_at)]
    axes_of = lambda n: principal_axes(distances, n)[:, looked_at]  # noqa: E731
    best = best_partition(seen, [labels[looked_at] for labels in offered], axes_of)
    return np.zeros(count, dtype=np.int64) if best is None else offered[best]


def spread(labels: np.ndarray) -> np.ndarray:
    """The clients that are looked at: all, or so many that every cluster has its share."""
    if len(labels) <= LOOKED_AT:
        return np.arange(len(labels))
    by_cluster = np.argsort(labels, kind="stable")
    return np.sort(by_cluster[np.linspace(0, len(labels) - 1, LOOKED_AT).astype(np.int64)])


def best_partition(
    distances: np.ndarray, partitions: Sequence[np.ndarray], axes_of: Callable[[int], np.ndarray]
) -> int | None:
    """Which of the partitions, fewest clusters first, is best by the rule; None if none shows separate groups.

    The scores of step 3 are cheap, for all partitions sum the same blocks of clients; so step 2 is asked of the best
    first. `axes_of` gives so many principal axes (axes, clients).
    """
    partitions = [in_order(labels) for labels in partitions]
    blocks, block_of = np.unique(np.stack(partitions), axis=1, return_inverse=True)
    to_blocks = totals(distances, block_of.ravel())
    scores = [
        silhouettes(totals(to_blocks, of_block), labels).mean() if labels.any() else -np.inf
        for labels, of_block in zip(partitions, blocks, strict=True)
    ]
    axes = np.empty((0, len(distances)))
    for which in sorted(range(len(partitions)), key=lambda k: (-round(scores[k], DECIMALS), k)):
        labels, n_axes = partitions[which], int(partitions[which].max())
        if not n_axes:
            continue
        if n_axes > len(axes):  # often the first is the best; if not, all may be wanted
            axes = halfway_equal(axes_of(n_axes if not len(axes) else int(max(map(np.max, partitions)))))
        positions, required = axes[:n_axes].T, required_separation(len(labels), n_axes + 1)
        if rough_separation(positions, labels) < required - ROUGHLY:
            continue
        if separation(distance_matrix(positions), labels) > required:
            return which
    return None


def halfway_equal(axes: np.ndarray) -> np.ndarray:
    """The axes brought halfway to equal spread."""
    lengths = np.linalg.norm(axes, axis=1, keepdims=True)
    return axes / np.sqrt(np.where(lengths > 0, lengths, 1.0))


def most_clusters(n_clients: int) -> int:
    """The largest number of clusters the rule looks for: two clients each on average up to 50, 20 each up to 200."""
    return max(1, min(n_clients // 2, max(50, min(n_clients // 20, 200))))


def required_separation(n_clients: int, n_clusters: int) -> float:
    """How far clusters must stand apart to be more than pieces of one cloud.

    Pieces of one cloud stand further apart the fewer they are (two halves of a line have a silhouette near 0.6, many
    pieces of a ball near 0.2) and, by chance, the fewer clients there are. The constants were set so that this hardly
    ever suffices: on simulated clouds of 4 to 300 clients, round to flat, and on real clients that are all alike.
    """
    return min(0.3 + 0.5 / (n_clusters - 1) + 0.7 / n_clients, 0.9)


def separation(distances: np.ndarray, labels: np.ndarray) -> float:
    """Mean silhouette in which every cluster counts the same."""
    return _mean_over_clusters(silhouettes(totals(distances, labels), labels), labels)


def rough_separation(positions: np.ndarray, labels: np.ndarray) -> float:
    """The same from mean squares of distances, which follow from centres and spreads: no two clients are compared."""
    members = np.zeros((int(labels.max()) + 1, len(labels)))
    members[labels, np.arange(len(labels))] = 1.0
    sizes, squares = members.sum(axis=1), (positions**2).sum(axis=1)
    centres = members @ positions / sizes[:, None]
    sums = members @ squares + sizes * (squares[:, None] - 2 * positions @ centres.T)  # of squares, to each cluster
    others = sizes - members.T
    lengths = np.sqrt(np.maximum(sums / np.maximum(others, 1), 0.0)) * others
    return _mean_over_clusters(silhouettes(lengths, labels), labels)


def _mean_over_clusters(values: np.ndarray, labels: np.ndarray) -> float:
    return float((np.bincount(labels, weights=values) / np.bincount(labels)).mean())


def totals(values: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """(rows, clusters): the sum of each row over the columns of every cluster."""
    sizes = np.bincount(labels)
    order = np.argsort(labels, kind="stable")
    return np.add.reduceat(values[:, order], np.cumsum(sizes) - sizes, axis=1)


def silhouettes(totals: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """For each client, how much nearer its own cluster is than the next, -1 to 1; 0 for a client alone.

    `totals` are each client's distances summed over every cluster.
    """
    clients, sizes = np.arange(len(labels)), np.bincount(labels)
    own = totals[clients, labels] / np.maximum(sizes[labels] - 1, 1)
    means = totals / sizes
    means[clients, labels] = np.inf
    next_best = means.min(axis=1)
    larger = np.maximum(own, next_best)
    counts = (sizes[labels] > 1) & (larger > 0)
    return np.where(counts, (next_best - own) / np.where(counts, larger, 1.0), 0.0)


def principal_axes(distances: np.ndarray, n_axes: int) -> np.ndarray:
    """(axes, clients): positions along the axes of largest spread, from distances alone (classical scaling).

    For Euclidean distances these are the principal components of the vectors they came from.
    """
    n_axes = min(n_axes, len(distances))
    spreads, directions = (_exactly if len(distances) <= LOOKED_AT else _by_products)(distances, n_axes)
    spreads[spreads < 1e-12 * spreads.max()] = 0.0  # rounding, and what no Euclidean distances could have
    return (directions * np.sqrt(np.maximum(spreads, 0.0))).T[::-1]


def _exactly(distances: np.ndarray, n_axes: int) -> tuple[np.ndarray, np.ndarray]:
    """The largest eigenvalues of the clients' inner products, ascending, and their vectors."""
    from scipy.linalg import eigh

    squares = -0.5 * np.asarray(distances, dtype=np.float64) ** 2
    products = squares - squares.mean(axis=0) - squares.mean(axis=1)[:, None] + squares.mean()
    return eigh(products, subset_by_index=(len(products) - n_axes, len(products) - 1))


def _by_products(distances: np.ndarray, n_axes: int) -> tuple[np.ndarray, np.ndarray]:
    """The same for many clients: exact for axes that stand above the rest, as those do along which groups differ."""
    squares = -0.5 * np.asarray(distances, dtype=np.float32) ** 2
    centred = lambda values: values - values.mean(axis=0)  # noqa: E731
    basis = np.random.default_rng(0).normal(size=(len(squares), n_axes + 10)).astype(np.float32)
    for _ in range(4):
        basis = np.linalg.qr(centred(squares @ centred(basis)))[0]
    spreads, turned = np.linalg.eigh(basis.T @ (squares @ basis))
    return spreads[-n_axes:].astype(np.float64), basis @ turned[:, -n_axes:].astype(np.float64)
