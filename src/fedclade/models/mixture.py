"""Mixtures of networks: each puts out class probabilities, and a client's own weights say how much each counts."""

import math

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
        return torch.logsumexp(self.each(logs), 0)

    def each(self, logs: Tensor) -> Tensor:
        """What each component adds to the mixture."""
        return logs + self.weight.log_softmax(0)[:, None, None]


class MixtureNetwork(nn.Module):
    """Its outputs are logarithms of probabilities, so that their cross entropy is the likelihood of the mixture."""

    def __init__(self, spec: str | Factory, n_components: int, input_shape: Shape, n_classes: int) -> None:
        super().__init__()
        self.components = nn.ModuleList(make(spec, input_shape, n_classes) for _ in range(n_components))
        self.mixing = Mixing(n_components)

    def forward(self, x: Tensor) -> Tensor:
        logs: Tensor = self.mixing(self.logs(x))
        return logs

    def logs(self, x: Tensor) -> Tensor:
        """(components, rows, classes): logarithms of each component's probabilities."""
        return torch.stack([component(x).float().log_softmax(1) for component in self.components])


class LabelShares(nn.Module):
    """The share of each class among the rows of each component, as a logarithm. It is told, not trained."""

    def __init__(self, n_components: int, n_classes: int) -> None:
        super().__init__()
        even = torch.full((n_components, n_classes), -math.log(n_classes))
        self.weight = nn.Parameter(even, requires_grad=False)

    def forward(self, logs: Tensor) -> Tensor:
        return logs - self.weight[:, None]


class RobustMixture(MixtureNetwork):
    """A mixture that is trained for sum_k omega_k p_k(y | x) / C_yk (FedRC), C being label shares; it serves without C.

    Over classes that does not sum to one, so cross entropy would mend it and be wrong. In training it is made smaller
    by a constant, which no gradient sees, until it sums to half at most, and one more output, a class that no row has,
    takes the rest: the cross entropy of such outputs is the likelihood, up to the constant.
    """

    def __init__(self, spec: str | Factory, n_components: int, input_shape: Shape, n_classes: int) -> None:
        super().__init__(spec, n_components, input_shape, n_classes)
        mixing = self.mixing
        del self.mixing  # it stays the last layer
        self.labels, self.mixing = LabelShares(n_components, n_classes), mixing

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        likely: Tensor = self.mixing(self.labels(self.logs(x))) + (self.labels.weight.min() - math.log(2))
        rest = torch.log1p(-likely.exp().sum(1, keepdim=True))
        return torch.cat([likely, rest], 1)

    def responsibilities(self, x: Tensor, y: Tensor) -> Tensor:
        """(rows, components): how much each component answers for each row."""
        each = self.mixing.each(self.labels(self.logs(x)))
        return each[:, torch.arange(len(y), device=y.device), y].softmax(0).T


MIXTURES = {"*": MixtureNetwork, "/": RobustMixture}  # by the sign between their number and the network
