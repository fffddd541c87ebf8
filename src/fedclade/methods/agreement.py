"""Agreement: our rule for HiCFL's loop. A cluster is split when the picture of who is near whom repeats itself.

HiCFL (see `hicfl`) waits until every member's updates turn steadily. Here a layer is believed when the distances
between the members' updates are the same from round to round: clients of one distribution are all equally far apart,
up to noise, and noise does not repeat. Then the rule that all methods share says whether the window's mean directions
form groups.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedclade.ask import Ask
from fedclade.clustering.automatic import silhouettes, totals
from fedclade.clustering.hierarchy import agglomerate, linkage_tree
from fedclade.clustering.similarity import cosine, cosine_matrix, distance_matrix, informative
from fedclade.methods.base import About, Clusters, Count, RoundContext
from fedclade.methods.hierarchical import Found, Hierarchical, TestLog
from fedclade.methods.splitting import ClusterUpdates, Look, moved

ENOUGH = 3  # rounds of updates: what is compared must repeat


class Agreement(Hierarchical):
    about: ClassVar[About] = About(
        "splits clusters along groups that show again and again in the updates of a layer",
        "ours",
        "the number too",
        formula="corr(D_t, D_t+1) >= agreement over a window, D_t the distances of the members' updates in "
        "round t; then Ward's tree of the mean directions is cut",
        use="as HiCFL, with few rows a client",
    )

    window: Count = 3  # rounds over which updates are looked at, and from one test to the next
    agreement: Annotated[float, Field(ge=-1, le=1)] = 0.75  # from here on a layer's picture is stable
    unclear: Count = 5  # variants wait no longer for a cluster that showed nothing so often
    correct: bool = True  # members who pull against their cluster look for their place again

    @property
    def depth(self) -> int:
        return max(ENOUGH, self.window)

    @property
    def enough(self) -> int:
        return ENOUGH

    def oldest(self, context: RoundContext) -> int:
        """Age is counted in the rounds that a client takes part in: where few do, updates are of long ago."""
        return context.round - (self.stale or math.ceil(3 * self.window / context.participation))

    def is_test(self, round: int) -> bool:
        return round >= ENOUGH and round % self.window == 0

    def find(self, known: ClusterUpdates, log: TestLog, context: RoundContext) -> tuple[Found | None, TestLog]:
        """Groups, if the picture of who is near whom is stable and shows any.

        Layers are asked from the output down: the last one shows most, and earlier than the others. Each is looked at
        as a whole, where the frequent classes of a client speak loudest, and unit by unit, where every class (or
        filter) has the same say; of two answers the clearer one is taken.
        """
        is_stable = False
        for layer in reversed(known.layers):
            answers = []
            for look, directions in looks_at(known, layer):
                clear = informative(directions).all(axis=0)
                if clear.sum() < 3 or agreement(directions[:, clear]) < self.agreement:
                    continue
                is_stable = True
                vectors = directions.mean(axis=0)
                distances = distance_matrix(vectors[clear])
                labels, _ = agglomerate(distances, "ward", threshold="auto")
                if labels.max() > 0:
                    score = float(silhouettes(totals(distances, labels), labels).mean())
                    everyone = np.full(len(known.members), np.argmax(np.bincount(labels)))
                    everyone[clear] = labels
                    answers.append(Found(layer, everyone, vectors, np.empty(0, np.int64), "agreement", look, score))
            if answers:
                return max(answers, key=lambda found: found.score or 0.0), log
        return None, replace(log, attempts=log.attempts + is_stable, unclear=log.unclear + (not is_stable))

    def has_shown_enough(self, log: TestLog) -> bool:
        return log.unclear >= self.unclear

    def forced(self, known: ClusterUpdates, context: RoundContext) -> Found | None:
        """The two sides at the top of the tree of the last layer's mean directions; None if all are the same."""
        layer = known.layers[-1]
        vectors = known.watched.seen(known.history, layer).mean(axis=0)
        distances = distance_matrix(vectors)
        if not distances.any():
            return None
        labels = linkage_tree(distances, "ward").labels_after(len(vectors) - 2)
        return Found(layer, labels, vectors, np.empty(0, np.int64), self.variant)

    def record_evidence(self, seen: Mapping[int, ClusterUpdates], context: RoundContext, ask: Ask) -> None:
        """How well each layer's picture repeats: from `agreement` on it is believed."""
        rows = []
        for cluster, known in seen.items():
            for layer in known.layers:
                for look, directions in looks_at(known, layer):
                    clear = informative(directions).all(axis=0)
                    value = agreement(directions[:, clear]) if clear.sum() >= 3 else float("nan")
                    rows.append({"cluster": cluster, "layer": layer, "look": look, "agreement": value})
        if rows:
            ask.record("agreement", rows=rows, needed=self.agreement)

    def prepared(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        done = clusters.state.merged is not None or clusters.state.is_refined
        return self.corrected(clusters, context, ask) if self.correct and clusters.tree and not done else clusters

    def corrected(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        """Send members who are in the wrong place down the tree again, like newcomers."""
        astray = {client for known in self.known_clusters(clusters, context).values() for client in strangers(known)}
        if not astray:
            return clusters
        homes, placements = clusters.cluster_of, self.place(clusters, context.only(astray), ask)
        moves = {c: p.cluster for c, p in placements.items() if p.cluster is not None and p.cluster != homes[c]}
        for client, cluster in moves.items():
            clusters = moved(clusters, client, cluster)
        ask.record("corrections", astray=sorted(astray), moves=moves)
        return clusters


def strangers(known: ClusterUpdates) -> list[str]:
    """Members whose updates point away from the others', who agree among themselves."""
    directions = known.watched.seen(known.history, known.layers[-1]).mean(axis=0)
    clear = np.flatnonzero(informative(directions))
    if len(clear) < 4:
        return []
    alike = cosine_matrix(directions[clear])
    np.fill_diagonal(alike, 0.0)
    own, pairs = alike.sum(axis=1), len(clear) - 1
    rest = (alike.sum() - 2 * own) / (pairs * (pairs - 1))
    return list(known.names(clear[(own < 0) & (rest > 0)]))


def looks_at(known: ClusterUpdates, layer: str) -> Iterator[tuple[Look, np.ndarray]]:
    """A layer's updates as directions (rounds, members, numbers), in every way to look at them."""
    yield "whole", known.watched.seen(known.history, layer)
    if known.watched.has_units(layer):
        yield "units", known.watched.seen(known.history, layer, "units")


def agreement(directions: np.ndarray) -> float:
    """How well the distances between clients repeat: their mean correlation from one round to the next."""
    pairs = np.triu_indices(directions.shape[1], 1)
    distances = np.stack([distance_matrix(one)[pairs] for one in directions])
    distances -= distances.mean(axis=1, keepdims=True)
    return float(cosine(distances[:-1], distances[1:]).mean())
