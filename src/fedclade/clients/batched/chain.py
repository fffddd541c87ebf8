"""A chain of operations for K clients."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from fedclade.clients.batched.layers import Dense, Operation, Step
from fedclade.clients.batched.places import Block, Place, filled, zeros

LARGEST_GROUP = 24  # clients that share a step: more gain nothing
CACHE = 2_000_000  # the numbers that they may have in use: about what a processor's cache holds


class Chain:
    """The networks of K clients. `parameters` and `grads` are a matrix [K, n] a layer that has any."""

    def __init__(self, ops: Sequence[Operation], clients: int, trained: int = 0, link: str = "softmax") -> None:
        """`trained`: the number of the first operation of which gradients are wanted; `link` chooses the loss."""
        assert isinstance(ops[-1], Dense)
        self.ops, self.clients, self.batch = ops, clients, ops[-1].batch
        self.blocks = [Block.of(clients, op.form) for op in ops]
        self.loss = LOSSES[link](clients, self.batch, ops[-1].outputs)
        self.steps: list[Step] = []
        for number in range(len(ops) - 1, -1, -1):
            out = self.steps[0].place if self.steps else self.loss.place
            self.steps.insert(0, ops[number].build(clients, out, self.blocks[number], first=number <= trained))
        self.backwards = [step.backward for step in reversed(self.steps[trained:])]
        used = [block for op, block in zip(ops, self.blocks, strict=True) if op.form]
        self.parameters = [block.value.flatten(1) for block in used]
        self.grads = [block.grad.flatten(1) for block in used]

    def pack(self, flat: Tensor) -> list[Tensor]:
        """What stands in flat vectors [k, n] of parameters, as `parameters` would hold it."""
        packed = []
        for op in self.ops:
            if op.form:
                packed.append(torch.zeros(len(flat), *op.form))
                for ours, theirs in op.parts(flat, packed[-1]):
                    theirs.copy_(ours)
        return [part.flatten(1) for part in packed]

    def unpack(self, flat: Tensor) -> None:
        """Write the parameters to flat vectors [K, n]."""
        for op, block in zip(self.ops, self.blocks, strict=True):
            for ours, theirs in op.parts(flat, block.value):
                ours.copy_(theirs)

    def outputs(self, rows: Tensor) -> Tensor:
        """[K, classes, batch] of rows [K, batch, ...]."""
        self.steps[0].place.value.copy_(self.ops[0].entered(rows))
        for step in self.steps:
            step.forward()
        return self.loss.place.value

    def gradients(self, rows: Tensor, target: Tensor, scale: Tensor, keep: float = 0.0) -> Tensor:
        """Fill `grads`, where a share is kept from before, and return each client's loss. For the rest see `Loss`."""
        self.outputs(rows)
        loss = self.loss.gradients(target, scale)
        for backward in self.backwards:
            backward(keep)
        return loss


class Loss:
    """What the outputs of a row cost, which stand under each other: [K, outputs, batch]."""

    def __init__(self, clients: int, batch: int, outputs: int) -> None:
        whole, grad = (zeros(clients, filled(outputs, batch), batch) for _ in range(2))
        self.place, self.outputs = Place(whole, whole[:, :outputs], grad, grad[:, :outputs]), outputs

    def targets(self, labels: Tensor, scale: Tensor) -> Tensor:
        """[steps, K, outputs, batch] of the labels [steps, K, batch, ...] of rows with some weights."""
        return labels.transpose(2, 3).contiguous()

    def gradients(self, target: Tensor, scale: Tensor) -> Tensor:
        """Fill the gradients of the outputs, and return each client's loss; `scale` [K, 1, batch] has rows' weights."""
        raise NotImplementedError


class CrossEntropy(Loss):
    """Of one class among several."""

    def targets(self, labels: Tensor, scale: Tensor) -> Tensor:
        """The row's weight at its class."""
        target = torch.zeros(*labels.shape[:2], self.outputs, labels.shape[2])
        return target.scatter_(2, labels.unsqueeze(2), scale)

    def gradients(self, target: Tensor, scale: Tensor) -> Tensor:
        torch.sub(torch.softmax(self.place.value, 1).mul_(scale), target, out=self.place.grad)
        return torch.log_softmax(self.place.value, 1).mul_(target).flatten(1).sum(1).neg_()


class EachCrossEntropy(Loss):
    """Of each label by itself, 0 or 1; the mean over labels."""

    def gradients(self, target: Tensor, scale: Tensor) -> Tensor:
        outputs, share = self.place.value, scale / self.outputs
        torch.sub(torch.sigmoid(outputs), target, out=self.place.grad)
        self.place.grad.mul_(share)
        return functional.softplus(outputs).sub_(outputs * target).mul_(share).flatten(1).sum(1)


class SquaredError(Loss):
    """The mean over amounts."""

    def gradients(self, target: Tensor, scale: Tensor) -> Tensor:
        error = self.place.value - target
        share = scale / self.outputs
        torch.mul(error, 2 * share, out=self.place.grad)
        return error.square_().mul_(share).flatten(1).sum(1)


LOSSES: dict[str, type[Loss]] = {"softmax": CrossEntropy, "sigmoid": EachCrossEntropy, "identity": SquaredError}


def first_trained(ops: Sequence[Operation], frozen: Sequence[slice]) -> int:
    """The number of the first operation whose parameters are not all frozen."""
    return next(n for n, op in enumerate(ops) if any(place not in frozen for place in op.places.values()))


def largest_group(ops: Sequence[Operation]) -> int:
    """How many clients to take at once: as many as fit into a processor's cache, and no more than gain from it."""
    return max(1, min(LARGEST_GROUP, CACHE // sum(op.numbers for op in ops)))


def is_worth_it(ops: Sequence[Operation]) -> bool:
    """Whether a network is trained like this: not where torch's own steps, client by client, are as fast."""
    return all(op.worth_it for op in ops)
