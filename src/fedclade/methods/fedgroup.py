"""FedGroup: groups from the directions of a few clients' first updates, seen along their main axes.

Duan et al., "FedGroup: Efficient Federated Learning via Decomposed Similarity-Based Clustering", ISPA 2021.
"""

from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedclade.asking import Ask
from fedclade.clients.tasks import Train
from fedclade.clustering.centers import kmeans
from fedclade.clustering.similarity import cosine_matrix, directions, distance_matrix
from fedclade.methods.base import About, Clusters, Method, Placement, Roster, nearest, nobody_answered


class FedGroup(Method):
    about: ClassVar[About] = About(
        "groups once, by the directions of first updates", "Duan et al. 2021", "a given number", "one shot"
    )

    n_clusters: Annotated[int, Field(ge=1)] = 4
    pretrain: Annotated[int, Field(ge=1)] = 20  # how many clients (times the number of groups) make the groups

    def start(self, roster: Roster, ask: Ask) -> Clusters:
        count = min(self.pretrain * self.n_clusters, len(roster.clients))
        drawn = roster.random("pretrain").permutation(len(roster.clients))[:count]
        chosen = [roster.clients[k] for k in sorted(drawn)]
        trained = ask(Train(roster.initial), to=chosen, phase="cluster")
        if not len(trained):
            raise nobody_answered(ask)
        updates = trained.stack() - roster.initial
        groups = min(self.n_clusters, len(trained))
        decomposed = decomposed_cosines(updates, groups)
        labels = kmeans(decomposed, groups)
        ask.record(
            "proximity",
            matrix=distance_matrix(decomposed),
            clients=list(trained.clients),
            measure="distance of decomposed cosines",
        )
        clusters = Clusters.from_labels(trained.clients, labels, roster.initial).averaged(trained)
        mean = {k: (model - roster.initial)[: roster.layout.n_parameters] for k, model in clusters.models.items()}
        clusters = clusters.noting(directions=mean)
        return self.settle(clusters, set(roster.clients) - set(trained.clients), roster, ask)

    def round(self, clusters: Clusters, roster: Roster, ask: Ask) -> Clusters:
        clusters = self.resettle(clusters, roster, ask)
        trained = ask({client: Train(clusters.model_of(client)) for client in self.sample(roster)})
        return clusters.averaged(trained)

    def place(self, clusters: Clusters, roster: Roster, ask: Ask) -> dict[str, Placement]:
        """A newcomer joins the group whose first direction is most like its own."""
        trained = ask(Train(roster.initial), to=roster.clients, phase="place")
        known: dict[int, np.ndarray] = clusters.notes["directions"]
        far = {}
        for client, answer in trained.items():
            update = (answer.weights - roster.initial)[: roster.layout.n_parameters]
            angles = 1 - cosine_matrix(np.stack([update, *known.values()]))[0, 1:]
            far[client] = dict(zip(known, angles.tolist(), strict=True))
        return {client: Placement(nearest(near), near, "1 - cosine of updates") for client, near in far.items()}


def decomposed_cosines(updates: np.ndarray, n_axes: int) -> np.ndarray:
    """(clients, axes): the cosine of every update with the updates' own main axes."""
    axes = np.linalg.svd(updates.astype(np.float64), full_matrices=False)[2][:n_axes]
    return directions(updates.astype(np.float64)) @ axes.T
