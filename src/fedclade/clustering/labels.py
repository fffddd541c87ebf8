"""Labels: one int for each client, the number of its cluster.

Every function of this room returns labels in one form: clusters are numbered 0, 1, ... by their smallest member, so
that equal partitions are equal arrays.
"""

from collections.abc import Iterable, Sequence

import numpy as np


def in_order(labels: np.ndarray | Sequence[int]) -> np.ndarray:
    """The same partition, clusters renumbered 0, 1, ... by order of first appearance."""
    _, first, inverse = np.unique(np.asarray(labels), return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse.ravel()]


def members(labels: np.ndarray | Sequence[int]) -> list[np.ndarray]:
    """The client indices of each cluster, by cluster number."""
    labels = in_order(labels)
    return [np.flatnonzero(labels == cluster) for cluster in range(labels.max(initial=-1) + 1)]


def check_partition(groups: Iterable[Iterable[int]], clients: Iterable[int]) -> None:
    """Raise unless the groups are disjoint, not empty, and together hold exactly these clients."""
    seen: set[int] = set()
    for number, group in enumerate(groups):
        inside = list(group)
        if not inside:
            raise ValueError(f"cluster {number} is empty: drop it or archive it")
        twice = seen.intersection(inside) or {client for client in inside if inside.count(client) > 1}
        if twice:
            raise ValueError(f"client {min(twice)} is in two clusters: a client belongs to exactly one")
        seen.update(inside)
    if odd := seen.symmetric_difference(clients):
        client = min(odd)
        raise ValueError(
            f"client {client} is in a cluster but is not registered"
            if client in seen
            else f"client {client} is in no cluster"
        )
