"""What clients do, once more in plain torch: for oracles of methods that train in ways of their own."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedclade.clients.tasks import Training
from fedclade.clients.training import batches_of
from fedclade.data.federation import Federation
from fedclade.models import make
from fedclade.models.weights import flatten, load
from fedclade.randomness import stream

Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


@dataclass
class PlainClients:
    """Clients of a federation that train an MLP; rows come in the order in which fedclade itself takes them."""

    federation: Federation
    training: Training
    seed: int = 0

    def module(self, weights: np.ndarray) -> nn.Module:
        made = make("mlp", self.federation.input_shape, self.federation.n_classes)
        return load(made, np.array(weights, np.float32))

    def rows(self, client: str) -> tuple[Tensor, Tensor]:
        held = self.federation[client].train
        return torch.from_numpy(self.federation.x[held]), torch.from_numpy(self.federation.y[held])

    def batches(self, client: str, round: int, **training: Any) -> Iterator[tuple[Tensor, Tensor]]:
        how = self.training.model_copy(update=training)
        places = batches_of(self.federation[client].train, how, stream(self.seed, "batches", client, round))
        for batch in places:
            used = batch[batch >= 0]
            yield torch.from_numpy(self.federation.x[used]), torch.from_numpy(self.federation.y[used])

    def gradient(self, weights: np.ndarray, x: Tensor, y: Tensor) -> np.ndarray:
        """Of the mean loss over some rows, as one vector."""
        module = self.module(weights)
        nn.functional.cross_entropy(module(x), y).backward()
        return np.concatenate([p.grad.numpy().ravel() for p in module.parameters()])  # type: ignore[union-attr]

    def sgd(
        self, weights: np.ndarray, batches: Iterable[Any], moving: Callable[[str], bool] = lambda name: True
    ) -> Any:
        """Weights after torch's own SGD of the parameters whose names are chosen."""
        module = self.module(weights)
        chosen = [p for name, p in module.named_parameters() if moving(name)]
        descent = torch.optim.SGD(chosen, lr=self.training.learning_rate, momentum=self.training.momentum)
        for x, y in batches:
            module.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
            descent.step()
        return flatten(module)

    def mean(self, vectors: dict[str, np.ndarray]) -> np.ndarray:
        """Weighted by rows."""
        sizes = {client: len(self.federation[client].train) for client in vectors}
        return np.asarray(sum(sizes[c] * v.astype(np.float64) for c, v in vectors.items()) / sum(sizes.values()))
