"""Similarities: the oracles O6 and O6b of the specification, the zero-norm rule, and what every matrix must keep."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedclade.clustering.similarity import (
    agreement_matrix,
    cka_matrix,
    column_distances,
    cosine,
    cosine_matrix,
    distance_matrix,
    informative,
    kl_matrix,
    linear_cka,
    linear_cka_gram,
    relation_weights,
    subspace_angles,
)
from fedclade.errors import FedcladeError

rows = arrays(
    np.float64,
    st.tuples(st.integers(1, 8), st.integers(1, 5)),
    elements=st.one_of(st.just(0.0), st.floats(1e-3, 100), st.floats(-100, -1e-3)),
)


def test_zero_and_broken_rows_have_cosine_zero_and_are_flagged():
    vectors = np.array([[1.0, 0.0], [0.0, 0.0], [np.nan, 1.0], [np.inf, 0.0], [1.0, 1.0]])
    assert informative(vectors).tolist() == [True, False, False, False, True]
    cosines = cosine_matrix(vectors)
    assert not cosines[1:4].any()
    assert not cosines[:, 1:4].any()
    assert cosines[0, 4] == pytest.approx(np.sqrt(0.5))
    assert distance_matrix(vectors, "cosine")[1, 2] == 1.0


def test_cosine_pairs_partners_and_broadcasts():
    assert cosine(np.eye(2), np.eye(2)).tolist() == [1.0, 1.0]
    assert cosine(np.array([1.0, 0.0]), np.array([[2.0, 0.0], [0.0, 3.0], [-1.0, 0.0]])).tolist() == [1.0, 0.0, -1.0]


@given(rows, st.floats(1e-2, 1e3))
def test_scale_does_not_change_cosines(vectors, scale):
    np.testing.assert_allclose(cosine_matrix(scale * vectors), cosine_matrix(vectors), atol=1e-12)


@given(rows, st.sampled_from(["euclidean", "l1", "cosine"]))
def test_distances_are_symmetric_with_zero_diagonal(vectors, metric):
    distances = distance_matrix(vectors, metric)
    assert (distances == distances.T).all()
    assert (distances >= 0).all()
    assert not np.diag(distances).any()


@given(rows)
def test_euclidean_is_what_it_says_even_far_from_the_origin(vectors):
    plain = np.linalg.norm(vectors[:, None] - vectors, axis=2)
    np.testing.assert_allclose(distance_matrix(vectors), plain, atol=1e-5)
    np.testing.assert_allclose(distance_matrix(vectors + 1000.0), plain, atol=1e-5)


def test_equal_clients_are_at_distance_exactly_zero():
    start = np.random.default_rng(0).normal(size=5000)
    clients = np.stack([start, start + 1e-4, start, -start])
    distances = distance_matrix(clients)
    assert distances[0, 2] == 0.0
    assert (distances[0] == distances[2]).all()
    assert not distance_matrix(np.repeat(start[None], 7, axis=0)).any()


def test_l1_and_column_distances():
    assert distance_matrix(np.array([[0.0, 0.0], [1.0, -2.0]]), "l1")[0, 1] == 3.0
    similarity = np.array([[1.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 1.0]])
    assert column_distances(similarity)[0, 1] == pytest.approx(np.sqrt(0.5))


@pytest.mark.parametrize("metric", ["euclidean", "l1"])
def test_rows_that_are_not_finite_are_refused(metric):
    with pytest.raises(ValueError, match="row 1 holds a NaN"):
        distance_matrix(np.array([[0.0], [np.nan]]), metric)


def test_unknown_metric_is_named():
    with pytest.raises(FedcladeError, match="did you mean 'euclidean'"):
        distance_matrix(np.eye(2), "euclidian")


def test_a_thousand_whole_layers_are_quick():
    clients = np.random.default_rng(0).normal(size=(1000, 850)).astype(np.float32)
    assert distance_matrix(clients).shape == (1000, 1000)


# ---- CKA (O6) -------------------------------------------------------------------------------------------------------


def test_cka_known_value():
    x, y = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]), np.array([[1.0], [0.0], [0.0]])
    assert linear_cka(x, y) == pytest.approx(0.79056942, abs=1e-8)
    assert linear_cka_gram(x, y) == pytest.approx(0.79056942, abs=1e-8)


@given(st.integers(0, 10_000))
def test_cka_has_one_value_in_both_forms_and_ignores_rotation_and_scale(seed):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(20, 4)), rng.normal(size=(20, 6))
    assert linear_cka(x, y) == pytest.approx(linear_cka_gram(x, y), abs=1e-12)
    rotation, _ = np.linalg.qr(rng.normal(size=(4, 4)))
    assert linear_cka(x, 3 * x @ rotation) == pytest.approx(1.0, abs=1e-12)


def test_cka_matrix_holds_all_pairs():
    rng = np.random.default_rng(1)
    layers = [rng.normal(size=(15, width)) for width in (3, 5, 2)]
    matrix = cka_matrix(layers)
    for i in range(3):
        for j in range(3):
            assert matrix[i, j] == pytest.approx(linear_cka_gram(layers[i], layers[j]), abs=1e-12)


def test_constant_activations_are_like_nobody():
    layer = np.random.default_rng(2).normal(size=(10, 3))
    with pytest.warns(UserWarning, match="client 1 has constant activations"):
        matrix = cka_matrix([layer, np.full((10, 3), 0.3), layer])
    assert matrix[1].tolist() == [0.0, 1.0, 0.0]
    assert matrix[0, 2] == pytest.approx(1.0)


# ---- predictions ----------------------------------------------------------------------------------------------------


def test_agreement_is_the_frobenius_similarity_of_one_hot_predictions():
    predictions = np.array([[0, 1, 2, 1], [0, 1, 2, 0], [1, 0, 0, 2]])
    one_hot = np.eye(3)[predictions]
    products = np.einsum("irc,jrc->ij", one_hot, one_hot)
    norms = np.linalg.norm(one_hot, axis=(1, 2))
    np.testing.assert_allclose(agreement_matrix(predictions), products / np.outer(norms, norms))


def test_kl_by_hand_and_relation_weights():
    logits = 6.0 * np.log(np.array([[[0.5, 0.5]], [[0.9, 0.1]]]))
    expected = 0.5 * np.log(0.5 / 0.9) + 0.5 * np.log(0.5 / 0.1)
    divergence = kl_matrix(logits)
    assert divergence[0, 1] == pytest.approx(expected)
    assert divergence[1, 0] == pytest.approx(0.9 * np.log(0.9 / 0.5) + 0.1 * np.log(0.1 / 0.5))
    assert not np.diag(divergence).any()
    np.testing.assert_allclose(relation_weights(divergence).sum(axis=0), 1.0)
    np.testing.assert_array_equal(relation_weights(np.zeros((3, 3))), np.eye(3))


# ---- subspaces (O6b) ------------------------------------------------------------------------------------------------


def test_pacfl_angles_principled_and_legacy():
    e1, e2 = np.eye(3)[:, :1], np.eye(3)[:, 1:2]
    plane, flipped, between = np.hstack([e1, e2]), -e1, (e1 + e2) / np.sqrt(2)
    principled = subspace_angles([plane, flipped, between])
    legacy = subspace_angles([plane, flipped, between], legacy=True)
    np.testing.assert_allclose(principled[0], [0, 0, 0], atol=1e-12)
    np.testing.assert_allclose(legacy[0], [0, 90, 45], atol=1e-12)
    assert principled[1, 2] == pytest.approx(45)
    assert (principled == principled.T).all()
    assert (legacy == legacy.T).all()


def test_principled_angle_does_not_need_an_orthonormal_basis():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(10, 3)), rng.normal(size=(10, 2))
    mixed = a @ rng.normal(size=(3, 3))
    np.testing.assert_allclose(subspace_angles([a, b]), subspace_angles([mixed, 5 * b]), atol=1e-9)
