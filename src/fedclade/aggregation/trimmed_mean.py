"""The mean of each weight without the largest and the smallest. Every client has the same say."""

from typing import Annotated

import numpy as np
from pydantic import Field

from fedclade.aggregation.rule import Aggregation


class TrimmedMean(Aggregation):
    trim: Annotated[float, Field(gt=0, lt=0.5)] = 0.2  # the share of clients left out at either end, at least one

    def combine(self, vectors: np.ndarray, masses: np.ndarray, start: np.ndarray) -> np.ndarray:
        count = len(vectors)
        cut = min(max(1, int(self.trim * count)), (count - 1) // 2)  # of two clients none can be left out
        return np.sort(vectors, axis=0)[cut : count - cut].mean(axis=0, dtype=np.float64)
