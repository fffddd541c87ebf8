"""The point with the smallest sum of distances to all answers: a minority can move it only so far."""

from typing import Annotated

import numpy as np
from pydantic import Field

from fedclade.aggregation.rule import Aggregation

NEAR = 1e-6  # of the median distance: nearer points weigh no more, so that one answer cannot be all


class GeometricMedian(Aggregation):
    """By Weiszfeld's algorithm, smoothed. Every client has the same say."""

    steps: Annotated[int, Field(ge=1)] = 100  # at most
    tolerance: Annotated[float, Field(gt=0)] = 1e-7  # it ends when the point moves by less, relative to the distances

    def combine(self, vectors: np.ndarray, masses: np.ndarray, start: np.ndarray) -> np.ndarray:
        rows = vectors.astype(np.float64)
        point = np.median(rows, axis=0)
        for _ in range(self.steps):
            distances = np.linalg.norm(rows - point, axis=1)
            scale = float(np.median(distances)) or float(distances.max())
            if scale == 0:
                return point
            weights = 1 / np.maximum(distances, NEAR * scale)
            moved = weights @ rows / weights.sum()
            step, point = float(np.linalg.norm(moved - point)), moved
            if step < self.tolerance * scale:
                break
        return point
