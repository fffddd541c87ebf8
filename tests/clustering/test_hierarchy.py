"""Trees and cuts: the oracle O5, SciPy as a second opinion, ties, and what no cut may break."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import dendrogram
from scipy.cluster.hierarchy import linkage as scipy_linkage
from scipy.spatial.distance import squareform

from fedclade.clustering.hierarchy import LINKAGES, agglomerate, cut, linkage_tree, sweep
from fedclade.clustering.labels import in_order
from fedclade.clustering.similarity import distance_matrix
from fedclade.errors import FedcladeError

O5 = np.array([[0.0, 1, 3, 6], [1, 0, 5, 6], [3, 5, 0, 9], [6, 6, 9, 0]])
linkages = st.sampled_from(LINKAGES)


@st.composite
def clients(draw, least=1, most=10):
    """Random clients; continuous, so that no two distances are equal."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return rng.normal(size=(draw(st.integers(least, most)), 4))


@pytest.mark.parametrize(
    ("linkage", "heights"),
    [("single", [1, 3, 6]), ("complete", [1, 5, 9]), ("average", [1, 4, 7]), ("weighted", [1, 4, 7.5])],
)
def test_heights_by_hand(linkage, heights):
    assert linkage_tree(O5, linkage).heights.tolist() == heights


def test_average_and_weighted_are_not_the_same():
    assert agglomerate(O5, "average", threshold=7.2)[0].tolist() == [0, 0, 0, 0]
    assert agglomerate(O5, "weighted", threshold=7.2)[0].tolist() == [0, 0, 0, 1]


def test_a_distance_equal_to_the_threshold_merges():
    assert agglomerate(O5, "single", threshold=3)[0].tolist() == [0, 0, 0, 1]
    assert agglomerate(O5, "single", threshold=2.999)[0].tolist() == [0, 0, 1, 2]


@given(clients(least=2), linkages)
def test_scipy_grows_the_same_tree(rows, linkage):
    distances = distance_matrix(rows)
    tree, other = linkage_tree(distances, linkage), scipy_linkage(squareform(distances), linkage)
    np.testing.assert_allclose(tree.heights, other[:, 2])
    np.testing.assert_array_equal(tree.merges[:, 3], other[:, 3])


@given(clients(), linkages)
def test_every_cut_is_a_partition_numbered_by_first_appearance(rows, linkage):
    tree = linkage_tree(distance_matrix(rows), linkage)
    for level in sweep(tree):
        assert len(level.labels) == len(rows)
        assert (in_order(level.labels) == level.labels).all()
        assert level.labels.max() + 1 == level.n_clusters
        assert (cut(tree, n_clusters=level.n_clusters) == level.labels).all()
        assert (cut(tree, threshold=level.threshold) == level.labels).all()
        if np.isfinite(level.below):
            assert (cut(tree, threshold=np.nextafter(level.below, 0)) == level.labels).all()


@given(clients(), linkages)
def test_a_larger_threshold_never_gives_more_clusters(rows, linkage):
    tree = linkage_tree(distance_matrix(rows), linkage)
    numbers = [cut(tree, threshold=threshold).max() + 1 for threshold in np.linspace(0, 12, 20)]
    assert numbers == sorted(numbers, reverse=True)


@settings(max_examples=50)
@given(clients(), linkages, st.randoms(use_true_random=False))
def test_the_order_of_clients_does_not_matter(rows, linkage, random):
    order = np.array(random.sample(range(len(rows)), len(rows)))
    for n_clusters in range(1, len(rows) + 1):
        plain, _ = agglomerate(distance_matrix(rows), linkage, n_clusters=n_clusters)
        shuffled, _ = agglomerate(distance_matrix(rows[order]), linkage, n_clusters=n_clusters)
        assert (in_order(plain[order]) == shuffled).all()


@settings(max_examples=50)
@given(clients(least=2), st.floats(1e-3, 1e3))
def test_scale_does_not_change_cosine_clusters(rows, scale):
    for n_clusters in range(1, len(rows) + 1):
        plain, _ = agglomerate(distance_matrix(rows, "cosine"), metric="cosine", n_clusters=n_clusters)
        scaled, _ = agglomerate(distance_matrix(scale * rows, "cosine"), metric="cosine", n_clusters=n_clusters)
        assert (plain == scaled).all()


def test_ties_go_to_the_smallest_clients():
    line = np.abs(np.arange(4.0)[:, None] - np.arange(4.0))  # 0-1, 1-2 and 2-3 are equally near
    assert linkage_tree(line, "complete").merges[:, :2].tolist() == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("linkage", LINKAGES)
def test_equal_clients_are_one_cluster_whatever_is_asked(linkage):
    distances = np.zeros((5, 5))
    assert not agglomerate(distances, linkage, threshold=0.0)[0].any()
    assert not agglomerate(distances, linkage, threshold="auto")[0].any()
    with pytest.warns(UserWarning, match="3 clusters asked for, 1 made"):
        assert not agglomerate(distances, linkage, n_clusters=3)[0].any()
    assert [level.n_clusters for level in sweep(linkage_tree(distances, linkage))] == [1]


@pytest.mark.parametrize("linkage", LINKAGES)
def test_one_and_two_clients(linkage):
    assert agglomerate(np.zeros((1, 1)), linkage, n_clusters=1)[0].tolist() == [0]
    assert agglomerate(np.zeros((1, 1)), linkage, threshold="auto")[0].tolist() == [0]
    pair = np.array([[0.0, 2.0], [2.0, 0.0]])
    assert agglomerate(pair, linkage, n_clusters=2)[0].tolist() == [0, 1]
    assert agglomerate(pair, linkage, threshold=2.0)[0].tolist() == [0, 0]


def test_groups_to_start_from_are_zero_distances():
    distances, start = O5.copy(), np.array([0, 1, 0, 1])
    distances[start[:, None] == start] = 0.0
    tree = linkage_tree(distances, "average")
    assert tree.heights.tolist() == [0.0, 0.0, (1 + 6 + 5 + 9) / 4]


def test_the_tree_can_be_drawn():
    assert dendrogram(linkage_tree(O5).merges, no_plot=True)["leaves"] == [3, 2, 0, 1]


@pytest.mark.parametrize("linkage", LINKAGES)
def test_a_thousand_clients(linkage):
    distances = distance_matrix(np.random.default_rng(0).normal(size=(1000, 20)))
    assert agglomerate(distances, linkage, n_clusters=7)[0].max() == 6


def test_errors_say_what_would_be_right():
    with pytest.raises(FedcladeError, match="did you mean 'average'"):
        linkage_tree(O5, "avarage")
    with pytest.raises(FedcladeError, match="needs metric 'euclidean'"):
        linkage_tree(O5, "ward", metric="cosine")
    with pytest.raises(FedcladeError, match="choose 1 to 4"):
        agglomerate(O5, n_clusters=5)
    with pytest.raises(ValueError, match="exactly one"):
        agglomerate(O5)
    with pytest.raises(ValueError, match="exactly one"):
        agglomerate(O5, threshold="auto", n_clusters=2)
    with pytest.raises(ValueError, match="client 1 are not finite"):
        linkage_tree(np.array([[0.0, 1.0, 2.0], [1.0, 0.0, np.nan], [2.0, 1.0, 0.0]]))
    with pytest.raises(ValueError, match="symmetric"):
        linkage_tree(np.array([[0.0, 1.0], [2.0, 0.0]]))
