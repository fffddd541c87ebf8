"""The mean, weighted by rows: FedAvg's rule."""

from typing import Annotated

import numpy as np
from pydantic import Field

from fedclade.aggregation.rule import Accumulator, Aggregation
from fedclade.models.weights import WeightedSum


class Mean(Aggregation):
    max_share: Annotated[float, Field(gt=0, le=1)] = 1.0  # of the sum that one client can have, however many its rows

    def accumulator(self, start: np.ndarray) -> Accumulator:
        return WeightedSum() if self.max_share == 1.0 else super().accumulator(start)

    def combine(self, vectors: np.ndarray, masses: np.ndarray, start: np.ndarray) -> np.ndarray:
        total = WeightedSum()
        for vector, mass in zip(vectors, capped(masses, self.max_share), strict=True):
            total.add(vector, mass)
        return total.result()


def capped(masses: np.ndarray, share: float) -> np.ndarray:
    """Shares of the masses, none above `share`; what is cut off goes to the others by their masses.

    Where there are too few for that, all have the same.
    """
    shares = masses / masses.sum()
    if len(shares) * share <= 1:
        return np.full(len(shares), 1 / len(shares))
    full = np.zeros(len(shares), np.bool_)
    while (over := (shares > share * (1 + 1e-12)) & ~full).any():
        full |= over
        rest = masses * ~full
        shares = np.where(full, share, rest / rest.sum() * (1 - share * full.sum()))
    return shares
