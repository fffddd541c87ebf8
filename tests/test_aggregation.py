"""Aggregation rules: against numbers done by hand, and what one liar can do to them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedclade.aggregation import AGGREGATIONS
from fedclade.aggregation.mean import capped
from fedclade.settings import settings_from

ROBUST = ("median", "trimmed-mean", "geometric-median", "clip")
START = np.zeros(2, np.float32)


def made(name: str, values: list[list[float]], rows: list[float] | None = None, **settings: float) -> list[float]:
    vectors = [np.float32(value) for value in values]
    rule = AGGREGATIONS[name](**settings)
    return rule.of(vectors, rows or [1.0] * len(vectors), START).tolist()


def test_by_hand() -> None:
    values = [[1, 0], [2, 0], [3, 0], [4, 0], [1000, 0]]
    assert made("mean", values, [1, 1, 1, 1, 0.001]) == pytest.approx([(10 + 1) / 4.001, 0])
    assert made("median", values)[0] == 3
    assert made("trimmed-mean", values)[0] == 3
    assert made("clip", values)[0] == pytest.approx((1 + 2 + 3 + 3 + 3) / 5)  # cut to the median length
    assert made("clip", values, norm=1.0)[0] == pytest.approx(1)
    square = [[0, 0], [0, 2], [2, 0], [2, 2]]
    assert made("geometric-median", square) == pytest.approx([1, 1], abs=1e-5)
    line = [[0, 0], [1, 0], [9, 0]]
    assert made("geometric-median", line) == pytest.approx([1, 0], abs=1e-3)  # on a line it is the median


def test_a_share_can_be_capped() -> None:
    assert made("mean", [[0, 0], [0, 0], [4, 0]], [1, 1, 98], max_share=0.5) == [2, 0]
    assert capped(np.array([1.0, 1, 98]), 0.2).tolist() == pytest.approx([1 / 3] * 3)  # too few for that: all the same
    assert capped(np.array([5.0, 3, 2]), 0.5).tolist() == pytest.approx([0.5, 0.3, 0.2])


@given(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=12), st.floats(0.05, 1.0))
def test_capped_shares_are_shares(masses: list[float], share: float) -> None:
    shares = capped(np.array(masses), share)
    assert shares.sum() == pytest.approx(1)
    assert shares.max() <= max(share, 1 / len(masses)) + 1e-9
    assert (np.argsort(shares, kind="stable") == np.argsort(shares, kind="stable")).all()


@pytest.mark.parametrize("name", [*ROBUST, "mean"])
@given(st.integers(0, 10**6), st.integers(1, 9))
def test_the_order_and_alike_answers_do_not_matter(name: str, seed: int, count: int) -> None:
    random = np.random.default_rng(seed)
    values = random.normal(size=(count, 2)).tolist()
    order = random.permutation(count)
    assert made(name, values) == pytest.approx(made(name, [values[k] for k in order]), abs=1e-4)
    assert made(name, [values[0]] * count) == pytest.approx(np.float32(values[0]).tolist(), abs=1e-5)


@pytest.mark.parametrize("name", ROBUST)
@given(st.integers(0, 10**6), st.integers(5, 20), st.floats(10, 1e6))
def test_one_liar_moves_a_robust_rule_no_further_than_honest_clients_are_apart(
    name: str, seed: int, count: int, far: float
) -> None:
    random = np.random.default_rng(seed)
    honest = 1 + random.normal(size=(count, 2)) * 0.3
    lie = far * random.normal(size=2)
    without, with_liar = made(name, honest.tolist()), made(name, [*honest.tolist(), lie.tolist()])
    assert np.linalg.norm(np.subtract(with_liar, without)) < 2 * 3 / np.sqrt(count) + 0.6
    mean = made("mean", [*honest.tolist(), lie.tolist()])
    if np.linalg.norm(lie) > 100 * count:
        assert np.linalg.norm(np.subtract(mean, without)) > 10


def test_it_is_a_setting_of_the_run() -> None:
    settings = settings_from({"aggregation": {"name": "trimmed-mean", "trim": 0.3}})
    assert settings.model_dump(mode="json")["aggregation"] == {"name": "trimmed-mean", "trim": 0.3}
    assert settings_from({"aggregation": "median"}).aggregation == AGGREGATIONS["median"]()
