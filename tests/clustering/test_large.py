"""Clusters of very many clients, set against the exact ones where both can be had."""

import numpy as np
import pytest

from fedclade.clustering.centers import kmeans
from fedclade.clustering.hierarchy import LINKAGES
from fedclade.clustering.large import EXACT, TOO_MANY, agglomerate_rows, bundle_distances
from fedclade.clustering.scores import adjusted_rand
from fedclade.clustering.similarity import directions, distance_matrix
from fedclade.errors import FedcladeError


def planted(seed, groups, clients=2500, width=40, apart=12.0):
    rng = np.random.default_rng(seed)
    truth = rng.permutation(clients) % groups
    centres = rng.normal(size=(groups, width))
    centres *= apart / np.linalg.norm(centres, axis=1, keepdims=True)
    return (centres[truth] + rng.normal(size=(clients, width))).astype(np.float32), truth


@pytest.mark.parametrize("linkage", LINKAGES)
@pytest.mark.parametrize("groups", [1, 6])
def test_bundles_give_the_clusters_of_single_clients(groups, linkage):
    rows, truth = planted(0, groups)
    large = agglomerate_rows(rows, linkage, threshold="auto", exact=100)
    assert adjusted_rand(truth, large.labels) > 0.99
    if linkage == "average":  # the other linkages have their own answers for stragglers
        exact = agglomerate_rows(rows, linkage, threshold="auto")
        assert len(exact.tree.merges) == 2499
        assert adjusted_rand(exact.labels, large.labels) > 0.99


def test_a_hundred_clusters_are_found_and_so_are_directions():
    rows, truth = planted(1, 100, clients=4000, width=150, apart=30.0)
    assert adjusted_rand(truth, agglomerate_rows(rows, threshold="auto").labels) > 0.99
    lengths = np.exp(np.random.default_rng(0).normal(size=(len(rows), 1)))
    found = agglomerate_rows(lengths * rows, metric="cosine", n_clusters=100)
    assert adjusted_rand(truth, found.labels) > 0.99


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_distances_of_bundles_are_means_over_their_clients(metric):
    rows, _ = planted(2, 3, clients=60)
    rows = rows if metric == "euclidean" else directions(rows).astype(np.float32)
    bundle = np.arange(60) % 7
    found, sizes = bundle_distances(rows, bundle, metric)
    squares = distance_matrix(rows) ** 2
    means = np.array([[squares[np.ix_(bundle == a, bundle == b)].mean() for b in range(7)] for a in range(7)])
    np.fill_diagonal(means, 0.0)
    np.testing.assert_allclose(found, np.sqrt(means) if metric == "euclidean" else means / 2, rtol=1e-5, atol=1e-6)
    assert (sizes == np.bincount(bundle)).all()


def test_a_threshold_means_the_same_for_bundles():
    rows, truth = planted(3, 5)
    between = 14.0  # clients of one group are 9 apart, of two groups 19
    large = agglomerate_rows(rows, threshold=between, exact=100)
    assert adjusted_rand(truth, large.labels) > 0.99
    assert not agglomerate_rows(rows, threshold=30.0, exact=100).labels.any()


def test_kmeans_of_many_clients_starts_from_bundles():
    rows, truth = planted(5, 4, clients=EXACT + 500)
    assert adjusted_rand(truth, kmeans(rows, 4)) > 0.99


def test_those_shown_stand_for_every_cluster():
    rows, _ = planted(4, 6)
    large = agglomerate_rows(rows, n_clusters=6, exact=100)
    assert len(large.shown) == len(large.distances) == large.tree.n_clients < len(rows)
    assert set(large.labels[large.shown]) == set(range(6))


def test_equal_clients_are_one_cluster_however_many():
    assert not agglomerate_rows(np.ones((4000, 3)), threshold="auto").labels.any()


def test_what_compares_every_two_is_refused_for_too_many():
    with pytest.raises(FedcladeError, match="choose 'euclidean'"):
        agglomerate_rows(np.ones((TOO_MANY + 1, 1)), metric="l1", threshold="auto")
