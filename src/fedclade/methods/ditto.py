"""Ditto: FedAvg, beside which every client trains a model of its own that is held near the shared one.

Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021.
"""

from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedclade.clients.tasks import PERSONAL, Evaluate, Train
from fedclade.methods.base import About, Clusters
from fedclade.methods.fedavg import FedAvg


class Ditto(FedAvg):
    about: ClassVar[About] = About(
        "FedAvg, and a model of its own for each client held near it",
        "Li et al. 2021",
        formula="v_i minimises L_i(v) + lambda/2 |v - W|^2 beside FedAvg's W; v_i serves client i",
        use="when every client is a little different and there are no groups",
    )

    strength: Annotated[float, Field(ge=0)] = 0.1  # of strength / 2 * |v - W|^2 in the loss of a client's own model v

    def task(self, model: np.ndarray) -> Train:
        personal = Train(start=PERSONAL, save=PERSONAL, proximal=self.strength)
        return Train(model, then=personal)

    def served(self, clusters: Clusters, client: str) -> Evaluate:
        return Evaluate(start=PERSONAL, otherwise=clusters.model_of(client))
