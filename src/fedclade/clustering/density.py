"""Clusters as dense regions: how near neighbours must be is read off the clients themselves."""

import numpy as np


def dense_groups(rows: np.ndarray) -> tuple[np.ndarray, float]:
    """The label of each row, and the distance up to which rows are neighbours.

    That distance is where the sorted distances to the nearest neighbour begin to climb (`elbow`). Rows linked by
    neighbours are together (DBSCAN with two rows to a region); a row without neighbours is a cluster of its own.
    """
    from sklearn.cluster import DBSCAN

    if len(rows) < 2:
        return np.zeros(len(rows), np.int64), 0.0
    apart = np.linalg.norm(rows[:, None] - rows[None], axis=2)
    np.fill_diagonal(apart, np.inf)
    limit = elbow(np.sort(apart.min(axis=1)))
    np.fill_diagonal(apart, 0.0)
    labels = DBSCAN(eps=max(limit, 1e-12) * (1 + 1e-9), min_samples=2, metric="precomputed").fit_predict(apart)
    alone = labels < 0
    labels[alone] = labels.max() + 1 + np.arange(alone.sum())
    return labels.astype(np.int64), limit


def elbow(climbing: np.ndarray) -> float:
    """The value at which a climbing curve is farthest below the line from its first to its last point.

    Satopaa et al., "Finding a 'Kneedle' in a Haystack", ICDCSW 2011.
    """
    height = float(climbing[-1] - climbing[0])
    if len(climbing) < 3 or height <= 0:
        return float(climbing[-1])
    below = np.linspace(0, 1, len(climbing)) - (climbing - climbing[0]) / height
    return float(climbing[int(below.argmax())])
