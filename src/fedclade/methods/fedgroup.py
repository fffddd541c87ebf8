"""FedGroup: groups from the directions of a few clients' first updates, seen along their main axes.

Duan et al., "FedGroup: Efficient Federated Learning via Decomposed Similarity-Based Clustering", ISPA 2021.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from fedclade.ask import Ask, TrainedClients
from fedclade.clients.tasks import Train
from fedclade.clustering.similarity import cosine_matrix, directions, distance_matrix
from fedclade.methods.base import About, Clusters, Count, RoundContext, nobody_answered
from fedclade.methods.one_shot import Centres, OneShot, Signals


class FedGroup(OneShot):
    about: ClassVar[About] = About(
        "groups once, by the directions of first updates",
        "Duan et al. 2021",
        "a given number",
        "one shot",
        formula="k-means of cos(u_i, v_m), v_m the leading singular vectors of some clients' first updates "
        "u_i; the others join the nearest",
        use="when there are very many clients: a few hundred of them make the groups",
    )

    n_clusters: Count = 4  # how many groups there are
    pretrain: Count = 20  # how many clients (times the number of groups) make the groups

    @property
    def measure(self) -> str:
        return "1 - cosine of updates"

    def start(self, context: RoundContext, ask: Ask) -> Clusters:
        """Some clients make the groups, whose models begin with what these trained; the others join like newcomers."""
        count = min(self.pretrain * self.n_clusters, len(context.clients))
        drawn = context.random("pretrain").permutation(len(context.clients))[:count]
        chosen = [context.clients[k] for k in sorted(drawn)]
        trained = ask(Train(context.initial), to=chosen, phase="cluster")
        if not len(trained):
            raise nobody_answered(ask)
        updates = dict(zip(trained, trained.stack() - context.initial, strict=True))
        clusters = Clusters.from_labels(trained.clients, self.group(updates, context, ask), context.initial)
        clusters = clusters.averaged(trained)
        n = context.layout.n_parameters
        mean = {k: (model - context.initial)[:n] for k, model in clusters.models.items()}
        clusters = clusters.remembering(Centres(context.initial, mean))
        return self.admit(clusters, set(context.clients) - set(trained.clients), context, ask)

    def signals(
        self, trained: TrainedClients, start: np.ndarray, context: RoundContext, ask: Ask, state: Any
    ) -> Signals:
        n = context.layout.n_parameters
        return {client: (answer.weights - start)[:n] for client, answer in trained.items()}

    def group(self, signals: Mapping[str, np.ndarray], context: RoundContext, ask: Ask) -> np.ndarray:
        from fedclade.clustering.centers import kmeans

        groups = min(self.n_clusters, len(signals))
        decomposed = decomposed_cosines(np.stack(list(signals.values())), groups)
        matrix, what = distance_matrix(decomposed), "distance of decomposed cosines"
        ask.record("proximity", matrix=matrix, clients=list(signals), measure=what)
        return kmeans(decomposed, groups)

    def far(self, signal: np.ndarray, state: Centres, context: RoundContext) -> dict[int, float]:
        angles = 1 - cosine_matrix(np.stack([signal, *state.centres.values()]))[0, 1:]
        return dict(zip(state.centres, angles.tolist(), strict=True))


def decomposed_cosines(updates: np.ndarray, n_axes: int) -> np.ndarray:
    """(clients, axes): the cosine of every update with the updates' own main axes."""
    axes = np.linalg.svd(updates.astype(np.float64), full_matrices=False)[2][:n_axes]
    return directions(updates.astype(np.float64)) @ axes.T
