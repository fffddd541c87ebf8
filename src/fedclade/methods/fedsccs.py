"""FedSCCS: after some rounds of plain averaging, models that answer alike on the same rows go on together.

Talasso et al., "FedSCCS: Hierarchical Clustering with Multiple Models for Federated Learning", ICC 2024.

Its rivals in the paper differ in one step, how clients are grouped: by the cosine of their last layers (WC), by
k-center on the same layers (Sener & Savarese, "Active Learning for Convolutional Neural Networks: A Core-Set Approach",
ICLR 2018; for federated learning Wang et al., INFOCOM 2020), or at random.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from fedclade.ask import Ask, TrainedClients
from fedclade.clients.tasks import Evaluate, Layers, Predict
from fedclade.clustering.automatic import choose_partition, most_clusters
from fedclade.clustering.centers import k_center, random_labels
from fedclade.clustering.selection import everyone, least_selected, one_at_random, worst_half
from fedclade.clustering.similarity import (
    cka_matrix,
    column_distances,
    cosine,
    cosine_matrix,
    distance_matrix,
    linear_cka,
)
from fedclade.errors import FedcladeError
from fedclade.methods.base import About, Clusters, Count, Placement, RoundContext, remembered
from fedclade.methods.one_shot import ByHalves, CutTree, OneShot, Signals, Threshold
from fedclade.methods.probing import Probing, answers_on, public_rows, some_of
from fedclade.models.weights import Layout


@remembered
class Grouped:
    """How often each client was selected, and what newcomers are compared with."""

    start: np.ndarray  # the model that the clients' models were trained from when they were grouped
    known: Mapping[int, np.ndarray]  # of every cluster: its members' answers, last layers or centre
    probe: np.ndarray | None = None  # the rows of those answers
    selected: Mapping[str, int] | None = None


class SelectingClusters(OneShot):
    """What FedSCCS and its rivals share: warm up together, group once, then train some members of each cluster."""

    State = Grouped

    warmup: Count = 10  # rounds of plain averaging with all clients (the paper's p); the last one's models are grouped
    selection: Literal["all", "random", "power-of-choice", "least-selected"] = "all"  # who trains, in each cluster

    @property
    def clustering_round(self) -> int:
        return self.warmup

    def warming(self, context: RoundContext) -> list[str]:
        return list(context.clients)

    def kept(self, clusters: Clusters, signals: Signals, start: np.ndarray) -> Grouped:
        known = {k: np.stack([signals[c] for c in part]) for k, part in clusters.members.items()}
        return Grouped(start, known)

    def round(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        if clusters.state is None:
            return self.joint_round(clusters, context, ask)
        clusters = self.retry(clusters, context, ask)
        chosen = self.select(clusters, context, ask)
        times = clusters.state.selected or {}
        times = {**times, **{client: times.get(client, 0) + 1 for client in chosen}}
        ask.record("selection", chosen=chosen, times=dict(times))
        return self.trained(clusters.remembering(replace(clusters.state, selected=times)), chosen, ask)

    def select(self, clusters: Clusters, context: RoundContext, ask: Ask) -> list[str]:
        """Who trains this round: some of each cluster's members that are there."""
        there = context.sample()
        score: dict[str, float] = {}
        if self.selection == "power-of-choice":  # on training rows: test rows must not steer the training
            tasks = {client: Evaluate(clusters.model_of(client), on="train") for client in there}
            told = ask(tasks, phase="select")
            score = {client: context.metric.gain(seen.score, 0.0) for client, seen in told.items()}
            there = list(score)
        times, number = clusters.state.selected or {}, {client: place for place, client in enumerate(context.clients)}
        present, chosen = set(there), list[int]()
        for cluster, part in clusters.members.items():
            clients = [client for client in part if client in present]
            if not clients:
                continue
            members, random = np.array([number[c] for c in clients]), context.random(f"select {cluster}")
            match self.selection:
                case "all":
                    chosen += everyone(members).tolist()
                case "random":
                    chosen += one_at_random(members, random).tolist()
                case "power-of-choice":
                    chosen += worst_half(members, np.array([score[c] for c in clients])).tolist()
                case "least-selected":
                    chosen += least_selected(members, np.array([times.get(c, 0) for c in clients]), random).tolist()
        return [context.clients[place] for place in sorted(chosen)]


@dataclass(frozen=True)
class OnProbe:
    """What a model answers on the probe rows."""

    rows: np.ndarray
    values: np.ndarray


class ByAnswers(SelectingClusters, Probing, CutTree):
    """Models are compared by what they answer on rows that the server has."""

    layer: str = "probabilities"  # what is compared: these, "outputs" before the softmax, or what a layer puts out

    def start(self, context: RoundContext, ask: Ask) -> Clusters:
        """What can be wrong with the probe must be known now, not after the warm-up."""
        rows = np.zeros((1, *context.input_shape), np.float32)
        if self.probe_file is not None:
            rows = public_rows(self.probe_file, context.input_shape)[:1]
        tried = ask.server({"probe": Predict(context.initial, rows=rows, output=self.layer)})
        if tried.failures:
            raise FedcladeError(f"layer {self.layer!r} cannot be compared: {tried.failures['probe']}")
        return super().start(context, ask)

    def signals(
        self, trained: TrainedClients, start: np.ndarray, context: RoundContext, ask: Ask, state: Grouped | None
    ) -> dict[str, OnProbe]:
        probe = self.probe_set(context, ask) if state is None or state.probe is None else state.probe
        answers = answers_on(probe, {c: answer.weights for c, answer in trained.items()}, self.layer, ask)
        if len(trained) and not answers:
            raise FedcladeError("no model gives finite output on the probe rows: mend them or lower the learning rate")
        return {client: OnProbe(probe, values) for client, values in answers.items()}

    def kept(self, clusters: Clusters, signals: Mapping[str, OnProbe], start: np.ndarray) -> Grouped:
        probe = next(iter(signals.values())).rows
        some = some_of(probe)
        known = {k: np.stack([signals[c].values[some] for c in part]) for k, part in clusters.members.items()}
        return Grouped(start, known, probe[some])


class FedSCCS(ByAnswers):
    about: ClassVar[About] = About(
        "clusters once, by how alike models answer on a probe set; trains some of each cluster",
        "Talasso et al. 2024",
        "a given number",
        "one shot",
        "model, probe rows",
        formula="S(i, j) = linear CKA of what models i and j answer on probe rows; Ward's tree of the "
        "distances between columns of S",
        use="when few clients can train in a round and some rows may be shown to the server (or noise will do)",
    )

    threshold: Threshold = None  # up to which clusters merge; "auto" finds it
    n_clusters: Count | None = 10  # into how many the tree is cut

    @property
    def measure(self) -> str:
        return f"1 - mean CKA of {self.layer}"

    def group(self, signals: Mapping[str, OnProbe], context: RoundContext, ask: Ask) -> np.ndarray:
        similarity = cka_matrix([signal.values for signal in signals.values()])
        return ward_clusters(self, similarity, list(signals), f"CKA of {self.layer}", ask)

    def at_home(self, clusters: Clusters, signals: Signals, context: RoundContext) -> dict[int, float]:
        """On the rows that were kept for newcomers."""
        kept = {c: OnProbe(s.rows, s.values[some_of(s.rows)]) for c, s in signals.items()}
        return super().at_home(clusters, kept, context)

    def far(self, signal: OnProbe, state: Grouped, context: RoundContext) -> dict[int, float]:
        return {
            k: 1.0 - float(np.mean([linear_cka(signal.values, other) for other in others]))
            for k, others in state.known.items()
        }


class ByLastLayers(SelectingClusters, ByHalves, CutTree):
    """Models are compared by the weights of their last layers."""

    def halved_layers(self, layout: Layout) -> Layers:
        return "head"

    def signals(
        self, trained: TrainedClients, start: np.ndarray, context: RoundContext, ask: Ask, state: Any
    ) -> Signals:
        """Without biases."""
        layout = context.layout
        place = layout.slices.get(f"{layout.head}.weight", layout.layers[layout.head])
        return {client: answer.weights[place] for client, answer in trained.items()}


class WeightsCosine(ByLastLayers):
    about: ClassVar[About] = About(
        "FedSCCS's loop with clusters by the cosine of last layers",
        "Talasso et al. 2024",
        "a given number",
        "one shot",
        formula="S(i, j) = cos(h_i, h_j) of last layers without biases; Ward's tree of the distances between "
        "columns of S",
        use="as FedSCCS, when there are no probe rows",
    )

    threshold: Threshold = None  # up to which clusters merge; "auto" finds it
    n_clusters: Count | None = 10  # into how many the tree is cut

    @property
    def measure(self) -> str:
        return "1 - mean cosine of last layers"

    def group(self, signals: Signals, context: RoundContext, ask: Ask) -> np.ndarray:
        similarity = cosine_matrix(np.stack(list(signals.values())))
        return ward_clusters(self, similarity, list(signals), "cosine of last layers", ask)

    def far(self, signal: np.ndarray, state: Grouped, context: RoundContext) -> dict[int, float]:
        return {k: 1.0 - float(cosine(signal, others).mean()) for k, others in state.known.items()}


class KCenter(ByLastLayers):
    about: ClassVar[About] = About(
        "FedSCCS's loop with clusters by k-center on last layers",
        "Sener & Savarese 2018",
        "a given number",
        "one shot",
        formula="centres c_1, c_2, ...: each the client farthest from all before it; k_i = argmin_k |h_i - c_k|",
        use="as FedSCCS, when a given number of spread-out clusters is wanted and no probe rows",
    )

    threshold: Literal["auto"] | None = None  # "auto": the number of clusters is found
    n_clusters: Count | None = 10  # how many centres there are

    @property
    def measure(self) -> str:
        return "distance of last layers to the centre"

    def group(self, signals: Signals, context: RoundContext, ask: Ask) -> np.ndarray:
        rows = np.stack(list(signals.values()))
        distances = distance_matrix(rows)
        ask.record("proximity", matrix=distances, clients=list(signals), measure="distance of last layers")
        wanted = self.n_clusters
        if wanted is None:
            tried = [k_center(rows, k).labels for k in range(1, most_clusters(len(rows)) + 1)]
            wanted = int(choose_partition(distances, tried).max()) + 1
        return k_center(rows, min(wanted, len(rows))).labels

    def labels(self, signals: Signals, start: np.ndarray, context: RoundContext, ask: Ask) -> np.ndarray:
        """Halves find how many centres there are; who belongs to which is k-center's to say."""
        if not self.halves:
            return self.group(signals, context, ask)
        found = self.found_by_halves(list(signals), start, context, ask)
        return k_center(np.stack(list(signals.values())), len(set(found.values())) or 1).labels

    def kept(self, clusters: Clusters, signals: Signals, start: np.ndarray) -> Grouped:
        """The centres: k-center is done once more, which gives the same."""
        rows = np.stack(list(signals.values()))
        found = k_center(rows, len(clusters))
        return Grouped(start, {k: rows[centre] for k, centre in enumerate(found.centers)})

    def far(self, signal: np.ndarray, state: Grouped, context: RoundContext) -> dict[int, float]:
        return {k: float(np.linalg.norm(signal - centre)) for k, centre in state.known.items()}


class RandomClusters(SelectingClusters):
    about: ClassVar[About] = About(
        "FedSCCS's loop with random clusters",
        "Talasso et al. 2024",
        "a given number",
        "one shot",
        formula="k_i drawn at random",
        use="as a control: whether it is the clusters that help, or only their number",
    )

    n_clusters: Count = 10  # how many there are

    def signals(
        self, trained: TrainedClients, start: np.ndarray, context: RoundContext, ask: Ask, state: Any
    ) -> Signals:
        return {client: np.empty(0, np.float32) for client in trained}

    def group(self, signals: Signals, context: RoundContext, ask: Ask) -> np.ndarray:
        return random_labels(len(signals), min(self.n_clusters, len(signals)), context.random("clusters"))

    def at_home(self, clusters: Clusters, signals: Signals, context: RoundContext) -> dict[int, float]:
        return {}  # dice know no distances

    def place(self, clusters: Clusters, context: RoundContext, ask: Ask) -> dict[str, Placement]:
        """Wherever the dice say, which needs no word from the newcomer."""
        names = sorted(clusters.models)
        drawn = {client: int(context.random(f"place {client}").choice(names)) for client in context.clients}
        return {c: Placement(k, {name: float(name != k) for name in names}, "dice") for c, k in drawn.items()}


def ward_clusters(method: CutTree, similarity: np.ndarray, clients: list[str], measure: str, ask: Ask) -> np.ndarray:
    """Clients that are like the same others, by Ward's linkage."""
    distances = column_distances(np.round(similarity, 12))  # rounding must not tell equal clients apart
    return method.cut(distances, clients, "ward", ask, measure=measure, shown=similarity)
