"""The loop that HiCFL and our rule share: train, look at every cluster, split those that fall apart, know when to end.

The variants are HiCFL's (Gong et al. 2024): once all clusters are finished, each is split once more (`fine-grained`),
again and again (`personalised`), or clusters that move the same way are put together (`re-organised`). `misplace` is
for its experiment on clients in wrong clusters.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from fedclade.ask import Ask
from fedclade.clients.tasks import Train
from fedclade.clustering.hierarchy import linkage_tree
from fedclade.clustering.similarity import cosine, cosine_matrix, distance_matrix
from fedclade.methods.base import Clusters, Count, RoundContext, remembered
from fedclade.methods.splitting import ClusterUpdates, Look, Observed, Splitting, born, moved
from fedclade.models.weights import average


@dataclass(frozen=True)
class Found:
    """Where a cluster falls apart, if it does, and what shows it."""

    layer: str
    labels: np.ndarray  # (members,) the part of each: two, or more that are split off one after the other
    vectors: np.ndarray  # (members, numbers) the directions that were compared
    ranking: np.ndarray  # members, the best reference first
    rule: str
    look: Look = "whole"
    score: float | None = None

    def shown(self, cluster: int, known: ClusterUpdates) -> dict[str, Any]:
        """What a report can draw of it."""
        matrix = cosine_matrix(self.vectors)
        shown = {"cluster": cluster, "layer": self.layer, "look": self.look, "clients": list(known.members)}
        if len(self.ranking):
            shown |= {"reference": known.members[self.ranking[0]], "similarity": matrix[self.ranking[0]]}
        return shown | {"labels": self.labels, "matrix": matrix, "rule": self.rule}


@remembered
class TestLog:
    """What the tests of a cluster have shown so far."""

    fired: int  # the last round in which the trigger fired, at first that in which the cluster was made
    attempts: int = 0  # tests that found the cluster in one piece
    unclear: int = 0  # tests that could not tell
    consistent: int = 0  # tests in a row in which its updates agreed
    norms: tuple[float, float] | None = None  # of the mean and the longest update at the last test
    median: float | None = None  # of its members' stability at the last test
    finished: tuple[str, ...] | None = None  # its members when it was found to be finished
    reopens_below: float = 0.0  # of consistency


@remembered
class Hierarchy(Observed):
    logs: Mapping[int, TestLog] = field(default_factory=dict)  # of each cluster
    is_refined: bool = False  # a variant has split finished clusters
    misplaced: tuple[str, ...] | None = None


class Hierarchical(Splitting):
    """A subclass says when there is a test (`is_test`), where a cluster falls apart (`find`), and how to force it."""

    State = Hierarchy

    attempts: Count | None = 3  # a cluster is finished that was stable so often, and in one piece; none: never by that
    variant: Literal["plain", "fine-grained", "personalised", "re-organised"] = "plain"  # once all is finished
    misplace: Annotated[float, Field(ge=0, lt=1)] = 0.0  # experiment: the share of clients put into a wrong cluster
    misplace_round: Count = 5  # in this round, or in the first with two clusters after it

    def nothing_seen(self) -> Hierarchy:
        return Hierarchy({}, {})

    @property
    def splits_first(self) -> bool:
        """Whether clusters are split before a round's answers are averaged."""
        return False

    def is_test(self, round: int) -> bool:
        raise NotImplementedError

    def find(self, known: ClusterUpdates, log: TestLog, context: RoundContext) -> tuple[Found | None, TestLog]:
        """Where a cluster falls apart, if it does, and its log with this test in it."""
        raise NotImplementedError

    def forced(self, known: ClusterUpdates, context: RoundContext) -> Found | None:
        """Two sides whether the cluster falls apart or not; None if all are the same."""
        raise NotImplementedError

    def in_one_piece(self, known: ClusterUpdates) -> Found:
        """A cluster that is not split, as its last layer shows it."""
        vectors = known.watched.seen(known.history, known.layers[-1]).mean(axis=0)
        nobody = np.empty(0, np.int64)
        return Found(known.layers[-1], np.zeros(len(known.members), np.int64), vectors, nobody, "none")

    def prepared(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        """Before a test."""
        return clusters

    def has_shown_enough(self, log: TestLog) -> bool:
        """Whether a test found so little that variants need not wait for this cluster."""
        return False

    def is_finished(self, log: TestLog) -> bool:
        return self.attempts is not None and log.attempts >= self.attempts

    def reopened(self, known: ClusterUpdates, log: TestLog) -> bool:
        """Whether a finished cluster is not what it was."""
        return False

    # A round

    def round(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        chosen = context.sample()
        clusters = self.retry(clusters, context.only(chosen), ask)
        trained = ask({client: Train(clusters.model_of(client)) for client in chosen})
        before = clusters.models
        clusters = self.observed(clusters, trained, context)
        if not self.splits_first:
            clusters = clusters.averaged(trained)
        if self.is_test(context.round):
            clusters = self.tested(clusters, before, context, ask)
        if self.splits_first:
            clusters = clusters.averaged(trained)
        due = self.variant == "re-organised" and clusters.state.merged is None and self.is_complete(clusters)
        if due and set(clusters.members) <= set(before):  # clusters that were just made have not moved yet
            clusters = reorganised(clusters, before)
        return self.with_mistakes(clusters, context)

    def tested(self, clusters: Clusters, before: Mapping[int, np.ndarray], context: RoundContext, ask: Ask) -> Clusters:
        """Look at every cluster, and split those that fall apart."""
        clusters = self.prepared(clusters, context, ask)
        seen = self.known_clusters(clusters, context)
        self.record_evidence(seen, context, ask)
        if clusters.state.merged is not None:
            return clusters  # what was put together on purpose is not split again
        refine = self.variant in ("fine-grained", "personalised") and self.is_complete(clusters)
        if refine and self.variant == "fine-grained":  # once for each cluster, as soon as enough is known of it
            finest = {
                child for branch in clusters.tree if branch["rule"] == self.variant for child in branch["children"]
            }
            seen = {cluster: known for cluster, known in seen.items() if cluster not in finest}
        looks = []
        for cluster, known in seen.items():
            if refine:
                found = self.forced(known, context)
            else:
                clusters, found = self.tried(clusters, cluster, known, context)
            looks.append((found or self.in_one_piece(known)).shown(cluster, known))
            if found is not None:
                clusters = self.split_along(clusters, cluster, found, known, before[cluster], context)
        if looks:
            ask.record("similarity", tests=looks)
        return clusters.remembering(replace(clusters.state, is_refined=True)) if refine else clusters

    def tried(
        self, clusters: Clusters, cluster: int, known: ClusterUpdates, context: RoundContext
    ) -> tuple[Clusters, Found | None]:
        """Where a cluster falls apart, if it is not finished and does, and the clusters with its log kept."""
        logs, members = clusters.state.logs, clusters.members[cluster]
        log = logs.get(cluster) or TestLog(born(clusters, cluster))
        if log.finished is not None and (set(members) - set(log.finished) or self.reopened(known, log)):
            log = TestLog(context.round)
        found = None
        if log.finished is None:
            found, log = self.find(known, log, context)
            if found is None and self.is_finished(log):
                log = replace(log, finished=members)
        return clusters.remembering(replace(clusters.state, logs={**logs, cluster: log})), found

    def is_complete(self, clusters: Clusters) -> bool:
        """Whether no cluster is left that might soon be split."""
        logs = clusters.state.logs
        large = [k for k, part in clusters.members.items() if len(part) >= self.min_size]
        done = [k in logs and (logs[k].finished is not None or self.has_shown_enough(logs[k])) for k in large]
        return clusters.state.is_refined or all(done)

    def known_clusters(self, clusters: Clusters, context: RoundContext) -> dict[int, ClusterUpdates]:
        """Every cluster that enough is known of."""
        updates = {cluster: self.updates_of(clusters, cluster, context) for cluster in sorted(clusters.members)}
        return {cluster: known for cluster, known in updates.items() if known is not None}

    def record_evidence(self, seen: Mapping[int, ClusterUpdates], context: RoundContext, ask: Ask) -> None:
        """What a report can show beside the splits."""

    # Splitting, and mistakes on purpose

    def split_along(
        self,
        clusters: Clusters,
        cluster: int,
        found: Found,
        known: ClusterUpdates,
        model: np.ndarray,
        context: RoundContext,
    ) -> Clusters:
        """Split a cluster in two, and its sides again, until every part found is a cluster of its own."""
        waiting = [(cluster, np.arange(len(known.members)))]
        while waiting:
            parent, rows = waiting.pop(0)
            if (found.labels[rows] == found.labels[rows[0]]).all():
                continue
            sides = [rows[side] for side in halves(found.vectors[rows], found.labels[rows])]
            reference = next((known.members[row] for row in found.ranking if row in rows), None)
            means = [found.vectors[side].mean(axis=0, keepdims=True) for side in sides]
            why = {"rule": found.rule, "reference": reference, "score": found.score}
            names = [known.names(side) for side in sides]
            clusters = self.divided(
                clusters, parent, names, means, model, context, layer=found.layer, look=found.look, why=why
            )
            waiting += zip(clusters.tree[-1]["children"], sides, strict=True)
        return clusters

    def with_mistakes(self, clusters: Clusters, context: RoundContext) -> Clusters:
        """For experiments: once, put some clients into clusters where they do not belong."""
        due = self.misplace > 0 and context.round >= self.misplace_round and len(clusters) > 1
        if not due or clusters.state.misplaced is not None:
            return clusters
        random = context.random("misplace")
        count = round(self.misplace * len(context.clients))
        wrong = [context.clients[k] for k in sorted(random.permutation(len(context.clients))[:count])]
        for client in wrong:
            home = clusters.cluster_of[client]
            others = sorted(k for k in clusters.members if k != home)
            if len(clusters.members[home]) > 1:
                clusters = moved(clusters, client, others[random.integers(len(others))])
        return clusters.remembering(replace(clusters.state, misplaced=tuple(wrong)))


def halves(vectors: np.ndarray, labels: np.ndarray) -> list[np.ndarray]:
    """The rows on either side of the topmost merge of the tree that the labels are a cut of."""
    first = {labels[0]}
    if len(set(labels.tolist())) > 2:
        top = linkage_tree(distance_matrix(vectors), "ward").labels_after(len(labels) - 2)
        inside = {label for label in set(labels.tolist()) if top[labels == label].mean() < 0.5}
        first = inside if inside < set(labels.tolist()) else first
    return [np.flatnonzero(np.isin(labels, list(first))), np.flatnonzero(~np.isin(labels, list(first)))]


def reorganised(clusters: Clusters, before: Mapping[int, np.ndarray]) -> Clusters:
    """Clusters whose models move the same way put together, once: those most alike first, the smaller into the larger.

    Not if a third cluster moves with one of the two and against the other.
    """
    moves = {k: clusters.models[k].astype(np.float64) - before[k] for k in clusters.members}
    alike = {k: dict(zip(moves, cosine(moves[k], np.stack(list(moves.values()))).tolist(), strict=True)) for k in moves}
    home = {k: k for k in moves}
    for one, other in sorted(combinations(moves, 2), key=lambda pair: -alike[pair[0]][pair[1]]):
        conflict = any(alike[one][k] * alike[other][k] < 0 for k in moves if k not in (one, other))
        if alike[one][other] > 0 and not conflict:
            small, large = sorted((home[one], home[other]), key=lambda k: (len(clusters.members[k]), k))
            home = {k: large if at == small else at for k, at in home.items()}
    merged = {k: at for k, at in home.items() if at != k}
    past = clusters.state.past
    for small, large in merged.items():
        rows = [sum(past[c].samples for c in clusters.members[k] if c in past) for k in (small, large)]
        clusters = clusters.merged(large, small, average([clusters.models[k] for k in (small, large)], rows))
    return clusters.remembering(replace(clusters.state, merged=merged))
