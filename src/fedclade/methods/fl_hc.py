"""FL+HC: some rounds of plain averaging, then clients whose next update points the same way go on together.

Briggs, Fan and Andras, "Federated Learning with Hierarchical Clustering of Local Updates to Improve Training on Non-IID
Data", IJCNN 2020.
"""

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, ValidationInfo, field_validator

from fedclade.ask import Ask, TrainedClients
from fedclade.clients.tasks import Train
from fedclade.clustering.hierarchy import agglomerate
from fedclade.clustering.similarity import distance_matrix
from fedclade.methods.base import About, Clusters, Method, Placement, RoundContext, nearest


class FLHC(Method):
    about: ClassVar[About] = About(
        "clusters once, by the updates after some rounds of averaging",
        "Briggs et al. 2020",
        "the number too",
        "one shot",
    )

    warmup: Annotated[int, Field(ge=0)] = 5  # rounds of plain averaging; the round after them makes the clusters
    metric: Literal["euclidean", "l1", "cosine"] = "euclidean"
    linkage: Literal["single", "complete", "average", "weighted", "ward"] = "complete"
    threshold: Annotated[float, Field(ge=0)] | Literal["auto"] = "auto"
    n_clusters: Annotated[int, Field(ge=1)] | None = None  # a target number in place of the threshold

    @field_validator("linkage")
    @classmethod
    def _ward_is_euclidean(cls, linkage: str, info: ValidationInfo) -> str:
        if linkage == "ward" and info.data.get("metric") != "euclidean":
            raise ValueError("Ward needs metric = 'euclidean': choose another of the two")
        return linkage

    def round(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        done = "centres" in clusters.notes
        now = not done and context.round > self.warmup
        if done:
            clusters = self.retry(clusters, context, ask)
        clients = context.clients if now else self.sample(context)
        trained = ask({client: Train(clusters.model_of(client)) for client in clients})
        if now and len(trained):
            clusters = self.cluster(clusters.models[0], trained, context, ask)
        # When the clusters are new, this is the first round that each of them does by itself from the joint model.
        return clusters.averaged(trained)

    def cluster(self, start: np.ndarray, trained: TrainedClients, context: RoundContext, ask: Ask) -> Clusters:
        """Clusters of those who trained from `start`; the others are placed like newcomers."""
        updates = self.updates(trained, start, context)
        distances = distance_matrix(np.stack(list(updates.values())), self.metric)
        clients = list(updates)
        if self.n_clusters is None:
            labels, tree = agglomerate(distances, self.linkage, metric=self.metric, threshold=self.threshold)
        else:  # there can be no more clusters than clients
            count = min(self.n_clusters, len(clients))
            labels, tree = agglomerate(distances, self.linkage, metric=self.metric, n_clusters=count)
        ask.record("proximity", matrix=distances, clients=clients, measure=f"{self.metric} distance of updates")
        ask.record("dendrogram", merges=tree.merges, clients=clients, linkage=self.linkage, labels=labels)
        clusters = Clusters.from_labels(clients, labels, start)
        centres = {k: np.mean([updates[c] for c in members], axis=0) for k, members in clusters.members.items()}
        return self.admit(clusters.noting(start=start, centres=centres), trained.failures, context, ask)

    def place(self, clusters: Clusters, context: RoundContext, ask: Ask) -> dict[str, Placement]:
        """Newcomers train from the model at which the clusters parted, and join the nearest mean update."""
        if "centres" not in clusters.notes:
            return super().place(clusters, context, ask)
        centres, start = clusters.notes["centres"], clusters.notes["start"]
        trained = ask(Train(start), to=context.clients, phase="place")
        placements = {}
        for client, update in self.updates(trained, start, context).items():
            distances = distance_matrix(np.stack([update, *centres.values()]), self.metric)[0, 1:]
            far = dict(zip(centres, distances.tolist(), strict=True))
            placements[client] = Placement(nearest(far), far, f"{self.metric} distance of updates")
        return placements

    def updates(self, trained: TrainedClients, start: np.ndarray, context: RoundContext) -> dict[str, np.ndarray]:
        """What training changed; running statistics are no part of it."""
        n = context.layout.n_parameters
        return {client: answer.weights[:n] - start[:n] for client, answer in trained.items()}
