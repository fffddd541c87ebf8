"""Who trains this round: counts of O12 and the rules of FedSCCS."""

import numpy as np

from fedclade.clustering.selection import (
    everyone,
    least_selected,
    one_at_random,
    worst_half,
    worst_half_count,
)

MEMBERS = np.array([9, 4, 7, 2, 5])


def test_count_of_the_worst_half():
    assert [worst_half_count(size) for size in (1, 2, 3, 5)] == [1, 1, 1, 2]


def test_selections():
    accuracy = np.array([0.9, 0.5, 0.5, 0.7, 0.5])
    assert everyone(MEMBERS).tolist() == [2, 4, 5, 7, 9]
    assert worst_half(MEMBERS, accuracy).tolist() == [4, 5]
    assert worst_half(MEMBERS[:1], accuracy[:1]).tolist() == [9]
    rng = np.random.default_rng(0)
    assert {int(one_at_random(MEMBERS, rng)[0]) for _ in range(99)} == set(MEMBERS)
    assert {int(least_selected(MEMBERS, np.array([3, 1, 2, 1, 4]), rng)[0]) for _ in range(99)} == {4, 2}
