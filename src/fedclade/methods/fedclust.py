"""FedClust: one round in which everybody trains and sends only the last layer is enough to find the groups.

Islam et al., "FedClust: Tackling Data Heterogeneity in Federated Learning through Weight-Driven Client Clustering",
ICPP 2024.
"""

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedclade.ask import Ask
from fedclade.clients.tasks import Train
from fedclade.clustering.hierarchy import agglomerate
from fedclade.clustering.similarity import distance_matrix
from fedclade.methods.base import About, Clusters, Method, Placement, RoundContext, nearest, nobody_answered


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
    metric: Literal["euclidean", "cosine"] = "euclidean"  # cosine suits clients with very unlike numbers of rows
    layers: Literal["head", "all"] = "head"  # what is compared: the last layer, or (the paper's ablation) all weights
    fraction: Annotated[float, Field(gt=0, le=1)] = 0.1

    def start(self, context: RoundContext, ask: Ask) -> Clusters:
        moves = self.first_moves(context, ask, "cluster")
        if not moves:
            raise nobody_answered(ask)
        clients, distances = list(moves), distance_matrix(np.stack(list(moves.values())), self.metric)
        threshold = None if self.n_clusters is not None else self.threshold
        labels, tree = agglomerate(
            distances, self.linkage, metric=self.metric, threshold=threshold, n_clusters=self.n_clusters
        )
        ask.record("proximity", matrix=distances, clients=clients, measure=self.measure)
        ask.record("dendrogram", merges=tree.merges, clients=clients, linkage=self.linkage, labels=labels)
        clusters = Clusters.from_labels(clients, labels, context.initial)
        # Newcomers will be compared with what the members sent now: only then both have trained as long.
        centres = {k: np.mean([moves[c] for c in members], axis=0) for k, members in clusters.members.items()}
        return self.admit(clusters.noting(centres=centres), set(context.clients) - set(clients), context, ask)

    def round(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        clusters = self.retry(clusters, context, ask)
        trained = ask({client: Train(clusters.model_of(client)) for client in self.sample(context)})
        return clusters.averaged(trained)

    def place(self, clusters: Clusters, context: RoundContext, ask: Ask) -> dict[str, Placement]:
        """A newcomer trains once, as the others did, and joins the cluster whose first move is nearest to its own."""
        centres: dict[int, np.ndarray] = clusters.notes["centres"]
        placements = {}
        for client, move in self.first_moves(context, ask, "place").items():
            distances = distance_matrix(np.stack([move, *centres.values()]), self.metric)[0, 1:]
            far = dict(zip(centres, distances.tolist(), strict=True))
            placements[client] = Placement(nearest(far), far, self.measure)
        return placements

    def first_moves(self, context: RoundContext, ask: Ask, phase: str) -> dict[str, np.ndarray]:
        """How far everybody's last layer goes in one training from the initial model. Only that layer is sent."""
        upload = "head" if self.layers == "head" else None
        trained = ask(Train(context.initial, upload=upload), to=context.clients, phase=phase)
        began = context.initial[context.layout.select(upload)]
        return {client: answer.weights - began for client, answer in trained.items()}

    @property
    def measure(self) -> str:
        what = "last layers" if self.layers == "head" else "weights"
        return f"{self.metric} distance of {what}"
