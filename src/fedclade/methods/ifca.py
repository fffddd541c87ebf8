"""IFCA: several models from the start; each client takes the one that fits it best, every round anew.

Ghosh, Chung, Yin and Ramchandran, "An Efficient Framework for Clustered Federated Learning", NeurIPS 2020.
"""

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedclade.ask import Ask
from fedclade.clients.tasks import Train, Trained
from fedclade.methods.base import About, Clusters, Method, RoundContext
from fedclade.models.weights import average


class IFCA(Method):
    about: ClassVar[About] = About(
        "each client picks the best of K models every round", "Ghosh et al. 2020", "a given number", sends="K models"
    )

    n_clusters: Annotated[int, Field(ge=1)] = 4
    weighting: Literal["samples", "uniform"] = "samples"  # the authors' code gives every client the same weight

    def start(self, context: RoundContext, ask: Ask) -> Clusters:
        """K models that differ. Shuffling the numbers of each tensor of a random model gives another one as random."""
        models = {0: context.initial}
        for cluster in range(1, self.n_clusters):
            random = context.random(f"initial model {cluster}")
            tensors = [context.initial[place] for place in context.layout.slices.values()]
            models[cluster] = np.concatenate([random.permutation(tensor) for tensor in tensors])
        return Clusters({0: context.clients}, models)

    def round(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        candidates = tuple(clusters.models[k] for k in range(self.n_clusters))
        trained = ask(Train(candidates), to=self.sample(context))
        choice = clusters.cluster_of | {client: chosen_by(answer) for client, answer in trained.items()}
        models = dict(clusters.models)
        for cluster in models:
            reports = [answer for answer in trained.values() if chosen_by(answer) == cluster]
            if reports:  # a model that nobody chose stays as it is, and may be chosen later
                weights = [a.n_samples if self.weighting == "samples" else 1 for a in reports]
                models[cluster] = average((a.weights for a in reports), weights)
        members = {
            k: tuple(c for c in context.clients if choice[c] == k) for k in np.unique(list(choice.values())).tolist()
        }
        return Clusters(members, models)


def chosen_by(answer: Trained) -> int:
    """The model that a client took."""
    return answer.chosen or 0
