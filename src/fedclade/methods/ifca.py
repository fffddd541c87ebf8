"""IFCA: several models from the start; each client takes the one that fits it best, every round anew.

Ghosh, Chung, Yin and Ramchandran, "An Efficient Framework for Clustered Federated Learning", NeurIPS 2020.
"""

from typing import ClassVar, Literal

import numpy as np

from fedclade.ask import Ask
from fedclade.clients.tasks import Train, Trained
from fedclade.methods.base import About, Clusters, Count, Method, RoundContext


class IFCA(Method):
    about: ClassVar[About] = About(
        "each client picks the best of K models every round",
        "Ghosh et al. 2020",
        "a given number",
        sends="K models",
        formula="k_i = argmin_k L_i(W_k); W_k <- mean of the w_i trained from W_k",
        use="when the number of groups is known and traffic is cheap: every client gets all K models",
    )

    n_clusters: Count = 4  # how many models there are
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
        tasks = dict.fromkeys(context.sample(), Train(candidates))
        uniform = self.weighting == "uniform"
        # A model that nobody chose stays as it is, and may be chosen later.
        combined = ask.combined(tasks, clusters.models, lambda client, answer: chosen_by(answer), alike=uniform)
        choice = {**clusters.cluster_of, **{client: chosen_by(answer) for client, answer in combined.reports.items()}}
        homes = sorted(set(choice.values()))
        members = {k: tuple(c for c in context.clients if choice[c] == k) for k in homes}
        return Clusters(members, combined.models)


def chosen_by(answer: Trained) -> int:
    """The model that a client took."""
    return answer.chosen or 0
