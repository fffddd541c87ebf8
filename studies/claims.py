"""What papers say, what came out here, and whether the two agree: for the pages of results."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

HOLDS, FAILS, OPEN, SAME = "holds here", "does not hold here", "open", "the same result"
ONE_SEED, LESS, MORE = ", one seed", ", by less than the paper's", ", by more than the paper's"
LEVEL = 0.05
MUCH = 6.0  # points by which one seed decides: in FedClust's table one differs by up to 5 from the mean of three
MANY = 20  # rounds by which one seed decides: of three seeds of one method, two differ by 20
CLOSE = 3.0  # points within which two are said to be close
ROUNDED = 0.0005  # what tables of percents with one digit hide
CLUSTER, LOCAL = "cluster models", "locally trained models"


@dataclass(frozen=True)
class Claim:
    """What a paper says, what came out here, and whether they agree."""

    words: str
    here: str
    verdict: str
    more: str = ""
    paper: str = ""  # the size that the paper gives
    by: str = CLUSTER
    ours: bool = False  # no paper says so: a question of our own

    def __str__(self) -> str:
        said = f" (paper: {self.paper})" if self.paper else ""
        return f"{self.words}{said}, {self.by}: {self.here}: **{self.verdict}**{self.more}."


def points(value: float) -> str:
    return f"{100 * value:+.1f} points"


def judged(holds: bool) -> str:
    return HOLDS if holds else FAILS


def by_seeds(gains: Sequence[float], much: float = MUCH) -> str:
    """Of the same seeds with the one and the other: a t-test, or with one seed whether it is much.

    A gain without end is that of rounds, where the other one never gets there.
    """
    values = np.asarray(gains, float)
    if not values.any():
        return SAME
    if len(values) == 1:
        return f"{judged(values[0] > 0) if abs(values[0]) > much else OPEN}{ONE_SEED}"
    if np.isinf(values).any():
        return judged(values[0] > 0) if len(set(np.sign(values))) == 1 else OPEN
    if np.ptp(values) == 0:
        return judged(values[0] > 0)
    return judged(values.mean() > 0) if stats.ttest_1samp(values, 0).pvalue < LEVEL else OPEN


def of_what_size(gains: Sequence[float], said: float, much: float = MUCH) -> str:
    """A verdict is about which of two is ahead; whether it is so by as much as the paper has it, is said beside.

    By a t-test against the paper's number, or with one seed by whether it is far from it.
    """
    values = np.asarray(gains, float)
    if not np.isfinite(values).all():
        return ""
    less = values.mean() < said
    if len(values) == 1:
        return f", far {'below' if less else 'above'} the paper's" if abs(values[0] - said) > much else ""
    differs = values[0] != said if np.ptp(values) == 0 else stats.ttest_1samp(values, said).pvalue < LEVEL
    return (LESS if less else MORE) if differs else ""


def alike_by_seeds(gains: Sequence[float]) -> str:
    """Whether two are close: two one-sided t-tests against how far apart they may be, or one seed that is much farther."""
    values = np.asarray(gains, float)
    if len(values) == 1:
        return f"{FAILS if abs(values[0]) > CLOSE + MUCH else OPEN}{ONE_SEED}"
    if np.ptp(values) == 0:
        return judged(abs(values[0]) <= CLOSE)
    inside = max(
        stats.ttest_1samp(values, side * CLOSE, alternative=way).pvalue for side, way in ((1, "less"), (-1, "greater"))
    )
    outside = stats.ttest_1samp(np.sign(values.mean()) * values, CLOSE, alternative="greater").pvalue
    return HOLDS if inside < LEVEL else FAILS if outside < LEVEL else OPEN


def apart(mine: tuple[float, float], other: tuple[float, float], seeds: int) -> float:
    """The p-value of Welch's test, of means and standard deviations over seeds as tables have them."""
    spread = math.sqrt(seeds / (seeds - 1))  # tables divide by the number of seeds
    (a, s), (b, t) = ((mean, spread * max(std, ROUNDED)) for mean, std in (mine, other))
    return float(stats.ttest_ind_from_stats(a, s, seeds, b, t, seeds, equal_var=False).pvalue)


def above(
    words: str,
    mine: dict[str, Any],
    other: dict[str, Any],
    more: str = "",
    *,
    by: str = CLUSTER,
    paper: str = "",
    ours: bool = False,
) -> Claim:
    """How far one method is above another, and whether that is more than seeds differ."""
    kind = "local_" if by == LOCAL else ""
    (a, s), (b, t) = ((row[f"accuracy_{kind}mean"], row[f"{kind}seeds_std"]) for row in (mine, other))
    verdict = judged(a > b) if apart((a, s), (b, t), mine["seeds"]) < LEVEL else OPEN
    return Claim(words, points(a - b), verdict, more, paper, by, ours)
