"""FedClust: one round in which everybody trains and sends only the last layer is enough to find the groups.

Islam et al., "FedClust: Tackling Data Heterogeneity in Federated Learning through Weight-Driven Client Clustering",
ICPP 2024.
"""

from typing import Any, ClassVar, Literal

import numpy as np

from fedclade.ask import Ask, TrainedClients
from fedclade.methods.base import About, RoundContext
from fedclade.methods.one_shot import ByDistance, Linkage, Signals


class FedClust(ByDistance):
    about: ClassVar[About] = About(
        "clusters once, by the distance of last layers",
        "Islam et al. 2024",
        "the number too",
        "one shot",
        "last layer, model",
        formula="D(i, j) = |h_i - h_j| with h_i the last layer after one local training; the linkage tree of "
        "D is cut at a threshold",
        use="when clients hold other labels and clustering must cost one small upload each",
    )

    linkage: Linkage = "weighted"  # how far two clusters are apart
    layers: Literal["head", "all"] = "head"  # what is compared: the last layer, or all weights

    @property
    def measure(self) -> str:
        return f"{self.metric} distance of {'last layers' if self.layers == 'head' else 'weights'}"

    @property
    def upload(self) -> Literal["head"] | None:
        return "head" if self.layers == "head" else None

    def signals(
        self, trained: TrainedClients, start: np.ndarray, context: RoundContext, ask: Ask, state: Any
    ) -> Signals:
        """How far the layer went: newcomers are compared with what members did then, when both have trained as long."""
        began = start[context.layout.select(self.upload)]
        return {client: answer.weights - began for client, answer in trained.items()}
