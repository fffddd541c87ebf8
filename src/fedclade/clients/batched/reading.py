"""Which operations a module is made of, if it is a chain of known layers."""

from collections.abc import Callable, Sequence
from math import prod

import torch
from torch import nn

from fedclade.clients.batched.compiled import CompiledConvolution
from fedclade.clients.batched.convolutions import Convolution, MaxPool, MeanPool, PooledConvolution
from fedclade.clients.batched.kernel import is_used
from fedclade.clients.batched.layers import Dense, Flatten, Operation, Pass, Relu, Shape
from fedclade.clients.batched.lstm import BiLstm
from fedclade.models.networks import BiLSTM
from fedclade.models.weights import Layout

CPU = torch.device("cpu")
KNOWN = {
    *(nn.Linear, nn.ReLU, nn.Flatten, nn.Unflatten, nn.Conv1d, nn.Conv2d),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d),
}  # not their subclasses, which may do something else


def operations(module: nn.Module, input_shape: Shape, batch: int, device: torch.device = CPU) -> list[Operation] | None:
    """The operations of a module, or None where it does anything else. A batch is of two rows or more."""
    layers = chained(module)
    tied = len(list(module.parameters())) < sum(len(list(layer.parameters())) for layer in layers or ())
    if layers is None or tied or any(value.dtype != torch.float32 for value in module.parameters()):
        return None
    layout, names = Layout.of(module), {layer: name for name, layer in module.named_modules()}

    def places(layer: nn.Module) -> dict[str, slice]:
        prefix = f"{names[layer]}." if names[layer] else ""
        return {name: layout.slices[prefix + name] for name, _ in layer.named_parameters()}

    if type(module) is BiLSTM:
        lstm = BiLstm(module.lstm, places(module.lstm), input_shape[1] if len(input_shape) == 2 else 1, batch)
        return [lstm, Dense(module.head, places(module.head), batch, last=True)]
    return Reader(places, batch, is_used(device)).read(layers, input_shape)


class Reader:
    """Makes operations of layers, one after the other; `shape` is that of a row so far."""

    def __init__(self, places: Callable[[nn.Module], dict[str, slice]], batch: int, compiled: bool) -> None:
        self.places, self.batch, self.compiled = places, batch, compiled
        self.found: list[Operation] = []

    def read(self, layers: Sequence[nn.Module], input_shape: Shape) -> list[Operation] | None:
        self.shape = input_shape if len(input_shape) != 2 else (input_shape[0], 1, input_shape[1])
        self.layers = pools_first(layers)
        while self.layers:
            if not self._take(self.layers.pop(0)):
                return None
        ends_well = self.found and isinstance(self.found[-1], Dense)
        return self.found if ends_well else None

    def _take(self, layer: nn.Module) -> bool:
        """Add what a layer does; False where that is not known."""
        image = len(self.shape) == 3
        match layer:
            case _ if type(layer) not in KNOWN:
                return False
            case nn.Linear() if self.shape == (layer.in_features,):
                dense = Dense(layer, self.places(layer), self.batch, last=not self.layers)
                return self._add(dense, (layer.out_features,))
            case nn.ReLU() if self.found:
                return self._add(Relu(), self.shape)
            case nn.Flatten() if (layer.start_dim, layer.end_dim) == (1, -1):
                return self._flatten()
            case nn.Unflatten() if (layer.dim, tuple(layer.unflattened_size)) == (1, (1, -1)) and not self.found:
                self.shape = (1, 1, prod(self.shape))
                return True
            case nn.Conv1d() | nn.Conv2d() if image and is_usual(layer):
                return self._convolve(layer)
            case nn.MaxPool1d() | nn.MaxPool2d() if image and self.found and takes_pairs(layer):
                high = 2 if isinstance(layer, nn.MaxPool2d) else 1
                odd = self.shape[1] % high or self.shape[2] % 2
                pool = MaxPool(self.shape, self.batch, high)
                return not (layer.ceil_mode and odd) and self._add(pool, pool.made)
            case nn.AdaptiveAvgPool1d() | nn.AdaptiveAvgPool2d() if image and self.found:
                mean = MeanPool(self.shape, self.batch)
                return layer.output_size in (1, (1, 1)) and self._add(mean, mean.made)
        return False

    def _add(self, op: Operation, shape: Shape) -> bool:
        if self.found and self.found[-1].makes_plain and not op.takes_plain:
            self.found.append(Pass())
        self.found.append(op)
        self.shape = shape
        return min(shape) > 0

    def _flatten(self) -> bool:
        if self.found and len(self.shape) == 3:
            return self._add(Flatten(self.shape, self.batch), (prod(self.shape),))
        self.shape = (prod(self.shape),)  # rows are flattened as they go in
        return True

    def _convolve(self, layer: nn.Conv1d | nn.Conv2d) -> bool:
        places = self.places(layer)
        if self.compiled and set(layer.stride) == {1}:
            compiled = CompiledConvolution(layer, places, self.shape, self.batch, self._pool_after())
            return self._add(compiled, compiled.made)
        if not (self._finds_dealt and self._is_pooled([layer, *self.layers], self.shape)):
            convolution = Convolution(layer, places, self.shape, self.batch)
            return self._add(convolution, convolution.made)
        assert isinstance(layer, nn.Conv2d)
        del self.layers[0]
        pooled = PooledConvolution(layer, places, self.shape, self.batch)
        following = [each for each in self.layers if not isinstance(each, nn.ReLU)]
        if not self.found and self._is_pooled(following, pooled.made) and self._fits_by_four(layer):
            pooled = PooledConvolution(layer, places, self.shape, self.batch, deals=True)
        return self._add(pooled, pooled.made)

    def _pool_after(self) -> tuple[int, int]:
        """Take the max pool that comes next, if there is one."""
        following = self.layers[0] if self.layers else None
        if not isinstance(following, nn.MaxPool1d | nn.MaxPool2d) or not takes_pairs(following) or following.ceil_mode:
            return (1, 1)
        del self.layers[0]
        return (2, 2) if isinstance(following, nn.MaxPool2d) else (1, 2)

    @property
    def _finds_dealt(self) -> bool:
        """Whether what comes can be had with even and odd rows and columns apart."""
        ops = [op for op in self.found if not isinstance(op, Relu)]
        return not ops or (len(ops) == 1 and isinstance(ops[0], PooledConvolution) and ops[0].deals)

    def _fits_by_four(self, layer: nn.Conv2d) -> bool:
        return all(not side % 4 for side in self.shape[1:]) and all(k % 4 == 1 for k in layer.kernel_size)

    @staticmethod
    def _is_pooled(layers: Sequence[nn.Module], shape: Shape) -> bool:
        """Whether the first two of these layers are what `PooledConvolution` does."""
        if len(layers) < 2 or not isinstance(conv := layers[0], nn.Conv2d) or not isinstance(layers[1], nn.MaxPool2d):
            return False
        plain = (set(conv.stride), set(conv.padding)) == ({1}, {0})
        even = all(k % 2 and not side % 2 for k, side in zip(conv.kernel_size, shape[1:], strict=True))
        return is_usual(conv) and takes_pairs(layers[1]) and plain and even


def chained(module: nn.Module) -> list[nn.Module] | None:
    """The layers of a chain (of chains) in order, or None where something else happens in a forward pass."""
    if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
        return None
    if not isinstance(module, nn.Sequential):
        return [module]
    if type(module).forward is not nn.Sequential.forward:
        return None
    parts = [chained(part) for part in module]
    return None if None in parts else [layer for part in parts for layer in part or ()]


def pools_first(layers: Sequence[nn.Module]) -> list[nn.Module]:
    """The same layers with every max pool before a ReLU: the two commute, and the ReLU has less to do then."""
    ordered: list[nn.Module] = []
    for layer in layers:
        pools = type(layer) in (nn.MaxPool1d, nn.MaxPool2d) and not getattr(layer, "return_indices", False)
        relu = ordered and type(ordered[-1]) is nn.ReLU
        if relu and type(layer) is nn.ReLU:
            continue
        ordered.insert(len(ordered) - 1 if relu and pools else len(ordered), layer)
    return ordered


def is_usual(layer: nn.Conv1d | nn.Conv2d) -> bool:
    """Whether a convolution is torch's own, without dilation, groups or a padding of other things than zeros."""
    padding = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return type(layer) in (nn.Conv1d, nn.Conv2d) and padding and set(layer.dilation) == {1} and layer.groups == 1


def takes_pairs(layer: nn.Module) -> bool:
    """Whether a layer is torch's own max pool of neighbouring pairs, or of 2x2 blocks."""
    return (
        type(layer) in (nn.MaxPool1d, nn.MaxPool2d)
        and all(value in (2, (2,), (2, 2)) for value in (layer.kernel_size, layer.stride))
        and layer.padding in (0, (0,), (0, 0))
        and layer.dilation in (1, (1,), (1, 1))
        and not layer.return_indices
    )
