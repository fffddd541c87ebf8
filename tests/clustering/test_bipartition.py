"""HiCFL's stability and sign split (oracles O1-O3) and Sattler's bi-partition (O4)."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedclade.clustering.bipartition import (
    bipartition,
    changed_weights,
    consistency,
    cross_similarity,
    is_stable,
    references,
    sign_split,
    stability,
    windowed_stability,
)
from fedclade.clustering.labels import in_order
from fedclade.clustering.similarity import cosine_matrix
from fedclade.errors import FedcladeError

HALF = np.sqrt(0.5)


def one(*vectors):
    """The stability of one client with these three updates."""
    return stability(*(np.array([vector], dtype=float) for vector in vectors))[0]


def turned(degrees):
    return [np.cos(np.radians(degrees)), np.sin(np.radians(degrees))]


# ---- stability (O1) -------------------------------------------------------------------------------------------------


def test_stability_by_hand():
    assert one([1, 0], [1, 1], [0, 1]) == pytest.approx(0.70710678, abs=1e-8)
    assert one([1, 2], [1, 2], [1, 2]) == pytest.approx(0, abs=1e-12)
    assert one([1, 0, 0], [0, 1, 0], [0, 0, 1]) == 0  # noise looks stable too
    assert one([1, 0], [-1, 0], [1, 0]) == 2
    assert one(turned(0), turned(30), turned(60)) == pytest.approx(0.36602540, abs=1e-8)


@given(st.integers(0, 10_000), st.tuples(*[st.floats(1e-3, 1e3)] * 3))
def test_stability_ignores_the_length_of_any_update(seed, scales):
    vectors = np.random.default_rng(seed).normal(size=(3, 4, 6))
    plain, scaled = stability(*vectors), stability(*(s * v for s, v in zip(scales, vectors, strict=True)))
    np.testing.assert_allclose(scaled, plain, atol=1e-12)


def test_a_client_without_direction_has_no_stability_and_does_not_count():
    first = np.array([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    last = np.array([[1.0, 0.0], [1.0, 0.0], [np.nan, 1.0]])
    values = stability(first, first, last)
    assert values[0] == 0
    assert np.isnan(values[1:]).all()
    assert is_stable(values, 0.01)
    assert not is_stable(np.array([np.nan, np.nan]), 0.01)
    assert not is_stable(np.array([0.001, 0.01]), 0.01)
    assert is_stable(np.array([0.001, 0.01, np.nan]), 0.01, share=0.5)
    assert references(np.array([np.nan, 0.3, 0.1, 0.3]), limit=2).tolist() == [2, 1]


def test_the_mask_comes_before_the_norm():
    updates = np.array([[[1.0, 0, 9]], [[1.0, 1, -9]], [[0.0, 1, 9]]])
    kept = np.array([[True, True, False]])
    assert stability(*updates, kept=kept)[0] == pytest.approx(HALF)
    assert np.isnan(stability(*updates, kept=np.array([[True, False, False]]))[0])  # the third becomes zero


def test_changed_weights():
    old, new = np.zeros((3, 4)), np.array([[0.3, -0.3, 0.1, 0.0], [0.3, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    assert changed_weights(old, new, 0.2).tolist() == [[True, True, False, False], [True] * 4, [True] * 4]
    signed = changed_weights(old[0], np.array([0.3, -0.3, 0.4, 0.0]), 0.2, signed=True)
    assert signed.tolist() == [True, False, True, False]


def test_the_window_averages_what_there_is():
    vectors = [[1, 0], [1, 1], [0, 1], [0, 1], [0, 1]]
    history = np.array(vectors, dtype=float)[:, None, :]
    singles = [one(*vectors[i : i + 3]) for i in range(3)]
    assert windowed_stability(history, 1)[0] == pytest.approx(singles[2])
    assert windowed_stability(history, 2)[0] == pytest.approx(np.mean(singles[1:]))
    assert windowed_stability(history, 9)[0] == pytest.approx(np.mean(singles))
    with pytest.raises(ValueError, match="3 rounds"):
        windowed_stability(history[:2], 3)


# ---- consistency (O2) -----------------------------------------------------------------------------------------------


def test_consistency_by_hand():
    opposite = np.array([[1.0, 0.0], [-1.0, 0.0]])
    assert consistency(opposite) == 0
    assert consistency(opposite, np.array([3, 1])) == 0.5
    assert consistency(np.eye(2)) == pytest.approx(0.70710678, abs=1e-8)
    assert consistency(np.ones((5, 3))) == pytest.approx(1)
    assert consistency(np.array([[1.0, 0.0]] * 9 + [[0.0, 1.0]])) == pytest.approx(0.90553851, abs=1e-8)
    assert consistency(np.zeros((3, 2))) == 1
    assert consistency(np.array([[1.0, 0.0], [np.nan, 0.0]])) == 1


# ---- sign split (O3) ------------------------------------------------------------------------------------------------


def test_sign_split_by_hand():
    updates = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [-1.0, 0.0]])
    assert sign_split(updates, 0).tolist() == [True, True, False, False]
    assert sign_split(np.abs(updates) + 0.1, 0).all()


def test_a_client_without_direction_follows_the_majority_and_the_reference_on_a_tie():
    updates = np.array([[1.0, 0.0], [-1.0, 0.0], [-2.0, 0.0], [0.0, 0.0], [np.inf, 0.0]])
    assert sign_split(updates, 0).tolist() == [True, False, False, False, False]
    assert sign_split(updates, 1).tolist() == [False, True, True, True, True]
    assert sign_split(updates[[0, 1, 3]], 0).tolist() == [True, False, True]
    with pytest.raises(ValueError, match="client 3 cannot be the reference"):
        sign_split(updates, 3)


def test_centering_shows_groups_behind_a_common_direction():
    updates = np.array([[10.0, 1.0], [10.0, 1.2], [10.0, -1.0], [10.0, -1.2]])
    assert sign_split(updates, 0).all()
    assert sign_split(updates, 0, centered=True).tolist() == [True, True, False, False]


def test_a_forced_split_cuts_at_the_median():
    updates = np.array([turned(0), turned(10), turned(40), turned(50)])
    assert sign_split(updates, 0).all()
    assert sign_split(updates, 0, forced=True).tolist() == [True, True, False, False]
    assert sign_split(updates[[0, 3]], 0, forced=True).tolist() == [True, False]
    assert sign_split(np.ones((4, 3)), 0, forced=True).all()  # equal clients cannot be told apart


# ---- Sattler (O4) ---------------------------------------------------------------------------------------------------

BLOCKS = np.array([[1, 0.9, 0.1, -0.2], [0.9, 1, 0, -0.1], [0.1, 0, 1, 0.8], [-0.2, -0.1, 0.8, 1]])
CHAIN = np.array([[1, 0.6, 0.1, -0.3], [0.6, 1, 0.5, 0], [0.1, 0.5, 1, 0.4], [-0.3, 0, 0.4, 1]])


@pytest.mark.parametrize("linkage", ["single", "complete"])
def test_two_blocks(linkage):
    labels = bipartition(BLOCKS, linkage)
    assert labels.tolist() == [0, 0, 1, 1]
    assert cross_similarity(BLOCKS, labels) == 0.1


def test_a_chain_tells_the_linkages_apart():
    assert bipartition(CHAIN, "single").tolist() == [0, 0, 0, 1]
    assert bipartition(CHAIN, "complete").tolist() == [0, 0, 1, 1]


@given(st.integers(0, 10_000), st.integers(2, 7))
def test_single_linkage_minimises_the_largest_similarity_across(seed, count):
    similarity = cosine_matrix(np.random.default_rng(seed).normal(size=(count, 5)))
    found = cross_similarity(similarity, bipartition(similarity, "single"))
    best = min(
        cross_similarity(similarity, np.isin(range(count), half).astype(int))
        for size in range(1, count)
        for half in combinations(range(count), size)
    )
    assert found == best


@given(st.integers(0, 10_000), st.integers(2, 9), st.sampled_from(["single", "complete"]), st.floats(0.01, 100))
def test_a_bipartition_ignores_order_and_scale(seed, count, linkage, scale):
    rng = np.random.default_rng(seed)
    rows, order = rng.normal(size=(count, 5)), rng.permutation(count)
    labels = bipartition(cosine_matrix(rows), linkage)
    assert set(labels) == {0, 1}
    assert (bipartition(cosine_matrix(scale * rows[order]), linkage) == in_order(labels[order])).all()


def test_clients_without_direction_join_the_larger_half():
    padded = np.zeros((6, 6))
    padded[1:6, 1:6] = np.block([[BLOCKS, np.zeros((4, 1))], [np.zeros((1, 4)), 1]])
    padded[5, 3:5] = padded[3:5, 5] = 0.7
    known = np.array([False, True, True, True, True, True])
    assert bipartition(padded, known=known).tolist() == [0, 1, 1, 0, 0, 0]
    assert not bipartition(np.ones((1, 1))).any()
    assert cross_similarity(BLOCKS, np.zeros(4)) == -np.inf


def test_other_linkages_are_refused():
    with pytest.raises(FedcladeError, match="unknown linkage"):
        bipartition(BLOCKS, "average")
