"""HiCFL: a cluster is split in two as soon as some layer's updates have become stable, long before training converges.

Gong, Xing, Liu, Xi and Chen, "Towards Hierarchical Clustered Federated Learning With Model Stability on Mobile
Devices", IEEE TMC 2024.

A cluster is due when some layer of every member turns steadily over the window (eqs. 12-15), which is looked at in
every round. Its most stable member is the reference; whoever's update has a positive cosine with it stays on its side
(eqs. 17, 18); every stable layer is tried. One member that does not turn steadily prevents a split. With short last
batches left out (`training.drop_last`) the trigger fires in the paper's Non-IID-2 and -3 on MNIST and Fashion-MNIST
(there in -3 only where clients are alike), never in its Non-IID-1 (CIFAR-10 has not been run;
docs/results/hicfl-table3.md tells when). Our rule for the same loop, `agreement`, does not wait for everybody.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedclade.ask import Ask
from fedclade.clustering.bipartition import consistency, references, sign_split
from fedclade.clustering.similarity import informative
from fedclade.methods.base import About, Count, RoundContext
from fedclade.methods.hierarchical import Found, Hierarchical, TestLog
from fedclade.methods.splitting import ClusterUpdates
from fedclade.methods.stability import Stability, of_rate

REOPENS = 0.8  # a finished cluster is looked at again when its consistency falls below this share of what it was


class HiCFL(Stability, Hierarchical):
    about: ClassVar[About] = About(
        "splits clusters in two once a layer's updates are stable",
        "Gong et al. 2024",
        "the number too",
        formula="s_i = |(cos(u1, u2) + cos(u2, u3)) / 2 - cos(u1, u3)| of a layer's last three updates, a mean "
        "over a window; once s_i < epsilon for all members, i goes to the side of sign cos(u_i, u_ref)",
        use="with thousands of rows a client and training.drop_last, when clusters should form while training goes on",
    )

    attempts: Count | None = None  # the paper finishes clusters by consistency alone
    split: Literal["sign", "centered-sign"] = "sign"  # compare updates as they are, or less their mean
    reference: Literal["stable", "random"] = "stable"  # the steadiest client, or any
    references: Count = 1  # clients to try as reference at one test; in the paper the steadiest alone
    patience: Annotated[int, Field(ge=0)] = 0  # rounds until a plateau of stability will do; 0: it never does
    stop: Literal["consistency", "norms", "window"] = "consistency"  # when a cluster is not split any more
    rho_stop: Annotated[float, Field(gt=0, le=1)] | None = None  # consistency; None: 0.95, or 0.85 for centred signs
    eps1: Annotated[float, Field(gt=0)] = 0.4  # norms: split only if the mean update is shorter than this
    eps2: Annotated[float, Field(ge=0)] = 1.6  # and the longest update is longer than this, as in CFL

    order: Literal["aggregate-first", "split-first"] = "aggregate-first"  # which comes first in a round

    @property
    def splits_first(self) -> bool:
        return self.order == "split-first"

    # When

    def find(self, known: ClusterUpdates, log: TestLog, context: RoundContext) -> tuple[Found | None, TestLog]:
        """Two sides by the sign of the cosine with a stable client, if a layer is stable."""
        stability, norms = self.stability_of(known), lengths(known)
        log = self.stopping(log, consistency(known.latest, known.samples), norms)
        steady = self.stable_layers(known, stability, context)
        plateau, log = self.plateau(known, stability, log, context)
        stable = steady or plateau
        pulled = norms[0] < self.eps1 and norms[1] > self.eps2
        if log.consistent >= self.window or not stable or (self.stop == "norms" and not pulled):
            return None, log
        log = replace(log, fired=context.round)
        for layer in stable:  # the steadiest first; in one that all clients share there is no split
            found = self.two_sides(known, stability, layer, "paper" if steady else "plateau", context)
            if found is not None:
                return found, log
        return None, replace(log, attempts=log.attempts + 1)

    def stopping(self, log: TestLog, rho: float, norms: tuple[float, float]) -> TestLog:
        """Count the tests in a row in which the cluster's updates agreed, by the stop rule."""
        level = self.rho_stop or (0.85 if self.split == "centered-sign" else 0.95)
        consistent = log.consistent
        if self.stop == "consistency":
            consistent = consistent + 1 if rho >= level else 0
        elif self.stop == "window" and log.norms is not None and np.allclose(norms, log.norms, rtol=0.05, atol=0):
            consistent = self.window
        return replace(log, consistent=consistent, norms=norms, reopens_below=REOPENS * rho)

    def is_finished(self, log: TestLog) -> bool:
        return super().is_finished(log) or log.consistent >= self.window

    def reopened(self, known: ClusterUpdates, log: TestLog) -> bool:
        return consistency(known.latest, known.samples) < log.reopens_below

    def plateau(
        self, known: ClusterUpdates, stability: np.ndarray, log: TestLog, context: RoundContext
    ) -> tuple[list[str], TestLog]:
        """The calmest layer, if after long waiting its stability has at least stopped falling."""
        column = calmest(stability)
        if column is None:
            return [], replace(log, median=None)
        last, median = log.median, float(np.nanmedian(stability[:, column]))
        log = replace(log, median=median)
        if not self.patience or last is None or context.round - log.fired < self.patience:
            return [], log
        return [known.layers[column]] if abs(median - last) < 0.1 * median else [], log

    # Where

    def two_sides(
        self, known: ClusterUpdates, stability: np.ndarray, layer: str, rule: str, context: RoundContext
    ) -> Found | None:
        updates = known.latest[:, known.watched.places[layer]].astype(np.float64)
        if self.split == "centered-sign":
            updates = updates - updates.mean(axis=0)
        ranking = self.ranked(stability[:, known.layers.index(layer)], informative(updates), context)
        for place, reference in enumerate(ranking[: self.references]):
            stays = sign_split(updates, int(reference))
            if not stays.all():
                order, vectors = np.roll(ranking, -place), known.watched.seen(known.latest, layer)
                return Found(layer, (~stays).astype(int), vectors, order, rule)
        return None

    def ranked(self, values: np.ndarray, known: np.ndarray, context: RoundContext) -> np.ndarray:
        """The members that can be the reference, the best first."""
        if self.reference == "random":
            return context.random("reference").permutation(np.flatnonzero(known))
        ranking = references(values, len(values))
        return ranking[known[ranking]]

    def forced(self, known: ClusterUpdates, context: RoundContext) -> Found | None:
        """Two sides whether the cluster falls apart or not, in its calmest layer; None if all are the same."""
        stability = self.stability_of(known)
        column = calmest(stability)
        if column is None:
            return None
        layer = known.layers[column]
        updates = known.latest[:, known.watched.places[layer]]
        ranking = self.ranked(stability[:, column], informative(updates), context)
        if not len(ranking):
            return None
        stays = sign_split(updates, int(ranking[0]), forced=True)
        vectors = known.watched.seen(known.latest, layer)
        return None if stays.all() else Found(layer, (~stays).astype(int), vectors, ranking, self.variant)

    def in_one_piece(self, known: ClusterUpdates) -> Found:
        ranking = references(self.stability_of(known)[:, -1], len(known.members))
        return replace(super().in_one_piece(known), ranking=ranking)

    def record_evidence(self, seen: Mapping[int, ClusterUpdates], context: RoundContext, ask: Ask) -> None:
        if seen:
            ask.record(
                "stability",
                clients=[client for known in seen.values() for client in known.members],
                clusters=[cluster for cluster, known in seen.items() for _ in known.members],
                layers=list(self.watched(context).shapes),
                values=np.concatenate([self.stability_of(known) for known in seen.values()]),
                epsilon=of_rate(self.epsilon, context),
            )


def calmest(stability: np.ndarray) -> int | None:
    """The column of the layer that is most stable on average; None if no client has a stability."""
    known = [place for place, values in enumerate(stability.T) if not np.isnan(values).all()]
    return min(known, key=lambda place: float(np.nanmean(stability[:, place])), default=None)


def lengths(known: ClusterUpdates) -> tuple[float, float]:
    """Length of the cluster's mean update, and of the longest one."""
    updates = known.latest.astype(np.float64)
    mean = np.average(updates, axis=0, weights=known.samples)
    return float(np.linalg.norm(mean)), float(np.linalg.norm(updates, axis=1).max())
