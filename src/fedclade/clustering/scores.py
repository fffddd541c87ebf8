"""How well labels agree with the hidden groups; all three do not care how clusters are numbered.

They are few lines on the table of both labels, so that a run need not wait for scikit-learn.
"""

import numpy as np

from fedclade.clustering.labels import in_order


def adjusted_rand(truth: np.ndarray, labels: np.ndarray) -> float:
    """Adjusted Rand index: 1 for equal partitions, about 0 for a random one."""
    table = contingencies(truth, labels)
    pairs = lambda counts: float((counts * (counts - 1.0) / 2).sum())  # noqa: E731
    together, by_truth, by_label = pairs(table), pairs(table.sum(axis=1)), pairs(table.sum(axis=0))
    by_chance = by_truth * by_label / max(pairs(table.sum()), 1.0)
    most = (by_truth + by_label) / 2
    return (together - by_chance) / (most - by_chance) if most != by_chance else 1.0


def normalized_mutual_information(truth: np.ndarray, labels: np.ndarray) -> float:
    """Mutual information over the mean of the two entropies, 0 to 1."""
    shares = contingencies(truth, labels) / len(truth)
    entropy = lambda share: float(-(share[share > 0] * np.log(share[share > 0])).sum())  # noqa: E731
    of_truth, of_labels = entropy(shares.sum(axis=1)), entropy(shares.sum(axis=0))
    if not of_truth or not of_labels:
        return float(of_truth == of_labels)
    return max(of_truth + of_labels - entropy(shares), 0.0) / ((of_truth + of_labels) / 2)


def clustering_accuracy(truth: np.ndarray, labels: np.ndarray) -> float:
    """Share of clients in the right group under the best one-to-one naming of clusters (Hungarian method)."""
    from scipy.optimize import linear_sum_assignment

    table = contingencies(truth, labels)
    return float(table[linear_sum_assignment(table, maximize=True)].sum() / table.sum())


def contingencies(truth: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """How many clients of every group have each label."""
    rows, columns = in_order(truth), in_order(labels)
    table = np.zeros((rows.max(initial=-1) + 1, columns.max(initial=-1) + 1), np.int64)
    np.add.at(table, (rows, columns), 1)
    return table
