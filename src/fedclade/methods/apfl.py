"""APFL: FedAvg, and for each client a mixture of its local version of the shared model with a model of its own.

Deng, Kamani and Mahdavi, "Adaptive Personalized Federated Learning", 2020.

In every local step the shared model w goes down its own loss, and the client's own model v that of the mixture
share v + (1 - share) w; `adaptive` lets the share go down that loss as well. What serves a client is the mixture as it
was when it last trained.
"""

from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedclade.clients.tasks import PERSONAL, Evaluate, Mixture, Train
from fedclade.methods.base import About, Clusters
from fedclade.methods.fedavg import FedAvg


class APFL(FedAvg):
    about: ClassVar[About] = About(
        "FedAvg, mixed with a model of its own for each client",
        "Deng et al. 2020",
        formula="alpha v_i + (1 - alpha) w serves client i; v_i steps by the gradient at the mixture, w by its own",
        use="when every client is a little different, and you want to say how much of its own it gets",
    )

    share: Annotated[float, Field(ge=0, le=1)] = 0.5  # of a client's own model in what serves it (alpha)
    adaptive: bool = False  # whether every client finds its own share, beginning with that one

    def task(self, model: np.ndarray) -> Train:
        return Train(model, beside=Mixture(self.share, self.adaptive))

    def served(self, clusters: Clusters, client: str) -> Evaluate:
        return Evaluate(start=PERSONAL, otherwise=clusters.model_of(client))
