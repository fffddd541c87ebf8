"""clade: the method of the house. It finds out whether clients differ, in what, and whether groups explain it.

Before the first round every client tells sums over both halves of its rows, class by class: how many there are, and
sketches of the rows and of what the initial model makes of them. Nothing is trained for it, and it is small beside one
model. The halves tell what is real (`fedclade.clustering.evidence`): clients that are alike, or differ without forming
groups, share one model; groups train a model each. What serves each client in the end is picked by held-out rows
(`fedclade.serving`). Put together from what the papers hold: one shot before the first round (FedClust, AdaCFL),
evidence that must repeat itself (HiCFL), few senders in a cluster (FedSCCS), several models to choose from (FedStack).
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedclade.ask import Ask
from fedclade.clients.tasks import Describe
from fedclade.clustering.automatic import spread
from fedclade.clustering.evidence import Evidence
from fedclade.clustering.many import AT_ONCE, Centres, find_groups_of
from fedclade.clustering.views import (
    Statistics,
    far_beyond,
    form_of,
    is_told_enough,
    overlap_of_classes,
    usual_form,
)
from fedclade.methods.base import (
    About,
    Clusters,
    Count,
    Method,
    Placement,
    RoundContext,
    nearest,
    nobody_answered,
    remembered,
)
from fedclade.methods.evidence import record
from fedclade.models.weights import average

Told = Mapping[str, np.ndarray]
SAME_CLASSES = 0.5  # of the classes that two clusters hold, on average: from here on they do the same task
FEW_SENDERS = 1.5  # of a cluster in a round, on average: the mean of one client's model is no mean
CLOSE = 1e-3  # the square of a distance that is none
FARTHEST = 0.2  # what the farthest member has at least of what members differ by and of chance: few may be near by luck
SOME = 200  # members, beside whom newcomers may be far beyond
ROOM = 1.5  # a newcomer may be so many times as far from a cluster as its farthest member is from the others


@remembered
class Known:
    """What clients told of themselves, and how the clusters follow from it."""

    told: Mapping[str, Mapping[str, np.ndarray]]
    views: tuple[str, ...]  # what the clusters were found by
    pictures: Mapping[str, str]  # of each of these views the one that counted
    weights: Mapping[str, Mapping[str, float]]  # and by what the squares of its layers count
    shares_body: bool = False  # clusters differ in the last layer only
    looked: int = 0  # the round of the last look
    newcomers: int = 0  # since then


class Clade(Method):
    about: ClassVar[About] = About(
        "finds out whether clients differ, in what and in which groups; each is served by what is best for it",
        "ours",
        "the number too",
        "one shot",
        "model, sums over rows",
        formula="D(i, j) = distance of what repeats in both halves of the clients' rows; Ward's tree of D is "
        "cut while a cut explains more than one of a structureless cloud",
        use="first: when you do not know whether clients differ, in what, or into how many groups",
    )
    serving: ClassVar[str] = "pick"
    State: ClassVar[type | None] = Known

    size: Count = 64  # numbers of a sketch
    senders: Annotated[float, Field(gt=0, le=1)] = 1.0  # the share of those who take part that trains and sends
    share_body: bool = True  # clusters by labels may differ in the last layer only (`are_apart`)
    look_again: Annotated[float, Field(gt=0)] = 0.1  # when so many of all clients are new or have changed
    patience: Count = 5  # rounds between two looks

    def start(self, context: RoundContext, ask: Ask) -> Clusters:
        told = self.told(context, ask, "cluster")
        if not told:
            raise nobody_answered(ask)
        strange = far_beyond(told)
        known = {client: one for client, one in told.items() if is_told_enough(one) and client not in strange}
        if not known:  # nobody has two rows: one model for all
            return Clusters.single(context.clients, context.initial)
        clusters = self.looked(Clusters.single(known, context.initial), known, context, ask)
        return self.admit(clusters, set(context.clients) - set(known), context, ask)

    def round(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        clusters = self.retry(clusters, context, ask)
        if self.is_time_to_look(clusters, context):
            here = {c: told for c, told in clusters.state.told.items() if c in clusters.cluster_of}
            clusters = self.looked(clusters, here, context, ask)
        senders = self.sending(clusters, context)
        trained = self.trained(clusters, senders, ask)
        return self.sharing(trained, senders, context, ask) if self.is_body_shared(clusters) else trained

    def is_body_shared(self, clusters: Clusters) -> bool:
        return clusters.state is not None and clusters.state.shares_body

    def are_apart(self, found: Evidence, overlap: float, context: RoundContext) -> bool:
        """Whether clusters train models of their own in all layers.

        Where rows of the same class look different they must. Where shares of labels alone differ, clusters do the same
        task with other odds: only the last layer differs. Clusters that hold other classes do better apart (each has a
        smaller task, which other features solve), if more than one of their members trains in a round.
        """
        senders = context.participation * self.senders * len(context.clients)
        starved = senders < FEW_SENDERS * found.n_clusters
        return not self.share_body or found.views != ("labels",) or (overlap < SAME_CLASSES and not starved)

    def sharing(self, clusters: Clusters, senders: list[str], context: RoundContext, ask: Ask) -> Clusters:
        """All layers but the last become the mean of all clusters', by the rows they were trained on."""
        rows = dict.fromkeys(clusters.members, 0)
        for client in senders:
            if client in ask.trained:
                rows[clusters.cluster_of[client]] += ask.trained[client].n_samples
        heard = [cluster for cluster, count in rows.items() if count]
        if not heard:
            return clusters
        mean = average((clusters.models[cluster] for cluster in heard), [rows[cluster] for cluster in heard])
        head = context.layout.select("head")
        models = {}
        for cluster, model in clusters.models.items():
            models[cluster] = mean.copy()
            models[cluster][head] = model[head]
            ask.stepping.hand_on(model, models[cluster])
        return replace(clusters, models=models)

    def sending(self, clusters: Clusters, context: RoundContext) -> list[str]:
        """Who trains: of each cluster the same share of those who take part, at least one."""
        chosen = context.sample()
        if self.senders == 1:
            return chosen
        random, homes = context.random("senders"), clusters.cluster_of
        kept: set[str] = set()
        for cluster in clusters.members:
            mine = [client for client in chosen if homes[client] == cluster]
            count = max(round(self.senders * len(mine)), 1)
            kept |= {mine[place] for place in random.permutation(len(mine))[:count]}
        return [client for client in chosen if client in kept]

    # The evidence

    def told(
        self, context: RoundContext, ask: Ask, phase: str, known: Mapping[str, Told] | None = None
    ) -> dict[str, Told]:
        """What clients say of their rows; what is of another form than the others' answers counts as a failure."""
        answers = ask(Describe("halves", {"size": self.size}), to=context.clients, phase=phase)
        told: dict[str, Told] = {client: dict(answer.values) for client, answer in answers.items()}
        usual = usual_form(known.values() if known else told.values())
        for client in [client for client, one in told.items() if form_of(one) != usual]:
            ask.failures.append({"client": client, "phase": phase, "failure": "its statistics are of another form"})
            del told[client]
        return told

    def is_time_to_look(self, clusters: Clusters, context: RoundContext) -> bool:
        known: Known | None = clusters.state
        if known is None or context.round < known.looked + self.patience:
            return False
        return known.newcomers >= self.look_again * len(context.clients)

    def looked(self, clusters: Clusters, told: Mapping[str, Told], context: RoundContext, ask: Ask) -> Clusters:
        """The clusters that the evidence shows; each goes on with the model that most of its members had."""
        clients = list(told)
        found, seen = find_groups_of(list(told.values()), context.seed)
        homes = clusters.cluster_of
        groups: dict[int, tuple[str, ...]] = {
            k: tuple(clients[place] for place in np.flatnonzero(found.labels == k)) for k in range(found.n_clusters)
        }
        looks = {view: found.looks[view] for view in found.views}
        counts = np.stack([np.asarray(one["counts"], np.float64) for one in told.values()])
        overlap = overlap_of_classes(counts, found.labels)
        shares_body = found.n_clusters > 1 and not self.are_apart(found, overlap, context)
        shown = looks[found.views[0]].picture if found.views and found.views[0] == "labels" else "features"
        record(found, clients, seen, ask, measure=f"distance of {shown}", overlap=overlap, shares_body=shares_body)
        known = Known(
            told,
            found.views,
            {view: look.picture for view, look in looks.items()},
            {view: dict(look.scales) for view, look in looks.items()},
            shares_body,
            context.round,
        )
        models = {k: clusters.models[most_common(homes[client] for client in part)] for k, part in groups.items()}
        waiting = [client for client in homes if client not in told]  # who has told nothing yet
        made = Clusters(groups, models, unassigned=clusters.unassigned, state=known)
        for client in waiting:
            made = made.joined(client, made.largest, context.initial)
        return made

    # Newcomers

    def place(self, clusters: Clusters, context: RoundContext, ask: Ask) -> dict[str, Placement]:
        """By the same sums. Who is much farther from every cluster than its members are fits none of them."""
        if not has_members(clusters):
            return super().place(clusters, context, ask)
        told, odd = sorted_out(clusters, self.told(context, ask, "place", clusters.state.told))
        return odd | self.placed(clusters, told)

    def placed(self, clusters: Clusters, told: Mapping[str, Told]) -> dict[str, Placement]:
        known: Known = clusters.state
        if not told:
            return {}
        if not known.views or len(clusters.models) == 1:
            return {client: Placement(clusters.largest, {}, "there is one model") for client in told}
        squares, noise, limits, members = distances(clusters, known, told)
        return {
            client: placement(dict(zip(members, row.tolist(), strict=True)), "distance of statistics", limit, by_chance)
            for row, by_chance, limit, client in zip(squares, noise.tolist(), limits.tolist(), told, strict=True)
        }

    def place_unlabelled(
        self, clusters: Clusters, rows: Mapping[str, Mapping[str, np.ndarray]]
    ) -> dict[str, Placement]:
        """By the mean of rows and of what the initial model makes of them, which need no labels.

        `rows` holds these sketches of each newcomer's rows, (rows, numbers) by layer.
        """
        known: Known | None = clusters.state
        if known is None or not known.views or len(clusters.models) == 1:
            only = clusters.largest if clusters.members else next(iter(clusters.models))
            return {client: Placement(only, {}, "there is one model") for client in rows}
        homes = clusters.cluster_of
        clients = [client for client in known.told if client in homes]
        told = Statistics.of([known.told[client] for client in clients])
        members, inside = np.unique([homes[client] for client in clients], return_inverse=True)
        sizes = np.bincount(inside)[inside].astype(float)
        squares, at_home, chance = np.zeros((len(rows), len(members))), np.zeros(len(clients)), 0.0
        of_members = np.zeros((len(clients), len(members)))
        chances = told.chance_of_rows()
        for layer, points in told.rows_alone().items():
            centres = np.stack([points[inside == place].mean(axis=0) for place in range(len(members))])
            apart = ((points - centres[inside]) ** 2).sum(axis=1)
            between = ((centres - centres.mean(axis=0)) ** 2).sum(axis=1).mean()
            # A layer counts by how much farther apart clusters are in it than their members.
            weight = between / max(float(apart.mean()), 1e-12) / max(float(between), 1e-12)
            theirs = np.stack([np.asarray(of[layer], np.float64).mean(axis=0) for of in rows.values()])
            squares += weight * ((theirs[:, None] - centres) ** 2).sum(axis=2)
            of_members += weight * ((points[:, None] - centres) ** 2).sum(axis=2)
            at_home += weight * apart * (sizes / np.maximum(sizes - 1, 1)) ** 2  # from the centre of the others
            chance += weight * chances[layer]
        theirs = np.array([len(next(iter(of.values()))) for of in rows.values()])
        mine, new = chance / np.maximum(told.rows, 1.0), chance / np.maximum(theirs, 1.0)
        limits = np.sqrt(new + room((at_home - mine)[sizes > 1], mine[sizes > 1], new))
        of_members[np.arange(len(clients)), inside] = at_home
        recognised = (of_members.argmin(axis=1) == inside)[sizes > 1]
        share = float(recognised.mean()) if len(recognised) else None
        measure = "distance of rows without labels"
        return {
            client: replace(placement(dict(zip(members.tolist(), row, strict=True)), measure, limit), at_home=share)
            for client, row, limit in zip(rows, squares.tolist(), limits.tolist(), strict=True)
        }

    def admit(self, clusters: Clusters, newcomers: Iterable[str], context: RoundContext, ask: Ask) -> Clusters:
        """Newcomers tell what everybody told, which counts when clusters are looked at again."""
        wanted = set(newcomers)
        new = [client for client in context.clients if client in wanted]
        if not new or not has_members(clusters):
            return super().admit(clusters, new, context, ask)
        known: Known = clusters.state
        told = self.told(context.only(new), ask, "place", known.told)
        enough, odd = sorted_out(clusters, told)
        placements = odd | self.placed(clusters, enough)
        largest = clusters.largest
        for client in new:
            place = placements[client].cluster if client in placements else largest
            clusters = clusters.joined(client, place, context.initial)
        shown = {
            c: {"cluster": p.cluster, "distances": dict(p.distances), "confidence": p.confidence}
            for c, p in placements.items()
        }
        ask.record("placements", **ask.records.get("placements", {}), **shown)
        state = replace(known, told={**known.told, **enough}, newcomers=known.newcomers + len(enough))
        unassigned = tuple(sorted({*clusters.unassigned, *new} - set(told)))  # who has one row stays where it is
        return replace(clusters, unassigned=unassigned, state=state)


def has_members(clusters: Clusters) -> bool:
    """Whether anybody is there whose rows newcomers can be compared with."""
    return clusters.state is not None and any(client in clusters.cluster_of for client in clusters.state.told)


def sorted_out(clusters: Clusters, told: Mapping[str, Told]) -> tuple[dict[str, Told], dict[str, Placement]]:
    """What newcomers tell that can be compared, and where the others go.

    Who has one row tells too little, and goes where most are. Rows in other units, or lies, fit nowhere.
    """
    known = list(clusters.state.told.values())
    strange = far_beyond(told, known[:: max(len(known) // SOME, 1)])
    odd = {
        client: Placement(None, {}, "rows far beyond everybody's")
        if client in strange
        else Placement(clusters.largest, {}, "too few rows to tell, so the largest")
        for client, one in told.items()
        if client in strange or not is_told_enough(one)
    }
    return {client: one for client, one in told.items() if client not in odd}, odd


def placement(squares: Mapping[int, float], measure: str, limit: float, chance: float = 0.0) -> Placement:
    """In the nearest cluster, unless that is beyond the limit; sure by how much farther the next one is.

    Squares of distances are free of chance, and may be below 0; how sure one can be is not free of it.
    """
    order = sorted(np.sqrt(max(square + chance, 0.0)) for square in squares.values())
    sure = float(1 - order[0] / max(order[1], 1e-12)) if len(order) > 1 else None
    near = {cluster: float(np.sqrt(max(square, 0.0))) for cluster, square in squares.items()}
    cluster = nearest(squares)
    return Placement(cluster if near[cluster] <= limit else None, near, measure, limit, sure)


def most_common(values: Iterable[int]) -> int:
    found, counts = np.unique(list(values), return_counts=True)
    return int(found[counts.argmax()])


def distances(
    clusters: Clusters, known: Known, told: Mapping[str, Told]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[int]]:
    """The squares of how far some clients are from each cluster's mean, free of the halves' noise; that of each; and
    how far each may be.

    That is by how far members are from the others of their cluster, which is what they really differ by and chance:
    the fewer rows a newcomer has, the farther chance may carry it. Of very many members some are looked at.
    """
    homes = clusters.cluster_of
    clients = [client for client in known.told if client in homes and client not in told]
    members, inside = np.unique([homes[client] for client in clients], return_inverse=True)
    seen = spread(inside)
    everybody, inside = Statistics.of([known.told[clients[place]] for place in seen]), inside[seen]
    shown, inside = np.unique(inside, return_inverse=True)
    centres = Centres.of(everybody, inside, known.pictures, known.weights)
    at_home, chance = centres.at_home(everybody, inside)
    at_home, chance = (of[~np.isnan(at_home)] for of in (at_home, chance))
    theirs = list(told.values())
    parts = [Statistics.of(theirs[start : start + AT_ONCE]) for start in range(0, len(theirs), AT_ONCE)]
    squares, noise = (np.concatenate(of) for of in zip(*(centres.squares(part) for part in parts), strict=True))
    limits = np.sqrt(room(at_home, chance, noise[:, 0]))
    return squares, noise[:, 0], limits, members[shown].tolist()


def room(at_home: np.ndarray, chance: np.ndarray, of_newcomers: np.ndarray) -> np.ndarray:
    """How far from its cluster each newcomer may be, squared and free of noise.

    Members are so far from the others of their clusters by what they really differ by, and by chance: so much of the
    two as the farthest of them is allowed to newcomers, whose chance is their own.
    """
    real = max(float(np.maximum(at_home, 0.0).mean()) if len(at_home) else 0.0, CLOSE)
    farthest = max(float((at_home / (real + chance)).max(initial=0.0)), FARTHEST)
    return np.asarray(ROOM**2 * farthest * (real + of_newcomers))
