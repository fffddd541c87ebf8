"""Very many clients: what some of them show is what all would, and clients that are alike stay together."""

import numpy as np
import pytest

from fedclade.clustering.many import find_groups_of
from fedclade.clustering.scores import adjusted_rand
from fedclade.clustering.views import Told

N_CLASSES, SIZE = 4, 8


def clients(seed: int, count: int, shares: np.ndarray, shifts: np.ndarray) -> tuple[list[Told], np.ndarray]:
    """What clients of 40 rows tell, each of one of the groups that these shares of classes and shifts make."""
    random = np.random.default_rng(seed)
    truth, centres = random.integers(len(shares), size=count), random.normal(size=(N_CLASSES, SIZE))
    told = []
    for group in truth:
        marks = np.eye(N_CLASSES)[random.choice(N_CLASSES, 40, p=shares[group])].reshape(2, 20, N_CLASSES)
        rows = marks @ centres + shifts[group] + random.normal(size=(2, 20, SIZE))
        told.append({"counts": marks.sum(1), "features": marks.transpose(0, 2, 1) @ rows})
    return told, truth


def equal(groups: int) -> np.ndarray:
    return np.full((groups, N_CLASSES), 1 / N_CLASSES)


@pytest.mark.parametrize("seed", range(3))
def test_some_show_the_groups_that_all_would(seed: int) -> None:
    unlike = np.array([[0.9, 0.1, 0, 0], [0, 0.1, 0.9, 0], [0, 0, 0.1, 0.9]])
    shifts = 2 * np.random.default_rng(seed).normal(size=(3, SIZE))
    for shares, shift in ((unlike, np.zeros((3, SIZE))), (equal(3), shifts)):
        told, truth = clients(seed, 240, shares, shift)
        exact, everybody = find_groups_of(told, seed)
        some, seen = find_groups_of(told, seed, exact=80)
        assert (len(everybody), len(seen), some.views) == (240, 80, exact.views)
        assert adjusted_rand(truth, some.labels) > 0.99
        assert adjusted_rand(exact.labels, some.labels) > 0.99
        assert some.margins == pytest.approx(exact.margins, abs=0.3)


def test_very_many_clients_that_are_alike_are_hardly_ever_split() -> None:
    splits = 0
    for seed in range(25):
        told, _ = clients(seed, 3_000, equal(1), np.zeros((1, SIZE)))
        splits += find_groups_of(told, seed)[0].n_clusters > 1
    assert splits <= 2
