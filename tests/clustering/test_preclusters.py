"""AdaCFL's pre-clusters: the oracle O9 and the three readings of a 10 % gap."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedclade.clustering.labels import in_order
from fedclade.clustering.preclusters import class_count, label_entropy, preclusters
from fedclade.errors import FedcladeError


@pytest.mark.parametrize(
    ("counts", "entropy"),
    [
        ([5, 5], 1.0),
        ([8, 2], 0.72192809),
        ([0, 7, 0], 0.0),
        ([0.8 * 90] + [2] * 9, 1.35591310),
        ([0.5 * 90] + [5] * 9, 2.58496250),
        ([3] * 10, 3.32192809),
        ([0, 0], 0.0),
    ],
)
def test_entropy_by_hand(counts, entropy):
    assert label_entropy(np.array(counts)) == pytest.approx(entropy, abs=1e-8)


def test_statistics_of_many_clients_at_once():
    counts = np.array([[5, 5, 0], [9, 0, 0]])
    assert class_count(counts).tolist() == [2, 1]
    assert label_entropy(counts).tolist() == [1.0, 0.0]


def test_a_gap_is_measured_from_the_smallest_of_the_group():
    assert preclusters([2, 2, 2], [1.00, 1.09, 1.11]).tolist() == [0, 0, 1]
    assert preclusters([2, 2, 2], [1.11, 1.00, 1.10]).tolist() == [0, 1, 1]
    assert preclusters([2, 2, 2], [1.00, 1.09, 1.19]).tolist() == [0, 0, 1]  # no creeping from one to the next


def test_a_chain_ends_where_nobody_is():
    assert preclusters([2, 2, 2, 2], [1.00, 1.09, 1.19, 1.32], rule="chain").tolist() == [0, 0, 0, 1]
    assert preclusters([2, 2, 3], [1.09, 1.00, 1.05], rule="chain").tolist() == [0, 0, 1]


def test_the_class_count_must_be_equal_and_no_entropy_is_one_group():
    assert preclusters([2, 3, 2], [1.0, 1.0, 1.0]).tolist() == [0, 1, 0]
    assert preclusters([1, 1, 1, 1], [0.0, 0.0, 0.0, 0.01]).tolist() == [0, 0, 0, 1]


def test_fixed_widths():
    entropies = [0.29, 0.31, 0.34, 0.67]
    assert preclusters([2] * 4, entropies, rule="bits").tolist() == [0, 1, 1, 2]
    assert preclusters([2] * 4, entropies, rule="share", n_classes=10).tolist() == [0, 0, 1, 2]
    with pytest.raises(ValueError, match="needs n_classes"):
        preclusters([2] * 4, entropies, rule="share")
    with pytest.raises(FedcladeError, match="unknown rule"):
        preclusters([2] * 4, entropies, rule="bit")
    with pytest.raises(ValueError, match="client 1 is not finite"):
        preclusters([2, 2], [0.0, np.nan])


@given(
    st.lists(st.tuples(st.integers(1, 3), st.floats(0, 3.3)), min_size=1, max_size=12),
    st.randoms(use_true_random=False),
)
def test_the_order_of_clients_does_not_matter(statistics, random):
    counts, entropies = np.array(statistics).T
    order = np.array(random.sample(range(len(counts)), len(counts)))
    labels = preclusters(counts, entropies)
    assert (preclusters(counts[order], entropies[order]) == in_order(labels[order])).all()
