"""FedClust: one round in which everybody trains and sends only the last layer is enough to find the groups.

Islam et al., "FedClust: Tackling Data Heterogeneity in Federated Learning through Weight-Driven Client Clustering",
ICPP 2024.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedclade.asking import Ask
from fedclade.clients.tasks import Train
from fedclade.clustering.hierarchy import cut, tree_of
from fedclade.clustering.similarity import distances
from fedclade.methods.base import About, Clusters, Method, Roster


class FedClust(Method):
    about: ClassVar[About] = About(
        "clusters once, by the distance of last layers", "Islam et al. 2024", "the number too", "one shot", "last layer, model"
    )

    threshold: Annotated[float, Field(ge=0)] | Literal["auto"] = "auto"
    n_clusters: Annotated[int, Field(ge=1)] | None = None  # a target number in place of the threshold
    linkage: Literal["single", "complete", "average", "weighted"] = "weighted"
    fraction: Annotated[float, Field(gt=0, le=1)] = 0.1

    def start(self, roster: Roster, ask: Ask) -> Clusters:
        heads = ask(Train(roster.initial, upload="head"), to=roster.clients, phase="cluster")
        labels = cut(tree_of(distances(heads.stack()), self.linkage), self.threshold, self.n_clusters)
        return Clusters.from_labels(heads.clients, labels, roster.initial)

    def round(self, clusters: Clusters, roster: Roster, ask: Ask) -> Clusters:
        trained = ask({client: Train(clusters.model_of(client)) for client in self.sample(roster)})
        return clusters.averaged(trained)
