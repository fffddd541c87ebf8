"""One-shot clustering: clients are compared once, and from then on every cluster trains by itself.

The skeleton is told here once: ask, distances, tree, cut, record. A method says what clients are compared by
(`signals`), how far apart they are (`distances`), and what of it stays to compare newcomers with (`kept`, `far`).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from fedclade.ask import Ask, TrainedClients
from fedclade.clients.tasks import Layers, Train
from fedclade.clustering.evidence import View, find_groups
from fedclade.clustering.hierarchy import Tree, agglomerate
from fedclade.clustering.large import agglomerate_rows
from fedclade.clustering.many import EXACT
from fedclade.clustering.similarity import distance_matrix
from fedclade.methods.base import Clusters, Count, Method, Placement, RoundContext, nearest, nobody_answered, remembered
from fedclade.methods.evidence import record
from fedclade.models.weights import Layout

Threshold = Annotated[float, Field(ge=0)] | Literal["auto"] | None
Linkage = Literal["single", "complete", "average", "weighted", "ward"]
Signals = Mapping[str, Any]  # what each client is compared by

LOOKED_AT = 10_000  # pairs of a client and a cluster, to know how far members are from home
# Updates of halves are noisier than sums over rows: here the surest number of clusters counts, and less clear ones.
SLACK, CLEAR = 0.5, 0.1  # as in `clustering.evidence`


@remembered
class Centres:
    """What newcomers are compared with: the clusters' mean signals, when members had trained from `start`."""

    start: np.ndarray
    centres: Mapping[int, np.ndarray]


class CutTree(Method):
    """Clients are merged into clusters up to a threshold, or until so many clusters are left: one of the two."""

    threshold: Threshold = "auto"  # up to which clusters merge; "auto": the number of clusters is found
    n_clusters: Count | None = None  # how many clusters, in place of the threshold

    @model_validator(mode="before")
    @classmethod
    def _one_of_two(cls, values: Any) -> Any:
        pair = ("threshold", "n_clusters")
        given = [name for name in pair if isinstance(values, dict) and values.get(name) is not None]
        if len(given) == 2:
            raise ValueError("threshold and n_clusters exclude each other: give one of them")
        return {**values, **{name: None for name in pair if name not in given}} if given else values

    def cut(
        self,
        distances: np.ndarray,
        clients: list[str],
        linkage: str,
        ask: Ask,
        *,
        measure: str,
        metric: Literal["euclidean", "l1", "cosine"] = "euclidean",
        shown: np.ndarray | None = None,
    ) -> np.ndarray:
        """The label of each client; the matrix (`shown`, where another says more) and the tree are recorded."""
        labels, tree = agglomerate(distances, linkage, metric=metric, **self.wanted(len(clients)))
        record_tree(ask, tree, labels, clients, distances if shown is None else shown, measure)
        return labels

    def wanted(self, n_clients: int) -> dict[str, Any]:
        """Where the tree is cut."""
        if self.n_clusters is None:
            return {"threshold": self.threshold}
        return {"n_clusters": min(self.n_clusters, n_clients)}  # fewer may have answered


def record_tree(ask: Ask, tree: Tree, labels: np.ndarray, clients: list[str], matrix: np.ndarray, measure: str) -> None:
    """Keep how clients were merged, and what they were merged by."""
    ask.record("proximity", matrix=matrix, clients=clients, measure=measure)
    ask.record("dendrogram", merges=tree.merges, clients=clients, linkage=tree.linkage, labels=labels)


class OneShot(Method):
    """The hooks that a method fills, then the skeleton."""

    State: ClassVar[type | None] = Centres

    @property
    def measure(self) -> str:
        """What the distances are, in words."""
        raise NotImplementedError

    @property
    def upload(self) -> Layers:
        """The layers that are compared, where clients train for that alone."""
        return None

    @property
    def clustering_round(self) -> int:
        """The round whose models are compared; 0: a training from the initial model, before the first round."""
        return 0

    def signals(
        self, trained: TrainedClients, start: np.ndarray, context: RoundContext, ask: Ask, state: Any
    ) -> Signals:
        """What those who trained from `start` are compared by; `state` is None when the clusters are made."""
        raise NotImplementedError

    def group(self, signals: Signals, context: RoundContext, ask: Ask) -> np.ndarray:
        """The label of each client."""
        raise NotImplementedError

    def labels(self, signals: Signals, start: np.ndarray, context: RoundContext, ask: Ask) -> np.ndarray:
        """The same where more must be asked of clients, who trained from `start`."""
        return self.group(signals, context, ask)

    def kept(self, clusters: Clusters, signals: Signals, start: np.ndarray) -> Any:
        """What newcomers will be compared with; it has the model `start`, from which they will train."""
        centres = {k: np.mean([signals[c] for c in members], axis=0) for k, members in clusters.members.items()}
        return Centres(start, centres)

    def far(self, signal: Any, state: Any, context: RoundContext) -> dict[int, float]:
        """How far a newcomer is from every cluster."""
        raise NotImplementedError

    # The skeleton

    def compared(self, start: np.ndarray, context: RoundContext, ask: Ask, phase: str, state: Any = None) -> Signals:
        """Let clients train once from `start`, for nothing but the comparison."""
        trained = ask(Train(start, upload=self.upload), to=context.clients, phase=phase)
        return self.signals(trained, start, context, ask, state)

    def grouped(self, signals: Signals, start: np.ndarray, context: RoundContext, ask: Ask) -> Clusters:
        """The clusters of those who have a signal; they begin with the model `start`."""
        labels = self.labels(signals, start, context, ask)
        clusters = Clusters.from_labels(list(signals), labels, start)
        clusters = clusters.remembering(self.kept(clusters, signals, start))
        farthest = self.at_home(clusters, signals, context)
        ask.record("at_home", clusters=list(farthest), far=list(farthest.values()))
        return clusters

    def at_home(self, clusters: Clusters, signals: Signals, context: RoundContext) -> dict[int, float]:
        """How far the farthest member of each cluster is from it; of very many members some are looked at."""
        most = max(1, LOOKED_AT // len(signals))
        return {
            k: max(self.far(signals[client], clusters.state, context)[k] for client in part[:: -(-len(part) // most)])
            for k, part in clusters.members.items()
            if len(part) > 1  # who is alone is no measure of others
        }

    def start(self, context: RoundContext, ask: Ask) -> Clusters:
        if self.clustering_round > 0:
            return super().start(context, ask)
        signals = self.compared(context.initial, context, ask, "cluster")
        if not signals:
            raise nobody_answered(ask)
        clusters = self.grouped(signals, context.initial, context, ask)
        return self.admit(clusters, set(context.clients) - set(signals), context, ask)

    def round(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        if clusters.state is None:
            return self.joint_round(clusters, context, ask)
        clusters = self.retry(clusters, context, ask)
        return self.trained(clusters, context.sample(), ask)

    def joint_round(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        """A round of plain averaging. The last of them is with everybody, and is averaged by the clusters it gives."""
        if context.round < self.clustering_round:
            return self.trained(clusters, self.warming(context), ask)
        start = clusters.models[0]
        trained = ask(self.task(start), to=context.clients)
        signals = self.signals(trained, start, context, ask, None) if len(trained) else {}
        if not signals:
            return clusters.averaged(trained)
        clusters = self.grouped(signals, start, context, ask)
        return self.admit(clusters, set(context.clients) - set(signals), context, ask).averaged(trained)

    def warming(self, context: RoundContext) -> list[str]:
        """Who trains before the clusters are made."""
        return context.sample()

    def place(self, clusters: Clusters, context: RoundContext, ask: Ask) -> dict[str, Placement]:
        """Newcomers train once, as the others did when they were compared, and join the nearest cluster."""
        if clusters.state is None:
            return super().place(clusters, context, ask)
        signals = self.compared(clusters.state.start, context, ask, "place", clusters.state)
        placements = {}
        for client, signal in signals.items():
            far = self.far(signal, clusters.state, context)
            placements[client] = Placement(nearest(far), far, self.measure)
        return placements


class ByHalves(OneShot):
    """Clients are compared by what they trained: what repeats when they train on two halves of their rows is real."""

    halves: bool = False  # find the number by what repeats in both halves of clients' rows: two more trainings of each

    @model_validator(mode="before")
    @classmethod
    def _halves_find_the_number(cls, values: Any) -> Any:
        if not isinstance(values, dict) or not values.get("halves"):
            return values
        if any(values.get(name) not in (None, "auto") for name in ("threshold", "n_clusters")):
            raise ValueError("halves = true finds the number of clusters: leave threshold and n_clusters out")
        return {**values, "threshold": "auto"}  # in place of a method's own number

    def halved_layers(self, layout: Layout) -> Layers:
        """The layers that are compared, of those who train on halves."""
        return self.upload

    def labels(self, signals: Signals, start: np.ndarray, context: RoundContext, ask: Ask) -> np.ndarray:
        """By both halves of those who have them, of very many clients of some; the others join the nearest cluster."""
        if not self.halves:
            return self.group(signals, context, ask)
        found = self.found_by_halves(list(signals), start, context, ask)
        if not found:
            return np.zeros(len(signals), np.int64)
        clusters = Clusters.from_labels(list(found), np.array(list(found.values())), start)
        centres = self.kept(clusters, signals, start)
        homes = clusters.cluster_of
        far = {client: self.far(signal, centres, context) for client, signal in signals.items() if client not in homes}
        return np.array([homes[client] if client in homes else nearest(far[client]) for client in signals])

    def found_by_halves(self, clients: list[str], start: np.ndarray, context: RoundContext, ask: Ask) -> dict[str, int]:
        """The clusters of those who could train on each half of their rows, all of them for as long as the median
        client trains on all of its own: who trains longer goes further."""
        drawn = context.random("halves").permutation(len(clients))[:EXACT]
        asked = [clients[place] for place in sorted(drawn)]
        rows = {client: ask.trained[client].n_samples for client in asked}
        layers = self.halved_layers(context.layout)
        task = Train(start, upload=layers, save="", length=int(np.median(list(rows.values()))))
        began, halves = start[context.layout.select(layers)], []
        for half in (1, 2):
            trained = ask(replace(task, half=half), to=asked, phase="cluster")
            halves.append({client: answer.weights - began for client, answer in trained.items()})
            asked = list(halves[-1])
        if not asked:
            return {}
        a, b = (np.stack([half[client] for client in asked]) for half in halves)
        updates = {name: (a[:, place], b[:, place]) for name, place in context.layout.within(layers).items()}
        sizes = np.array([(rows[client] // 2, -(-rows[client] // 2)) for client in asked])
        view = View({"layers": updates}, 1 / np.clip(sizes, 1, task.length))  # the variance of their noise
        found = find_groups({"updates": view}, context.seed, clear=CLEAR, slack=SLACK)
        record(found, asked, np.arange(len(asked)), ask, measure="distance of updates of two halves")
        return dict(zip(asked, found.labels.tolist(), strict=True))


class ByDistance(ByHalves, CutTree):
    """Clients are compared by the distance between vectors, newcomers by that to the mean of each cluster."""

    linkage: Linkage = "average"
    metric: Literal["euclidean", "l1", "cosine"] = "euclidean"  # how far two clients are apart

    @model_validator(mode="after")
    def _ward_is_euclidean(self) -> Self:
        if self.linkage == "ward" and self.metric != "euclidean":
            raise ValueError("Ward's linkage needs metric = 'euclidean': choose another of the two")
        return self

    def group(self, signals: Signals, context: RoundContext, ask: Ask) -> np.ndarray:
        """What is recorded of very many clients are those that stand for the others."""
        rows = np.stack(list(signals.values()))
        found = agglomerate_rows(rows, self.linkage, metric=self.metric, **self.wanted(len(rows)))
        names = list(signals)
        shown = [names[k] for k in found.shown]
        record_tree(ask, found.tree, found.labels[found.shown], shown, found.distances, self.measure)
        return found.labels

    def far(self, signal: np.ndarray, state: Centres, context: RoundContext) -> dict[int, float]:
        distances = distance_matrix(np.stack([signal, *state.centres.values()]), self.metric)[0, 1:]
        return dict(zip(state.centres, distances.tolist(), strict=True))
