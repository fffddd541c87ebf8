"""How alike two clients are: similarity and distance matrices, each exactly symmetric unless it says otherwise.

The zero-norm rule holds for every cosine: a client whose vector is zero or not finite has cosine 0 with everybody
(itself too) and `informative` marks it, so that callers can leave it out of what its direction cannot tell.
"""

import warnings
from collections.abc import Sequence

import numpy as np

from fedclade.errors import unknown

TINY = 1e-12  # a vector shorter than this has no direction
METRICS = ("euclidean", "l1", "cosine")


def informative(vectors: np.ndarray) -> np.ndarray:
    """True for each vector (last axis) that has a direction: finite and not shorter than 1e-12."""
    vectors = np.asarray(vectors, dtype=np.float64)
    finite = np.isfinite(vectors).all(axis=-1)
    return finite & (np.linalg.norm(np.where(finite[..., None], vectors, 0.0), axis=-1) >= TINY)


def directions(vectors: np.ndarray) -> np.ndarray:
    """The vectors (last axis) at length 1; those without a direction become zero."""
    vectors = np.asarray(vectors, dtype=np.float64)
    known = informative(vectors)[..., None]
    vectors = np.where(known, vectors, 0.0)
    return vectors / np.where(known, np.linalg.norm(vectors, axis=-1, keepdims=True), 1.0)


def cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Cosine of each vector of `a` with its partner in `b`, along the last axis; the two broadcast."""
    return np.clip((directions(a) * directions(b)).sum(axis=-1), -1.0, 1.0)


def cosine_matrix(rows: np.ndarray) -> np.ndarray:
    """Cosine of every two rows; the diagonal is 1, and 0 where a row has no direction."""
    unit = directions(_matrix(rows))
    cosines = np.clip(unit @ unit.T, -1.0, 1.0)
    np.fill_diagonal(cosines, informative(rows))
    return (cosines + cosines.T) / 2


def distance_matrix(rows: np.ndarray, metric: str = "euclidean") -> np.ndarray:
    """Distance of every two rows: `euclidean`, `l1` or `cosine` (1 - cosine); equal rows are at distance exactly 0.

    For `cosine`, rows without a direction are at distance 1 from all others; the other metrics refuse rows that are not
    finite.
    """
    rows = _matrix(rows)
    if metric == "cosine":
        distances = 1.0 - cosine_matrix(rows)
        distances[distances < 1e-14] = 0.0  # rounding of parallel rows
        np.fill_diagonal(distances, 0.0)
        return distances
    if metric not in METRICS:
        raise unknown("metric", metric, METRICS)
    bad = ~np.isfinite(rows).all(axis=1)
    if bad.any():
        raise ValueError(f"row {int(np.argmax(bad))} holds a NaN or infinite value: leave that client out")
    if metric == "euclidean":
        return _euclidean(rows)
    from scipy.spatial.distance import pdist, squareform

    return squareform(pdist(rows, "cityblock"))


def column_distances(similarity: np.ndarray) -> np.ndarray:
    """Euclidean distance between the columns of a similarity matrix (FedSCCS eq. 6): alike clients see others alike."""
    return distance_matrix(np.asarray(similarity).T)


def _euclidean(rows: np.ndarray) -> np.ndarray:
    """One matrix product instead of N^2 differences, which take seconds when 1,000 clients send whole layers."""
    seen: dict[bytes, int] = {}
    which = np.array([seen.setdefault(row.tobytes(), len(seen)) for row in rows + 0.0], dtype=np.int64)  # -0.0 is 0.0
    different = rows[np.unique(which, return_index=True)[1]]
    # clients share their start and differ by little: without centring, rounding would swamp the differences
    different = different - different.mean(axis=0)
    products = different @ different.T  # exactly symmetric: BLAS fills one half from the other
    squares = np.diag(products).copy()
    products *= 2.0
    distances = np.add.outer(squares, squares)
    distances -= products
    np.sqrt(np.maximum(distances, 0.0, out=distances), out=distances)
    np.fill_diagonal(distances, 0.0)
    return distances if len(different) == len(rows) else distances[np.ix_(which, which)]


def _matrix(rows: np.ndarray) -> np.ndarray:
    rows = np.asarray(rows, dtype=np.float64)
    if rows.ndim != 2 or len(rows) == 0:
        raise ValueError(f"expected one row for each client, got an array of shape {rows.shape}")
    return rows


# ---- what models answer on the same rows ----------------------------------------------------------------------------


def linear_cka(x: np.ndarray, y: np.ndarray) -> float:
    """Linear centred kernel alignment of two activation matrices (rows x features), in the cheap feature form.

    Constant activations have no similarity: 0 (FedSCCS; the paper leaves 0/0 open).
    """
    return float(cka_matrix([x, y])[0, 1])


def linear_cka_gram(x: np.ndarray, y: np.ndarray) -> float:
    """The same value by its definition with row kernels K = X X^T and HSIC (FedSCCS); O(rows^2), kept to check with."""

    def centred(z: np.ndarray) -> np.ndarray:
        kernel = np.asarray(z, dtype=np.float64) @ np.asarray(z, dtype=np.float64).T
        return kernel - kernel.mean(axis=0) - kernel.mean(axis=1)[:, None] + kernel.mean()

    k1, k2 = centred(x), centred(y)
    scale = np.sqrt((k1 * k1).sum() * (k2 * k2).sum())
    return float((k1 * k2).sum() / scale) if scale > 0 else 0.0


def cka_matrix(activations: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
    """Linear CKA of every two clients' activations on the same rows; widths may differ, the diagonal is 1."""
    centred = [_centred_or_zero(np.asarray(layer, dtype=np.float64)) for layer in activations]
    starts = np.cumsum([0] + [layer.shape[1] for layer in centred[:-1]])
    stacked = np.hstack(centred)
    shared = np.zeros((len(centred), len(centred)))
    for i, layer in enumerate(centred):  # half of the matrix is enough
        products = ((layer.T @ stacked[:, starts[i] :]) ** 2).sum(axis=0)
        shared[i, i:] = shared[i:, i] = np.add.reduceat(products, starts[i:] - starts[i])
    own = np.sqrt(np.diag(shared))
    if (own == 0).any():
        warnings.warn(f"client {int(np.argmax(own == 0))} has constant activations: its CKA is set to 0", stacklevel=2)
    own = np.where(own > 0, own, 1.0)
    similarity = np.clip(shared / own[:, None] / own, 0.0, 1.0)
    np.fill_diagonal(similarity, 1.0)
    return similarity


def _centred_or_zero(layer: np.ndarray) -> np.ndarray:
    """Column-centred at overall length 1, so that tiny activations do not underflow; zero where they are constant."""
    if not np.isfinite(layer).all():
        raise ValueError("activations hold a NaN or infinite value: leave that client out")
    centred = layer - layer.mean(axis=0)
    length = np.linalg.norm(centred)
    if length <= 1e-10 * np.linalg.norm(layer):
        return np.zeros_like(centred)
    return centred / length


def agreement_matrix(predictions: np.ndarray) -> np.ndarray:
    """Share of rows on which two clients predict the same class; `predictions` is (clients, rows) of classes.

    This is FLIS's similarity: the entry sum of the Hadamard product of two one-hot prediction matrices over the product
    of their Frobenius norms.
    """
    predictions = np.asarray(predictions)
    same = np.zeros((len(predictions), len(predictions)))
    for value in np.unique(predictions):
        hits = (predictions == value).astype(np.float64)
        same += hits @ hits.T
    return same / predictions.shape[1]


def kl_matrix(logits: np.ndarray, temperature: float = 6.0) -> np.ndarray:
    """Mean Kullback-Leibler divergence KL(i || j) of softened outputs on the same rows (ClusterFL); not symmetric.

    `logits` is (clients, rows, classes).
    """
    from scipy.special import log_softmax

    log_p = log_softmax(np.asarray(logits, dtype=np.float64) / temperature, axis=2).reshape(len(logits), -1)
    cross = np.exp(log_p) @ log_p.T / np.shape(logits)[1]
    divergence = np.maximum(np.diag(cross)[:, None] - cross, 0.0)
    np.fill_diagonal(divergence, 0.0)
    return divergence


def relation_weights(divergence: np.ndarray) -> np.ndarray:
    """ClusterFL's F from its KL matrix: positive part of the centred Gram matrix, each column summing to 1.

    Its PCA to m - 1 components loses nothing after centring and is left out. A column without weight becomes the unit
    vector: that client relates to itself.
    """
    centred = divergence - divergence.mean(axis=0)
    weights = np.maximum(centred @ centred.T, 0.0)
    empty = weights.sum(axis=0) <= 0
    weights[empty, empty] = 1.0
    return weights / weights.sum(axis=0)


# ---- subspaces ------------------------------------------------------------------------------------------------------


def subspace_angles(bases: Sequence[np.ndarray], legacy: bool = False) -> np.ndarray:
    """Smallest angle in degrees between every two clients' subspaces (PACFL); a basis holds directions as columns.

    The principled angle does not depend on which vectors span a subspace. `legacy` is what PACFL's own code computes:
    the smallest angle between any two basis vectors as they are given, signs included.
    """
    bases = [np.asarray(basis, dtype=np.float64) for basis in bases]
    if legacy:
        angle = lambda a, b: np.arccos(np.clip(a.T @ b, -1.0, 1.0).max())  # noqa: E731
    else:
        bases, angle = [_orthonormal(basis) for basis in bases], _smallest_principal_angle
    angles = np.zeros((len(bases), len(bases)))
    for i, first in enumerate(bases):
        for j in range(i):
            angles[i, j] = angles[j, i] = np.degrees(angle(first, bases[j]))
    return angles


def angle_profiles(angles: np.ndarray) -> np.ndarray:
    """Distance of clients that compares each one's angles to all others: like clients see everybody alike.

    The smallest angle alone is no distance. Clients that share one class of two are as near as clients that share both,
    and A near B near C says nothing of A and C. Angles are compared by their ratios, for those between classes range
    over a whole order of magnitude. What is smaller than the angle at which clients usually have their next neighbour
    is chance and counts as that.
    """
    others = np.where(np.eye(len(angles), dtype=bool), np.inf, angles)
    chance = max(float(np.median(others.min(axis=1))), 0.1) if len(angles) > 1 else 0.1
    return column_distances(np.log(np.maximum(angles, chance)))


def _orthonormal(basis: np.ndarray) -> np.ndarray:
    left, values, _ = np.linalg.svd(basis, full_matrices=False)
    return left[:, values > TINY * values.max(initial=1.0)]


def _smallest_principal_angle(a: np.ndarray, b: np.ndarray) -> float:
    """Through sine and cosine both: arccos alone cannot tell 0 from a millionth of a degree."""
    if a.shape[1] == 0 or b.shape[1] == 0:
        return np.pi / 2  # an empty subspace shares no direction
    _, cosines, right = np.linalg.svd(a.T @ b)
    nearest = b @ right[0]
    return float(np.arctan2(np.linalg.norm(nearest - a @ (a.T @ nearest)), cosines[0]))
