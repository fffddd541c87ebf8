"""AdaCFL: after a round of plain averaging, clients are grouped by two numbers about their labels and one small layer.

Gong et al., "Adaptive Clustered Federated Learning for Heterogeneous Data in Edge Computing", Mobile Networks and
Applications, 2022.
"""

from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, ValidationInfo, field_validator

from fedclade.ask import Ask, TrainedClients
from fedclade.clients.tasks import Describe, Train
from fedclade.clustering.hierarchy import Tree, agglomerate, cut, linkage_tree
from fedclade.clustering.preclusters import preclusters
from fedclade.clustering.similarity import distance_matrix
from fedclade.methods.base import About, Clusters, Method, Placement, RoundContext, nearest
from fedclade.models.weights import Layout, average


class AdaCFL(Method):
    about: ClassVar[About] = About(
        "clusters once, by label entropy and then by the smallest dense layer",
        "Gong et al. 2022",
        "the number too",
        "one shot",
        "model, label entropy",
    )

    cluster_round: Annotated[int, Field(ge=1)] = 1  # the last round of plain averaging: its models make the clusters
    layers: str = "smallest"  # the smallest fully connected layer; "all" of them; or a layer's name
    precluster: bool = True  # first by the number of classes and the entropy of labels
    premerge: Literal["inside", "seed"] = "inside"  # pre-clusters can only be divided, or are where merging starts
    rule: Literal["anchor", "chain", "share", "bits"] = "chain"  # from where the gap counts: `clustering.preclusters`
    gap: Annotated[float, Field(gt=0)] = 0.1  # between entropies that are alike
    threshold: Annotated[float, Field(ge=0)] | Literal["auto"] = "auto"  # up to which clusters merge; in the paper 1.4
    linkage: Literal["single", "complete", "average", "weighted", "ward"] = "average"  # the paper names none
    epsilon: Annotated[float, Field(ge=0)] | Literal["auto"] = "auto"  # newcomers beyond it found a cluster; there 1.8
    newcomers: Literal["snapshot", "current"] = "snapshot"  # what they are compared with: clusters as made, or as now

    @field_validator("linkage")
    @classmethod
    def _ward_has_no_seeds(cls, linkage: str, info: ValidationInfo) -> str:
        if linkage == "ward" and info.data.get("premerge") == "seed":
            raise ValueError("with premerge = 'seed' choose another linkage: Ward cannot start from given groups")
        return linkage

    def start(self, context: RoundContext, ask: Ask) -> Clusters:
        context.layout.select(self.chosen_layers(context.layout))  # a layer that is not there must be known now
        return super().start(context, ask)

    def round(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        done = "centres" in clusters.notes
        now = not done and context.round >= self.cluster_round
        if done:
            clusters = self.retry(clusters, context, ask)
        clients = context.clients if now else self.sample(context)
        trained = ask({client: Train(clusters.model_of(client)) for client in clients})
        if now and len(trained):
            clusters = self.cluster(clusters.models[0], trained, context, ask)
        return clusters.averaged(trained)  # by the new clusters: each starts from the models its members have now

    def cluster(self, start: np.ndarray, trained: TrainedClients, context: RoundContext, ask: Ask) -> Clusters:
        """Clusters of those who trained from `start`; the others are placed like newcomers."""
        trained, groups = self.preclustered(trained, context, ask)
        vectors = trained.stack()[:, context.layout.select(self.chosen_layers(context.layout))]
        distances = distance_matrix(vectors)
        threshold = self.threshold if self.threshold != "auto" else automatic_threshold(distances, self.linkage)
        labels, tree = merge_within(distances, groups, self.premerge, self.linkage, threshold)
        clients = list(trained.clients)
        measure = "distance of partial weights"
        ask.record("proximity", matrix=distances, clients=clients, measure=measure, preclusters=groups)
        ask.record("dendrogram", merges=tree.merges, clients=clients, linkage=self.linkage, labels=labels)
        clusters = Clusters.from_labels(clients, labels, start)
        rows = np.array([answer.n_samples for answer in trained.values()])
        centres = {k: average(vectors[labels == k], rows[labels == k]) for k in clusters.members}
        # Where the rule finds one group it sets no bound: newcomers may then be as far as the last two that merged.
        merged = threshold if np.isfinite(threshold) or len(clients) < 2 else float(tree.heights[-1])
        clusters = clusters.noting(start=start, centres=centres, threshold=merged)
        return self.admit(clusters, set(context.clients) - set(clients), context, ask)

    def preclustered(
        self, trained: TrainedClients, context: RoundContext, ask: Ask
    ) -> tuple[TrainedClients, np.ndarray]:
        """Those who told how their labels are spread, and the pre-cluster of each."""
        if not self.precluster:
            return trained, np.zeros(len(trained), np.int64)
        told = ask(Describe("class-entropy"), to=trained.clients, phase="cluster")
        if not len(told):
            return trained, np.zeros(len(trained), np.int64)
        counts, entropies = (np.array([a.values[name][0] for a in told.values()]) for name in ("n_classes", "entropy"))
        groups = preclusters(counts, entropies, rule=self.rule, gap=self.gap, n_classes=context.n_classes)
        return trained.of(told.clients), groups

    def place(self, clusters: Clusters, context: RoundContext, ask: Ask) -> dict[str, Placement]:
        """With the nearest cluster, or in a new one when even that is far.

        A newcomer trains from the model that the others trained from when the clusters were made: only then the
        distances compare like with like.
        """
        if "centres" not in clusters.notes:
            return super().place(clusters, context, ask)
        layers = self.chosen_layers(context.layout)
        centres = clusters.notes["centres"]
        if self.newcomers == "current":
            centres = {k: model[context.layout.select(layers)] for k, model in clusters.models.items()}
        epsilon = self.epsilon if self.epsilon != "auto" else automatic_epsilon(centres, clusters.notes["threshold"])
        trained = ask(Train(clusters.notes["start"], upload=layers), to=context.clients, phase="place")
        placements = {}
        for client, answer in trained.items():
            far = {k: float(np.linalg.norm(answer.weights - centre)) for k, centre in centres.items()}
            near = nearest(far)
            home = near if far[near] <= epsilon else None
            placements[client] = Placement(home, far, "distance of partial weights", epsilon)
        return placements

    def admit(self, clusters: Clusters, newcomers: Iterable[str], context: RoundContext, ask: Ask) -> Clusters:
        """One after the other, so that whoever founds a cluster can be joined by the next."""
        placements: dict[str, object] = {}
        for client in [name for name in context.clients if name in set(newcomers)]:
            before = set(clusters.models)
            clusters = super().admit(clusters, [client], context, ask)
            placements |= ask.records["placements"]
            founded = set(clusters.models) - before
            if founded and client in ask.trained:
                centres = {**clusters.notes["centres"], founded.pop(): ask.trained[client].weights}
                clusters = clusters.noting(centres=centres)
        if placements:
            ask.record("placements", **placements)
        return clusters

    def chosen_layers(self, layout: Layout) -> tuple[str, ...]:
        """The layers whose weights stand for a client's data."""
        if self.layers == "all":
            return tuple(layout.layers)
        if self.layers != "smallest":
            return (self.layers,)
        sizes = {name: layout.layers[name].stop - layout.layers[name].start for name in layout.fully_connected}
        return (min(reversed(sizes), key=sizes.__getitem__),) if sizes else (layout.head,)  # the deepest of equals


def merge_within(
    distances: np.ndarray, groups: np.ndarray, premerge: str, linkage: str, threshold: float
) -> tuple[np.ndarray, Tree]:
    """Merge the nearest clusters up to the threshold, inside the groups (the paper's saving) or starting from them."""
    same = groups[:, None] == groups
    if premerge == "seed":
        tree = linkage_tree(np.where(same, 0.0, distances), linkage)
        return cut(tree, threshold=threshold), tree
    # A wall between the groups, higher than any merge inside one can be (Ward's heights grow with the clusters).
    wall = 2.0 * (distances.max() or 1.0) * (np.sqrt(len(groups)) if linkage == "ward" else 1.0)
    tree = linkage_tree(np.where(same, distances, wall), linkage)
    return cut(tree, threshold=min(threshold, 0.75 * wall)), tree


def automatic_threshold(distances: np.ndarray, linkage: str) -> float:
    """One threshold for all pre-clusters, read off the tree of all clients.

    A pre-cluster alone is often too small to tell groups from noise. Where the rule finds one group only, the answer
    is infinite: the pre-clusters stay as they are.
    """
    labels, tree = agglomerate(distances, linkage, threshold="auto")
    merged = tree.n_clients - (int(labels.max()) + 1)
    heights = [0.0, *tree.heights.tolist(), np.inf]
    return (heights[merged] + heights[merged + 1]) / 2  # midway between the last merge that is done and the next


def automatic_epsilon(centres: dict[int, np.ndarray], threshold: float) -> float:
    """The largest distance between two clusters; with one cluster, what was near enough to be merged into it."""
    if len(centres) < 2:
        return threshold
    return float(distance_matrix(np.stack(list(centres.values()))).max())
