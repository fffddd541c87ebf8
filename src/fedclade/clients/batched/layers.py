"""What operations have in common; dense layers, and what lies between layers.

Rows are [K, batch, features]. A dense layer's weights hold the bias as one more column, and its input a column of ones:
then the bias and its gradient cost nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedclade.clients.batched.kernel import product, whole_rows
from fedclade.clients.batched.places import Block, Place, filled, zeros

LARGEST_MATRIX = 300_000  # beyond it torch's own steps are as fast (measured: docs/benchmarks.md)
Pairs = list[tuple[Tensor, Tensor]]
Shape = tuple[int, ...]  # of a row: (features,) or (channels, height, width)

pass_above = torch.ops.aten.threshold_backward.grad_input  # a gradient, where a number is above a threshold; else 0


@dataclass(frozen=True)
class Step:
    """An operation of K clients on tensors of its own; what comes before it writes to `place`."""

    place: Place
    forward: Callable[[], object]
    backward: Callable[[float], object]  # its argument: the share of parameters' gradients that is kept from before


class Operation:
    """What is done, for any number of clients. `build` makes the tensors for K of them."""

    form: tuple[int, int] | None = None  # of a client's parameters, if it has any
    places: Mapping[str, slice] = {}  # of each of them in a flat vector
    numbers = 0  # about how many it has in use for one client
    worth_it = True  # False where torch's own is as fast
    takes_plain, makes_plain = True, False  # whether its own place is plain; whether it can only write to one that is

    def build(self, clients: int, out: Place, block: Block, first: bool) -> Step:
        """A step that writes to `out`. Nobody asks for the gradient of what goes into the first one."""
        raise NotImplementedError

    def parts(self, flat: Tensor, packed: Tensor) -> Pairs:
        """Each of its parameters as it stands in flat vectors [K, n], and as it stands in a block."""
        return []

    def entered(self, rows: Tensor) -> Tensor:
        """Rows [K, batch, ...] as its place takes them."""
        return rows.flatten(2)


class Dense(Operation):
    takes_plain, makes_plain = False, True

    def __init__(self, layer: nn.Linear, places: Mapping[str, slice], batch: int, last: bool) -> None:
        self.places, self.batch, self.inputs, self.outputs = places, batch, layer.in_features, layer.out_features
        self.last = last  # then it makes [K, outputs, batch], as the loss wants it
        rows = filled(self.outputs, batch)
        self.form = (rows, filled(self.inputs + 1, batch, rows, *whole_rows()))
        self.numbers = 2 * rows * self.form[1] + 3 * batch * self.form[1]
        self.worth_it = self.inputs * self.outputs <= LARGEST_MATRIX

    def parts(self, flat: Tensor, packed: Tensor) -> Pairs:
        return matrix_and_bias(flat, self.places, packed[:, : self.outputs], self.inputs)

    def build(self, clients: int, out: Place, block: Block, first: bool) -> Step:
        x, gx = (zeros(clients, self.batch, block.value.shape[2]) for _ in range(2))
        x[:, :, self.inputs] = 1
        g, g_turned = out.whole_grad, out.whole_grad.transpose(1, 2)
        factors = x, block.value.transpose(1, 2)
        if self.last:
            g, g_turned, factors = g_turned, g, (block.value, x.transpose(1, 2))
        make, learn = product(*factors, out.whole), product(g_turned, x, block.grad)
        give_back = product(g, block.value, gx)

        def backward(keep: float) -> None:
            learn(keep)
            if not first:
                give_back(0.0)

        place = Place(x, x[:, :, : self.inputs], gx, gx[:, :, : self.inputs])
        return Step(place, lambda: make(0.0), backward)


def matrix_and_bias(flat: Tensor, places: Mapping[str, slice], packed: Tensor, columns: int) -> Pairs:
    """A layer's weights [outputs, columns], with the bias in the column after them. Without a bias zeros stay there."""
    found = [(flat[:, places["weight"]].unflatten(1, (-1, columns)), packed[:, :, :columns])]
    return [*found, (flat[:, places["bias"]], packed[:, :, columns])] if "bias" in places else found


class Relu(Operation):
    def build(self, clients: int, out: Place, block: Block, first: bool) -> Step:
        place = Place.plain(*out.value.shape, shared=True)
        return Step(
            place,
            lambda: torch.clamp_min(place.value, 0, out=out.value),
            lambda keep: pass_above(out.grad, out.value, 0, grad_input=place.grad),
        )


class Pass(Operation):
    """Nothing: it stands where an operation cannot write to the place of the next one."""

    def build(self, clients: int, out: Place, block: Block, first: bool) -> Step:
        place = Place.plain(*out.value.shape, shared=True)
        return Step(place, lambda: out.value.copy_(place.value), lambda keep: place.grad.copy_(out.grad))


class Flatten(Operation):
    """[K, channels, height, width, batch] to [K, batch, features], in torch's order of features."""

    def __init__(self, shape: Shape, batch: int) -> None:
        self.shape, self.batch = shape, batch

    def build(self, clients: int, out: Place, block: Block, first: bool) -> Step:
        place = Place.plain(clients, *self.shape, self.batch)
        value, grad = (part.movedim(4, 1) for part in (place.value, place.grad))
        to, back = (part.unflatten(2, self.shape) for part in (out.value, out.grad))
        return Step(place, lambda: to.copy_(value), lambda keep: grad.copy_(back))
