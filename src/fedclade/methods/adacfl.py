"""AdaCFL: after a round of plain averaging, clients are grouped by two numbers about their labels and one small layer.

Gong et al., "Adaptive Clustered Federated Learning for Heterogeneous Data in Edge Computing", Mobile Networks and
Applications, 2022.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, ValidationInfo, field_validator

from fedclade.ask import Ask, TrainedClients
from fedclade.clients.tasks import Describe, Train
from fedclade.clustering.hierarchy import Tree, agglomerate, cut, linkage_tree
from fedclade.clustering.labels import in_order
from fedclade.clustering.preclusters import preclusters
from fedclade.clustering.similarity import distance_matrix
from fedclade.methods.base import About, Clusters, Placement, RoundContext, nearest, remembered
from fedclade.methods.one_shot import ByHalves, Centres
from fedclade.models.weights import Layout, average


@remembered
class Merged:
    """What newcomers are compared with."""

    start: np.ndarray  # the model from which members trained when the clusters were made
    centres: Mapping[int, np.ndarray]  # of the chosen layers
    threshold: float  # up to which clusters merged; by halves: how far two members of one cluster are apart at most


class AdaCFL(ByHalves):
    about: ClassVar[About] = About(
        "clusters once, by label entropy and then by the smallest dense layer",
        "Gong et al. 2022",
        "the number too",
        "one shot",
        "model, label entropy",
        needs_labels=True,
        formula="among clients with the same number of classes and label entropies within a gap, those with "
        "|l_i - l_j| <= lambda merge, l_i the smallest dense layer",
        use="when clients hold different numbers of classes, come and go, and may tell their label entropy",
    )
    State = Merged

    cluster_round: Annotated[int, Field(ge=1)] = 1  # the last round of plain averaging: its models make the clusters
    layers: str = "smallest"  # the smallest fully connected layer; "all" of them; or a layer's name
    precluster: bool = True  # first by the number of classes and the entropy of labels
    premerge: Literal["inside", "seed"] = "inside"  # pre-clusters can only be divided, or are where merging starts
    rule: Literal["anchor", "chain", "share", "bits"] = "chain"  # from where the gap counts: `clustering.preclusters`
    gap: Annotated[float, Field(gt=0)] = 0.1  # between entropies that are alike
    threshold: Annotated[float, Field(ge=0)] | Literal["auto"] = "auto"  # up to which clusters merge; in the paper 1.4
    linkage: Literal["single", "complete", "average", "weighted", "ward"] = "average"  # the paper names none
    epsilon: Annotated[float, Field(ge=0)] | Literal["auto"] = "auto"  # newcomers beyond it found a cluster; there 1.8
    newcomers: Literal["snapshot", "current"] = "snapshot"  # they meet clusters as made, or as now (as in the paper)

    @field_validator("linkage")
    @classmethod
    def _ward_has_no_seeds(cls, linkage: str, info: ValidationInfo) -> str:
        if linkage == "ward" and info.data.get("premerge") == "seed":
            raise ValueError("with premerge = 'seed' choose another linkage: Ward cannot start from given groups")
        return linkage

    @property
    def measure(self) -> str:
        return "distance of partial weights"

    @property
    def clustering_round(self) -> int:
        return self.cluster_round

    def start(self, context: RoundContext, ask: Ask) -> Clusters:
        context.layout.select(self.chosen_layers(context.layout))  # a layer that is not there must be known now
        return super().start(context, ask)

    def joint_round(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        """Plain averaging; the last such round is averaged by the clusters that come out of it."""
        if context.round < self.clustering_round:
            return self.trained(clusters, context.sample(), ask)
        trained = ask(Train(clusters.models[0]), to=context.clients)
        if not len(trained):
            return clusters
        return self.cluster(clusters.models[0], trained, context, ask).averaged(trained)

    def cluster(self, start: np.ndarray, trained: TrainedClients, context: RoundContext, ask: Ask) -> Clusters:
        """Clusters of those who trained from `start`; the others are placed like newcomers."""
        trained, groups = self.preclustered(trained, context, ask)
        vectors = trained.stack()[:, context.layout.select(self.chosen_layers(context.layout))]
        clients, distances = list(trained.clients), distance_matrix(vectors)
        if self.halves:
            found = self.labels(dict(zip(clients, vectors, strict=True)), start, context, ask)
            labels = found_within(found, groups, self.premerge)
            merged = float(distances[labels[:, None] == labels].max()) if len(clients) > 1 else np.inf
        else:
            labels, merged = self.merged(distances, clients, groups, ask)
        clusters = Clusters.from_labels(clients, labels, start)
        rows = np.array([answer.n_samples for answer in trained.values()])
        centres = {k: average(vectors[labels == k], rows[labels == k]) for k in clusters.members}
        clusters = clusters.remembering(Merged(start, centres, merged))
        return self.admit(clusters, set(context.clients) - set(clients), context, ask)

    def merged(
        self, distances: np.ndarray, clients: list[str], groups: np.ndarray, ask: Ask
    ) -> tuple[np.ndarray, float]:
        """The label of each client, and up to which distance clusters merged."""
        threshold = self.threshold if self.threshold != "auto" else automatic_threshold(distances, self.linkage)
        labels, tree = merge_within(distances, groups, self.premerge, self.linkage, threshold)
        ask.record("proximity", matrix=distances, clients=clients, measure=self.measure, preclusters=groups)
        ask.record("dendrogram", merges=tree.merges, clients=clients, linkage=self.linkage, labels=labels)
        # Where the rule finds one group it sets no bound: newcomers may then be as far as the last two that merged.
        return labels, threshold if np.isfinite(threshold) or len(clients) < 2 else float(tree.heights[-1])

    def preclustered(
        self, trained: TrainedClients, context: RoundContext, ask: Ask
    ) -> tuple[TrainedClients, np.ndarray]:
        """Those who told how their labels are distributed, and the pre-cluster of each."""
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
        if clusters.state is None:
            return super().place(clusters, context, ask)
        placed = self.compared_with_clusters(clusters, context, ask)
        return {client: placement for client, (placement, _) in placed.items()}

    def compared_with_clusters(
        self, clusters: Clusters, context: RoundContext, ask: Ask
    ) -> dict[str, tuple[Placement, np.ndarray]]:
        """Where newcomers belong, and the weights that tell it."""
        layers, state = self.chosen_layers(context.layout), clusters.state
        if self.newcomers == "current":
            centres = {k: model[context.layout.select(layers)] for k, model in clusters.models.items()}
            state = replace(state, centres=centres)
        epsilon = self.epsilon if self.epsilon != "auto" else automatic_epsilon(state.centres, state.threshold)
        if self.epsilon == "auto" and self.halves:  # they find clusters that are nearer than members are to each other
            epsilon = max(epsilon, state.threshold)
        placed = {}
        for client, answer in ask(Train(state.start, upload=layers), to=context.clients, phase="place").items():
            far = self.far(answer.weights, state, context)
            near = nearest(far)
            home = near if far[near] <= epsilon else None
            placed[client] = Placement(home, far, self.measure, epsilon), answer.weights
        return placed

    def far(self, signal: np.ndarray, state: Centres | Merged, context: RoundContext) -> dict[int, float]:
        return {k: float(np.linalg.norm(signal - centre)) for k, centre in state.centres.items()}

    def admit(self, clusters: Clusters, newcomers: Iterable[str], context: RoundContext, ask: Ask) -> Clusters:
        """One after the other, so that whoever founds a cluster can be joined by the next."""
        if clusters.state is None:
            return super().admit(clusters, newcomers, context, ask)
        new, shown = set(newcomers), {}
        for client in [name for name in context.clients if name in new]:
            placed = self.compared_with_clusters(clusters, context.only([client]), ask).get(client)
            if placed is None:  # it did not answer
                waiting = tuple(sorted({*clusters.unassigned, client}))
                clusters = replace(clusters.joined(client, clusters.largest, context.initial), unassigned=waiting)
                continue
            placement, weights = placed
            clusters = clusters.joined(client, placement.cluster, context.initial)
            if placement.cluster is None:
                centres = {**clusters.state.centres, clusters.cluster_of[client]: weights}
                clusters = clusters.remembering(replace(clusters.state, centres=centres))
            clusters = replace(clusters, unassigned=tuple(c for c in clusters.unassigned if c != client))
            shown[client] = {"cluster": placement.cluster, "distances": dict(placement.distances)}
        if shown:
            ask.record("placements", **shown)
        return clusters

    def halved_layers(self, layout: Layout) -> tuple[str, ...]:
        return self.chosen_layers(layout)

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


def found_within(found: np.ndarray, groups: np.ndarray, premerge: str) -> np.ndarray:
    """Clusters that were found among all clients: divided by the groups, or each group where most of it belongs."""
    if premerge == "inside":
        return in_order(found * len(found) + groups)
    homes = np.array([np.bincount(found[groups == group]).argmax() for group in range(groups.max() + 1)])
    return in_order(homes[groups])


def automatic_threshold(distances: np.ndarray, linkage: str) -> float:
    """One threshold for all pre-clusters, read off the tree of all clients.

    A pre-cluster alone is often too small to tell groups from noise. Where the rule finds one group only, the answer
    is infinite: the pre-clusters stay as they are.
    """
    labels, tree = agglomerate(distances, linkage, threshold="auto")
    merged = tree.n_clients - (int(labels.max()) + 1)
    heights = [0.0, *tree.heights.tolist(), np.inf]
    return (heights[merged] + heights[merged + 1]) / 2  # midway between the last merge that is done and the next


def automatic_epsilon(centres: Mapping[int, np.ndarray], threshold: float) -> float:
    """The largest distance between two clusters; with one cluster, what was near enough to be merged into it."""
    if len(centres) < 2:
        return threshold
    return float(distance_matrix(np.stack(list(centres.values()))).max())
