"""Every batched operation against torch's autograd, on rows as they are, on blank ones and on ones full of ties."""

import pytest
import torch
from torch import Tensor, nn

from fedclade.clients.batched import Chain, operations
from fedclade.models import make
from fedclade.models.weights import Layout, load

pytestmark = pytest.mark.usefixtures("products")


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


def convolutional(*layers: nn.Module, shape: tuple[int, ...]) -> tuple[nn.Module, tuple[int, ...]]:
    features = nn.Sequential(*layers, nn.Flatten())
    return nn.Sequential(*features, nn.Linear(features(torch.zeros(1, *shape)).shape[1], 5)), shape


def pooled(before: int, after: int, side: int = 5) -> list[nn.Module]:
    return [nn.Conv2d(before, after, side), nn.ReLU(), nn.MaxPool2d(2)]


def signals() -> list[nn.Module]:
    return [nn.Conv1d(3, 4, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(4, 2, 3)]


NETWORKS = {
    "dense": (nn.Sequential(nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 5)), (12,)),
    "one layer": (nn.Linear(12, 5), (12,)),
    "no bias": (nn.Sequential(nn.Flatten(), nn.Linear(12, 9, bias=False), nn.ReLU(), nn.Linear(9, 5)), (3, 4)),
    "layers in a row": (nn.Sequential(nn.Linear(12, 9), nn.Sequential(nn.Linear(9, 8), nn.Linear(8, 5))), (12,)),
    "pooled": convolutional(*pooled(2, 4, 3), shape=(2, 12, 12)),
    "pool before ReLU": convolutional(nn.Conv2d(1, 4, 5), nn.MaxPool2d(2), nn.ReLU(), shape=(1, 12, 12)),
    "pooled twice": convolutional(*pooled(1, 3), *pooled(3, 4), shape=(1, 28, 28)),
    "pooled twice, unequal sides": convolutional(*pooled(2, 3), *pooled(3, 4, 3), shape=(2, 20, 12)),
    "pooled without ReLU": convolutional(nn.Conv2d(1, 3, 5), nn.MaxPool2d(2), *pooled(3, 4), shape=(1, 28, 28)),
    "pooled thrice": convolutional(*pooled(1, 3), *pooled(3, 4, 3), *pooled(4, 3, 2), shape=(1, 28, 28)),
    "pooled, odd sides": convolutional(*pooled(1, 3), *pooled(3, 4), shape=(1, 27, 29)),
    "pooled, no bias": convolutional(nn.Conv2d(1, 4, 5, bias=False), nn.MaxPool2d(2), nn.ReLU(), shape=(1, 12, 12)),
    "padded": convolutional(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), shape=(2, 7, 9)),
    "strides": convolutional(nn.Conv2d(2, 4, (3, 2), stride=(2, 3), padding=(1, 0)), nn.ReLU(), shape=(2, 9, 11)),
    "convolutions in a row": convolutional(nn.Conv2d(1, 3, 3), nn.Conv2d(3, 4, 2, bias=False), shape=(1, 8, 8)),
    "convolutions, then a pool": convolutional(nn.Conv2d(1, 3, 3), nn.ReLU(), *pooled(3, 4, 3), shape=(1, 12, 12)),
    "signals": convolutional(*signals(), shape=(3, 15)),
    "mean": convolutional(nn.Conv1d(3, 4, 5), nn.ReLU(), nn.AdaptiveAvgPool1d(1), shape=(3, 15)),
    "mean of images": convolutional(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), shape=(3, 6, 7)),
    "features as a signal": convolutional(nn.Unflatten(1, (1, -1)), nn.Conv1d(1, 4, 5), nn.ReLU(), shape=(12,)),
    "recurrent": (make("bilstm", (3, 7), 5), (3, 7)),
    "recurrent of features": (make("bilstm", (12,), 5), (12,)),
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
@pytest.mark.parametrize("batch", [2, 7, 18])
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_those_of_autograd(name: str, batch: int, kind: str) -> None:
    module, shape = NETWORKS[name]
    torch.manual_seed(1)
    clients = 3
    weights = torch.randn(clients, Layout.of(module).size) / 4
    x, y = pictures(kind, clients, batch, *shape), torch.randint(0, 5, (clients, batch))
    ops = operations(module, shape, batch)
    assert ops is not None
    chain = Chain(ops, clients)
    for mine, given in zip(chain.parameters, chain.pack(weights), strict=True):
        mine.copy_(given)
    scale = torch.full((clients, 1, batch), 1 / batch)
    target = torch.zeros(clients, 5, batch).scatter_(1, y.unsqueeze(1), scale)
    losses = chain.gradients(x, target, scale)
    for mine, gradient in zip(chain.parameters, chain.grads, strict=True):
        mine.copy_(gradient)
    grads = torch.zeros_like(weights)
    chain.unpack(grads)
    for k in range(clients):
        loss, gradient = autograd(module, weights[k], x[k], y[k])
        assert losses[k].item() == pytest.approx(loss.item(), rel=1e-5)
        assert (grads[k] - gradient).abs().max() < 1e-6 * max(1, gradient.abs().max())
