"""FL+HC: some rounds of plain averaging, then clients whose next update points the same way go on together.

Briggs, Fan and Andras, "Federated Learning with Hierarchical Clustering of Local Updates to Improve Training on Non-IID
Data", IJCNN 2020.
"""

from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from fedclade.ask import Ask, TrainedClients
from fedclade.methods.base import About, RoundContext
from fedclade.methods.one_shot import ByDistance, Linkage, Signals


class FLHC(ByDistance):
    about: ClassVar[About] = About(
        "clusters once, by the updates after some rounds of averaging",
        "Briggs et al. 2020",
        "the number too",
        "one shot",
        formula="D(i, j) = distance of the updates w_i - W after some rounds of FedAvg; the linkage tree of D"
        " is cut at a threshold",
        use="when clients differ little at first and everybody can take part in one round",
    )

    warmup: Annotated[int, Field(ge=0)] = 5  # rounds of plain averaging; the round after them makes the clusters
    linkage: Linkage = "complete"  # how far two clusters are apart

    @property
    def measure(self) -> str:
        return f"{self.metric} distance of updates"

    @property
    def clustering_round(self) -> int:
        return self.warmup + 1

    def signals(
        self, trained: TrainedClients, start: np.ndarray, context: RoundContext, ask: Ask, state: Any
    ) -> Signals:
        """What training changed; running statistics are no part of it."""
        n = context.layout.n_parameters
        return {client: answer.weights[:n] - start[:n] for client, answer in trained.items()}
