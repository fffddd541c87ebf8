"""What methods share that split clusters in two while they train: all clients start in one cluster.

They look at updates: what training changed in the model that a client was given. The server keeps the last few of every
client (`depth`), which costs 4 bytes * clients * depth * numbers in the watched layers, in memory and in every
checkpoint: for large models, watch fewer (`layers = "head"`). For each split it keeps what tells the two sides apart,
so that a newcomer can find its way down the tree.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from fedclade.ask import Ask, TrainedClients
from fedclade.clients.tasks import LOCAL, Layers, Train
from fedclade.clustering.similarity import cosine, directions
from fedclade.methods.base import Clusters, Method, Placement, RoundContext, remembered
from fedclade.models.weights import Layout

Look = Literal["whole", "units"]


@remembered
class PastUpdates:
    """What the server keeps of one client."""

    rounds: tuple[int, ...] = ()
    updates: tuple[np.ndarray, ...] = ()  # of the watched layers, the latest last
    samples: int = 0
    mask: np.ndarray | None = None  # the weights that count for its stability, where that is looked at

    def since(self, round: int) -> list[np.ndarray]:
        """The updates of later rounds, in order."""
        return [update for when, update in zip(self.rounds, self.updates, strict=True) if when > round]


@remembered
class Fork:
    """Where a cluster was split: the model of that time, and what tells the sides apart."""

    model: np.ndarray
    round: int
    layer: str | None
    look: Look
    sides: Mapping[int, np.ndarray]  # of each child: directions of its members


@remembered
class Observed:
    """What a splitting method remembers."""

    past: Mapping[str, PastUpdates]
    forks: Mapping[int, Fork]
    merged: Mapping[int, int] | None = None  # clusters that were put together again: where each one went


@dataclass(frozen=True)
class WatchedLayers:
    """The part of a model that is looked at, layer by layer; a watched vector holds these layers side by side."""

    shapes: dict[str, tuple[tuple[int, ...], ...]]  # the tensors of each layer
    index: np.ndarray  # where a watched vector's numbers stand in the whole model

    @classmethod
    def of(cls, layout: Layout, layers: Layers, weights_only: bool) -> "WatchedLayers":
        chosen = layout.layers if layers is None else ([layers] if isinstance(layers, str) else layers)
        names = [layout.head if name == "head" else name for name in chosen]
        layout.select(tuple(names))  # a layer that is not there is named
        shapes: dict[str, tuple[tuple[int, ...], ...]] = {}
        places = []
        for (name, place), shape in zip(layout.slices.items(), layout.shapes, strict=True):
            layer, _, tensor = name.rpartition(".")
            layer = layer or name
            wanted = place.start < layout.n_parameters and layer in names
            if wanted and (tensor.startswith("weight") or not weights_only):
                shapes[layer] = (*shapes.get(layer, ()), shape)
                places.append(np.arange(place.start, place.stop))
        return cls(shapes, np.concatenate(places))

    @cached_property
    def places(self) -> dict[str, slice]:
        """Where each layer stands in a watched vector."""
        places, start = {}, 0
        for layer, shapes in self.shapes.items():
            size = sum(prod(shape) for shape in shapes)
            places[layer] = slice(start, start + size)
            start += size
        return places

    def has_units(self, layer: str) -> bool:
        """Whether a layer has output units with several numbers each (a neuron's weights, a filter)."""
        return len({shape[0] for shape in self.shapes[layer]}) == 1 and any(len(s) > 1 for s in self.shapes[layer])

    def seen(self, updates: np.ndarray, layer: str | None, look: Look = "whole") -> np.ndarray:
        """Watched vectors (last axis) as directions: of all layers or one, as a whole or unit by unit.

        Unit by unit, each output unit's part has the same length: a class counts that a client has few rows of.
        """
        if layer is not None:
            updates = updates[..., self.places[layer]]
        if look == "whole" or layer is None:
            return directions(updates)
        parts, start = [], 0
        for shape in self.shapes[layer]:
            part = updates[..., start : start + prod(shape)]
            parts.append(part.reshape(*updates.shape[:-1], shape[0], -1))
            start += prod(shape)
        units = directions(np.concatenate(parts, axis=-1))
        return directions(units.reshape(*updates.shape[:-1], -1))


@dataclass(frozen=True)
class ClusterUpdates:
    """What the server knows of one cluster at a test: the updates of those members who have sent enough of them."""

    members: tuple[str, ...]
    history: np.ndarray  # (rounds, members, watched numbers), the latest round last
    samples: np.ndarray  # (members,) rows of each
    masks: np.ndarray  # (members, watched numbers) the weights that count for each one's stability
    watched: WatchedLayers

    @property
    def layers(self) -> list[str]:
        return list(self.watched.shapes)

    @property
    def latest(self) -> np.ndarray:
        return self.history[-1]

    def names(self, rows: Iterable[int] | np.ndarray) -> tuple[str, ...]:
        return tuple(self.members[row] for row in rows)


class Splitting(Method):
    """A method that splits clusters. The settings say which updates are looked at."""

    State = Observed

    layers: str | tuple[str, ...] | None = None  # the layers to look at; fewer need less memory
    weights_only: bool = False  # leave biases out
    min_size: Annotated[int, Field(ge=2)] = 2  # smaller clusters are not split
    quorum: Annotated[float, Field(gt=0, le=1)] = 0.8  # of a cluster's members must have been seen lately
    stale: Annotated[int, Field(ge=1)] | None = None  # rounds until an update is too old; None: it depends

    @property
    def depth(self) -> int:
        """How many updates of each client are kept."""
        return 1

    @property
    def enough(self) -> int:
        """How many fresh updates a client must have sent to be seen."""
        return 1

    def oldest(self, context: RoundContext) -> int:
        """The round up to which updates are too old to be looked at."""
        return context.round - (self.stale or math.ceil(3 * self.depth / context.participation))

    def watched(self, context: RoundContext) -> WatchedLayers:
        return WatchedLayers.of(context.layout, self.layers, self.weights_only)

    def start(self, context: RoundContext, ask: Ask) -> Clusters:
        return super().start(context, ask).remembering(self.nothing_seen())

    def nothing_seen(self) -> Observed:
        return Observed({}, {})

    # What the server remembers

    def observed(self, clusters: Clusters, trained: TrainedClients, context: RoundContext) -> Clusters:
        """With this round's updates among those that are kept."""
        watched, home = self.watched(context), clusters.cluster_of
        past = {client: kept for client, kept in clusters.state.past.items() if client in home}
        for client, answer in trained.items():
            before = past.get(client, PastUpdates())
            update = answer.weights[watched.index] - clusters.models[home[client]][watched.index]
            kept = PastUpdates(
                (*before.rounds, context.round)[-self.depth :],
                (*before.updates, update)[-self.depth :],
                answer.n_samples,
                before.mask,
            )
            past[client] = self.masked(kept, born(clusters, home[client]), watched, context)
        return clusters.remembering(replace(clusters.state, past=past))

    def masked(self, past: PastUpdates, since: int, watched: WatchedLayers, context: RoundContext) -> PastUpdates:
        """With the weights chosen that count for stability, where a method looks at that."""
        return past

    def updates_of(self, clusters: Clusters, cluster: int, context: RoundContext) -> ClusterUpdates | None:
        """What is known of a cluster, or None while too few of its members have been seen lately."""
        past, members, since = clusters.state.past, clusters.members[cluster], self.oldest(context)
        fresh = {client: past[client].since(since) for client in members if client in past}
        seen = tuple(client for client in fresh if len(fresh[client]) >= self.enough)
        if len(members) < self.min_size or len(seen) < 2 or len(seen) < self.quorum * len(members):
            return None
        length = min(len(fresh[client]) for client in seen)
        history = np.stack([np.stack(fresh[client][-length:]) for client in seen], axis=1)
        watched = self.watched(context)
        everything = np.ones(len(watched.index), np.bool_)
        masks = np.stack([everything if (mask := past[client].mask) is None else mask for client in seen])
        return ClusterUpdates(seen, history, np.array([past[client].samples for client in seen]), masks, watched)

    # Splits, and the way down their tree

    def divided(
        self,
        clusters: Clusters,
        parent: int,
        sides: Sequence[Sequence[str]],
        vectors: Sequence[np.ndarray],
        model: np.ndarray,
        context: RoundContext,
        *,
        layer: str | None = None,
        look: Look = "whole",
        why: Mapping[str, Any] | None = None,
    ) -> Clusters:
        """Split a cluster in two. `vectors` tell the sides apart: whoever is on none of them joins the more similar.

        Members without any update wait on the larger side to be assigned.
        """
        watched, past = self.watched(context), dict(clusters.state.past)
        parts = [list(side) for side in sides]
        placed = {client for side in sides for client in side}
        unassigned = set(clusters.unassigned)
        for client in clusters.members[parent]:
            if client not in placed and client in past:
                update = watched.seen(past[client].updates[-1], layer, look)
                parts[int(np.argmax([resemblance(update, rows) for rows in vectors]))].append(client)
            elif client not in placed:
                parts[int(len(sides[1]) > len(sides[0]))].append(client)
                unassigned.add(client)
        order = {client: place for place, client in enumerate(clusters.members[parent])}
        parts = [sorted(part, key=order.__getitem__) for part in parts]
        clusters = clusters.split(parent, parts, context.round, layer=layer, **(why or {}))
        children = clusters.tree[-1]["children"]
        known = {child: rows.astype(np.float32) for child, rows in zip(children, vectors, strict=True)}
        forks = {**clusters.state.forks, parent: Fork(model, context.round, layer, look, known)}
        # Which weights are unstable is another question in a new cluster.
        past |= {client: replace(past[client], mask=None) for part in parts for client in part if client in past}
        clusters = clusters.remembering(replace(clusters.state, past=past, forks=forks))
        return replace(clusters, unassigned=tuple(sorted(unassigned)))

    def place(self, clusters: Clusters, context: RoundContext, ask: Ask) -> dict[str, Placement]:
        """Newcomers walk down the tree of splits: they train as the members did and go with the more similar side."""
        forks: Mapping[int, Fork] = clusters.state.forks
        if not forks:
            return super().place(clusters, context, ask)
        watched, at = self.watched(context), dict.fromkeys(context.clients, min(forks))
        lost: dict[str, dict[int, float]] = {client: {} for client in at}
        updates: dict[str, tuple[int, np.ndarray]] = {}
        while walking := {client: forks[node] for client, node in at.items() if node in forks}:
            # Splits of one round share the model that was trained: its update serves for all of them.
            due = {client: fork for client, fork in walking.items() if updates.get(client, (0,))[0] != fork.round}
            updates |= self.trained_at(due, clusters, context, ask)
            for client, fork in walking.items():
                if client not in updates or updates[client][0] != fork.round:
                    at.pop(client)  # it did not answer
                    continue
                update = watched.seen(updates[client][1], fork.layer, fork.look)
                alike = {child: resemblance(update, rows) for child, rows in fork.sides.items()}
                best = max(alike.values())
                lost[client] |= {child: best - value for child, value in alike.items()}
                at[client] = min(child for child, value in alike.items() if value == best)
        return {client: self._placement(clusters, node, lost[client]) for client, node in at.items()}

    def trained_at(
        self, forks: Mapping[str, Fork], clusters: Clusters, context: RoundContext, ask: Ask
    ) -> dict[str, tuple[int, np.ndarray]]:
        """The round of each client's fork in the tree, and its update from the model that was trained there."""
        known = clusters.state.past  # members who look for another place keep their own model
        tasks = {
            client: Train(fork.model, upload=fork.layer, save="" if client in known else LOCAL)
            for client, fork in forks.items()
        }
        updates = {}
        for client, answer in ask(tasks, phase="place").items():
            fork = forks[client]
            after = np.array(fork.model)
            after[context.layout.select(fork.layer)] = answer.weights
            updates[client] = fork.round, (after - fork.model)[self.watched(context).index]
        return updates

    def _placement(self, clusters: Clusters, node: int, lost: dict[int, float]) -> Placement:
        """A newcomer at a leaf; the distance of a leaf is what similarity the way to it would have cost."""
        parents = {child: branch["parent"] for branch in clusters.tree for child in branch["children"]}
        merged: Mapping[int, int] = clusters.state.merged or {}
        distances: dict[int, float] = {}
        for leaf in [k for k in {*parents} if k not in set(parents.values())]:
            far, step = 0.0, leaf
            while step in parents:
                far, step = far + lost.get(step, 0.0), parents[step]
            home = followed(leaf, merged)
            distances[home] = min(far, distances.get(home, np.inf))
        return Placement(followed(node, merged), distances, "cosine lost on the way down the tree")

    def admit(self, clusters: Clusters, newcomers: Iterable[str], context: RoundContext, ask: Ask) -> Clusters:
        """Newcomers bring no past: what they sent before belongs to other data or to another cluster."""
        newcomers = list(newcomers)
        return forgetting(super().admit(clusters, newcomers, context, ask), newcomers)


def resemblance(update: np.ndarray, rows: np.ndarray) -> float:
    """The cosine with the most similar of some rows."""
    return float(cosine(update, rows).max())


def followed(cluster: int, merged: Mapping[int, int]) -> int:
    """Where a cluster's clients are now, if it was merged into another."""
    while cluster in merged:
        cluster = merged[cluster]
    return cluster


def born(clusters: Clusters, cluster: int) -> int:
    """The round in which a cluster was made; 0 for those of the start."""
    return max((branch["round"] for branch in clusters.tree if cluster in branch["children"]), default=0)


def forgetting(clusters: Clusters, clients: Iterable[str]) -> Clusters:
    """Without the updates of some clients."""
    gone = set(clients)
    past = {client: kept for client, kept in clusters.state.past.items() if client not in gone}
    return clusters.remembering(replace(clusters.state, past=past)) if gone else clusters


def moved(clusters: Clusters, client: str, cluster: int) -> Clusters:
    """With a client in another cluster, without its past."""
    members = {k: tuple(c for c in part if c != client) for k, part in clusters.members.items()}
    members[cluster] = (*members.get(cluster, ()), client)
    return forgetting(replace(clusters, members={k: part for k, part in members.items() if part}), [client])
