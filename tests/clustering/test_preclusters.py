"""AdaCFL's pre-clusters: the two numbers that clients send (oracle O9) and the readings of a 10 % gap."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedclade.clients.describe import describe
from fedclade.clustering.labels import in_order
from fedclade.clustering.preclusters import preclusters
from fedclade.errors import FedcladeError


@pytest.mark.parametrize(
    ("counts", "entropy"),
    [
        ([5, 5], 1.0),
        ([8, 2], 0.72192809),
        ([0, 7, 0], 0.0),
        ([72] + [2] * 9, 1.35591310),
        ([45] + [5] * 9, 2.58496250),
        ([3] * 10, 3.32192809),
    ],
)
def test_what_clients_tell_by_hand(counts, entropy):
    y = np.repeat(np.arange(len(counts)), counts)
    told = describe("class-entropy", {}, np.zeros((len(y), 1)), y, len(counts), np.random.default_rng(0))
    assert told["entropy"] == pytest.approx(entropy, abs=1e-6)  # it travels as a float32
    assert told["n_classes"] == np.count_nonzero(counts)


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
