"""Trees over more clients than a matrix of distances can hold: first small bundles of clients, then a tree of bundles.

Clients are seen along the main axes of some of them, where groups differ, and k-means makes a few thousand bundles. How
far two bundles are apart follows from their means and spreads: the mean square of the distances between their clients,
exactly. So heights, and thresholds, mean what they mean for single clients; `single` and `complete` linkage look at the
nearest and the farthest bundles.
"""

import warnings
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedclade.clustering.automatic import best_partition, most_clusters, spread
from fedclade.clustering.hierarchy import Tree, agglomerate, cut, linkage_tree, sweep
from fedclade.clustering.labels import in_order
from fedclade.clustering.similarity import directions, distance_matrix
from fedclade.errors import FedcladeError

EXACT = 3_000  # up to so many clients every two are compared
BUNDLES = 2_000
AXES_FROM = 5_000  # clients that the axes are found from
TOO_MANY = 20_000  # clients of which no matrix is made: 3 GB


@dataclass(frozen=True, eq=False)
class Clustered:
    """Labels of all clients; the tree and the distances of those that stand for the others (everybody, if few)."""

    labels: np.ndarray
    tree: Tree
    distances: np.ndarray
    shown: np.ndarray  # the clients that the rows of `distances` and the leaves of the tree are, or stand for


def agglomerate_rows(
    rows: np.ndarray,
    linkage: str = "average",
    *,
    metric: str = "euclidean",
    threshold: float | Literal["auto"] | None = None,
    n_clusters: int | None = None,
    exact: int = EXACT,
) -> Clustered:
    """What `agglomerate` gives for the distances of these rows, for any number of them."""
    count = len(rows)
    if count <= exact or metric == "l1":
        if count > TOO_MANY:
            raise FedcladeError(f"metric 'l1' compares every two of {count:,} clients: choose 'euclidean' or 'cosine'")
        distances = distance_matrix(rows, metric)
        labels, tree = agglomerate(distances, linkage, metric=metric, threshold=threshold, n_clusters=n_clusters)
        return Clustered(labels, tree, distances, np.arange(count))
    rows = np.asarray(rows, dtype=np.float32) if metric != "cosine" else directions(rows).astype(np.float32)
    places = along_axes(rows)
    bundle = bundles(places)
    distances, sizes = bundle_distances(rows, bundle, metric)
    tree = linkage_tree(distances, linkage, metric, sizes)
    if threshold == "auto":
        labels = _chosen(rows, places, bundle, tree)
    else:
        labels = cut(tree, threshold=threshold, n_clusters=n_clusters)
    return Clustered(in_order(labels[bundle]), tree, distances, np.unique(bundle, return_index=True)[1])


def along_axes(rows: np.ndarray) -> np.ndarray:
    """(clients, axes): where the rows lie along the axes of largest spread of some of them."""
    from sklearn.decomposition import PCA

    seen = rows[np.sort(np.random.default_rng(0).permutation(len(rows))[:AXES_FROM])]
    n_axes = min(most_clusters(len(rows)), *seen.shape)
    with np.errstate(invalid="ignore"):  # equal clients have no spread
        return PCA(n_axes, svd_solver="randomized", random_state=0).fit(seen).transform(rows)


def bundles(places: np.ndarray) -> np.ndarray:
    """Labels of a few thousand small clusters of clients that lie close together."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    means = KMeans(min(BUNDLES, len(places)), init="random", n_init=1, max_iter=4, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # equal clients make fewer bundles
        return in_order(means.fit_predict(places))


def bundle_distances(rows: np.ndarray, bundle: np.ndarray, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """The root of the mean squared distance between the clients of every two bundles, and the bundles' sizes.

    For `cosine`, whose rows have length 1: the mean of 1 - cosine, which is half that square.
    """
    from scipy.sparse import csr_matrix

    sizes = np.bincount(bundle)
    members = csr_matrix((np.ones(len(rows), np.float32), (bundle, np.arange(len(rows)))))
    rows = rows - rows.mean(axis=0)
    centres = (members @ rows).astype(np.float64) / sizes[:, None]
    squares = np.bincount(bundle, weights=np.einsum("ij,ij->i", rows, rows)) / sizes
    spreads = np.maximum(squares - (centres**2).sum(axis=1), 0.0)
    distances = np.sqrt(distance_matrix(centres) ** 2 + np.add.outer(spreads, spreads))
    np.fill_diagonal(distances, 0.0)
    return (distances**2 / 2 if metric == "cosine" else distances), sizes


def _chosen(rows: np.ndarray, places: np.ndarray, bundle: np.ndarray, tree: Tree) -> np.ndarray:
    """The cut of the tree that the automatic rule takes, looking at some of the clients themselves."""
    cuts = [level.labels for level in sweep(tree, most_clusters(len(rows))) if level.n_clusters > 1]
    if not cuts:
        return np.zeros(tree.n_clients, np.int64)
    seen = spread(cuts[-1][bundle])
    axes = places[seen].astype(np.float64).T
    best = best_partition(distance_matrix(rows[seen]), [labels[bundle[seen]] for labels in cuts], lambda n: axes[:n])
    return np.zeros(tree.n_clients, np.int64) if best is None else cuts[best]
