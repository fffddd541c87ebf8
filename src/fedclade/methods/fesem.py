"""FeSEM: several centres in weight space; each client belongs to the centre nearest to its own trained model.

Xie et al., "Multi-Center Federated Learning", 2020 (World Wide Web 2023).
"""

from dataclasses import replace
from typing import ClassVar

import numpy as np

from fedclade.ask import Ask, TrainedClients
from fedclade.clients.tasks import Train
from fedclade.clustering.centers import kmeans
from fedclade.methods.base import About, Clusters, Count, Method, RoundContext, nearest, nobody_answered


class FeSEM(Method):
    """Newcomers go by their loss: a model trained once from the start is nearest to whichever centre moved least."""

    about: ClassVar[About] = About(
        "each client goes to the nearest of K centres",
        "Xie et al. 2020",
        "a given number",
        formula="k_i = argmin_k |w_i - W_k|; W_k <- mean of its members' w_i",
        use="when the number of groups is known and one model a round is all that may travel",
    )

    n_clusters: Count = 4  # how many centres there are

    def start(self, context: RoundContext, ask: Ask) -> Clusters:
        """The first centres: k-means of everybody's model after one training from the same start."""
        trained = ask(Train(context.initial), to=context.clients, phase="cluster")
        if not len(trained):
            raise nobody_answered(ask)
        labels = kmeans(trained.stack(), min(self.n_clusters, len(trained)))
        clusters = Clusters.from_labels(trained.clients, labels, context.initial).averaged(trained)
        return self.admit(clusters, trained.failures, context, ask)

    def round(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        clusters = self.retry(clusters, context, ask)
        trained = ask({client: Train(clusters.model_of(client)) for client in context.sample()})
        return self._moved(clusters, trained, context).averaged(trained)

    def _moved(self, clusters: Clusters, trained: TrainedClients, context: RoundContext) -> Clusters:
        """Those who reported join the centre nearest to what they sent. A centre left by all stays where it is."""
        home = dict(clusters.cluster_of)
        for client, answer in trained.items():
            home[client] = nearest(distances_to(clusters, answer.weights))
        members = {k: tuple(c for c in context.clients if home[c] == k) for k in clusters.models}
        return replace(clusters, members={k: part for k, part in members.items() if part})


def distances_to(clusters: Clusters, weights: np.ndarray) -> dict[int, float]:
    return {k: float(np.linalg.norm(weights - model)) for k, model in clusters.models.items()}
