"""Mixtures of networks: each puts out class probabilities, and a client's own weights say how much each counts."""

import torch
from torch import Tensor, nn

from fedclade.models import Factory, Shape, make

LEAST = 1e-8  # no share is smaller, for it is divided by


class Mixing(nn.Module):
    """How much each component counts: the softmax of these numbers."""

    def __init__(self, n_components: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(n_components))

    def forward(self, logs: Tensor) -> Tensor:
        """The logarithm of mixed probabilities, from those of the components (components, rows, classes)."""
        return torch.logsumexp(self.each(logs), 0)

    def each(self, logs: Tensor) -> Tensor:
        """The logarithm of what each component adds to them."""
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
    """The share of all rows that have a label and that a component answers for: (components, classes)."""

    def __init__(self, n_components: int, n_classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((n_components, n_classes), 1 / (n_components * n_classes)))

    def forward(self) -> Tensor:
        """The logarithm of a label's share among the rows of each component."""
        shares = self.weight.clamp(min=LEAST)
        return (shares / shares.sum(1, keepdim=True)).log()


class RobustMixture(MixtureNetwork):
    """A mixture of which each component is trained on each row as much as it answers for it (FedRC).

    How much that is, rows tell before training begins (`responsibilities`), and both last layers with it (`settle`).
    """

    def __init__(self, spec: str | Factory, n_components: int, input_shape: Shape, n_classes: int) -> None:
        super().__init__(spec, n_components, input_shape, n_classes)
        mixing = self.mixing
        del self.mixing  # it stays the last layer
        self.labels, self.mixing = LabelShares(n_components, n_classes), mixing
        for layer in (self.labels, self.mixing):
            layer.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """In training every row is put out by each component, one after the other: (components * rows, classes)."""
        if self.training:
            return torch.cat([component(x).float() for component in self.components])
        return super().forward(x)

    def responsibilities(self, x: Tensor, y: Tensor) -> Tensor:
        """(rows, components): how much each answers for each row, omega_k p_k(y | x) / C_yk in proportion."""
        logs = self.mixing.each(self.logs(x) - self.labels()[:, None])
        return logs[:, torch.arange(len(y), device=y.device), y].softmax(0).T

    def settle(self, responsible: Tensor, y: Tensor) -> None:
        """Mixing weights and label shares of the rows for which components answer so."""
        of_label = [responsible[y == label].sum(0) for label in range(self.labels.weight.shape[1])]
        self.labels.weight.data.copy_(torch.stack(of_label, 1) / len(y))
        self.mixing.weight.data.copy_(responsible.mean(0).clamp(min=LEAST).log())


MIXTURES = {"*": MixtureNetwork, "/": RobustMixture}  # by the sign between their number and the network
