"""A network as the training loop sees it: it takes the weights of K clients and makes their gradients.

There are two: `BatchedNetwork` steps many clients at once, for chains of known layers; `PlainNetwork` takes any
module, one client at a time. Which one a run uses follows from the module and the batch size alone (`Built.learner`),
never from a timing or from how many clients there are, so that results are the same everywhere.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fedclade.clients.batched import (
    SMALLEST,
    Chain,
    Operation,
    first_trained,
    is_used,
    is_worth_it,
    largest_group,
    operations,
)
from fedclade.clients.objective import Classification, Objective
from fedclade.clients.quick import quick_forward
from fedclade.models import row_type
from fedclade.models.weights import Layout, flatten, put
from fedclade.randomness import seed_of

STEPS_AT_ONCE = 64  # whose labels are looked up in one go
CHUNK = 250  # rows in one forward pass; fixed, because the size of a product may touch the last bit of a sum
PIECES = 5  # of a chunk, each small enough for a processor's cache: the compiled kernel takes one after the other


class Network(Protocol):
    """Parameters and gradients are matrices [K, n], one or several; `pack` says what of a flat vector stands where."""

    at_once: int  # how many clients it takes at most

    @property
    def parameters(self) -> Sequence[Tensor]: ...

    @property
    def grads(self) -> Sequence[Tensor]: ...

    @property
    def frozen(self) -> Sequence[slice]:
        """The parts of a flat vector that are not trained."""

    def begin(self, weights: Tensor) -> None:
        """Take the weights [K, size] of some clients."""

    def pack(self, flat: Tensor) -> Sequence[Tensor]:
        """Numbers in the order of flat vectors, as `parameters` holds them."""

    def go_on_with(self, clients: int) -> None:
        """Only the first few clients go on."""

    def batches(self, x: Tensor, y: Tensor, rows: Tensor, weights: Tensor | None) -> Iterator[Any]:
        """What `gradients` takes, for each step of rows [steps, K, batch] of a table; -1 stands for none.

        `weights` say how much each row of the table counts; several columns, for each component of a mixture.
        """

    def gradients(self, batch: Any, keep: float) -> Tensor:
        """Fill `grads` with the gradient of the mean loss over a batch, and return that loss.

        A share of what was there before is kept: with momentum, that is all there is to it.
        """

    def end(self) -> Tensor:
        """The weights [K, size] of all clients that began, with what the network counted by itself."""


class PlainNetwork:
    """Any module, one client at a time. Its float32 parameters and their gradients are views of the flat vectors.

    Parameters of another type are copied to and fro: steps are taken in float32, forward and backward passes in the
    module's own type.
    """

    at_once = 1

    def __init__(self, module: nn.Module, objective: Objective | None = None) -> None:
        self.module, self.layout, self.row_type = module, Layout.of(module), row_type(module)
        self.objective = objective or Classification()
        self.tensors = dict(module.named_parameters())
        self.buffers = dict(module.named_buffers())
        self.parts = list(module.modules())
        self.homes = [(part, key, value) for part in self.parts for key, value in part.named_buffers("", False)]
        self.unsaved = {name: value.clone() for name, value in self.buffers.items() if name not in self.layout.slices}
        self.frozen = [self.layout.slices[name] for name, value in self.tensors.items() if not value.requires_grad]

    def begin(self, weights: Tensor) -> None:
        self.parameters = [weights[:, : self.layout.n_parameters]]
        self.grads = [torch.zeros_like(self.parameters[0])]
        self.bind(weights, self.grads[0])

    def bind(self, weights: Tensor, grads: Tensor | None) -> None:
        """Work with the weights of one client; without gradients, for evaluation."""
        self.weights = weights
        self.copied: list[tuple[nn.Parameter, Tensor, Tensor]] = []
        if any(part.training != (grads is not None) for part in self.parts):
            self.module.train(grads is not None)
        for part, key, buffer in self.homes:  # a forward pass may have put another tensor in its place
            setattr(part, key, buffer)
        for name, buffer in self.unsaved.items():
            self.buffers[name].copy_(buffer)
        for (name, place), shape in zip(self.layout.slices.items(), self.layout.shapes, strict=True):
            value, parameter = weights[0, place].view(shape), self.tensors.get(name)
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

    def pack(self, flat: Tensor) -> list[Tensor]:
        return [flat[:, : self.layout.n_parameters]]

    def go_on_with(self, clients: int) -> None:
        """One client is one client."""

    def batches(self, x: Tensor, y: Tensor, rows: Tensor, weights: Tensor | None) -> Iterator[tuple[Any, ...]]:
        for batch in rows[:, 0]:
            used = batch[batch >= 0]  # others would spoil batch statistics
            if weights is None or weights.ndim == 1:
                yield x[used], y[used], None if weights is None else weights[used]
            else:  # each row is put out once for each component (`fedclade.models.mixture`)
                yield x[used], y[used].repeat(weights.shape[1]), weights[used].T.flatten()

    def gradients(self, batch: tuple[Any, ...], keep: float) -> Tensor:
        for parameter, value, _ in self.copied:
            parameter.data.copy_(value)
            parameter.grad = None
        self.grads[0].mul_(keep)
        with torch.enable_grad():
            loss = self.objective.mean_loss(self.module(self.inputs(batch[0])).float(), *batch[1:])
            loss.backward()
        for parameter, _, grad in self.copied:
            if parameter.grad is not None:
                grad.add_(parameter.grad)
        return loss.detach().view(1)

    def inputs(self, rows: Tensor) -> Tensor:
        return as_inputs(rows, self.row_type)

    def end(self) -> Tensor:
        for name in self.layout.names:
            if name in self.buffers:
                self.weights[0, self.layout.slices[name]] = self.module.get_buffer(name).flatten().float()
        return self.weights


class BatchedNetwork:
    """A chain of known layers: many clients at once."""

    def __init__(self, ops: Sequence[Operation], frozen: Sequence[slice], objective: Objective | None = None) -> None:
        self.frozen, self.at_once, self.objective = frozen, largest_group(ops), objective or Classification()
        trained, link = first_trained(ops, frozen), self.objective.link or ""
        self.chain_of = cache(partial(Chain, ops, trained=trained, link=link))

    def begin(self, weights: Tensor) -> None:
        self.weights = weights
        self._use(len(weights))

    def _use(self, clients: int) -> None:
        self.chain = self.chain_of(clients)
        self.parameters, self.grads = self.chain.parameters, self.chain.grads
        for mine, given in zip(self.parameters, self.pack(self.weights[:clients]), strict=True):
            mine.copy_(given)
        for mine in self.grads:
            mine.zero_()

    def pack(self, flat: Tensor) -> list[Tensor]:
        return self.chain.pack(flat)

    def go_on_with(self, clients: int) -> None:
        if clients < self.chain.clients:
            self.end()
            before = self.grads
            self._use(clients)
            for mine, kept in zip(self.grads, before, strict=True):
                mine.copy_(kept[:clients])

    def batches(
        self, x: Tensor, y: Tensor, rows: Tensor, weights: Tensor | None
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        rows = nn.functional.pad(rows, (0, self.chain.batch - rows.shape[2]), value=-1)
        clients, batch = rows.shape[1:]
        for some in rows.split(STEPS_AT_ONCE):
            real, some = (some >= 0).unsqueeze(2), some.clamp(min=0)
            counts = real if weights is None else real * weights[some].unsqueeze(2)
            scale = counts / counts.sum(3, keepdim=True)
            target = self.chain.loss.targets(self.objective.scaled(y[some]), scale)
            for each, wanted, weight in zip(some, target, scale, strict=True):
                yield as_inputs(x.index_select(0, each.flatten())).unflatten(0, (clients, batch)), wanted, weight

    def gradients(self, batch: tuple[Tensor, Tensor, Tensor], keep: float) -> Tensor:
        return self.chain.gradients(*batch, keep)

    def end(self) -> Tensor:
        self.chain.unpack(self.weights[: self.chain.clients])
        return self.weights


class Built:
    """One of a run's networks: its module, the layout of its weights, and those it starts from."""

    def __init__(self, factory: Callable[[], nn.Module], seed: int) -> None:
        self.seed, self.device = seed, torch.device("cpu")
        torch.manual_seed(seed % 2**63)
        self.module = factory()
        self.plain = PlainNetwork(self.module)
        self.layout, self.initial = self.plain.layout, flatten(self.module)
        self.quick = quick_forward(self.module)
        self.learner, self.compiled = cache(self._learner), cache(self._compiled)

    @property
    def objective(self) -> Objective:
        return self.plain.objective

    def work_for(self, objective: Objective, device: torch.device) -> None:
        """From now on train for this, there."""
        self.device = device
        self.plain = PlainNetwork(self.module.to(device), objective)
        self.learner.cache_clear()
        self.compiled.cache_clear()

    def _learner(self, input_shape: tuple[int, ...], batch_size: int) -> Network:
        """What trains it: a fixed rule, recorded with every run."""
        if self.objective.link is None:
            return self.plain
        ops = operations(self.module, input_shape, max(batch_size, SMALLEST), self.device)
        if ops is None or not is_worth_it(ops):
            return self.plain
        return BatchedNetwork(ops, self.plain.frozen, self.objective)

    def path(self, input_shape: tuple[int, ...], batch_size: int) -> str:
        """How it is trained: client by client, or many at once, by torch's products or by the compiled kernel."""
        if not self.is_batched(input_shape, batch_size):
            return "plain"
        return "compiled" if is_used(self.device) else "batched"

    def is_batched(self, input_shape: tuple[int, ...], batch_size: int) -> bool:
        """Whether many clients are trained at once."""
        return self.learner(input_shape, batch_size) is not self.plain

    def outputs(self, rows: Tensor, first: int, each_layer: bool = False) -> Tensor:
        """Of rows of which the first stands at this place: where a forward pass draws, these are its random numbers.

        `each_layer`: somebody looks at single layers, so that each must be asked for itself.
        """
        if len(rows) == CHUNK and not each_layer and (chain := self.compiled(tuple(rows.shape[1:]))):
            return chain.outputs(self.plain.weights, as_inputs(rows))
        torch.default_generator.manual_seed(seed_of(self.seed, "forward", round=first) % 2**63)
        return (self.module if each_layer else self.quick)(self.plain.inputs(rows)).float()

    def _compiled(self, input_shape: tuple[int, ...]) -> "CompiledForward | None":
        """A forward pass of whole chunks by the compiled kernel."""
        ops = operations(self.module, input_shape, CHUNK // PIECES, self.device) if is_used(self.device) else None
        return CompiledForward(ops) if ops and is_worth_it(ops) else None


class CompiledForward:
    """What a network puts out, by the compiled kernel: pieces of a chunk stand for clients with the same weights."""

    def __init__(self, ops: Sequence[Operation]) -> None:
        self.chain = Chain(ops, PIECES)
        self.loaded = torch.empty(0)

    def outputs(self, weights: Tensor, rows: Tensor) -> Tensor:
        if weights is not self.loaded:
            for mine, given in zip(self.chain.parameters, self.chain.pack(weights), strict=True):
                mine.copy_(given)
            self.loaded = weights
        return self.chain.outputs(rows.unflatten(0, (PIECES, -1))).transpose(1, 2).flatten(0, 1).clone()


def as_inputs(rows: Tensor, kind: torch.dtype = torch.float32) -> Tensor:
    """Rows as a network takes them: images of bytes become numbers from 0 to 1, tokens stay whole numbers."""
    if rows.dtype == torch.int32:
        return rows.long()
    return (rows.to(torch.float32).mul_(1 / 255) if rows.dtype == torch.uint8 else rows).to(kind)
