"""Clusters around centres: k-center, k-means, mixtures and their BIC, and random labels to compare with."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedclade.clustering.hierarchy import agglomerate, linkage_tree
from fedclade.clustering.labels import in_order
from fedclade.clustering.large import EXACT, agglomerate_rows
from fedclade.clustering.similarity import directions, distance_matrix, informative
from fedclade.errors import FedcladeError, unknown

if TYPE_CHECKING:  # what takes a second to import is imported where it is used
    from sklearn.mixture import GaussianMixture

ALGORITHMS = ("kmeans", "agglomerative", "gmm")
SMALLEST_VARIANCE = 1e-12
STARTS = 30  # of k-means; from the Ward clusters alone it misses the best by over 2 % in a third of random cases


@dataclass(frozen=True, eq=False)
class KCenter:
    """A k-center clustering: `centers[label]` is the client at the centre of that cluster."""

    centers: np.ndarray
    labels: np.ndarray
    radius: float  # the largest distance of a client to its centre


def k_center(rows: np.ndarray, n_clusters: int, first: int = 0) -> KCenter:
    """Greedy farthest-first centres (Sener & Savarese; a baseline of FedSCCS), every client with the nearest.

    Equal rows can use up all distances before there are `n_clusters` centres; there are then fewer clusters.
    """
    distances = distance_matrix(rows)
    _check_count(n_clusters, len(distances))
    centers = [first]
    while len(centers) < n_clusters and (farthest := distances[centers].min(axis=0)).max() > 0:
        centers.append(int(np.argmax(farthest)))
    nearest = np.argmin(distances[centers], axis=0)
    order = nearest[np.sort(np.unique(nearest, return_index=True)[1])]  # centres by first appearance of their cluster
    return KCenter(np.array(centers)[order], in_order(nearest), float(distances[centers].min(axis=0).max()))


def kmeans(rows: np.ndarray, n_clusters: int) -> np.ndarray:
    """K-means labels: the best of the Ward clusters and of many other starts.

    The starts are drawn with a fixed seed from sorted rows, so that neither the order of clients nor a seed matters.
    Fewer clusters come out when fewer than `n_clusters` rows differ.
    """
    from sklearn.cluster import KMeans

    rows = np.asarray(rows, dtype=np.float64)
    start = _ward_means(rows, n_clusters)
    order = np.lexsort(rows.T)
    fits = [
        KMeans(len(start), init=init, n_init=starts, random_state=0).fit(rows[order])
        for init, starts in ((start, 1), ("k-means++", STARTS))
    ]
    best = fits[0] if fits[0].inertia_ <= (1 + 1e-9) * fits[1].inertia_ else fits[1]
    labels = np.empty(len(rows), dtype=np.int64)
    labels[order] = best.labels_
    return in_order(labels)


def gaussian_mixture(rows: np.ndarray, n_clusters: int, covariance: str = "full") -> np.ndarray:
    """Labels of a Gaussian mixture, started from the Ward clusters."""
    rows = np.asarray(rows, dtype=np.float64)
    if covariance == "full" and len(rows) < rows.shape[1]:
        # n clients span at most n - 1 directions: a rotation into them changes no label and keeps covariances small
        left, lengths, _ = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
        rows = left * lengths
    return in_order(_mixture(rows, n_clusters, covariance).predict(rows))


def cluster_rows(rows: np.ndarray, n_clusters: int, algorithm: str = "kmeans") -> np.ndarray:
    """Labels by cosine (Clustered FedStack): `kmeans` and `gmm` on rows of length 1, or `agglomerative`.

    A zero row has no direction and becomes a cluster of its own, beside the `n_clusters`.
    """
    known = informative(rows)
    unit = directions(np.asarray(rows))[known]
    if algorithm == "kmeans":
        inside = kmeans(unit, n_clusters)
    elif algorithm == "gmm":
        inside = gaussian_mixture(unit, n_clusters)
    elif algorithm == "agglomerative":
        inside, _ = agglomerate(distance_matrix(unit, "cosine"), "average", metric="cosine", n_clusters=n_clusters)
    else:
        raise unknown("algorithm", algorithm, ALGORITHMS)
    labels = -1 - np.arange(len(known))
    labels[known] = inside
    return in_order(labels)


def pooled_bic(rows: np.ndarray, most: int | None = None) -> np.ndarray:
    """BIC of k-means with k = 1, 2, ... clusters as one spherical variance pooled over all (X-means); lowest is best.

    Clients are far fewer than weights, where a mixture with its own variances splits until a cluster collapses; the
    pooled variance does not. Looks at up to 10 clusters and leaves two clients to measure the variance with.
    """
    rows = np.asarray(rows, dtype=np.float64)
    count, width = rows.shape
    most = max(1, min(10, count - 2)) if most is None else most
    if not 1 <= most <= max(1, count - 1):
        raise FedcladeError(f"most is {most}: choose 1 to {max(1, count - 1)}, fewer than there are clients")
    curve = []
    for k in range(1, most + 1):
        labels = kmeans(rows, k)
        sizes = np.bincount(labels)
        means = np.stack([rows[labels == cluster].mean(axis=0) for cluster in range(len(sizes))])
        spread = max(((rows - means[labels]) ** 2).sum() / (width * max(count - k, 1)), SMALLEST_VARIANCE)
        likelihood = (sizes * np.log(sizes / count)).sum() - count * width / 2 * np.log(2 * np.pi * spread)
        likelihood -= width * (count - k) / 2
        curve.append(-2 * likelihood + (k * width + k) * np.log(count))
    return np.array(curve)


def mixture_bic(rows: np.ndarray, most: int | None = None, covariance: str = "full") -> np.ndarray:
    """BIC of Gaussian mixtures with k = 1, 2, ... components and their own covariances, as scikit-learn counts it."""
    rows = np.asarray(rows, dtype=np.float64)
    most = max(1, min(10, len(rows) - 2)) if most is None else most
    return np.array([_mixture(rows, k, covariance).bic(rows) for k in range(1, most + 1)])


def random_labels(n_clients: int, n_clusters: int, rng: np.random.Generator) -> np.ndarray:
    """Uniform labels, drawn again until every cluster has a client (FedSCCS's random baseline).

    Where that hardly ever happens (nearly as many clusters as clients), one client is seated in each cluster first.
    """
    _check_count(n_clusters, n_clients)
    for _ in range(1000):
        labels = rng.integers(n_clusters, size=n_clients)
        if len(np.unique(labels)) == n_clusters:
            return in_order(labels)
    labels[rng.permutation(n_clients)[:n_clusters]] = np.arange(n_clusters)
    return in_order(labels)


def _mixture(rows: np.ndarray, n_clusters: int, covariance: str) -> "GaussianMixture":
    from sklearn.mixture import GaussianMixture

    means = _ward_means(rows, n_clusters)
    return GaussianMixture(len(means), covariance_type=covariance, means_init=means, random_state=0).fit(rows)


def _ward_means(rows: np.ndarray, n_clusters: int) -> np.ndarray:
    _check_count(n_clusters, len(rows))
    if len(rows) > EXACT:
        labels = agglomerate_rows(rows, "ward", n_clusters=n_clusters).labels
    else:
        tree = linkage_tree(distance_matrix(rows), "ward")
        merges = max(len(rows) - n_clusters, int((tree.heights == 0).sum()))  # equal rows stay together
        labels = tree.labels_after(merges)
    return np.stack([rows[labels == cluster].mean(axis=0) for cluster in range(labels.max() + 1)])


def _check_count(n_clusters: int, n_clients: int) -> None:
    if not 1 <= n_clusters <= n_clients:
        raise FedcladeError(f"n_clusters is {n_clusters}: choose 1 to {n_clients}, the number of clients")
