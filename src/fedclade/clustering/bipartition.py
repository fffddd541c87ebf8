"""Splitting one cluster in two: HiCFL's stability test and sign split, and Sattler's bi-partition.

All functions take one cluster's rows (or its matrix) and answer by row; which clients the rows are is the caller's to
remember.
"""

import numpy as np

from fedclade.clustering.hierarchy import linkage_tree
from fedclade.clustering.labels import in_order
from fedclade.clustering.similarity import cosine, informative
from fedclade.errors import unknown

# ---- HiCFL: when to split -------------------------------------------------------------------------------------------


def stability(oldest: np.ndarray, middle: np.ndarray, latest: np.ndarray, kept: np.ndarray | None = None) -> np.ndarray:
    """How steadily each client's update turns over three rounds, 0 (steady) to 2 (HiCFL eqs. 12-14).

    The arrays are (clients, weights) of one layer; `kept` masks weights out of all three. NaN marks clients for which
    one of the updates has no direction.
    """
    updates = np.stack([oldest, middle, latest]).astype(np.float64)
    if kept is not None:
        updates = np.where(kept, updates, 0.0)
    first, second, third = updates
    turn = (cosine(second, third) + cosine(first, second)) / 2
    return np.where(informative(updates).all(axis=0), np.abs(turn - cosine(first, third)), np.nan)


def windowed_stability(history: np.ndarray, window: int, kept: np.ndarray | None = None) -> np.ndarray:
    """Mean stability of each client over the last `window` rounds that have one.

    `history` is (rounds, clients, weights). The first two rounds have no stability, so fewer values than `window` may
    count. NaN where a client has none.
    """
    if len(history) < 3:
        raise ValueError(f"stability needs the updates of 3 rounds, not of {len(history)}")
    ends = range(max(2, len(history) - window), len(history))
    values = np.stack([stability(history[end - 2], history[end - 1], history[end], kept) for end in ends])
    known = ~np.isnan(values)
    total, count = np.where(known, values, 0.0).sum(axis=0), known.sum(axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def is_stable(values: np.ndarray, epsilon: float, share: float = 1.0) -> bool:
    """Whether a layer is stable for a cluster: all (HiCFL eq. 15), or a share, are below epsilon, not counting NaN."""
    known = values[~np.isnan(values)]
    return bool(known.size) and bool((known < epsilon).mean() >= share)


def changed_weights(older: np.ndarray, newer: np.ndarray, xi: float, signed: bool = False) -> np.ndarray:
    """Mask of the weights whose update changed by more than xi (HiCFL eq. 19), by client.

    The paper prints no absolute value but speaks of magnitude; `signed` takes it by the letter. A client that would
    keep fewer than two weights keeps all of them: one number has no direction to follow.
    """
    change = np.asarray(newer, dtype=np.float64) - np.asarray(older, dtype=np.float64)
    kept = (change if signed else np.abs(change)) > xi
    return kept | (kept.sum(axis=-1, keepdims=True) < 2)


def consistency(updates: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Length of the weighted mean update over the longest update: 1 when all agree, 0 when they cancel.

    The two norms of HiCFL's stop rule as one number free of scale. Rows that are not finite are left out; without any
    movement, all agree.
    """
    updates = np.asarray(updates, dtype=np.float64)
    finite = np.isfinite(updates).all(axis=1)
    weights = np.ones(len(updates)) if weights is None else np.asarray(weights, dtype=np.float64)
    updates, weights = updates[finite], weights[finite]
    longest = np.linalg.norm(updates, axis=1).max(initial=0.0)
    if longest == 0.0 or weights.sum() <= 0:
        return 1.0
    return min(float(np.linalg.norm(weights @ (updates / longest)) / weights.sum()), 1.0)


# ---- HiCFL: where to split ------------------------------------------------------------------------------------------


def references(values: np.ndarray, limit: int = 3) -> np.ndarray:
    """The clients to try as reference: lowest stability value first (HiCFL eq. 17), none with NaN."""
    order = np.argsort(values, kind="stable")  # NaN sorts last
    return order[~np.isnan(values[order])][:limit]


def sign_split(updates: np.ndarray, reference: int, *, centered: bool = False, forced: bool = False) -> np.ndarray:
    """True for the clients that stay with the reference: their updates have a positive cosine (HiCFL eq. 18).

    All True means that there is no split. Clients without a direction follow the majority, on a tie the reference.
    `centered` (not in the paper) compares updates after taking the cluster's mean away, which all clients share.
    `forced` cuts at the median similarity when all signs agree, as HiCFL's fine-grained clusters need.
    """
    updates = np.asarray(updates, dtype=np.float64)
    finite = np.isfinite(updates).all(axis=1)
    if centered:
        updates = updates - updates[finite].mean(axis=0) if finite.any() else updates
    known = informative(updates)
    if not known[reference]:
        raise ValueError(f"client {reference} cannot be the reference: its update is zero or not finite")
    similar = cosine(updates[reference], updates)
    stays = similar > 0
    if forced and stays[known].all():
        level = np.round(similar, 12)
        middle = np.median(level[known])
        halves = [level >= middle, level > middle]  # the first that is a split; neither is when all are equal
        stays = next((half for half in halves if 0 < half[known].sum() < known.sum()), stays)
    stays[reference] = True
    stays[~known] = 2 * stays[known].sum() >= known.sum()
    return stays


# ---- Sattler's clustered federated learning -------------------------------------------------------------------------


def bipartition(similarity: np.ndarray, linkage: str = "complete", known: np.ndarray | None = None) -> np.ndarray:
    """Labels 0 and 1 of the two clusters at the top of a tree over similarities (Sattler et al.).

    `single` minimises the largest similarity across the cut, which is what the paper asks for; `complete` is what its
    code does, with more balanced halves. Clients that are not `known` have no direction and join the larger half.
    """
    if linkage not in ("single", "complete"):
        raise unknown("linkage for a bi-partition", linkage, ("single", "complete"))
    similarity = np.asarray(similarity, dtype=np.float64)
    rows = np.arange(len(similarity)) if known is None else np.flatnonzero(known)
    labels = np.zeros(len(similarity), dtype=np.int64)
    if len(rows) < 2:
        return labels
    similarity = similarity[np.ix_(rows, rows)]
    apart = similarity.max() - similarity
    np.fill_diagonal(apart, 0.0)
    halves = linkage_tree((apart + apart.T) / 2, linkage).labels_after(len(rows) - 2)
    labels[:] = np.argmax(np.bincount(halves))
    labels[rows] = halves
    return in_order(labels)


def cross_similarity(similarity: np.ndarray, labels: np.ndarray) -> float:
    """The largest similarity between clients of different clusters; -inf when there is only one cluster."""
    labels = np.asarray(labels)
    return float(np.max(similarity, where=labels[:, None] != labels, initial=-np.inf))
