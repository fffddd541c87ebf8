"""One form for labels, and scores that ignore how clusters are numbered."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from fedclade.clustering.labels import in_order
from fedclade.clustering.scores import adjusted_rand, clustering_accuracy, normalized_mutual_information

labelings = st.lists(st.integers(-3, 5), min_size=1, max_size=12)


def test_clusters_are_numbered_by_their_smallest_member():
    assert in_order([7, 2, 7, -1, 2]).tolist() == [0, 1, 0, 2, 1]
    assert in_order([]).tolist() == []


@given(labelings)
def test_order_changes_no_partition(labels):
    ordered = in_order(labels)
    assert (in_order(ordered) == ordered).all()
    same = np.array(labels)[:, None] == np.array(labels)
    assert ((ordered[:, None] == ordered) == same).all()


def test_scores_by_hand():
    truth, labels = [0, 0, 0, 1, 1, 1], [5, 5, 1, 1, 1, 1]
    assert clustering_accuracy(truth, labels) == pytest.approx(5 / 6)
    assert adjusted_rand(truth, truth) == 1
    assert normalized_mutual_information(truth, [0] * 6) == 0
    assert clustering_accuracy([0, 0, 1, 1], [0, 1, 2, 3]) == 0.5


@settings(max_examples=30)
@given(labelings)
def test_scores_do_not_care_about_names(labels):
    renamed = in_order(labels) + 10
    for score in (adjusted_rand, normalized_mutual_information, clustering_accuracy):
        assert score(labels, renamed) == pytest.approx(1)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30))
def test_scores_are_those_of_scikit_learn(pairs):
    truth, labels = (np.array(side) for side in zip(*pairs, strict=True))
    assert adjusted_rand(truth, labels) == pytest.approx(adjusted_rand_score(truth, labels), abs=1e-9)
    mutual = normalized_mutual_info_score(truth, labels)
    assert normalized_mutual_information(truth, labels) == pytest.approx(mutual, abs=1e-9)
