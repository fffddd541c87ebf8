"""A FedAvg that looks on: it keeps how alike clients' updates are, layer by layer, for the papers' maps and curves.

It decides nothing with what it sees, so a figure shows the same training that plain averaging gives.
"""

from typing import ClassVar

import numpy as np

from fedclade.ask import Ask
from fedclade.clients.tasks import Train
from fedclade.clustering.bipartition import stability
from fedclade.clustering.similarity import cosine_matrix, distance_matrix
from fedclade.methods.base import About, Clusters, Method, RoundContext, remembered

DECILES = np.linspace(0, 1, 11)
RESTLESS = 0.1  # the share of a layer's weights that count as its most changing ones


@remembered
class LastUpdates:
    updates: tuple[np.ndarray, ...] = ()  # of the last two rounds, (clients, weights) each


class LayerWatch(Method):
    about: ClassVar[About] = About("FedAvg that keeps how alike updates are, layer by layer", "-")

    State = LastUpdates

    keep: tuple[int, ...] = ()  # the rounds to keep; none: all
    past: bool = True  # also how updates turn and change from round to round, which takes the last two of each client

    def round(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        model = clusters.models[0]
        trained = ask(Train(model), to=context.clients)
        if not len(trained):
            return clusters
        updates = trained.stack() - model
        places = context.layout.layers
        last = () if clusters.state is None else clusters.state.updates
        before = [past for past in last if past.shape == updates.shape]
        if not self.keep or context.round in self.keep:
            pictures = {
                "layers": list(places),
                "clients": list(trained.clients),
                "cosine": np.stack([cosine_matrix(updates[:, place]) for place in places.values()]),
                "distance": np.stack([distance_matrix(updates[:, place]) for place in places.values()]),
                "loss": float(np.mean([answer.loss for answer in trained.values()])),
            }
            if len(before) == 2:
                pictures |= turns(before[0], before[1], updates, list(places.values()), context.training.learning_rate)
            ask.record("layers", **pictures)
        clusters = clusters.averaged(trained)
        return clusters.remembering(LastUpdates((*before, updates)[-2:])) if self.past else clusters


def turns(
    oldest: np.ndarray, middle: np.ndarray, latest: np.ndarray, places: list[slice], rate: float
) -> dict[str, np.ndarray]:
    """What three rounds of updates (clients, weights) show of each layer.

    `stability` (clients, layers) is HiCFL's; `change` (layers, 11) the deciles of how much a weight's update changed,
    in learning rates; `again` (layers) the share of the most changing weights that were so a round before.
    """
    steady = np.stack([stability(oldest[:, at], middle[:, at], latest[:, at]) for at in places], axis=1)
    change, again = [], []
    for place in places:
        then, now = np.abs(middle - oldest)[:, place], np.abs(latest - middle)[:, place]
        change.append(np.quantile(now / rate, DECILES))
        count = max(1, round(RESTLESS * now.shape[1]))
        restless = [set(np.argsort(-row)[:count].tolist()) for row in now]
        earlier = [set(np.argsort(-row)[:count].tolist()) for row in then]
        again.append(np.mean([len(a & b) / count for a, b in zip(restless, earlier, strict=True)]))
    return {"stability": steady, "change": np.stack(change), "again": np.array(again)}
