"""One form for labels, the partition check, and scores that ignore how clusters are numbered."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedclade.clustering.labels import check_partition, in_order, members
from fedclade.clustering.scores import adjusted_rand, clustering_accuracy, normalized_mutual_information

labelings = st.lists(st.integers(-3, 5), min_size=1, max_size=12)


def test_clusters_are_numbered_by_their_smallest_member():
    assert in_order([7, 2, 7, -1, 2]).tolist() == [0, 1, 0, 2, 1]
    assert in_order([]).tolist() == []
    assert [group.tolist() for group in members([7, 2, 7, -1, 2])] == [[0, 2], [1, 4], [3]]


@given(labelings)
def test_order_changes_no_partition(labels):
    ordered = in_order(labels)
    assert (in_order(ordered) == ordered).all()
    same = np.array(labels)[:, None] == np.array(labels)
    assert ((ordered[:, None] == ordered) == same).all()
    check_partition(members(labels), range(len(labels)))


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ([[0, 1], [1, 2]], "client 1 is in two clusters"),
        ([[0, 0], [1, 2]], "client 0 is in two clusters"),
        ([[0, 1, 2], []], "cluster 1 is empty"),
        ([[0, 1]], "client 2 is in no cluster"),
        ([[0, 1], [2, 3]], "client 3 is in a cluster but is not registered"),
    ],
)
def test_what_is_not_a_partition(groups, words):
    with pytest.raises(ValueError, match=words):
        check_partition(groups, [0, 1, 2])


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
