"""CFL: when the shared model stands still but single clients still pull at it, they want different things: split.

Sattler, Müller and Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization under
Privacy Constraints", IEEE TNNLS 2021. Others call it FMTL or MTCFL. HiCFL's paper (see `hicfl`) also runs it with model
stability in place of the norms (`cfl-stability`).
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedclade.ask import Ask
from fedclade.clients.tasks import Train
from fedclade.clustering.bipartition import bipartition, cross_similarity
from fedclade.clustering.similarity import cosine_matrix, informative
from fedclade.methods.base import About, Clusters, RoundContext
from fedclade.methods.splitting import ClusterUpdates, Splitting
from fedclade.methods.stability import Stability


class Bipartitioning(Splitting):
    """What CFL does once a cluster is due: cut it where the largest cosine across is smallest."""

    linkage: Literal["complete", "single"] = "complete"  # "single" is the paper's optimum, "complete" the authors' code
    gamma: Annotated[float, Field(ge=0, lt=1)] | None = None  # gate: sides may have a cosine of sqrt((1 - gamma) / 2)
    weighting: Literal["samples", "uniform"] = "samples"  # the authors' code gives every client the same weight
    min_size: Annotated[int, Field(ge=2)] = 3  # smaller clusters are not split
    quorum: Annotated[float, Field(gt=0, le=1)] = 1.0  # of a cluster's members must have been seen lately
    stale: Annotated[int, Field(ge=1)] | None = 10  # rounds until an update is too old

    def is_due(self, known: ClusterUpdates, norms: Mapping[str, float], context: RoundContext) -> bool:
        raise NotImplementedError

    @property
    def gate(self) -> float | None:
        return self.gamma

    @property
    def trigger(self) -> str:
        raise NotImplementedError

    def round(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        chosen = context.sample()
        clusters = self.retry(clusters, context.only(chosen), ask)
        trained = ask({client: Train(clusters.model_of(client)) for client in chosen})
        if self.weighting == "uniform":
            trained = trained.alike()
        clusters = self.observed(clusters, trained, context)
        norms, looks = {}, []
        for cluster in sorted(clusters.members):
            norms[cluster] = self.norms(clusters, cluster, context)
            known = self.updates_of(clusters, cluster, context)
            if known is not None and self.is_due(known, norms[cluster], context):
                clusters, look = self.parted(clusters, cluster, known, norms[cluster], context)
                looks.append({"cluster": cluster, **look})
        ask.record(
            "norms",
            clusters=list(norms),
            mean=[n["mean"] for n in norms.values()],
            max=[n["max"] for n in norms.values()],
        )
        if looks:
            ask.record("similarity", tests=looks)
        # A cluster that has just been split: each side already goes its own way with this round's updates.
        return clusters.averaged(trained)

    def norms(self, clusters: Clusters, cluster: int, context: RoundContext) -> dict[str, float]:
        """Length of the mean and of the longest update of this round; older updates say nothing of this model."""
        past = clusters.state.past
        now = [past[c] for c in clusters.members[cluster] if c in past and past[c].rounds[-1] == context.round]
        if not now:
            return {"mean": np.nan, "max": np.nan}
        updates = np.stack([one.updates[-1] for one in now]).astype(np.float64)
        mean = np.average(updates, axis=0, weights=[one.samples for one in now])
        return {"mean": float(np.linalg.norm(mean)), "max": float(np.linalg.norm(updates, axis=1).max())}

    def parted(
        self, clusters: Clusters, cluster: int, known: ClusterUpdates, norms: Mapping[str, float], context: RoundContext
    ) -> tuple[Clusters, dict[str, Any]]:
        """The cluster in two, if the two are unlike enough.

        With a gate `gamma` they are when the largest cosine between them is below sqrt((1 - gamma) / 2), which tells
        the sides apart for sure if no update differs from its side's mean by more than gamma times that mean.
        """
        updates = known.watched.seen(known.latest, None)
        similarity = cosine_matrix(updates)
        labels = bipartition(similarity, self.linkage, informative(updates))
        across = cross_similarity(similarity, labels)
        look = {"clients": list(known.members), "matrix": similarity, "labels": labels, "across": across}
        if labels.max() == 0 or (self.gate is not None and across >= np.sqrt((1 - self.gate) / 2)):
            return clusters, look
        rows = [np.flatnonzero(labels == side) for side in (0, 1)]
        why = {"rule": self.trigger, "across": across, "mean_norm": norms["mean"], "max_norm": norms["max"]}
        sides, vectors = [known.names(side) for side in rows], [updates[side] for side in rows]
        return self.divided(clusters, cluster, sides, vectors, clusters.models[cluster], context, why=why), look


class CFL(Bipartitioning):
    about: ClassVar[About] = About(
        "splits a cluster when its model stands still and its clients do not",
        "Sattler et al. 2021",
        "the number too",
        formula="split if |mean_i u_i| < eps1 and max_i |u_i| > eps2; the two sides minimise the largest "
        "cosine across, min max cos(u_i, u_j)",
        use="when all clients take part in every round and training may converge before it splits",
    )

    eps1: Annotated[float, Field(gt=0)] = 0.4  # the mean update of a cluster that stands still is shorter
    eps2: Annotated[float, Field(ge=0)] = 1.6  # the longest update of clients that want more is longer
    min_round: Annotated[int, Field(ge=0)] = 20  # no split up to this round, as in the authors' code

    @property
    def trigger(self) -> str:
        return "norms"

    def is_due(self, known: ClusterUpdates, norms: Mapping[str, float], context: RoundContext) -> bool:
        return context.round > self.min_round and norms["mean"] < self.eps1 and norms["max"] > self.eps2


class StabilityCFL(Bipartitioning, Stability):
    about: ClassVar[About] = About(
        "CFL that splits once updates are stable",
        "Gong et al. 2024",
        "the number too",
        formula="as CFL, split once every member's stability s_i < epsilon (see hicfl)",
        use="to compare the sign to split: HiCFL's Table V",
    )

    @property
    def trigger(self) -> str:
        return "stability"

    @property
    def gate(self) -> float | None:
        """Stability knows no end by itself, so the gate is always shut, at 0 if not elsewhere."""
        return self.gamma or 0.0

    def is_due(self, known: ClusterUpdates, norms: Mapping[str, float], context: RoundContext) -> bool:
        return self.is_test(context.round) and bool(self.stable_layers(known, self.stability_of(known), context))
