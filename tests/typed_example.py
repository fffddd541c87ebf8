"""What users write, checked by mypy as strictly as it can (`make check`): the public interface is typed throughout."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
from torch import nn

import fedclade
from fedclade import About, Clusters, Method, Placement, RoundContext, Train
from fedclade.ask import Ask


class Halves(Method):
    """A method of one's own, with a setting."""

    about: ClassVar[About] = About("two halves", "-", finds="a given number")

    first: int = 2

    def start(self, context: RoundContext, ask: Ask) -> Clusters:
        labels = [int(place >= self.first) for place in range(len(context.clients))]
        return Clusters.from_labels(context.clients, labels, context.initial)

    def round(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        trained = ask({client: Train(clusters.model_of(client)) for client in context.sample()})
        return clusters.averaged(trained)

    def place(self, clusters: Clusters, context: RoundContext, ask: Ask) -> dict[str, Placement]:
        return {client: Placement(0, {0: 0.0}, "the first") for client in context.clients}


def make_net(input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(input_shape)), n_classes))


def main(data: Mapping[str, tuple[np.ndarray, np.ndarray]], out: Path) -> float | None:
    result: fedclade.Result = fedclade.run(data, method=Halves(first=1), model=make_net, rounds=1, workers=1, out=out)
    clusters: dict[int, list[str]] = result.clusters
    client = clusters[0][0]
    model: nn.Module = result.model_for(client)
    model.eval()
    placed = fedclade.place(out, dict(data), model=make_net, method=Halves(first=1), save=False)
    again = fedclade.load(out)
    try:
        fedclade.resume(out, rounds=1)
    except fedclade.FedcladeError as error:
        print(error, placed[client].cluster, again.history.shape)
    mean: float | None = result.accuracy["mean"]
    return mean
