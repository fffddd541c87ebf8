"""HypCluster: the alternation of IFCA seen as stochastic expectation-maximisation, after some joint rounds.

Mansour et al., "Three Approaches for Personalization with Applications to Federated Learning", 2020.
"""

from dataclasses import replace
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedclade.ask import Ask
from fedclade.clients.tasks import Train
from fedclade.methods.base import About, Clusters, RoundContext
from fedclade.methods.ifca import IFCA


class HypCluster(IFCA):
    about: ClassVar[About] = About(
        "IFCA with a warm start",
        "Mansour et al. 2020",
        "a given number",
        sends="K models",
        formula="as IFCA, from K noisy copies of a model that all have trained for some rounds",
        use="as IFCA, when models from scratch leave some of the K empty",
    )

    warmup: Annotated[int, Field(ge=0)] = 2  # rounds of FedAvg before the models part
    noise: Annotated[float, Field(gt=0)] = 0.1  # how far they part, in standard deviations of each tensor

    def round(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        if context.round > self.warmup:
            return super().round(clusters, context, ask)
        clients = context.sample()
        task = dict.fromkeys(clients, Train(clusters.models[0]))
        model = ask.combined(task, {0: clusters.models[0]}, dict.fromkeys(clients, 0)).models[0]
        if context.round < self.warmup:
            return replace(clusters, models={**clusters.models, 0: model})
        return replace(clusters, models={k: self._nearby(model, k, context) for k in range(self.n_clusters)})

    def _nearby(self, model: np.ndarray, cluster: int, context: RoundContext) -> np.ndarray:
        random = context.random(f"noise {cluster}")
        tensors = [model[place] for place in context.layout.slices.values()]
        parted = [tensor + self.noise * tensor.std() * random.standard_normal(tensor.shape) for tensor in tensors]
        return np.concatenate(parted).astype(np.float32)
