"""A mixture of networks: each puts out class probabilities, and a client's own weights say how much each counts."""

import torch
from torch import Tensor, nn

from fedclade.models import Factory, Shape, make


class Mixing(nn.Module):
    """How much each component counts: the softmax of these numbers."""

    def __init__(self, n_components: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(n_components))

    def forward(self, logs: Tensor) -> Tensor:
        """The logarithm of mixed probabilities, from those of the components (components, rows, classes)."""
        shares = self.weight.log_softmax(0)
        return torch.logsumexp(logs + shares[:, None, None], 0)


class MixtureNetwork(nn.Module):
    """Its outputs are logarithms of probabilities, so that their cross entropy is the likelihood of the mixture."""

    def __init__(self, spec: str | Factory, n_components: int, input_shape: Shape, n_classes: int) -> None:
        super().__init__()
        self.components = nn.ModuleList(make(spec, input_shape, n_classes) for _ in range(n_components))
        self.mixing = Mixing(n_components)

    def forward(self, x: Tensor) -> Tensor:
        logs: Tensor = self.mixing(torch.stack([component(x).float().log_softmax(1) for component in self.components]))
        return logs
