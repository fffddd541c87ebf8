"""How many clusters? One rule for every method that leaves the number to the data."""

from collections.abc import Sequence

import numpy as np
from scipy.linalg import eigh

from fedclade.clustering.labels import in_order


def most_clusters(n_clients: int) -> int:
    """The largest number of clusters the rule looks for: two clients each on average, and never more than 50."""
    return max(1, min(n_clients // 2, 50))


def required_separation(n_clients: int, n_clusters: int) -> float:
    return min(0.2 + 0.5 / (n_clusters - 1) + 0.6 / np.sqrt(n_clients), 0.9)


def choose_partition(distances: np.ndarray, candidates: Sequence[np.ndarray]) -> np.ndarray:
    distances = np.asarray(distances, dtype=np.float64)
    count = len(distances)
    best, best_score = np.zeros(count, dtype=np.int64), -np.inf
    tried = sorted((in_order(labels) for labels in candidates), key=lambda labels: int(labels.max()))
    axes = principal_axes(distances, max((int(labels.max()) for labels in tried), default=0))
    squares, used = np.zeros_like(distances), 0
    for labels in tried:
        n_clusters = int(labels.max()) + 1
        if not 2 <= n_clusters <= most_clusters(count):
            continue
        for axis in axes[:, used : n_clusters - 1].T:
            squares += (axis[:, None] - axis) ** 2
        used = n_clusters - 1
        separation = _mean_by_cluster(silhouettes(np.sqrt(squares), labels), labels)
        score = silhouettes(distances, labels).mean()
        if separation > required_separation(count, n_clusters) and score > best_score + 1e-9:
            best, best_score = labels, score
    return best


def principal_axes(distances: np.ndarray, n_axes: int) -> np.ndarray:
    squares = -0.5 * distances**2
    gram = squares - squares.mean(axis=0) - squares.mean(axis=1)[:, None] + squares.mean()
    count = len(gram)
    n_axes = min(n_axes, count)
    if n_axes == 0:
        return np.zeros((count, 0))
    values, vectors = eigh(gram, subset_by_index=(count - n_axes, count - 1))
    return (vectors * np.sqrt(np.maximum(values, 0.0)))[:, ::-1]


def silhouettes(distances: np.ndarray, labels: np.ndarray) -> np.ndarray:
    rows, sizes = np.arange(len(labels)), np.bincount(labels)
    belongs = np.zeros((len(labels), len(sizes)))
    belongs[rows, labels] = 1.0
    totals = distances @ belongs
    own = totals[rows, labels] / np.maximum(sizes[labels] - 1, 1)
    means = totals / sizes
    means[rows, labels] = np.inf
    other = means.min(axis=1)
    widest = np.maximum(own, other)
    return np.where((sizes[labels] > 1) & (widest > 0), (other - own) / np.where(widest > 0, widest, 1.0), 0.0)


def _mean_by_cluster(values: np.ndarray, labels: np.ndarray) -> float:
    return float((np.bincount(labels, weights=values) / np.bincount(labels)).mean())
