"""Model stability (HiCFL, eqs. 12-15 and 19): how steadily a client's updates turn from round to round, by layer."""

import math
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedclade.clustering.bipartition import changed_weights, is_stable, windowed_stability
from fedclade.methods.base import Count, RoundContext
from fedclade.methods.splitting import ClusterUpdates, PastUpdates, Splitting, WatchedLayers

OfRate = Annotated[str, Field(pattern=r"^\d*\.?\d+ ?\* ?lr$")]  # a multiple of the clients' learning rate: "0.5*lr"

ENOUGH = 3  # updates: with fewer, a client has no stability


def of_rate(value: float | str, context: RoundContext) -> float:
    """A threshold as a number: as it is, or as a multiple of the learning rate."""
    if isinstance(value, str):
        return float(value.partition("*")[0]) * context.training.learning_rate
    return value


class Stability(Splitting):
    """A method that looks at the stability of updates over a window of rounds."""

    window: Count = 3  # rounds over which updates are looked at
    tests: Literal["sliding", "block"] = "sliding"  # in every round once the window is full, or every `window` rounds
    epsilon: Annotated[float, Field(gt=0)] | OfRate = "0.5*lr"  # a client whose stability is below is stable
    share: Annotated[float, Field(gt=0, le=1)] = 1.0  # of a cluster's members must be stable
    xi: Annotated[float, Field(ge=0)] | OfRate = "0.05*lr"  # weights whose update changes less do not count; 0: all do
    signed: bool = False  # take xi by the letter of the paper, without absolute values

    @property
    def depth(self) -> int:
        return max(ENOUGH, self.window + 2)

    @property
    def enough(self) -> int:
        return ENOUGH

    def oldest(self, context: RoundContext) -> int:
        """Age is counted in the rounds that a client takes part in: where few do, updates are of long ago."""
        return context.round - (self.stale or math.ceil(3 * self.window / context.participation))

    def is_test(self, round: int) -> bool:
        if self.tests == "block":
            return round >= ENOUGH and round % self.window == 0
        return round >= self.window + 2

    def masked(self, past: PastUpdates, since: int, watched: WatchedLayers, context: RoundContext) -> PastUpdates:
        """The weights that count for a client, by its first two updates since its cluster was made."""
        new = past.since(since)
        if past.mask is not None or len(new) < 2:
            return past
        xi = of_rate(self.xi, context)
        parts = [changed_weights(new[-2][place], new[-1][place], xi, self.signed) for place in watched.places.values()]
        return PastUpdates(past.rounds, past.updates, past.samples, np.concatenate(parts))

    def stability_of(self, known: ClusterUpdates) -> np.ndarray:
        """(members, layers), NaN where a client's updates have no direction."""
        stability = np.full((len(known.members), len(known.watched.places)), np.nan)
        if len(known.history) >= ENOUGH:
            for column, place in enumerate(known.watched.places.values()):
                stability[:, column] = windowed_stability(
                    known.history[:, :, place], self.window, known.masks[:, place]
                )
        return stability

    def stable_layers(self, known: ClusterUpdates, stability: np.ndarray, context: RoundContext) -> list[str]:
        """The layers that are stable for the cluster, the most stable first; of equals, the one nearest the output."""
        epsilon, found = of_rate(self.epsilon, context), []
        for place, (layer, values) in enumerate(zip(known.layers, stability.T, strict=True)):
            if is_stable(values, epsilon, self.share):
                found.append((np.nanmean(values), -place, layer))
        return [layer for _, _, layer in sorted(found)]
