"""FedSCCS: after some rounds of plain averaging, models that answer alike on the same rows go on together.

Talasso et al., "FedSCCS: Hierarchical Clustering with Multiple Models for Federated Learning", ICC 2024.

Its rivals in the paper differ in one step, how clients are grouped: by the cosine of their last layers (WC), by
k-center on the same layers (Sener & Savarese, "Active Learning for Convolutional Neural Networks: A Core-Set Approach",
ICLR 2018; for federated learning Wang et al., INFOCOM 2020), or at random.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedclade.ask import Ask, TrainedClients
from fedclade.clients.tasks import Evaluate, Predict, Train
from fedclade.clustering.automatic import choose_partition, most_clusters
from fedclade.clustering.hierarchy import agglomerate
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
from fedclade.methods.base import About, Clusters, Method, Placement, RoundContext, nearest
from fedclade.methods.probing import Probing, answers_on, public_rows, some_of
from fedclade.models.weights import Layout

Count = Annotated[int, Field(ge=1)]


class SelectingClusters(Method):
    """What FedSCCS and its rivals share: warm up together, group once, then train some members of each cluster."""

    warmup: Count = 10  # rounds of plain averaging with all clients (the paper's p); the last one's models are grouped
    selection: Literal["all", "random", "power-of-choice", "least-selected"] = "all"  # who trains, in each cluster

    def group(self, trained: TrainedClients, context: RoundContext, ask: Ask) -> tuple[dict[str, int], dict[str, Any]]:
        """The cluster of each client, and what newcomers will be compared with."""
        raise NotImplementedError

    def round(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        if "start" not in clusters.notes:
            return self.warmed(clusters, context, ask)
        clusters = self.retry(clusters, context, ask)
        chosen = self.select(clusters, context, ask)
        times = clusters.notes["selected"]
        clusters = clusters.noting(selected={**times, **{client: times.get(client, 0) + 1 for client in chosen}})
        ask.record("selection", chosen=chosen, times=dict(clusters.notes["selected"]))
        return clusters.averaged(ask({client: Train(clusters.model_of(client)) for client in chosen}))

    def warmed(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        """A round with everybody. The last of them is averaged by the clusters that come out of it."""
        start = clusters.models[0]
        trained = ask(Train(start), to=context.clients)
        if context.round < self.warmup or not len(trained):
            return clusters.averaged(trained)
        labels, known = self.group(trained, context, ask)
        clusters = Clusters.from_labels(list(labels), list(labels.values()), start)
        clusters = clusters.noting(start=start, selected={}, **known)
        return self.admit(clusters, set(context.clients) - set(labels), context, ask).averaged(trained)

    def select(self, clusters: Clusters, context: RoundContext, ask: Ask) -> list[str]:
        """Who trains this round: some of each cluster's members that are there."""
        there = self.sample(context)
        accuracy: dict[str, float] = {}
        if self.selection == "power-of-choice":  # on training rows: test rows must not steer the training
            tasks = {client: Evaluate(clusters.model_of(client), on="train") for client in there}
            accuracy = {client: seen.accuracy for client, seen in ask(tasks, phase="select").items()}
            there = list(accuracy)
        times, number = clusters.notes["selected"], {client: place for place, client in enumerate(context.clients)}
        chosen: list[int] = []
        for cluster, part in clusters.members.items():
            clients = [client for client in part if client in set(there)]
            if not clients:
                continue
            members, random = np.array([number[c] for c in clients]), context.random(f"select {cluster}")
            match self.selection:
                case "all":
                    chosen += everyone(members).tolist()
                case "random":
                    chosen += one_at_random(members, random).tolist()
                case "power-of-choice":
                    chosen += worst_half(members, np.array([accuracy[c] for c in clients])).tolist()
                case "least-selected":
                    chosen += least_selected(members, np.array([times.get(c, 0) for c in clients]), random).tolist()
        return [context.clients[place] for place in sorted(chosen)]

    def place(self, clusters: Clusters, context: RoundContext, ask: Ask) -> dict[str, Placement]:
        """Newcomers train from where the others started when they were grouped, and join those they are most like."""
        if "start" not in clusters.notes:
            return super().place(clusters, context, ask)
        trained = ask(Train(clusters.notes["start"]), to=context.clients, phase="place")
        measure, near = self.compare(clusters, trained, context, ask)
        return {client: Placement(nearest(far), far, measure) for client, far in near.items()}

    def compare(
        self, clusters: Clusters, trained: TrainedClients, context: RoundContext, ask: Ask
    ) -> tuple[str, dict[str, dict[int, float]]]:
        """How far newcomers are from every cluster, and in what measure."""
        raise NotImplementedError


class FedSCCS(SelectingClusters, Probing):
    about: ClassVar[About] = About(
        "clusters once, by how alike models answer on a probe set; trains some of each cluster",
        "Talasso et al. 2024",
        "a given number",
        "one shot",
        "model, probe rows",
    )

    n_clusters: Count | Literal["auto"] = 10  # at most as many as there are clients
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

    def group(self, trained: TrainedClients, context: RoundContext, ask: Ask) -> tuple[dict[str, int], dict[str, Any]]:
        probe = self.probe_set(context, ask)
        outputs = self.outputs(trained, probe, ask)
        if not outputs:
            raise FedcladeError("no model gives finite output on the probe rows: mend them or lower the learning rate")
        similarity = cka_matrix(list(outputs.values()))
        labels = ward_clusters(similarity, self.n_clusters, list(outputs), f"CKA of {self.layer}", ask)
        some = some_of(probe)
        known = by_cluster(labels, {client: values[some] for client, values in outputs.items()})
        return labels, {"probe": probe[some], "outputs": known}

    def outputs(self, trained: TrainedClients, probe: np.ndarray, ask: Ask) -> dict[str, np.ndarray]:
        """What each model answers on the probe rows."""
        return answers_on(probe, {c: answer.weights for c, answer in trained.items()}, self.layer, ask)

    def compare(
        self, clusters: Clusters, trained: TrainedClients, context: RoundContext, ask: Ask
    ) -> tuple[str, dict[str, dict[int, float]]]:
        known = clusters.notes["outputs"]
        far = {
            client: {k: 1.0 - float(np.mean([linear_cka(own, other) for other in known[k]])) for k in known}
            for client, own in self.outputs(trained, clusters.notes["probe"], ask).items()
        }
        return f"1 - mean CKA of {self.layer}", far


class WeightsCosine(SelectingClusters):
    about: ClassVar[About] = About(
        "FedSCCS's loop with clusters by the cosine of last layers",
        "Talasso et al. 2024",
        "a given number",
        "one shot",
    )

    n_clusters: Count | Literal["auto"] = 10

    def group(self, trained: TrainedClients, context: RoundContext, ask: Ask) -> tuple[dict[str, int], dict[str, Any]]:
        kernels = kernels_of(trained, context.layout)
        similarity = cosine_matrix(np.stack(list(kernels.values())))
        labels = ward_clusters(similarity, self.n_clusters, list(kernels), "cosine of last layers", ask)
        return labels, {"kernels": by_cluster(labels, kernels)}

    def compare(
        self, clusters: Clusters, trained: TrainedClients, context: RoundContext, ask: Ask
    ) -> tuple[str, dict[str, dict[int, float]]]:
        known = clusters.notes["kernels"].items()
        far = {
            client: {k: 1.0 - float(cosine(own, others).mean()) for k, others in known}
            for client, own in kernels_of(trained, context.layout).items()
        }
        return "1 - mean cosine of last layers", far


class KCenter(SelectingClusters):
    about: ClassVar[About] = About(
        "FedSCCS's loop with clusters by k-center on last layers",
        "Sener & Savarese 2018",
        "a given number",
        "one shot",
    )

    n_clusters: Count | Literal["auto"] = 10

    def group(self, trained: TrainedClients, context: RoundContext, ask: Ask) -> tuple[dict[str, int], dict[str, Any]]:
        from fedclade.clustering.centers import k_center  # takes a second, which other methods need not wait

        kernels = kernels_of(trained, context.layout)
        rows = np.stack(list(kernels.values()))
        distances = distance_matrix(rows)
        ask.record("proximity", matrix=distances, clients=list(kernels), measure="distance of last layers")
        wanted = self.n_clusters
        if wanted == "auto":
            tried = [k_center(rows, k).labels for k in range(1, most_clusters(len(rows)) + 1)]
            wanted = int(choose_partition(distances, tried).max()) + 1
        found = k_center(rows, min(wanted, len(rows)))
        labels = dict(zip(kernels, found.labels.tolist(), strict=True))
        return labels, {"centres": {k: rows[centre] for k, centre in enumerate(found.centers)}}

    def compare(
        self, clusters: Clusters, trained: TrainedClients, context: RoundContext, ask: Ask
    ) -> tuple[str, dict[str, dict[int, float]]]:
        centres = clusters.notes["centres"].items()
        far = {
            client: {k: float(np.linalg.norm(own - centre)) for k, centre in centres}
            for client, own in kernels_of(trained, context.layout).items()
        }
        return "distance of last layers to the centre", far


class RandomClusters(SelectingClusters):
    about: ClassVar[About] = About(
        "FedSCCS's loop with random clusters", "Talasso et al. 2024", "a given number", "one shot"
    )

    n_clusters: Count = 10

    def group(self, trained: TrainedClients, context: RoundContext, ask: Ask) -> tuple[dict[str, int], dict[str, Any]]:
        from fedclade.clustering.centers import random_labels

        labels = random_labels(len(trained), min(self.n_clusters, len(trained)), context.random("clusters"))
        return dict(zip(trained, labels.tolist(), strict=True)), {}

    def place(self, clusters: Clusters, context: RoundContext, ask: Ask) -> dict[str, Placement]:
        """Wherever the dice say, which needs no word from the newcomer."""
        names = sorted(clusters.models)
        drawn = {client: int(context.random(f"place {client}").choice(names)) for client in context.clients}
        return {c: Placement(k, {name: float(name != k) for name in names}, "dice") for c, k in drawn.items()}


def ward_clusters(
    similarity: np.ndarray, n_clusters: int | Literal["auto"], clients: list[str], measure: str, ask: Ask
) -> dict[str, int]:
    """Clients that are like the same others, by Ward's linkage. There can be no more clusters than clients."""
    ask.record("proximity", matrix=similarity, clients=clients, measure=measure)
    distances = column_distances(np.round(similarity, 12))  # rounding must not tell equal clients apart
    if n_clusters == "auto":
        labels, tree = agglomerate(distances, "ward", threshold="auto")
    else:
        labels, tree = agglomerate(distances, "ward", n_clusters=min(n_clusters, len(clients)))
    ask.record("dendrogram", merges=tree.merges, clients=clients, linkage="ward", labels=labels)
    return dict(zip(clients, labels.tolist(), strict=True))


def by_cluster(labels: Mapping[str, int], arrays: Mapping[str, np.ndarray]) -> dict[int, np.ndarray]:
    """The members' arrays of each cluster, stacked."""
    return {k: np.stack([arrays[c] for c in labels if labels[c] == k]) for k in sorted(set(labels.values()))}


def kernels_of(trained: TrainedClients, layout: Layout) -> dict[str, np.ndarray]:
    """The weights of each client's last layer, without its bias."""
    place = layout.slices.get(f"{layout.head}.weight", layout.layers[layout.head])
    return {client: answer.weights[place] for client, answer in trained.items()}
