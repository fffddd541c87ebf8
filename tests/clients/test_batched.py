"""Every batched operation against torch's autograd, on images as they are, on blank ones and on ones full of ties."""

import pytest
import torch
from torch import Tensor, nn

from fedclade.clients.batched import BatchedNetwork, operations
from fedclade.models.weights import Layout, load


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def pictures(kind: str, *shape: int) -> Tensor:
    """Rows of a kind; "real" ones are a bright shape with texture on a blank background."""
    made = torch.rand(*shape)
    match kind:
        case "real":
            for axis in range(2, len(shape)):
                side = torch.linspace(-1, 1, shape[axis]).abs()
                made *= (side < 0.6).float().view(-1, *[1] * (len(shape) - axis - 1))
        case "constant":
            made[:] = 0.5
        case "blank":
            made.zero_()
        case "ties":
            made = made.round()
    return made


NETWORKS = {
    "dense": (nn.Sequential(nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 5)), (12,)),
    "one layer": (nn.Sequential(nn.Linear(12, 5)), (12,)),
    "no bias": (nn.Sequential(nn.Flatten(), nn.Linear(12, 9, bias=False), nn.ReLU(), nn.Linear(9, 5)), (3, 4)),
    "two layers in a row": (nn.Sequential(nn.Linear(12, 9), nn.Linear(9, 5), nn.ReLU()), (12,)),
    "convolution": (
        nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(100, 5)),
        (2, 12, 12),
    ),
    "pool before ReLU": (
        nn.Sequential(nn.Conv2d(1, 4, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5)),
        (1, 12, 12),
    ),
    "two convolutions": (
        nn.Sequential(
            *(nn.Conv2d(1, 3, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(3, 4, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(64, 7), nn.ReLU(), nn.Linear(7, 5)),
        ),
        (1, 28, 28),
    ),
}


def autograd(module: nn.Module, weights: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """One client's loss and gradient, in double precision."""
    load(module, weights.numpy())
    module.double().zero_grad()
    loss = nn.functional.cross_entropy(module(x.double()), y)
    loss.backward()
    gradient = torch.cat([parameter.grad.flatten() for parameter in module.parameters()])  # type: ignore[union-attr]
    module.float()
    return loss.detach().float(), gradient.float()


@pytest.mark.parametrize("kind", ["noise", "real", "constant", "blank", "ties"])
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_those_of_autograd(name: str, kind: str) -> None:
    module, shape = NETWORKS[name]
    torch.manual_seed(1)
    clients, batch = 3, 6
    weights = torch.randn(clients, Layout.of(module).size) / 4
    x, y = pictures(kind, clients, batch, *shape), torch.randint(0, 5, (clients, batch))
    ops = operations(module, shape)
    assert ops is not None
    grads = torch.empty_like(weights)
    losses = BatchedNetwork(ops).gradients(weights, x, y, torch.full(y.shape, 1 / batch), grads)
    for k in range(clients):
        loss, gradient = autograd(module, weights[k], x[k], y[k])
        assert losses[k].item() == pytest.approx(loss.item(), rel=1e-5)
        assert (grads[k] - gradient).abs().max() < 1e-6 * max(1, gradient.abs().max())
