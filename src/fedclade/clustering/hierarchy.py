"""Agglomerative clustering from a distance matrix: the tree of merges, and its cuts.

The nearest two clusters merge while their distance is at most the threshold; ties go to the smallest client. The tree
has the form SciPy's `dendrogram` draws.
"""

import warnings
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedclade.clustering.automatic import choose_partition, most_clusters
from fedclade.clustering.labels import in_order
from fedclade.errors import FedcladeError, unknown

LINKAGES = ("single", "complete", "average", "weighted", "ward")
SAME_HEIGHT = 1 + 1e-9  # heights closer than this are one height: rounding must not decide a cut


@dataclass(frozen=True, eq=False)
class Tree:
    """All merges of one clustering, from every client alone to one cluster."""

    merges: np.ndarray  # (clients - 1, 4) as in SciPy: the two merged nodes, the height, the number of clients below
    linkage: str

    @property
    def n_clients(self) -> int:
        return len(self.merges) + 1

    @property
    def heights(self) -> np.ndarray:
        """The distance of the two clusters at each merge, ascending."""
        return self.merges[:, 2]

    def labels_after(self, n_merges: int) -> np.ndarray:
        """The partition when the first `n_merges` merges are done."""
        return in_order(self.nodes_after(n_merges))

    def nodes_after(self, n_merges: int) -> np.ndarray:
        """The node of the tree that each client is in when the first `n_merges` merges are done."""
        root = list(range(2 * self.n_clients - 1))
        pairs = self.merges[:n_merges, :2].astype(np.int64).tolist()
        for step in reversed(range(n_merges)):
            for node in pairs[step]:
                root[node] = root[self.n_clients + step]
        return np.array(root[: self.n_clients])


@dataclass(frozen=True, eq=False)
class Cut:
    """One partition of a tree: the result of every threshold from `threshold` up to, but not including, `below`."""

    labels: np.ndarray
    n_clusters: int
    threshold: float
    below: float


def linkage_tree(
    distances: np.ndarray, linkage: str = "average", metric: str = "euclidean", sizes: np.ndarray | None = None
) -> Tree:
    """The tree of merges of a distance matrix; `sizes`: how many clients each row stands for, if not one.

    `average` is UPGMA (every client counts the same), `weighted` is WPGMA (the two merged clusters count the same, as
    in PACFL's code), `ward` has a meaning for Euclidean distances only. To start from given groups instead of single
    clients (all linkages but Ward), set the distances inside each group to zero.
    """
    if linkage not in LINKAGES:
        raise unknown("linkage", linkage, LINKAGES)
    if linkage == "ward" and metric != "euclidean":
        raise FedcladeError(f"linkage 'ward' needs metric 'euclidean', not {metric!r}: choose another of the two")
    apart = _checked(distances)
    count = len(apart)
    np.fill_diagonal(apart, np.inf)
    weights, nodes, leaves = (
        np.ones(count) if sizes is None else np.array(sizes, float),
        np.arange(count),
        np.ones(count),
    )
    nearest = apart.min(
        axis=1
    )  # or less: merging moves clusters apart, and a row is looked at again when its turn comes
    merges = np.empty((count - 1, 4))
    for step in range(count - 1):
        a, b = _nearest_pair(apart, nearest)
        merges[step] = *sorted((nodes[a], nodes[b])), apart[a, b], leaves[a] + leaves[b]
        row = _merged(linkage, apart[a], apart[b], weights[a], weights[b], weights, apart[a, b])
        row[[a, b]] = np.inf
        apart[a], apart[:, a], apart[:, b] = row, row, np.inf
        nodes[a] = count + step
        weights[a] += weights[b]
        leaves[a] += leaves[b]
        np.minimum(nearest, row, out=nearest)
        nearest[[a, b]] = row.min(), np.inf
    if count > 1:
        merges[:, 2] = np.maximum.accumulate(merges[:, 2])  # rounding may swap merges of one height
    return Tree(merges, linkage)


def _nearest_pair(apart: np.ndarray, nearest: np.ndarray) -> tuple[int, int]:
    """The first of equals; a cluster sits at the place of its smallest client."""
    while True:
        a = int(np.argmin(nearest))
        b = int(np.argmin(apart[a]))
        if apart[a, b] <= nearest[a]:
            return a, b
        nearest[a] = apart[a, b]


def _merged(
    linkage: str, to_a: np.ndarray, to_b: np.ndarray, size_a: float, size_b: float, sizes: np.ndarray, height: float
) -> np.ndarray:
    """Distances of all clusters to the union of two (Lance-Williams update)."""
    if linkage == "single":
        return np.minimum(to_a, to_b)
    if linkage == "complete":
        return np.maximum(to_a, to_b)
    if linkage == "average":
        return (size_a * to_a + size_b * to_b) / (size_a + size_b)
    if linkage == "weighted":
        return (to_a + to_b) / 2
    squares = (size_a + sizes) * to_a**2 + (size_b + sizes) * to_b**2 - sizes * height**2
    return np.sqrt(np.maximum(squares, 0.0) / (size_a + size_b + sizes))


def _checked(distances: np.ndarray) -> np.ndarray:
    """A copy of a distance matrix, or a sentence about what is wrong with it."""
    distances = np.array(distances, dtype=np.float64)
    if distances.ndim != 2 or distances.shape[0] != distances.shape[1] or len(distances) == 0:
        raise ValueError(f"distances have shape {distances.shape}: give one row and one column for each client")
    if not np.isfinite(distances).all():
        client = int(np.argmax(~np.isfinite(distances).all(axis=1)))
        raise ValueError(f"distances of client {client} are not finite: leave that client out")
    if (distances != distances.T).any() or (distances < 0).any() or np.diag(distances).any():
        raise ValueError("distances must be symmetric, not negative and zero on the diagonal")
    return distances


def cut(tree: Tree, *, threshold: float | None = None, n_clusters: int | None = None) -> np.ndarray:
    """Labels of one cut, by exactly one of the two: the largest distance that still merges, or a number of clusters.

    Merges of the same height are done together, so that no order of clients decides who stays apart: there may then be
    fewer than `n_clusters`, down to one when all clients are equal. A warning says so.
    """
    if (threshold is None) == (n_clusters is None):
        raise ValueError("give exactly one of threshold and n_clusters")
    if threshold is not None:
        return tree.labels_after(int(np.searchsorted(tree.heights, threshold, side="right")))
    if n_clusters is None or not 1 <= n_clusters <= tree.n_clients:
        raise FedcladeError(f"n_clusters is {n_clusters}: choose 1 to {tree.n_clients}, the number of clients")
    n_merges = tree.n_clients - n_clusters
    height = tree.heights[n_merges - 1] if n_merges else 0.0
    labels = tree.labels_after(int(np.searchsorted(tree.heights, height * SAME_HEIGHT, side="right")))
    if labels.max() + 1 < n_clusters:
        warnings.warn(
            f"{n_clusters} clusters asked for, {labels.max() + 1} made: clients at equal distances are not told apart",
            stacklevel=2,
        )
    return labels


def sweep(tree: Tree, most: int | None = None) -> list[Cut]:
    """Every cut of the tree from 1 to `most` (default all clients) clusters; merges of equal height are one step."""
    heights, count = tree.heights, tree.n_clients
    most = min(most or count, count)
    node = tree.nodes_after(count - most)  # in which every client is: one more merge is a step from cut to cut
    cuts = []
    for n_clusters in range(most, 0, -1):
        n_merges = count - n_clusters
        threshold = float(heights[n_merges - 1]) if n_merges else 0.0
        below = float(heights[n_merges]) if n_merges < len(heights) else float("inf")
        if below > threshold * SAME_HEIGHT:
            cuts.append(Cut(in_order(node), n_clusters, threshold, below))
        if n_merges < len(heights):
            node[np.isin(node, tree.merges[n_merges, :2])] = count + n_merges
    return cuts[::-1]


def agglomerate(
    distances: np.ndarray,
    linkage: str = "average",
    *,
    metric: str = "euclidean",
    threshold: float | Literal["auto"] | None = None,
    n_clusters: int | None = None,
) -> tuple[np.ndarray, Tree]:
    """Labels and tree of a distance matrix in one call; `threshold="auto"` leaves the number of clusters to the data.

    The automatic rule is `automatic.choose_partition`, offered the cuts of this tree.
    """
    tree = linkage_tree(distances, linkage, metric)
    if threshold != "auto":
        return cut(tree, threshold=threshold, n_clusters=n_clusters), tree
    if n_clusters is not None:
        raise ValueError("give exactly one of threshold and n_clusters")
    # half a squared chord is what 1 - cosine measures; the rule wants lengths
    lengths = np.sqrt(2 * np.asarray(distances)) if metric == "cosine" else np.asarray(distances)
    return choose_partition(lengths, [level.labels for level in sweep(tree, most=most_clusters(len(lengths)))]), tree
