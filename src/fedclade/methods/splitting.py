"""What HiCFL and Sattler's CFL share: all clients start in one cluster, and clusters are split in two while they train.

Both look at updates: what training changed in the model that a client was given. The server keeps the last few of every
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
from fedclade.clustering.bipartition import changed_weights, is_stable, windowed_stability
from fedclade.clustering.similarity import cosine, directions
from fedclade.methods.base import Clusters, Method, Placement, RoundContext
from fedclade.models.weights import Layout

OfRate = Annotated[str, Field(pattern=r"^\d*\.?\d+ ?\* ?lr$")]  # a multiple of the clients' learning rate: "0.5*lr"
Look = Literal["whole", "units"]

ENOUGH = 3  # updates: with fewer, a client has no stability


def of_rate(value: float | str, context: RoundContext) -> float:
    """A threshold as a number: as it is, or as a multiple of the learning rate."""
    if isinstance(value, str):
        return float(value.partition("*")[0]) * context.training.learning_rate
    return value


@dataclass(frozen=True)
class Watch:
    """The part of a model that is looked at, layer by layer; a watched vector holds these layers side by side."""

    shapes: dict[str, tuple[tuple[int, ...], ...]]  # the tensors of each layer
    index: np.ndarray  # where a watched vector's numbers stand in the whole model

    @classmethod
    def of(cls, layout: Layout, layers: Layers, weights_only: bool) -> "Watch":
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
class View:
    """What the server knows of one cluster at a test: the updates of those members who have sent enough of them."""

    members: tuple[str, ...]
    history: np.ndarray  # (rounds, members, watched numbers), the latest round last
    stability: np.ndarray  # (members, layers), NaN where a client's updates have no direction
    samples: np.ndarray  # (members,) rows of each
    watch: Watch

    @property
    def layers(self) -> list[str]:
        return list(self.watch.shapes)

    @property
    def latest(self) -> np.ndarray:
        return self.history[-1]

    def names(self, rows: Iterable[int] | np.ndarray) -> tuple[str, ...]:
        return tuple(self.members[row] for row in rows)


class Splitting(Method):
    """A method that splits clusters. The settings are those of looking at updates over a window of rounds."""

    window: Annotated[int, Field(ge=1)] = 3  # rounds over which updates are looked at
    tests: Literal["block", "sliding"] = "block"  # look every `window` rounds, or in every round once there are enough
    epsilon: Annotated[float, Field(gt=0)] | OfRate = "0.5*lr"  # a client whose stability is below is stable
    share: Annotated[float, Field(gt=0, le=1)] = 1.0  # of a cluster's members must be stable
    xi: Annotated[float, Field(ge=0)] | OfRate = "0.05*lr"  # weights whose update changes less do not count; 0: all do
    signed: bool = False  # take xi by the letter of the paper, without absolute values
    layers: str | tuple[str, ...] | None = None  # the layers to look at; fewer need less memory
    weights_only: bool = False  # leave biases out
    min_size: Annotated[int, Field(ge=2)] = 2  # smaller clusters are not split
    quorum: Annotated[float, Field(gt=0, le=1)] = 0.8  # of a cluster's members must have been seen lately
    stale: Annotated[int, Field(ge=3)] | None = None  # rounds until an update is too old; None: 3 * window / fraction

    def watch(self, context: RoundContext) -> Watch:
        return Watch.of(context.layout, self.layers, self.weights_only)

    @property
    def depth(self) -> int:
        """How many updates of each client are kept."""
        return max(ENOUGH, self.window + 2)

    @property
    def enough(self) -> int:
        """How many fresh updates a client must have sent to be seen."""
        return ENOUGH

    def is_test(self, round: int) -> bool:
        if self.tests == "block":
            return round >= ENOUGH and round % self.window == 0
        return round >= self.window + 2

    # What the server remembers

    def remembered(self, clusters: Clusters, trained: TrainedClients, context: RoundContext) -> Clusters:
        """With this round's updates among those that are kept, and each client's mask where it is due."""
        watch, cluster_of = self.watch(context), clusters.cluster_of
        memory = {client: past for client, past in clusters.notes.get("memory", {}).items() if client in cluster_of}
        for client, answer in trained.items():
            home = cluster_of[client]
            past = memory.get(client, {"rounds": [], "updates": [], "kept": None})
            update = answer.weights[watch.index] - clusters.models[home][watch.index]
            memory[client] = {
                "rounds": [*past["rounds"], context.round][-self.depth :],
                "updates": [*past["updates"], update][-self.depth :],
                "kept": past["kept"],
                "samples": answer.n_samples,
            }
            if memory[client]["kept"] is None:
                memory[client]["kept"] = self.selected(memory[client], born(clusters, home), watch, context)
        return clusters.noting(memory=memory)

    def selected(self, past: Mapping[str, Any], since: int, watch: Watch, context: RoundContext) -> np.ndarray | None:
        """The weights that count for a client's stability, by its first two updates since its cluster was made."""
        new = recent(past, since)
        if len(new) < 2:
            return None
        xi = of_rate(self.xi, context)
        return np.concatenate(
            [changed_weights(new[-2][place], new[-1][place], xi, self.signed) for place in watch.places.values()]
        )

    def view(self, clusters: Clusters, cluster: int, context: RoundContext) -> View | None:
        """What is known of a cluster, or None while too few of its members have been seen lately."""
        # Age is counted in the rounds that a client takes part in: where few do, updates are of long ago.
        since = context.round - (self.stale or math.ceil(3 * self.window / self.fraction))
        memory, members = clusters.notes.get("memory", {}), clusters.members[cluster]
        fresh = {client: recent(memory[client], since) for client in members if client in memory}
        seen = tuple(client for client in fresh if len(fresh[client]) >= self.enough)
        if len(members) < self.min_size or len(seen) < 2 or len(seen) < self.quorum * len(members):
            return None
        length = min(len(fresh[client]) for client in seen)
        history = np.stack([np.stack(fresh[client][-length:]) for client in seen], axis=1)
        watch = self.watch(context)
        everything = np.ones(len(watch.index), np.bool_)
        kept = np.stack([everything if memory[client]["kept"] is None else memory[client]["kept"] for client in seen])
        stability = np.full((len(seen), len(watch.places)), np.nan)
        if length >= ENOUGH:
            for column, place in enumerate(watch.places.values()):
                stability[:, column] = windowed_stability(history[:, :, place], self.window, kept[:, place])
        return View(seen, history, stability, np.array([memory[client]["samples"] for client in seen]), watch)

    def stable_layers(self, view: View, context: RoundContext) -> list[str]:
        """The layers that are stable for the cluster, the most stable first; of equals, the one nearest the output."""
        epsilon, found = of_rate(self.epsilon, context), []
        for place, (layer, values) in enumerate(zip(view.layers, view.stability.T, strict=True)):
            if is_stable(values, epsilon, self.share):
                found.append((np.nanmean(values), -place, layer))
        return [layer for _, _, layer in sorted(found)]

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

        Members without any update wait on the larger side for their place.
        """
        watch, memory = self.watch(context), dict(clusters.notes["memory"])
        parts = [list(side) for side in sides]
        placed = {client for side in sides for client in side}
        unassigned = set(clusters.notes.get("unassigned", ()))
        for client in clusters.members[parent]:
            if client not in placed and client in memory:
                update = watch.seen(memory[client]["updates"][-1], layer, look)
                parts[int(np.argmax([resemblance(update, rows) for rows in vectors]))].append(client)
            elif client not in placed:
                parts[int(len(sides[1]) > len(sides[0]))].append(client)
                unassigned.add(client)
        order = {client: place for place, client in enumerate(clusters.members[parent])}
        parts = [sorted(part, key=order.__getitem__) for part in parts]
        clusters = clusters.split(parent, parts, context.round, layer=layer, **(why or {}))
        children = clusters.tree[-1]["children"]
        known = {child: rows.astype(np.float32) for child, rows in zip(children, vectors, strict=True)}
        way = {"model": model, "round": context.round, "layer": layer, "look": look, "sides": known}
        ways = {**clusters.notes.get("ways", {}), parent: way}
        # Which weights are unstable is another question in a new cluster.
        memory |= {client: memory[client] | {"kept": None} for part in parts for client in part if client in memory}
        clusters = clusters.noting(memory=memory, ways=ways)
        return clusters.noting(unassigned=sorted(unassigned)) if unassigned else clusters

    def place(self, clusters: Clusters, context: RoundContext, ask: Ask) -> dict[str, Placement]:
        """Newcomers walk down the tree of splits: they train as the members did and go with the more similar side."""
        ways: dict[int, dict[str, Any]] = clusters.notes.get("ways", {})
        if not ways:
            return super().place(clusters, context, ask)
        watch, at = self.watch(context), dict.fromkeys(context.clients, min(ways))
        lost: dict[str, dict[int, float]] = {client: {} for client in at}
        updates: dict[str, tuple[int, np.ndarray]] = {}
        while walking := {client: ways[node] for client, node in at.items() if node in ways}:
            # Splits of one round share the model that was trained: its update serves for all of them.
            due = {client: way for client, way in walking.items() if updates.get(client, (0,))[0] != way["round"]}
            updates |= self.trained_at(due, clusters, context, ask)
            for client, way in walking.items():
                if client not in updates or updates[client][0] != way["round"]:
                    at.pop(client)  # it did not answer
                    continue
                update = watch.seen(updates[client][1], way["layer"], way["look"])
                alike = {child: resemblance(update, rows) for child, rows in way["sides"].items()}
                best = max(alike.values())
                lost[client] |= {child: best - value for child, value in alike.items()}
                at[client] = min(child for child, value in alike.items() if value == best)
        return {client: self._placement(clusters, node, lost[client]) for client, node in at.items()}

    def trained_at(
        self, ways: Mapping[str, Mapping[str, Any]], clusters: Clusters, context: RoundContext, ask: Ask
    ) -> dict[str, tuple[int, np.ndarray]]:
        """The round of each client's fork in the tree, and its update from the model that was trained there."""
        known = clusters.notes.get("memory", {})  # members who look for another place keep their own model
        tasks = {
            client: Train(way["model"], upload=way["layer"], save="" if client in known else LOCAL)
            for client, way in ways.items()
        }
        updates = {}
        for client, answer in ask(tasks, phase="place").items():
            way = ways[client]
            after = np.array(way["model"])
            after[context.layout.select(way["layer"])] = answer.weights
            updates[client] = way["round"], (after - way["model"])[self.watch(context).index]
        return updates

    def _placement(self, clusters: Clusters, node: int, lost: dict[int, float]) -> Placement:
        """A newcomer at a leaf; the distance of a leaf is what similarity the way to it would have cost."""
        parents = {child: branch["parent"] for branch in clusters.tree for child in branch["children"]}
        merged: dict[int, int] = clusters.notes.get("merged", {})
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


def recent(past: Mapping[str, Any], since: int) -> list[np.ndarray]:
    """The kept updates of a client that are of later rounds, in order."""
    return [update for round, update in zip(past["rounds"], past["updates"], strict=True) if round > since]


def followed(cluster: int, merged: dict[int, int]) -> int:
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
    if not gone or "memory" not in clusters.notes:
        return clusters
    return clusters.noting(memory={c: past for c, past in clusters.notes["memory"].items() if c not in gone})


def moved(clusters: Clusters, client: str, cluster: int) -> Clusters:
    """With a client in another cluster, without its past."""
    members = {k: tuple(c for c in part if c != client) for k, part in clusters.members.items()}
    members[cluster] = (*members.get(cluster, ()), client)
    return forgetting(replace(clusters, members={k: part for k, part in members.items() if part}), [client])
