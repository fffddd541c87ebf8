"""Labels: one int for each client, the number of its cluster.

Every function of this room returns labels in one form: clusters are numbered 0, 1, ... by their smallest member, so
that equal partitions are equal arrays.
"""

from collections.abc import Sequence

import numpy as np


def in_order(labels: np.ndarray | Sequence[int]) -> np.ndarray:
    """The same partition, clusters renumbered 0, 1, ... by order of first appearance."""
    _, first, inverse = np.unique(np.asarray(labels), return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse.ravel()]
