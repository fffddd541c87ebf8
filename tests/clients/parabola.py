"""A network whose loss is (w - 1)^2 / 2, whatever the rows."""

from collections.abc import Iterator

import numpy as np
import torch

from fedclade.clients.tasks import Training
from fedclade.clients.training import Job, train


class Parabola:
    at_once, frozen = 3, ()

    def begin(self, weights: torch.Tensor) -> None:
        self.weights = weights
        self.go_on_with(len(weights))

    def go_on_with(self, clients: int) -> None:
        self.parameters, self.grads = [self.weights[:clients]], [torch.zeros_like(self.weights[:clients])]

    def pack(self, flat: torch.Tensor) -> list[torch.Tensor]:
        return [flat]

    def batches(self, x: torch.Tensor, y: torch.Tensor, rows: torch.Tensor, weights: None) -> Iterator[torch.Tensor]:
        return iter(rows)

    def gradients(self, batch: torch.Tensor, keep: float) -> torch.Tensor:
        self.grads[0].mul_(keep).add_(self.parameters[0] - 1)
        return torch.zeros(len(batch))

    def end(self) -> torch.Tensor:
        return self.weights


def trained(jobs: list[Job], training: Training) -> np.ndarray:
    """Where the jobs' weights end."""
    one = torch.zeros(1, 1), torch.zeros(1, dtype=torch.long)
    return train(Parabola(), *one, jobs, training)[0][:, 0]
