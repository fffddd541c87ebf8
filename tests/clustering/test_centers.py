"""k-center (O7), the pooled BIC (O11), and deterministic k-means, mixtures and random labels."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedclade.clustering.centers import (
    cluster_rows,
    gaussian_mixture,
    k_center,
    kmeans,
    mixture_bic,
    pooled_bic,
    random_labels,
)
from fedclade.clustering.labels import in_order
from fedclade.errors import FedcladeError


def planted(seed, groups=3, clients=15, width=264, noise=0.35):
    """Rows of length 1 around a few directions: the setting in which the specification compared BIC variants."""
    rng = np.random.default_rng(seed)
    truth = np.arange(clients) % groups
    rows = rng.normal(size=(groups, width))[truth] + noise * rng.normal(size=(clients, width))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True), truth


def test_k_center_by_hand():
    found = k_center(np.array([[0, 0], [1, 0], [10, 0], [10, 1], [0, 9]]), 3)
    assert found.centers.tolist() == [0, 3, 4]
    assert found.labels.tolist() == [0, 0, 1, 1, 2]
    assert found.radius == 1


def test_k_center_numbers_centers_as_it_numbers_clusters():
    found = k_center(np.array([[5.0], [0.0], [100.0]]), 3, first=2)
    assert found.centers.tolist() == [0, 1, 2]
    assert found.labels.tolist() == [0, 1, 2]


def test_k_center_makes_fewer_clusters_of_equal_clients():
    found = k_center(np.array([[1.0], [1.0], [2.0], [2.0]]), 3)
    assert found.centers.tolist() == [0, 2]
    assert found.labels.tolist() == [0, 0, 1, 1]
    assert found.radius == 0
    with pytest.raises(FedcladeError, match="choose 1 to 2"):
        k_center(np.eye(2), 3)


def test_pooled_bic_by_hand():
    curve = pooled_bic(np.array([[0, 0], [0, 1], [10, 0], [10, 1]]), most=3)
    np.testing.assert_allclose(curve, [47.4488, 21.4756, 26.4071], atol=5e-5)


@pytest.mark.parametrize("seed", range(3))
def test_pooled_bic_finds_planted_groups_and_none_in_noise(seed):
    assert np.argmin(pooled_bic(planted(seed)[0])) + 1 == 3
    noise = np.random.default_rng(seed).normal(size=(15, 264))
    assert np.argmin(pooled_bic(noise / np.linalg.norm(noise, axis=1, keepdims=True))) + 1 == 1


def test_pooled_bic_of_equal_few_and_lone_clients_is_one():
    assert np.argmin(pooled_bic(np.ones((9, 4)))) == 0
    assert len(pooled_bic(np.array([[0.0], [1.0]]))) == 1
    assert len(pooled_bic(np.array([[3.0, 4.0]]))) == 1


@settings(max_examples=20)
@given(st.integers(0, 10_000), st.integers(1, 6))
def test_kmeans_needs_no_seed_and_ignores_the_order_of_clients(seed, n_clusters):
    rng = np.random.default_rng(seed)
    rows, order = rng.normal(size=(12, 3)), rng.permutation(12)
    labels = kmeans(rows, n_clusters)
    assert (labels == in_order(labels)).all()
    assert (kmeans(rows[order], n_clusters) == in_order(labels[order])).all()


@pytest.mark.parametrize("seed", range(20))
def test_kmeans_is_as_good_as_the_best_of_many_starts(seed):
    """Of starts that it does not try itself: by the oracle's own Lloyd iterations."""
    random = np.random.default_rng(seed)
    rows, k = random.standard_normal((15, 40)), 2 + seed % 5

    def lloyd(centres):
        for _ in range(100):
            labels = ((rows[:, None] - centres) ** 2).sum(-1).argmin(1)
            centres = np.stack(
                [rows[labels == c].mean(0) if (labels == c).any() else centres[c] for c in range(len(centres))]
            )
        return ((rows - centres[labels]) ** 2).sum()

    best = min(lloyd(rows[random.permutation(15)[:k]]) for _ in range(30))
    labels = kmeans(rows, k)
    ours = sum(((rows[labels == c] - rows[labels == c].mean(0)) ** 2).sum() for c in np.unique(labels))
    assert ours <= 1.01 * best


@pytest.mark.parametrize("algorithm", ["kmeans", "agglomerative", "gmm"])
def test_rows_are_clustered_by_direction(algorithm):
    rows, truth = planted(0)
    lengths = np.random.default_rng(1).uniform(0.1, 10, size=(15, 1))
    assert (cluster_rows(lengths * rows, 3, algorithm) == truth).all()


@pytest.mark.parametrize("algorithm", ["kmeans", "agglomerative", "gmm"])
def test_a_zero_row_is_a_cluster_of_its_own(algorithm):
    rows, truth = planted(0)
    rows, truth = np.insert(rows, 1, 0.0, axis=0), np.insert(truth, 1, 9)
    assert (cluster_rows(rows, 3, algorithm) == in_order(truth)).all()


def test_unknown_algorithm_is_named():
    with pytest.raises(FedcladeError, match="unknown algorithm 'k-means'"):
        cluster_rows(np.eye(3), 2, "k-means")


def test_mixtures():
    rows = np.concatenate(
        [np.random.default_rng(0).normal(size=(30, 2)), np.random.default_rng(1).normal(8, 1, (30, 2))]
    )
    assert np.argmin(mixture_bic(rows, most=4)) + 1 == 2
    assert (gaussian_mixture(rows, 2) == np.repeat([0, 1], 30)).all()
    assert (gaussian_mixture(rows, 2, "spherical") == np.repeat([0, 1], 30)).all()


@given(st.integers(1, 12), st.data())
def test_random_labels_use_every_cluster(n_clients, data):
    n_clusters = data.draw(st.integers(1, n_clients))
    labels = random_labels(n_clients, n_clusters, np.random.default_rng(data.draw(st.integers(0, 99))))
    assert sorted(set(labels)) == list(range(n_clusters))
    assert (labels == in_order(labels)).all()


def test_random_labels_do_not_wait_for_a_miracle():
    assert random_labels(200, 200, np.random.default_rng(0)).tolist() == list(range(200))
