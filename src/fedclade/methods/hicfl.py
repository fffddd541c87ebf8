"""HiCFL: a cluster is split in two as soon as some layer's updates have become stable, long before training converges.

Gong, Xing, Liu, Xi and Chen, "Towards Hierarchical Clustered Federated Learning With Model Stability on Mobile
Devices", IEEE TMC 2024.

Two rules say when and where a cluster is split:

- `rule = "paper"`: when some layer of every member turns steadily (eqs. 12-15). The most stable member is the
  reference; whoever's update has a positive cosine with it stays on its side (eqs. 17, 18). On real data this hardly
  ever happens: some member always has a noisy round, and early in training all updates share a direction.
- `rule = "agreement"` (the default, ours): when the picture of who is near whom repeats itself from round to round.
  Then the rule that all methods share says whether the window's mean directions form groups: see `by_agreement`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedclade.ask import Ask
from fedclade.clients.tasks import Train
from fedclade.clustering.automatic import silhouettes
from fedclade.clustering.bipartition import consistency, references, sign_split
from fedclade.clustering.hierarchy import agglomerate, linkage_tree
from fedclade.clustering.similarity import cosine, cosine_matrix, distance_matrix, informative
from fedclade.methods.base import About, Clusters, RoundContext
from fedclade.methods.splitting import ENOUGH, Look, Splitting, View, born, moved, of_rate
from fedclade.models.weights import average

REOPENS = 0.8  # a finished cluster is looked at again when its consistency falls below this share of what it was


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

    def shown(self, cluster: int, view: View) -> dict[str, Any]:
        """What a report can draw of it."""
        matrix = cosine_matrix(self.vectors)
        shown = {"cluster": cluster, "layer": self.layer, "look": self.look, "clients": list(view.members)}
        if len(self.ranking):
            shown |= {"reference": view.members[self.ranking[0]], "similarity": matrix[self.ranking[0]]}
        return shown | {"labels": self.labels, "matrix": matrix}


@dataclass
class Diary:
    """What the tests of a cluster have shown so far."""

    fired: int  # the last round in which the trigger fired, at first that in which the cluster was made
    attempts: int = 0  # tests that found the cluster in one piece
    unclear: int = 0  # tests that could not tell
    consistent: int = 0  # tests in a row in which its updates agreed
    norms: tuple[float, float] | None = None  # of the mean and the longest update at the last test
    median: float | None = None  # of its members' stability at the last test
    finished: tuple[str, ...] | None = None  # its members when it was found to be finished
    reopens_below: float = 0.0  # of consistency


class HiCFL(Splitting):
    about: ClassVar[About] = About(
        "splits clusters in two once a layer's updates are stable", "Gong et al. 2024", "the number too"
    )

    rule: Literal["agreement", "paper"] = "agreement"  # split by groups in a stable picture, or by steady updates
    agreement: Annotated[float, Field(ge=-1, le=1)] = 0.75  # ours: from here on a layer's picture is stable
    split: Literal["sign", "centered-sign"] = "sign"  # paper: compare updates as they are, or less their mean
    reference: Literal["stable", "random"] = "stable"  # paper: the steadiest client, or any
    references: Annotated[int, Field(ge=1)] = 3  # paper: clients to try as reference at one test
    patience: Annotated[int, Field(ge=0)] = 0  # paper: rounds until a plateau of stability will do; 0: it never does
    stop: Literal["consistency", "norms", "window"] = "consistency"  # paper: when a cluster is not split any more
    rho_stop: Annotated[float, Field(gt=0, le=1)] | None = None  # consistency; None: 0.95, or 0.85 for centred signs
    eps1: Annotated[float, Field(gt=0)] = 0.4  # norms: split only if the mean update is shorter than this
    eps2: Annotated[float, Field(ge=0)] = 1.6  # and the longest update is longer than this, as in CFL
    attempts: Annotated[int, Field(ge=1)] = 3  # a cluster is finished that was stable so often, and in one piece
    unclear: Annotated[int, Field(ge=1)] = 5  # ours: variants wait no longer for one that showed nothing so often
    order: Literal["aggregate-first", "split-first"] = "aggregate-first"  # which comes first in a round
    variant: Literal["plain", "fine-grained", "personalised", "re-organised"] = "plain"  # once all is finished
    correct: bool = True  # ours: members who pull against their cluster look for their place again
    misplace: Annotated[float, Field(ge=0, lt=1)] = 0.0  # experiment: the share of clients put into a wrong cluster
    misplace_round: Annotated[int, Field(ge=1)] = 5  # in this round, or in the first with two clusters after it

    @property
    def depth(self) -> int:
        return super().depth if self.rule == "paper" else max(ENOUGH, self.window)

    def round(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        chosen = self.sample(context)
        clusters = self.retry(clusters, context.only(chosen), ask)
        trained = ask({client: Train(clusters.model_of(client)) for client in chosen})
        before = clusters.models
        clusters = self.remembered(clusters, trained, context)
        if self.order == "aggregate-first":
            clusters = clusters.averaged(trained)
        if self.is_test(context.round):
            clusters = self.tested(clusters, before, context, ask)
        if self.order == "split-first":
            clusters = clusters.averaged(trained)
        due = self.variant == "re-organised" and "merged" not in clusters.notes and self.is_complete(clusters)
        if due and set(clusters.members) <= set(before):  # clusters that were just made have not moved yet
            clusters = reorganised(clusters, before)
        return self.misplaced(clusters, context)

    # A test: shall clusters be split?

    def tested(self, clusters: Clusters, before: Mapping[int, np.ndarray], context: RoundContext, ask: Ask) -> Clusters:
        """Look at every cluster, and split those that fall apart."""
        is_merged = "merged" in clusters.notes
        done = is_merged or clusters.notes.get("refined")
        if self.correct and self.rule == "agreement" and clusters.tree and not done:
            clusters = self.corrected(clusters, context, ask)
        seen = self.views(clusters, context)
        self.record_stability(seen, context, ask)
        if is_merged:
            return clusters  # what was put together on purpose is not split again
        refine = self.variant in ("fine-grained", "personalised") and self.is_complete(clusters)
        if refine and self.variant == "fine-grained":  # once for each cluster, as soon as enough is known of it
            finest = {
                child for branch in clusters.tree if branch["rule"] == self.variant for child in branch["children"]
            }
            seen = {cluster: view for cluster, view in seen.items() if cluster not in finest}
        looks = []
        for cluster, view in seen.items():
            if refine:
                found = self.forced(view, context)
            else:
                clusters, found = self.tried(clusters, cluster, view, context)
            looks.append((found or in_one_piece(view)).shown(cluster, view))
            if found is not None:
                clusters = self.split_along(clusters, cluster, found, view, before[cluster], context)
        if looks:
            ask.record("similarity", tests=looks)
        return clusters.noting(refined=True) if refine else clusters

    def tried(
        self, clusters: Clusters, cluster: int, view: View, context: RoundContext
    ) -> tuple[Clusters, Found | None]:
        """Where a cluster falls apart, if it is not finished and does, and the clusters with its diary kept."""
        diaries = clusters.notes.get("diaries", {})
        diary = Diary(**diaries[cluster]) if cluster in diaries else Diary(born(clusters, cluster))
        rho, members = consistency(view.latest, view.samples), clusters.members[cluster]
        if diary.finished is not None and (rho < diary.reopens_below or set(members) - set(diary.finished)):
            diary = Diary(context.round)
        found = None
        if diary.finished is None:
            found = self.by_paper(view, diary, rho, context) if self.rule == "paper" else self.by_agreement(view, diary)
            if found is None and (diary.attempts >= self.attempts or diary.consistent >= self.window):
                # Consistency falls by itself as training goes on, so it says little of clusters that agree otherwise.
                diary.finished, diary.reopens_below = members, REOPENS * rho if self.rule == "paper" else 0.0
        return clusters.noting(diaries={**diaries, cluster: asdict(diary)}), found

    def is_complete(self, clusters: Clusters) -> bool:
        """Whether no cluster is left that might soon be split."""
        diaries = clusters.notes.get("diaries", {})
        unfinished = [k for k, part in clusters.members.items() if len(part) >= self.min_size]
        done = [k in diaries and (diaries[k]["finished"] or diaries[k]["unclear"] >= self.unclear) for k in unfinished]
        return bool(clusters.notes.get("refined")) or all(done)

    def views(self, clusters: Clusters, context: RoundContext) -> dict[int, View]:
        """Every cluster that enough is known of."""
        views = {cluster: self.view(clusters, cluster, context) for cluster in sorted(clusters.members)}
        return {cluster: view for cluster, view in views.items() if view is not None}

    def record_stability(self, views: Mapping[int, View], context: RoundContext, ask: Ask) -> None:
        if views:
            ask.record(
                "stability",
                clients=[client for view in views.values() for client in view.members],
                clusters=[cluster for cluster, view in views.items() for _ in view.members],
                layers=list(self.watch(context).shapes),
                values=np.concatenate([view.stability for view in views.values()]),
                epsilon=of_rate(self.epsilon, context),
            )

    # Our rule

    def by_agreement(self, view: View, diary: Diary) -> Found | None:
        """Groups, if the picture of who is near whom is stable and shows any.

        Layers are asked from the output down: the last one shows most, and earlier than the others. Each is looked at
        as a whole, where the frequent classes of a client speak loudest, and unit by unit, where every class (or
        filter) has the same say; of two answers the clearer one is taken.
        """
        is_stable = False
        for column, layer in reversed(list(enumerate(view.layers))):
            answers = []
            for look, directions in looks_at(view, layer):
                known = informative(directions).all(axis=0)
                if known.sum() < 3 or agreement(directions[:, known]) < self.agreement:
                    continue
                is_stable = True
                vectors = directions.mean(axis=0)
                distances = distance_matrix(vectors[known])
                labels, _ = agglomerate(distances, "ward", threshold="auto")
                if labels.max() > 0:
                    score = float(silhouettes(distances, labels).mean())
                    everyone = np.full(len(view.members), np.argmax(np.bincount(labels)))
                    everyone[known] = labels
                    ranking = references(view.stability[:, column], len(view.members))
                    answers.append(Found(layer, everyone, vectors, ranking, "agreement", look, score))
            if answers:
                return max(answers, key=lambda found: found.score or 0.0)
        diary.attempts += is_stable
        diary.unclear += not is_stable
        return None

    # The paper's rule

    def by_paper(self, view: View, diary: Diary, rho: float, context: RoundContext) -> Found | None:
        """Two sides by the sign of the cosine with a stable client, if a layer is stable."""
        norms = lengths(view)
        self.stopping(diary, rho, norms)
        steady = self.stable_layers(view, context)
        stable = steady or self.plateau(view, diary, context)
        pulled = norms[0] < self.eps1 and norms[1] > self.eps2
        if diary.consistent >= self.window or not stable or (self.stop == "norms" and not pulled):
            return None
        diary.fired = context.round
        column = view.layers.index(stable[0])
        updates = view.latest[:, view.watch.places[stable[0]]].astype(np.float64)
        if self.split == "centered-sign":
            updates = updates - updates.mean(axis=0)
        ranking = self.ranked(view.stability[:, column], informative(updates), context)
        for place, reference in enumerate(ranking[: self.references]):
            stays = sign_split(updates, int(reference))
            if not stays.all():
                order, rule = np.roll(ranking, -place), "paper" if steady else "plateau"
                return Found(stable[0], (~stays).astype(int), view.watch.seen(view.latest, stable[0]), order, rule)
        diary.attempts += 1
        return None

    def ranked(self, values: np.ndarray, known: np.ndarray, context: RoundContext) -> np.ndarray:
        """The members that can be the reference, the best first."""
        if self.reference == "random":
            return context.random("reference").permutation(np.flatnonzero(known))
        ranking = references(values, len(values))
        return ranking[known[ranking]]

    def stopping(self, diary: Diary, rho: float, norms: tuple[float, float]) -> None:
        """Count the tests in a row in which the cluster's updates agreed, by the stop rule."""
        level = self.rho_stop or (0.85 if self.split == "centered-sign" else 0.95)
        if self.stop == "consistency":
            diary.consistent = diary.consistent + 1 if rho >= level else 0
        elif self.stop == "window" and diary.norms is not None and np.allclose(norms, diary.norms, rtol=0.05, atol=0):
            diary.consistent = self.window
        diary.norms = norms

    def plateau(self, view: View, diary: Diary, context: RoundContext) -> list[str]:
        """The calmest layer, if after long waiting its stability has at least stopped falling."""
        column = calmest(view)
        last, diary.median = diary.median, None
        if column is None:
            return []
        diary.median = float(np.nanmedian(view.stability[:, column]))
        if not self.patience or last is None or context.round - diary.fired < self.patience:
            return []
        return [view.layers[column]] if abs(diary.median - last) < 0.1 * diary.median else []

    def forced(self, view: View, context: RoundContext) -> Found | None:
        """Two sides whether the cluster falls apart or not, by the paper's reference; None if all are the same."""
        column = calmest(view)
        if column is None:
            return None
        layer = view.layers[column]
        updates = view.latest[:, view.watch.places[layer]]
        ranking = self.ranked(view.stability[:, column], informative(updates), context)
        if not len(ranking):
            return None
        stays = sign_split(updates, int(ranking[0]), forced=True)
        vectors = view.watch.seen(view.latest, layer)
        return None if stays.all() else Found(layer, (~stays).astype(int), vectors, ranking, self.variant)

    # Splitting, mistakes on purpose, and mending them

    def split_along(
        self, clusters: Clusters, cluster: int, found: Found, view: View, model: np.ndarray, context: RoundContext
    ) -> Clusters:
        """Split a cluster in two, and its sides again, until every part found is a cluster of its own."""
        waiting = [(cluster, np.arange(len(view.members)))]
        while waiting:
            parent, rows = waiting.pop(0)
            if (found.labels[rows] == found.labels[rows[0]]).all():
                continue
            sides = [rows[side] for side in halves(found.vectors[rows], found.labels[rows])]
            reference = next((view.members[row] for row in found.ranking if row in rows), None)
            means = [found.vectors[side].mean(axis=0, keepdims=True) for side in sides]
            why = {"rule": found.rule, "reference": reference, "score": found.score}
            names = [view.names(side) for side in sides]
            clusters = self.divided(
                clusters, parent, names, means, model, context, layer=found.layer, look=found.look, why=why
            )
            waiting += zip(clusters.tree[-1]["children"], sides, strict=True)
        return clusters

    def misplaced(self, clusters: Clusters, context: RoundContext) -> Clusters:
        """For experiments: once, put some clients into clusters where they do not belong."""
        due = self.misplace > 0 and context.round >= self.misplace_round and len(clusters) > 1
        if not due or "misplaced" in clusters.notes:
            return clusters
        random = context.random("misplace")
        count = round(self.misplace * len(context.clients))
        wrong = [context.clients[k] for k in sorted(random.permutation(len(context.clients))[:count])]
        for client in wrong:
            home = clusters.cluster_of[client]
            others = sorted(k for k in clusters.members if k != home)
            if len(clusters.members[home]) > 1:
                clusters = moved(clusters, client, others[random.integers(len(others))])
        return clusters.noting(misplaced=wrong)

    def corrected(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        """Send members who are in the wrong place down the tree again, like newcomers."""
        astray = {client for view in self.views(clusters, context).values() for client in strangers(view)}
        if not astray:
            return clusters
        homes, placements = clusters.cluster_of, self.place(clusters, context.only(astray), ask)
        moves = {c: p.cluster for c, p in placements.items() if p.cluster is not None and p.cluster != homes[c]}
        for client, cluster in moves.items():
            clusters = moved(clusters, client, cluster)
        ask.record("corrections", astray=sorted(astray), moves=moves)
        return clusters


def strangers(view: View) -> list[str]:
    """Members whose updates point away from the others', who agree among themselves."""
    directions = view.watch.seen(view.history, view.layers[-1]).mean(axis=0)
    known = np.flatnonzero(informative(directions))
    if len(known) < 4:
        return []
    alike = cosine_matrix(directions[known])
    np.fill_diagonal(alike, 0.0)
    own, pairs = alike.sum(axis=1), len(known) - 1
    rest = (alike.sum() - 2 * own) / (pairs * (pairs - 1))
    return list(view.names(known[(own < 0) & (rest > 0)]))


def looks_at(view: View, layer: str) -> Iterator[tuple[Look, np.ndarray]]:
    """A layer's updates as directions (rounds, members, numbers), in every way to look at them."""
    yield "whole", view.watch.seen(view.history, layer)
    if view.watch.has_units(layer):
        yield "units", view.watch.seen(view.history, layer, "units")


def agreement(directions: np.ndarray) -> float:
    """How well the distances between clients repeat: their mean correlation from one round to the next.

    Clients with the same distribution are all equally far apart, up to noise, and noise does not repeat.
    """
    pairs = np.triu_indices(directions.shape[1], 1)
    distances = np.stack([distance_matrix(one)[pairs] for one in directions])
    distances -= distances.mean(axis=1, keepdims=True)
    return float(cosine(distances[:-1], distances[1:]).mean())


def halves(vectors: np.ndarray, labels: np.ndarray) -> list[np.ndarray]:
    """The rows on either side of the topmost merge of the tree that the labels are a cut of."""
    first = {labels[0]}
    if len(set(labels.tolist())) > 2:
        top = linkage_tree(distance_matrix(vectors), "ward").labels_after(len(labels) - 2)
        inside = {label for label in set(labels.tolist()) if top[labels == label].mean() < 0.5}
        first = inside if inside < set(labels.tolist()) else first
    return [np.flatnonzero(np.isin(labels, list(first))), np.flatnonzero(~np.isin(labels, list(first)))]


def in_one_piece(view: View) -> Found:
    """A cluster that is not split, as its last layer shows it."""
    vectors = view.watch.seen(view.history, view.layers[-1]).mean(axis=0)
    ranking = references(view.stability[:, -1], len(view.members))
    return Found(view.layers[-1], np.zeros(len(view.members), np.int64), vectors, ranking, "none")


def calmest(view: View) -> int | None:
    """The column of the layer that is most stable on average; None if no client has a stability."""
    known = [place for place, values in enumerate(view.stability.T) if not np.isnan(values).all()]
    return min(known, key=lambda place: float(np.nanmean(view.stability[:, place])), default=None)


def lengths(view: View) -> tuple[float, float]:
    """Length of the cluster's mean update, and of the longest one."""
    updates = view.latest.astype(np.float64)
    mean = np.average(updates, axis=0, weights=view.samples)
    return float(np.linalg.norm(mean)), float(np.linalg.norm(updates, axis=1).max())


def reorganised(clusters: Clusters, before: Mapping[int, np.ndarray]) -> Clusters:
    """Clusters whose models move the same way put together, once: the smaller joins the larger most like it.

    Not if a third cluster moves with the smaller but against the larger.
    """
    moves = {k: clusters.models[k].astype(np.float64) - before[k] for k in clusters.members}
    alike = {k: dict(zip(moves, cosine(moves[k], np.stack(list(moves.values()))).tolist(), strict=True)) for k in moves}
    by_size = sorted(moves, key=lambda k: (len(clusters.members[k]), k))
    merged: dict[int, int] = {}
    for place, small in enumerate(by_size):
        for large in sorted(by_size[place + 1 :], key=lambda k: (-alike[small][k], k)):
            busy = {*merged, *merged.values()} & {small, large}
            conflict = any(alike[small][k] > 0 and alike[large][k] < 0 for k in moves if k not in (small, large))
            if alike[small][large] > 0 and not busy and not conflict:
                merged[small] = large
    memory, members, models = clusters.notes["memory"], dict(clusters.members), dict(clusters.models)
    for small, large in merged.items():
        rows = [sum(memory[c]["samples"] for c in members[k] if c in memory) for k in (small, large)]
        models[large] = average([models.pop(small), models[large]], rows)
        members[large] = (*members[large], *members.pop(small))
    return replace(clusters, members=members, models=models).noting(merged=merged)
