"""The mean of updates that are cut to a length: nobody moves the model further than most do."""

from typing import Annotated

import numpy as np
from pydantic import Field

from fedclade.aggregation.rule import Aggregation


class Clip(Aggregation):
    norm: Annotated[float, Field(gt=0)] | None = None  # of an update; None: the median of those that came

    def combine(self, vectors: np.ndarray, masses: np.ndarray, start: np.ndarray) -> np.ndarray:
        """Every client has the same say: rows cannot be checked, and a claim of many would undo the bound."""
        updates = vectors.astype(np.float64) - start
        lengths = np.linalg.norm(updates, axis=1)
        bound = float(np.median(lengths)) if self.norm is None else self.norm
        shortened = updates * np.minimum(1.0, bound / np.maximum(lengths, 1e-300))[:, None]
        return start + shortened.mean(axis=0)
