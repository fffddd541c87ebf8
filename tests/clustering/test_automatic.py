"""The rule for the number of clusters: what it finds, when it answers one, and what may not sway it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedclade.clustering.automatic import (
    ROUGHLY,
    choose_partition,
    most_clusters,
    principal_axes,
    rough_separation,
    separation,
    silhouettes,
    totals,
)
from fedclade.clustering.hierarchy import LINKAGES, agglomerate, linkage_tree, sweep
from fedclade.clustering.labels import in_order
from fedclade.clustering.similarity import distance_matrix
from fedclade.errors import FedcladeError


def federation(seed, groups, clients=20, width=300, apart=20.0):
    """Clients around group centres; the noise of two clients puts them about sqrt(2 * 300) = 24 apart."""
    rng = np.random.default_rng(seed)
    truth = np.sort(np.arange(clients) % groups)
    centres = rng.normal(size=(groups, width))
    centres *= apart / np.linalg.norm(centres, axis=1, keepdims=True)
    return centres[truth] + rng.normal(size=(clients, width)), truth


def automatic(rows, linkage="average", metric="euclidean"):
    return agglomerate(distance_matrix(rows, metric), linkage, metric=metric, threshold="auto")[0]


@pytest.mark.parametrize("linkage", LINKAGES)
@pytest.mark.parametrize("groups", [1, 2, 4, 7])
def test_planted_groups_are_found_and_a_single_cloud_stays_whole(linkage, groups):
    rows, truth = federation(0, groups, clients=28)
    assert (automatic(rows, linkage) == truth).all()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("clients", [4, 6, 20, 60])
def test_a_flat_cloud_is_one_cluster(seed, clients):
    cloud = np.random.default_rng(seed).normal(size=(clients, 50)) / np.arange(1, 51)
    assert not automatic(cloud).any()


@pytest.mark.parametrize("clients", [4, 5, 9])
def test_few_clients_in_clear_groups(clients):
    rows = np.random.default_rng(0).normal(size=(clients, 10)) + 100.0 * (np.arange(clients) % 2)[:, None]
    assert (automatic(rows) == np.arange(clients) % 2).all()


@pytest.mark.parametrize("clients", [1, 2, 3])
def test_fewer_than_four_clients_are_one_cluster(clients):
    assert not automatic(np.eye(5)[:clients]).any()


@pytest.mark.parametrize("linkage", LINKAGES)
def test_equal_clients_are_one_cluster_and_equal_groups_are_groups(linkage):
    assert not automatic(np.ones((12, 3)), linkage).any()
    truth = np.repeat([0, 1, 2], 4)
    assert (automatic(np.eye(3)[truth], linkage) == truth).all()


def test_one_odd_client_makes_no_partition_but_may_stand_beside_groups():
    rows, truth = federation(1, 1)
    rows[7] += 30.0
    assert not automatic(rows).any()
    rows, truth = federation(1, 3, clients=21)
    rows, truth = np.vstack([rows, 40 * np.ones(300)]), np.append(truth, 3)
    assert (automatic(rows) == truth).all()


def test_cosine_finds_groups_behind_different_lengths():
    rows, truth = federation(2, 4, clients=24)
    lengths = np.exp(np.random.default_rng(0).normal(size=(24, 1)))
    assert (automatic(lengths * rows, metric="cosine") == truth).all()


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.integers(1, 5), st.sampled_from(LINKAGES), st.floats(1e-3, 1e3), st.floats(-10, 10))
def test_order_scale_and_origin_do_not_sway_the_rule(seed, groups, linkage, scale, shift):
    rows, _ = federation(seed, groups, apart=12.0)
    labels = automatic(rows, linkage)
    order = np.random.default_rng(seed).permutation(len(rows))
    assert (automatic(rows[order], linkage) == in_order(labels[order])).all()
    assert (automatic(scale * rows, linkage) == labels).all()
    assert (automatic(rows + shift, linkage) == labels).all()


def test_a_thousand_clients():
    rows, truth = federation(3, 10, clients=1000, width=100)
    assert (automatic(rows) == truth).all()


def test_any_partitions_can_be_offered():
    rows, truth = federation(4, 3)
    distances = distance_matrix(rows)
    wrong = np.arange(20) % 3
    assert (choose_partition(distances, [wrong, truth, np.arange(20)]) == truth).all()
    assert not choose_partition(distances, [wrong]).any()
    assert not choose_partition(distances, []).any()
    assert [most_clusters(n) for n in (1, 3, 4, 20, 1000, 2000, 10**6)] == [1, 1, 2, 10, 50, 100, 200]


@pytest.mark.parametrize("groups", [1, 3, 80])
def test_which_of_many_clients_are_looked_at_does_not_matter(groups):
    rows, truth = federation(5, groups, clients=1600, width=100)
    distances = distance_matrix(rows)
    cuts = [level.labels for level in sweep(linkage_tree(distances), most_clusters(1600))]
    samples = [np.random.default_rng(seed).permutation(1600)[:1000] for seed in range(3)]
    for looked_at in [None, np.arange(1600), *samples]:
        assert (choose_partition(distances, cuts, looked_at) == truth).all()


def test_the_axes_of_many_clients_are_those_that_matter():
    rows, _ = federation(6, 5, clients=1200, width=60, apart=30.0)
    centred = rows - rows.mean(axis=0)
    lengths = np.linalg.svd(centred, compute_uv=False)[:4]  # along which the groups differ
    np.testing.assert_allclose(np.linalg.norm(principal_axes(distance_matrix(rows), 4), axis=1), lengths, rtol=1e-4)


@pytest.mark.parametrize("groups", [1, 3, 9])
def test_the_rough_separation_is_near_the_exact_one(groups):
    for seed in range(5):
        rows, _ = federation(seed, groups, clients=90, width=30, apart=6.0)
        for labels in [level.labels for level in sweep(linkage_tree(distance_matrix(rows)), 20)][1:]:
            exact = separation(distance_matrix(rows), labels)
            assert abs(rough_separation(rows, labels) - exact) < ROUGHLY / 2


def test_silhouettes_by_hand():
    line = np.array([0.0, 1.0, 4.0, 10.0])
    labels = np.array([0, 0, 1, 2])
    values = silhouettes(totals(np.abs(line[:, None] - line), labels), labels)
    np.testing.assert_allclose(values, [1 - 1 / 4, 1 - 1 / 3, 0, 0])
    assert separation(np.abs(line[:, None] - line), np.array([0, 0, 1, 2])) == pytest.approx(values[:2].mean() / 3)
    assert not silhouettes(np.zeros((4, 2)), np.array([0, 0, 1, 1])).any()


def test_principal_axes_keep_the_distances():
    rows = np.random.default_rng(0).normal(size=(8, 3))
    axes = principal_axes(distance_matrix(rows), 3)
    np.testing.assert_allclose(distance_matrix(axes.T), distance_matrix(rows), atol=1e-10)
    spread = axes.var(axis=1)
    assert (np.diff(spread) <= 0).all()


def test_an_unknown_linkage_is_still_an_error():
    with pytest.raises(FedcladeError, match="unknown linkage"):
        automatic(np.eye(4), "centroid")
