"""A step that an update goes through."""

import numpy as np
from pydantic import BaseModel, ConfigDict


class UpdateStep(BaseModel):
    """Its fields are its settings; an update is what training changed, as one vector of the layers that are sent."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def leave(self, update: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """On the client, before it is sent. `random` is the client's stream for this step and round."""
        return update

    def arrive(self, update: np.ndarray) -> np.ndarray:
        """At the server, before anything looks at it."""
        return update
