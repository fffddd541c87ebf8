"""Evaluation with quick pools gives what the module itself gives."""

import numpy as np
import pytest
import torch
from torch import nn

from fedclade.clients.networks import CHUNK, Built
from fedclade.clients.quick import quick_forward
from fedclade.models import make


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(36, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.pool(x).flatten(1))


NETWORKS = {
    "one channel": (lambda: make("lenet5", (1, 28, 28), 5), (1, 28, 28)),
    "three channels": (lambda: make("lenet5", (3, 32, 32), 5), (3, 32, 32)),
    "odd sides": (lambda: make("lenet5", (1, 27, 29), 5), (1, 27, 29)),
    "nested, with normalisation": (lambda: make("resnet9-gn", (3, 16, 16), 5), (3, 16, 16)),
    "signals": (lambda: make("har-cnn", (3, 40), 5), (3, 40)),
    "padded": (lambda: padded(nn.ReLU(inplace=True), bias=False), (1, 12, 12)),
    "dropout": (lambda: padded(nn.ReLU(), nn.Dropout2d(), bias=True), (1, 12, 12)),
    "a forward of its own": (Own, (1, 12, 12)),
}


def padded(*between: nn.Module, bias: bool) -> nn.Module:
    convolution = nn.Conv2d(1, 4, 3, padding=1, bias=bias)
    return nn.Sequential(convolution, *between, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(144, 5))


@pytest.mark.parametrize("name", NETWORKS)
def test_it_is_the_same(name: str) -> None:
    torch.manual_seed(0)
    factory, shape = NETWORKS[name]
    module = factory().eval()
    x = torch.rand(7, *shape)
    x[:, :, :5] = 0
    with torch.inference_mode():
        torch.testing.assert_close(quick_forward(module)(x.clone()), module(x.clone()), atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("products")
@pytest.mark.parametrize(
    ("name", "shape"), [("lenet5", (1, 28, 28)), ("mlp", (12,)), ("cnn1d", (6, 64)), ("bilstm", (6, 32))]
)
def test_whole_chunks_follow_the_module(name: str, shape: tuple[int, ...]) -> None:
    """By the compiled kernel too, with the weights that are bound last."""
    built = Built(lambda: make(name, shape, 4), 0)
    rows = torch.rand(CHUNK, *shape)
    for share in (1.0, 0.5):
        weights = torch.from_numpy(built.initial * np.float32(share))[None]
        built.plain.bind(weights, None)
        with torch.inference_mode():
            found, expected = built.outputs(rows, 0), built.outputs(rows, 0, each_layer=True)
        assert torch.allclose(found, expected, atol=1e-5)
