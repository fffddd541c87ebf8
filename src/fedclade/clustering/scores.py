"""How well labels agree with the hidden groups; all three do not care how clusters are numbered."""

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.metrics.cluster import contingency_matrix


def adjusted_rand(truth: np.ndarray, labels: np.ndarray) -> float:
    """Adjusted Rand index: 1 for equal partitions, about 0 for a random one."""
    return float(adjusted_rand_score(truth, labels))


def normalized_mutual_information(truth: np.ndarray, labels: np.ndarray) -> float:
    """Mutual information over the mean of the two entropies, 0 to 1."""
    return float(normalized_mutual_info_score(truth, labels))


def clustering_accuracy(truth: np.ndarray, labels: np.ndarray) -> float:
    """Share of clients in the right group under the best one-to-one naming of clusters (Hungarian method)."""
    table = contingency_matrix(truth, labels)
    return float(table[linear_sum_assignment(table, maximize=True)].sum() / table.sum())
