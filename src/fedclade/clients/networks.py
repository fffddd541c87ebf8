"""A network as the training loop sees it: weights [K, size] in, gradients [K, parameters] out.

There are two: `BatchedNetwork` steps many clients at once, for plain chains of layers; `PlainNetwork` takes any
module, one client at a time. Which one a run uses follows from the module and the batch size alone (`is_batched`),
never from a timing or from how many clients there are, so that results are the same everywhere.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor, nn

from fedclade.clients.batched import BatchedNetwork, ConvReluPool, is_pool_of_two, operations
from fedclade.models.weights import Layout, flatten

# Beyond this many numbers in an input channel-batch, torch's own convolution wins over the banded product.
LARGEST_CONVOLUTION = 96


class Network(Protocol):
    def bind(self, weights: Tensor, grads: Tensor) -> None:
        """Work on these buffers from now on: weights [K, size], grads [K, parameters]."""

    def gradients(self, x: Tensor, y: Tensor, scale: Tensor, active: int) -> Tensor:
        """Fill the first `active` rows of grads with the gradient of sum(scale * cross entropy); return that loss."""


class PlainNetwork:
    """Any module, one client at a time: its parameters and gradients are views of the flat buffers."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.layout = Layout.of(module)

    def bind(self, weights: Tensor, grads: Tensor) -> None:
        self.weights, self.grads = weights, grads
        state = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        for (name, place), shape in zip(self.layout.slices.items(), self.layout.shapes, strict=True):
            tensor = state[name]
            tensor.data = weights[0, place].view(shape)
            if place.start < self.layout.n_parameters:
                tensor.grad = grads[0, place].view(shape)

    def gradients(self, x: Tensor, y: Tensor, scale: Tensor, active: int) -> Tensor:
        used = scale[0] > 0  # padding rows would spoil batch statistics
        x, y, scale = x[0][used], y[0][used], scale[0][used]
        self.module.train()
        self.grads.zero_()
        with torch.enable_grad():
            losses = nn.functional.cross_entropy(self.module(x), y, reduction="none")
            loss = (losses * scale).sum()
            loss.backward()
        return loss.detach().view(1)


class Batched:
    """A chain of plain layers: many clients at once."""

    def __init__(self, chain: BatchedNetwork) -> None:
        self.chain = chain

    def bind(self, weights: Tensor, grads: Tensor) -> None:
        self.weights, self.grads = weights, grads

    def gradients(self, x: Tensor, y: Tensor, scale: Tensor, active: int) -> Tensor:
        return self.chain.gradients(self.weights[:active], x, y, scale, self.grads[:active])


class Built:
    """One of a run's networks: its module, the layout of its weights, and those it starts from."""

    def __init__(self, factory: Callable[[], nn.Module], seed: int) -> None:
        torch.manual_seed(seed % 2**63)
        self.module = with_quick_pools(factory())
        self.layout = Layout.of(self.module)
        self.initial = flatten(self.module)


def is_batched(module: nn.Module, input_shape: tuple[int, ...], batch_size: int) -> bool:
    """Whether clients of this network train together: a fixed rule, recorded with every run."""
    ops = operations(module, input_shape)
    if ops is None:
        return False
    convolutional = any(isinstance(op, ConvReluPool) for op in ops)
    return not convolutional or batch_size * input_shape[0] <= LARGEST_CONVOLUTION


def network_for(module: nn.Module, input_shape: tuple[int, ...], batch_size: int) -> Network:
    if is_batched(module, input_shape, batch_size):
        ops = operations(module, input_shape)
        assert ops is not None
        return Batched(BatchedNetwork(ops))
    return PlainNetwork(module)


def as_inputs(rows: Tensor) -> Tensor:
    """Rows as a network takes them: images of bytes become numbers from 0 to 1."""
    return rows.to(torch.float32).mul_(1 / 255) if rows.dtype == torch.uint8 else rows


class QuickPool(nn.MaxPool2d):
    """A 2x2 max pool that takes strided maxima where no gradient is wanted: several times faster on a CPU."""

    def forward(self, input: Tensor) -> Tensor:
        if torch.is_grad_enabled() or input.shape[-1] % 2 or input.shape[-2] % 2:
            return super().forward(input)
        rows = torch.maximum(input[..., 0::2, :], input[..., 1::2, :])
        return torch.maximum(rows[..., 0::2], rows[..., 1::2])


class QuickReluPool(QuickPool):
    """The same with the ReLU before it, which is done on the quarter of the numbers that is left after it."""

    def forward(self, input: Tensor) -> Tensor:
        pooled = super().forward(input)
        return pooled if torch.is_grad_enabled() else pooled.clamp_(min=0)


class ReluLeftToPool(nn.ReLU):
    """A ReLU that the pool after it does where no gradient is wanted: the two commute."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) if torch.is_grad_enabled() else input


def with_quick_pools(module: nn.Module) -> nn.Module:
    """The module, its plain 2x2 max pools made quick for evaluation."""
    for chain in [part for part in module.modules() if isinstance(part, nn.Sequential)]:
        for first, second in pairwise(chain):
            if type(first) is nn.ReLU and type(second) is nn.MaxPool2d and is_pool_of_two(second):
                first.__class__, second.__class__ = ReluLeftToPool, QuickReluPool
    for layer in module.modules():
        if type(layer) is nn.MaxPool2d and is_pool_of_two(layer):
            layer.__class__ = QuickPool
    return module
