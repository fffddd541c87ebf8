"""What papers say, what came out here, and whether the two agree: for the pages of results."""

from dataclasses import dataclass
from typing import Any

HOLDS, FAILS, UNCLEAR = "holds here", "does not hold here", "within what seeds differ by"


@dataclass(frozen=True)
class Claim:
    """What a paper says, what came out here, and whether they agree."""

    words: str
    here: str
    verdict: str
    more: str = ""

    def __str__(self) -> str:
        return f"{self.words}: {self.here}: **{self.verdict}**{self.more}."


def points(value: float) -> str:
    return f"{100 * value:+.1f} points"


def judged(holds: bool) -> str:
    return HOLDS if holds else FAILS


def above(words: str, mine: dict[str, Any], other: dict[str, Any], more: str = "") -> Claim:
    """How far the cluster models of one method are above another's, and whether that is more than seeds differ."""
    gain, std = mine["accuracy_mean"] - other["accuracy_mean"], max(mine["seeds_std"], other["seeds_std"])
    return Claim(words, points(gain), judged(gain > 0) if abs(gain) > std else UNCLEAR, more)
