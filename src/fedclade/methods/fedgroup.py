"""FedGroup: groups from the directions of a few clients' first updates, seen along their main axes.

Duan et al., "FedGroup: Efficient Federated Learning via Decomposed Similarity-Based Clustering", ISPA 2021.
"""

from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedclade.ask import Ask
from fedclade.clients.tasks import Train
from fedclade.clustering.centers import kmeans
from fedclade.clustering.similarity import cosine_matrix, directions, distance_matrix
from fedclade.methods.base import About, Clusters, Method, Placement, RoundContext, nearest, nobody_answered


class FedGroup(Method):
    about: ClassVar[About] = About(
        "groups once, by the directions of first updates", "Duan et al. 2021", "a given number", "one shot"
    )

    n_clusters: Annotated[int, Field(ge=1)] = 4
    pretrain: Annotated[int, Field(ge=1)] = 20  # how many clients (times the number of groups) make the groups

    def start(self, context: RoundContext, ask: Ask) -> Clusters:
        count = min(self.pretrain * self.n_clusters, len(context.clients))
        drawn = context.random("pretrain").permutation(len(context.clients))[:count]
        chosen = [context.clients[k] for k in sorted(drawn)]
        trained = ask(Train(context.initial), to=chosen, phase="cluster")
        if not len(trained):
            raise nobody_answered(ask)
        updates = trained.stack() - context.initial
        groups = min(self.n_clusters, len(trained))
        decomposed = decomposed_cosines(updates, groups)
        labels = kmeans(decomposed, groups)
        ask.record(
            "proximity",
            matrix=distance_matrix(decomposed),
            clients=list(trained.clients),
            measure="distance of decomposed cosines",
        )
        clusters = Clusters.from_labels(trained.clients, labels, context.initial).averaged(trained)
        mean = {k: (model - context.initial)[: context.layout.n_parameters] for k, model in clusters.models.items()}
        clusters = clusters.noting(directions=mean)
        return self.admit(clusters, set(context.clients) - set(trained.clients), context, ask)

    def round(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        clusters = self.retry(clusters, context, ask)
        trained = ask({client: Train(clusters.model_of(client)) for client in self.sample(context)})
        return clusters.averaged(trained)

    def place(self, clusters: Clusters, context: RoundContext, ask: Ask) -> dict[str, Placement]:
        """A newcomer joins the group whose first direction is most like its own."""
        trained = ask(Train(context.initial), to=context.clients, phase="place")
        known: dict[int, np.ndarray] = clusters.notes["directions"]
        far = {}
        for client, answer in trained.items():
            update = (answer.weights - context.initial)[: context.layout.n_parameters]
            angles = 1 - cosine_matrix(np.stack([update, *known.values()]))[0, 1:]
            far[client] = dict(zip(known, angles.tolist(), strict=True))
        return {client: Placement(nearest(near), near, "1 - cosine of updates") for client, near in far.items()}


def decomposed_cosines(updates: np.ndarray, n_axes: int) -> np.ndarray:
    """(clients, axes): the cosine of every update with the updates' own main axes."""
    axes = np.linalg.svd(updates.astype(np.float64), full_matrices=False)[2][:n_axes]
    return directions(updates.astype(np.float64)) @ axes.T
