"""StoCFL: clusters grow together as clients are met for the first time, and are trained near a model of all clients.

Zeng et al., "Stochastic Clustered Federated Learning", 2023.

A client that takes part for the first time trains once from the initial model (the anchor); the direction in which it
goes stands for its data, and it is a cluster of its own that begins with the model of all clients. Among the clusters
of those who take part in a round, the two whose mean directions have the largest cosine become one, as long as it is
at least `threshold`; the smaller one takes the model of the larger. Then clients train both the model of all, and
that of their cluster with strength / 2 * |w - all|^2 in its loss.

How we read it: the anchor is trained for as many epochs as by default in the authors' code, and thresholds and
strength are its defaults, too (the paper's experiments use others for each data set). Whoever has not taken part yet
waits in cluster 0 and is served by the model of all clients. That model travels down twice: once to be trained, once
as what the cluster's is held near.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedclade.ask import Ask
from fedclade.clients.tasks import Train
from fedclade.methods.base import About, Clusters, Count, Method, Placement, RoundContext, nearest, remembered

WAITING = 0  # the cluster of those who have not taken part; its model is that of all clients


@remembered
class Directions:
    """The mean direction of each cluster's members, of length 1 each, and of how many it is."""

    means: Mapping[int, np.ndarray] = field(default_factory=dict)
    counts: Mapping[int, int] = field(default_factory=dict)


class StoCFL(Method):
    about: ClassVar[About] = About(
        "clusters merge as clients are met, and stay near a model of all",
        "Zeng et al. 2023",
        "the number too",
        sends="3 models down, 2 up",
        formula="merge clusters while the cosine of their first gradients exceeds tau; w_k stays within lambda of w",
        use="when few clients take part in a round, so that groups must be found as clients are met",
    )
    State = Directions

    threshold: Annotated[float, Field(ge=-1, le=1)] = 0.3  # the least cosine at which clusters become one (tau)
    strength: Annotated[float, Field(ge=0)] = 0.05  # how near clusters are held to the model of all (lambda)
    anchor_epochs: Count = 10  # that a new client trains for its direction

    def start(self, context: RoundContext, ask: Ask) -> Clusters:
        return Clusters.single(context.clients, context.initial, Directions())

    def round(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        clusters = self.merged(self.met(clusters, context, ask), context)
        home = clusters.cluster_of
        chosen = [client for client in context.sample() if home[client] != WAITING]
        of_all = clusters.models[WAITING]
        tasks = {k: Train(model, proximal=self.strength, centre=of_all) for k, model in clusters.models.items()}
        own = ask.combined({client: tasks[home[client]] for client in chosen}, clusters.models, home)
        everybody = dict.fromkeys(chosen, Train(of_all, save=""))
        together = ask.combined(everybody, {WAITING: of_all}, dict.fromkeys(chosen, WAITING))
        return replace(clusters, models={**own.models, **together.models})

    def directions(self, context: RoundContext, ask: Ask, phase: str) -> dict[str, np.ndarray]:
        """Where clients go from the anchor, as vectors of length 1."""
        training = context.training.model_copy(update={"local_epochs": self.anchor_epochs})
        trained = ask(Train(context.initial, training=training, save=""), to=context.clients, phase=phase)
        n = context.layout.n_parameters
        return {client: unit((answer.weights - context.initial)[:n]) for client, answer in trained.items()}

    def met(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        """Those who take part for the first time become clusters of their own."""
        waiting = set(clusters.members.get(WAITING, ()))
        new = self.directions(context.only(waiting & set(context.sample())), ask, "cluster")
        clusters = clusters.without(new)
        state: Directions = clusters.state
        means, counts = dict(state.means), dict(state.counts)
        for client, direction in new.items():
            clusters = clusters.joined(client, None, clusters.models[WAITING])
            number = clusters.cluster_of[client]
            means[number], counts[number] = direction, 1
        return clusters.remembering(Directions(means, counts))

    def merged(self, clusters: Clusters, context: RoundContext) -> Clusters:
        """The clusters of those who take part, as far as they go the same way, become one."""
        state: Directions = clusters.state
        active = sorted({clusters.cluster_of[client] for client in context.sample()} & set(state.means))
        means, counts = dict(state.means), dict(state.counts)
        for stays, goes in unions(means, counts, active, self.threshold):
            clusters = clusters.merged(stays, goes)
        in_order = {k: tuple(c for c in context.clients if c in set(part)) for k, part in clusters.members.items()}
        return replace(clusters, members=in_order, state=Directions(means, counts))

    def place(self, clusters: Clusters, context: RoundContext, ask: Ask) -> dict[str, Placement]:
        """By the cosine with each cluster's mean direction; whoever goes with none of them gets a cluster."""
        state: Directions = clusters.state
        known = {k: unit(mean) for k, mean in state.means.items() if k in clusters.members}
        if not known:
            return {client: Placement(WAITING, {}, "there is one model") for client in context.clients}
        placements = {}
        for client, direction in self.directions(context, ask, "place").items():
            far = {k: 1 - float(direction @ mean) for k, mean in known.items()}
            near, limit = nearest(far), 1 - self.threshold
            placements[client] = Placement(near if far[near] <= limit else None, far, "1 - cosine of directions", limit)
        return placements

    def admit(self, clusters: Clusters, newcomers: Iterable[str], context: RoundContext, ask: Ask) -> Clusters:
        """They are met when they first take part."""
        for client in [client for client in context.clients if client in set(newcomers)]:
            clusters = clusters.joined(client, WAITING, context.initial)
        return clusters


def unit(vector: np.ndarray) -> np.ndarray:
    return np.asarray(vector / max(float(np.linalg.norm(vector.astype(np.float64))), 1e-30), np.float32)


def unions(
    means: dict[int, np.ndarray], counts: dict[int, int], active: Sequence[int], threshold: float
) -> list[tuple[int, int]]:
    """Which of the active clusters become one: pairs of who stays (the larger) and who goes. `means` follow."""
    left, made = list(active), []
    while len(left) > 1:
        rows = np.stack([unit(means[k]) for k in left]).astype(np.float64)
        cosines = np.triu(rows @ rows.T, 1) + np.tril(np.full((len(left), len(left)), -2.0))
        one, other = (left[place] for place in np.unravel_index(cosines.argmax(), cosines.shape))
        if cosines.max() < threshold:
            break
        stays, goes = (one, other) if counts[one] >= counts[other] else (other, one)
        total = counts[stays] + counts[goes]
        means[stays] = (counts[stays] * means[stays] + counts.pop(goes) * means.pop(goes)) / np.float32(total)
        counts[stays] = total
        left.remove(goes)
        made.append((stays, goes))
    return made
