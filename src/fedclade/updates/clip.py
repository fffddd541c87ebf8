"""Updates no longer than a bound: what one client can move, and (with noise) what one client can be told by."""

from typing import Annotated

import numpy as np
from pydantic import Field

from fedclade.codec import travels
from fedclade.updates.step import UpdateStep


@travels
class Clip(UpdateStep):
    norm: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0  # longer updates are shortened to this length

    def leave(self, update: np.ndarray, random: np.random.Generator) -> np.ndarray:
        length = float(np.linalg.norm(update.astype(np.float64)))
        return update if length <= self.norm else (update * (self.norm / length)).astype(np.float32)
