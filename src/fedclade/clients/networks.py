"""A network as the training loop sees it: weights [K, size] in, gradients [K, parameters] out.

There are two: `BatchedNetwork` steps many clients at once, for plain chains of layers; `PlainNetwork` takes any
module, one client at a time. Which one a run uses follows from the module and the batch size alone (`Built.learner`),
never from a timing or from how many clients there are, so that results are the same everywhere.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor, nn

from fedclade.clients.batched import BatchedNetwork, ConvReluPool, is_pool_of_two, operations
from fedclade.clients.objective import Classification, Objective
from fedclade.models import row_type
from fedclade.models.weights import Layout, flatten, put
from fedclade.randomness import seed_of

# Beyond this many numbers in an input channel-batch, torch's own convolution wins over the banded product.
LARGEST_CONVOLUTION = 96


class Network(Protocol):
    frozen: Sequence[slice]  # the parameters that are not trained

    def bind(self, weights: Tensor, grads: Tensor) -> None:
        """Work on these buffers from now on: weights [K, size], grads [K, parameters]."""

    def gradients(self, x: Tensor, y: Tensor, rows: Tensor) -> Tensor:
        """Fill grads with the gradient of the mean loss over some rows of a table, and return that loss.

        `rows` [active, batch] are of the first `active` clients; -1 stands for none.
        """

    def release(self) -> None:
        """Leave in the weights what the network counted or measured by itself while it was trained."""


class PlainNetwork:
    """Any module, one client at a time. Its float32 parameters and their gradients are views of the flat buffers.

    Parameters of another type are copied to and fro: steps are taken in float32, forward and backward passes in the
    module's own type.
    """

    objective: Objective = Classification()

    def __init__(self, module: nn.Module) -> None:
        self.module, self.layout, self.row_type = module, Layout.of(module), row_type(module)
        self.parameters = dict(module.named_parameters())
        self.frozen: Sequence[slice] = [
            self.layout.slices[name] for name, value in self.parameters.items() if not value.requires_grad
        ]
        self.buffers = dict(module.named_buffers())
        self.homes = [(part, key, value) for part in module.modules() for key, value in part.named_buffers("", False)]
        self.unsaved = {name: value.clone() for name, value in self.buffers.items() if name not in self.layout.slices}

    def bind(self, weights: Tensor, grads: Tensor | None) -> None:
        """Without gradients the module is made ready for evaluation."""
        self.vector, self.grads = weights[0], grads
        self.copied: list[tuple[nn.Parameter, Tensor, Tensor]] = []
        self.module.train(grads is not None)
        for part, key, value in self.homes:  # a forward pass may have put another tensor in its place
            setattr(part, key, value)
        for name, value in self.unsaved.items():
            self.buffers[name].copy_(value)
        for (name, place), shape in zip(self.layout.slices.items(), self.layout.shapes, strict=True):
            value, parameter = self.vector[place].view(shape), self.parameters.get(name)
            if parameter is None:
                put(self.buffers[name], value)
                continue
            grad = grads[0, place].view(shape) if grads is not None and parameter.requires_grad else None
            if parameter.dtype == torch.float32:
                parameter.data, parameter.grad = value, grad
                continue
            parameter.data.copy_(value)
            if grad is not None:
                self.copied.append((parameter, value, grad))

    def gradients(self, x: Tensor, y: Tensor, rows: Tensor) -> Tensor:
        rows = rows[0][rows[0] >= 0]  # others would spoil batch statistics
        for parameter, value, _ in self.copied:
            parameter.data.copy_(value)
            parameter.grad = None
        assert self.grads is not None
        self.grads.zero_()
        with torch.enable_grad():
            loss = self.objective.loss(self.outputs(x[rows]), y[rows])
            loss.backward()
        for parameter, _, grad in self.copied:
            if parameter.grad is not None:
                grad.copy_(parameter.grad)
        return loss.detach().view(1)

    def outputs(self, rows: Tensor) -> Tensor:
        return self.module(as_inputs(rows).to(self.row_type)).float()

    def release(self) -> None:
        for name in self.layout.names:
            if name in self.buffers:
                self.vector[self.layout.slices[name]] = self.module.get_buffer(name).flatten()


class Batched:
    """A chain of plain layers: many clients at once."""

    def __init__(self, chain: BatchedNetwork, frozen: Sequence[slice]) -> None:
        self.chain, self.frozen = chain, frozen

    def bind(self, weights: Tensor, grads: Tensor) -> None:
        self.weights, self.grads = weights, grads

    def gradients(self, x: Tensor, y: Tensor, rows: Tensor) -> Tensor:
        active, real = len(rows), rows >= 0
        scale, rows = real / real.sum(1, keepdim=True), rows.clamp(min=0)
        return self.chain.gradients(self.weights[:active], as_inputs(x[rows]), y[rows], scale, self.grads[:active])

    def release(self) -> None:
        """Its layers keep nothing."""


class Built:
    """One of a run's networks: its module, the layout of its weights, and those it starts from."""

    def __init__(self, factory: Callable[[], nn.Module], seed: int) -> None:
        self.seed = seed
        torch.manual_seed(seed % 2**63)
        self.module = with_quick_pools(factory())
        self.plain = PlainNetwork(self.module)
        self.layout, self.initial = self.plain.layout, flatten(self.module)

    @property
    def objective(self) -> Objective:
        return self.plain.objective

    def work_for(self, objective: Objective, device: torch.device) -> None:
        """From now on train for this, there."""
        self.plain.objective = objective
        self.module.to(device)

    def learner(self, input_shape: tuple[int, ...], batch_size: int) -> Network:
        """What trains it: a fixed rule, recorded with every run."""
        ops = operations(self.module, input_shape)
        convolutional = any(isinstance(op, ConvReluPool) for op in ops or ())
        if (
            ops is None
            or not self.objective.is_cross_entropy
            or (convolutional and batch_size * input_shape[0] > LARGEST_CONVOLUTION)
        ):
            return self.plain
        return Batched(BatchedNetwork(ops), self.plain.frozen)

    def is_batched(self, input_shape: tuple[int, ...], batch_size: int) -> bool:
        """Whether many clients are trained at once."""
        return self.learner(input_shape, batch_size) is not self.plain

    def outputs(self, rows: Tensor, first: int) -> Tensor:
        """Of rows of which the first stands at this place: where a forward pass draws, these are its random numbers."""
        torch.manual_seed(seed_of(self.seed, "forward", round=first) % 2**63)
        return self.plain.outputs(rows)


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
