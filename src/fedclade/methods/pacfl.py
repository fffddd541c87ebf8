"""PACFL: before any training, clients send a few directions in which their rows lie; like directions make a cluster.

Vahidian et al., "Efficient Distribution Similarity Identification in Clustered Federated Learning via Principal Angles
Between Client Data Subspaces", AAAI 2023.
"""

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedclade.ask import Ask
from fedclade.clients.tasks import Describe, Train
from fedclade.clustering.hierarchy import agglomerate
from fedclade.clustering.similarity import angle_profiles, subspace_angles
from fedclade.methods.base import About, Clusters, Method, Placement, RoundContext, nearest, nobody_answered


class PACFL(Method):
    about: ClassVar[About] = About(
        "clusters once, by the angles between subspaces of the clients' rows",
        "Vahidian et al. 2023",
        "the number too",
        "one shot",
        "singular vectors, model",
    )

    n_vectors: Annotated[int, Field(ge=1)] = 3  # for each class that a client holds
    legacy: bool = False  # the angles of the authors' code: between single vectors, signs included
    # In degrees, as in the paper; "auto" leaves it to the data, and compares clients by their angles to all others.
    threshold: Annotated[float, Field(ge=0)] | Literal["auto"] = "auto"
    n_clusters: Annotated[int, Field(ge=1)] | None = None  # a target number in place of the threshold
    linkage: Literal["single", "complete", "average", "weighted"] = "weighted"
    fraction: Annotated[float, Field(gt=0, le=1)] = 0.1

    def start(self, context: RoundContext, ask: Ask) -> Clusters:
        bases = self.bases(context, ask, "cluster")
        if not bases:
            raise nobody_answered(ask)
        clients, angles = list(bases), subspace_angles(list(bases.values()), self.legacy)
        if self.n_clusters is None:
            labels, tree = agglomerate(self.distances(angles), self.linkage, threshold=self.threshold)
        else:  # there can be no more clusters than clients
            labels, tree = agglomerate(angles, self.linkage, n_clusters=min(self.n_clusters, len(clients)))
        ask.record("proximity", matrix=angles, clients=clients, measure="degrees between subspaces")
        ask.record("dendrogram", merges=tree.merges, clients=clients, linkage=self.linkage, labels=labels)
        clusters = Clusters.from_labels(clients, labels, context.initial)
        known = {k: [bases[client] for client in members] for k, members in clusters.members.items()}
        order = np.argsort(labels, kind="stable")  # as in `bases`: cluster by cluster
        clusters = clusters.noting(bases=known, angles=angles[np.ix_(order, order)])
        return self.admit(clusters, set(context.clients) - set(clients), context, ask)

    def round(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        clusters = self.retry(clusters, context, ask)
        return clusters.averaged(ask({client: Train(clusters.model_of(client)) for client in self.sample(context)}))

    def place(self, clusters: Clusters, context: RoundContext, ask: Ask) -> dict[str, Placement]:
        """A newcomer adds a row to the matrix of angles, and joins the cluster to which it is nearest on average."""
        known, angles = clusters.notes["bases"], clusters.notes["angles"]
        others, home = [b for part in known.values() for b in part], [k for k, part in known.items() for _ in part]
        measure = "mean distance of angles to all" if self.by_profile else "mean degrees between subspaces"
        placements = {}
        for client, basis in self.bases(context, ask, "place").items():
            row = np.array([subspace_angles([basis, other], self.legacy)[0, 1] for other in others])
            extended = np.block([[angles, row[:, None]], [row[None], np.zeros((1, 1))]])
            distances = self.distances(extended)[-1, :-1]
            far = {k: float(distances[np.array(home) == k].mean()) for k in known}
            placements[client] = Placement(nearest(far), far, measure)
        return placements

    @property
    def by_profile(self) -> bool:
        return self.threshold == "auto" and self.n_clusters is None

    def distances(self, angles: np.ndarray) -> np.ndarray:
        """What clusters are made of: degrees, for thresholds are in degrees, or what serves better without one."""
        return angle_profiles(angles) if self.by_profile else angles

    def bases(self, context: RoundContext, ask: Ask, phase: str) -> dict[str, np.ndarray]:
        """What clients tell about their rows: a few singular vectors for each class."""
        told = ask(Describe("subspaces", {"n_vectors": self.n_vectors}), to=context.clients, phase=phase)
        return {client: answer.values["basis"] for client, answer in told.items()}
