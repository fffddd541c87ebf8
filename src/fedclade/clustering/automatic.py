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

Only ratios of distances enter, so that the answer does not depend on scale, origin or the order of clients, and nothing
is random. Limits: groups must have two members on average; fewer than four clients are always one cluster; one odd
client among otherwise equal ones stays with them, for it may as well be a noisy one; clients strung along a bent curve
are often cut into pieces of it.
"""

from collections.abc import Sequence

import numpy as np

from fedclade.clustering.labels import in_order

ROUNDING = 1e-9  # scores closer than this are equal, and fewer clusters win


def choose_partition(distances: np.ndarray, candidates: Sequence[np.ndarray]) -> np.ndarray:
    """The labels of the best candidate partition, or all zeros when no partition shows separate groups.

    `distances` are lengths, Euclidean or nearly so: for cosine distances give their square roots.
    """
    distances = np.asarray(distances, dtype=np.float64)
    count = len(distances)
    best, best_score = np.zeros(count, dtype=np.int64), -np.inf
    offered = sorted((in_order(labels) for labels in candidates), key=np.max)
    offered = [labels for labels in offered if 1 <= labels.max() < most_clusters(count)]
    if not offered:
        return best
    axes = principal_axes(distances, int(offered[-1].max()))
    lengths = np.linalg.norm(axes, axis=1, keepdims=True)
    axes = axes / np.sqrt(np.where(lengths > 0, lengths, 1.0))
    squares, used = np.zeros_like(distances), 0  # squared distances along the axes used so far
    for labels in offered:
        n_clusters = int(labels.max()) + 1
        for axis in axes[used : n_clusters - 1]:
            squares += (axis[:, None] - axis) ** 2
        used = n_clusters - 1
        if separation(np.sqrt(squares), labels) <= required_separation(count, n_clusters):
            continue
        score = silhouettes(distances, labels).mean()
        if score > best_score + ROUNDING:
            best, best_score = labels, score
    return best


def most_clusters(n_clients: int) -> int:
    """The largest number of clusters the rule looks for: two clients each on average, and never more than 50."""
    return max(1, min(n_clients // 2, 50))


def required_separation(n_clients: int, n_clusters: int) -> float:
    """How far clusters must stand apart to be more than pieces of one cloud.

    Pieces of one cloud stand further apart the fewer they are (two halves of a line have a silhouette near 0.6, many
    pieces of a ball near 0.2) and, by chance, the fewer clients there are. The constants were set so that this hardly
    ever suffices: on simulated clouds of 4 to 300 clients, round to flat, and on real clients that are all alike.
    """
    return min(0.3 + 0.5 / (n_clusters - 1) + 0.7 / n_clients, 0.9)


def separation(distances: np.ndarray, labels: np.ndarray) -> float:
    """Mean silhouette in which every cluster counts the same."""
    return float((np.bincount(labels, weights=silhouettes(distances, labels)) / np.bincount(labels)).mean())


def silhouettes(distances: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """For each client, how much nearer its own cluster is than the next, -1 to 1; 0 for a client alone."""
    clients, sizes = np.arange(len(labels)), np.bincount(labels)
    starts = np.cumsum(sizes) - sizes
    totals = np.add.reduceat(distances[np.argsort(labels, kind="stable")], starts, axis=0).T  # (clients, clusters)
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
    squares = -0.5 * np.asarray(distances, dtype=np.float64) ** 2
    products = squares - squares.mean(axis=0) - squares.mean(axis=1)[:, None] + squares.mean()
    spreads, directions = np.linalg.eigh(products)
    spreads, directions = spreads[-n_axes:], directions[:, -n_axes:]
    spreads[spreads < 1e-12 * spreads.max()] = 0.0  # rounding, and what no Euclidean distances could have
    return (directions * np.sqrt(np.maximum(spreads, 0.0))).T[::-1]
