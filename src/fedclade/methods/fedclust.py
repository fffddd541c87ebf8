"""FedClust: one round in which everybody trains and sends only the last layer is enough to find the groups.

Islam et al., "FedClust: Tackling Data Heterogeneity in Federated Learning through Weight-Driven Client Clustering",
ICPP 2024.
"""

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedclade.asking import Ask
from fedclade.clients.tasks import Train
from fedclade.clustering.hierarchy import agglomerate
from fedclade.clustering.similarity import distance_matrix
from fedclade.errors import FedcladeError
from fedclade.methods.base import About, Clusters, Method, Placement, Roster, nearest


class FedClust(Method):
    about: ClassVar[About] = About(
        "clusters once, by the distance of last layers",
        "Islam et al. 2024",
        "the number too",
        "one shot",
        "last layer, model",
    )

    threshold: Annotated[float, Field(ge=0)] | Literal["auto"] = "auto"
    n_clusters: Annotated[int, Field(ge=1)] | None = None  # a target number in place of the threshold
    linkage: Literal["single", "complete", "average", "weighted"] = "weighted"
    layers: Literal["head", "all"] = "head"  # what is compared: the last layer, or (the paper's ablation) all weights
    fraction: Annotated[float, Field(gt=0, le=1)] = 0.1

    def start(self, roster: Roster, ask: Ask) -> Clusters:
        heads = ask(self.first_training(roster), to=roster.clients, phase="cluster")
        if not len(heads):
            raise FedcladeError("no client answered the clustering round: mend the clients and run again")
        distances = distance_matrix(heads.stack())
        threshold = None if self.n_clusters is not None else self.threshold
        labels, tree = agglomerate(distances, self.linkage, threshold=threshold, n_clusters=self.n_clusters)
        ask.record("proximity", matrix=distances, clients=list(heads.clients), measure="distance of last layers")
        ask.record("dendrogram", merges=tree.merges, clients=list(heads.clients), linkage=self.linkage, labels=labels)
        clusters = Clusters.from_labels(heads.clients, labels, roster.initial)
        # Newcomers will be compared with what the members sent now: only then both have trained as long.
        centres = {k: heads.of(members).stack().mean(0) for k, members in clusters.members.items()}
        return self.settle(clusters.noting(centres=centres), heads.failures, roster, ask)

    def first_training(self, roster: Roster) -> Train:
        return Train(roster.initial, upload="head" if self.layers == "head" else None)

    def round(self, clusters: Clusters, roster: Roster, ask: Ask) -> Clusters:
        clusters = self.resettle(clusters, roster, ask)
        trained = ask({client: Train(clusters.model_of(client)) for client in self.sample(roster)})
        return clusters.averaged(trained)

    def place(self, clusters: Clusters, roster: Roster, ask: Ask) -> dict[str, Placement]:
        heads = ask(self.first_training(roster), to=roster.clients, phase="place")
        near = {
            client: {
                k: float(np.linalg.norm(answer.weights - centre)) for k, centre in clusters.notes["centres"].items()
            }
            for client, answer in heads.items()
        }
        return {client: Placement(nearest(far), far, "distance of last layers") for client, far in near.items()}
