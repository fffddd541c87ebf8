"""Gradients of many clients' networks at once, as batched matrix products.

A loop of eager torch steps spends most of its time on call overhead when networks and batches are small. Here the same
step is taken for K clients together: parameters are one matrix [K, P], each layer a batched product, and the backward
pass is written out, so that gradients land in one matrix [K, P] too. It serves plain chains of Linear, Conv2d
(stride 1, no padding), ReLU, MaxPool2d(2) and Flatten. Two findings carry the convolutions:

- A strip of k image rows lies contiguous in memory (rows, columns, channels), so a convolution is one matrix product
  with the kernel written as a banded matrix: more arithmetic, but at the speed of a product and with no copying out of
  patches.
- torch's `max_pool2d` is slow on a CPU; four strided maxima do the same in a tenth of the time.

A client's numbers do not depend on how many others share its products (a test holds us to that).
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from fedclade.models.weights import Layout


class Op(Protocol):
    """One step of the chain; `forward` keeps what `backward` needs."""

    def forward(self, weights: Tensor, x: Tensor) -> Tensor: ...

    def backward(self, weights: Tensor, grads: Tensor, gy: Tensor, first: bool) -> Tensor: ...


class Linear:
    def __init__(self, layer: nn.Linear, place: slice) -> None:
        self.shape = (layer.out_features, layer.in_features)
        self.weight = slice(place.start, place.start + layer.weight.numel())
        self.bias = slice(self.weight.stop, place.stop) if layer.bias is not None else None

    def forward(self, weights: Tensor, x: Tensor) -> Tensor:
        self.x = x
        matrix = weights[:, self.weight].unflatten(1, self.shape).transpose(1, 2)
        if self.bias is None:
            return torch.bmm(x, matrix)
        return torch.baddbmm(weights[:, None, self.bias], x, matrix)

    def backward(self, weights: Tensor, grads: Tensor, gy: Tensor, first: bool) -> Tensor:
        torch.bmm(gy.transpose(1, 2), self.x, out=grads[:, self.weight].unflatten(1, self.shape))
        if self.bias is not None:
            torch.sum(gy, 1, out=grads[:, self.bias])
        return gy if first else torch.bmm(gy, weights[:, self.weight].unflatten(1, self.shape))


class ConvReluPool:
    """2x2 max pool of the ReLU of a convolution (stride 1, no padding): [K, B, H, W, C] to [K, B, h, w, O].

    The output columns of a strip are computed in bands of `step` columns, all with the same banded matrix: wide bands
    waste arithmetic on zeros, narrow ones copy more. Within a band the even columns come before the odd ones, so that
    pooling compares long contiguous runs.
    """

    def __init__(self, layer: nn.Conv2d, place: slice) -> None:
        self.outputs, self.channels, self.kernel = layer.out_channels, layer.in_channels, layer.kernel_size[0]
        self.weight = slice(place.start, place.start + layer.weight.numel())
        self.bias = slice(self.weight.stop, place.stop)

    def _band(self, matrix: Tensor) -> Tensor:
        """The view of [K, k, width, C, 2, pairs, O] in which kernel entry (i, j, c, o) stands once an output column."""
        clients, k, _, channels, _, pairs, outputs = matrix.shape
        s = matrix.stride()
        return matrix.as_strided(
            (clients, k, k, channels, 2, pairs, outputs), (s[0], s[1], s[2], s[3], s[2] + s[4], 2 * s[2] + s[5], s[6])
        )

    def forward(self, weights: Tensor, x: Tensor) -> Tensor:
        clients, batch, height, width, channels = x.shape
        k, outputs = self.kernel, self.outputs
        rows, columns = height - k + 1, width - k + 1
        step = next(n for n in range(max(4, columns // 3), 0, -1) if columns % n == 0 and n % 2 == 0)
        bands, reach, row = columns // step, step + k - 1, width * channels
        strips = x.contiguous().as_strided(
            (clients, batch, rows, bands, k, reach * channels),
            (batch * height * row, height * row, row, step * channels, row, 1),
        )
        strips = strips.reshape(clients, batch * rows * bands, k * reach * channels)
        matrix = x.new_zeros(clients, k, reach, channels, 2, step // 2, outputs)
        kernel = weights[:, self.weight].view(clients, outputs, channels, k, k).permute(0, 3, 4, 2, 1)
        self._band(matrix).copy_(kernel[:, :, :, :, None, None])
        matrix = matrix.view(clients, k * reach * channels, step * outputs)
        y = torch.baddbmm(weights[:, self.bias].repeat(1, step).unsqueeze(1), strips, matrix)
        y = y.view(clients, batch, rows // 2, 2, bands, 2, step // 2 * outputs)
        of_row = torch.maximum(y[:, :, :, :, :, 0], y[:, :, :, :, :, 1])
        pooled = torch.maximum(of_row[:, :, :, 0], of_row[:, :, :, 1]).clamp_(min=0)
        self.saved = (x.shape, step, strips, matrix, y, of_row, pooled)
        return pooled.view(clients, batch, rows // 2, columns // 2, outputs)

    def backward(self, weights: Tensor, grads: Tensor, gy: Tensor, first: bool) -> Tensor:
        (clients, batch, height, width, channels), step, strips, matrix, y, of_row, pooled = self.saved
        k, outputs, reach = self.kernel, self.outputs, step + self.kernel - 1
        gy = torch.ops.aten.threshold_backward(gy.reshape(pooled.shape), pooled, 0)
        spread = torch.empty_like(y)
        g_row = torch.empty_like(of_row)
        _to_larger(gy, *of_row.unbind(3), *g_row.unbind(3))
        _to_larger(g_row, *y.unbind(5), *spread.unbind(5))
        spread = spread.view(clients, -1, step * outputs)
        in_band = torch.bmm(strips.transpose(1, 2), spread).view(clients, k, reach, channels, 2, step // 2, outputs)
        entries = self._band(in_band).flatten(4, 5).unbind(4)
        kernel = entries[0].clone()
        for entry in entries[1:]:
            kernel += entry
        grads[:, self.weight].view(clients, outputs, channels, k, k).copy_(kernel.permute(0, 4, 3, 1, 2))
        torch.sum(spread.sum(1).view(clients, step, outputs), 1, out=grads[:, self.bias])
        if first:
            return gy
        rows, bands = height - k + 1, (width - k + 1) // step
        pieces = torch.bmm(spread, matrix.transpose(1, 2)).view(clients, batch, rows, bands, k, reach * channels)
        gx = pieces.new_zeros(clients, batch, height, width * channels)
        for band in range(bands):
            place = slice(band * step * channels, (band * step + reach) * channels)
            for i in range(k):
                gx[:, :, i : i + rows, place] += pieces[:, :, :, band, i]
        return gx.view(clients, batch, height, width, channels)


def _to_larger(gradient: Tensor, first: Tensor, second: Tensor, to_first: Tensor, to_second: Tensor) -> None:
    """Send the gradient of a maximum to the larger of two; a tie, as blank images are full of, goes to the first."""
    to_first.copy_(torch.ops.aten.threshold_backward(gradient, first - second, -1e-30))
    torch.sub(gradient, to_first, out=to_second)


class Relu:
    def forward(self, weights: Tensor, x: Tensor) -> Tensor:
        self.y = x.clamp_(min=0)
        return self.y

    def backward(self, weights: Tensor, grads: Tensor, gy: Tensor, first: bool) -> Tensor:
        return torch.ops.aten.threshold_backward(gy, self.y, 0)


class Flatten:
    """[K, B, H, W, C] to [K, B, C * H * W], in torch's order of features."""

    def forward(self, weights: Tensor, x: Tensor) -> Tensor:
        self.shape = x.shape
        return x.permute(0, 1, 4, 2, 3).flatten(2) if x.ndim == 5 else x.flatten(2)

    def backward(self, weights: Tensor, grads: Tensor, gy: Tensor, first: bool) -> Tensor:
        if len(self.shape) != 5:
            return gy.view(self.shape)
        clients, batch, height, width, channels = self.shape
        return gy.view(clients, batch, channels, height, width).permute(0, 1, 3, 4, 2)


def operations(module: nn.Module, input_shape: tuple[int, ...]) -> list[Op] | None:
    """The chain's steps, or None where the module is not such a chain."""
    layout, names = Layout.of(module), {layer: name for name, layer in module.named_modules()}
    layers = chained(module) if isinstance(module, nn.Sequential) else None
    tied = len(list(module.parameters())) < sum(len(list(layer.parameters())) for layer in layers or ())
    if layers is None or tied or any(parameter.dtype != torch.float32 for parameter in module.parameters()):
        return None
    ops: list[Op] = []
    sides = input_shape[1:]
    while layers:
        layer = layers.pop(0)
        if type(layer) is nn.Linear:
            ops.append(Linear(layer, layout.layers[names[layer]]))
        elif isinstance(layer, nn.ReLU):
            ops.append(Relu())
        elif type(layer) is nn.Flatten and layer.start_dim == 1 and layer.end_dim == -1:
            ops.append(Flatten())
        elif type(layer) is nn.Conv2d and _is_plain(layer) and _are_relu_and_pool(layers[:2]) and len(sides) == 2:
            sides = tuple(side - layer.kernel_size[0] + 1 for side in sides)
            if any(side < 2 or side % 2 for side in sides):
                return None
            sides = tuple(side // 2 for side in sides)
            ops.append(ConvReluPool(layer, layout.layers[names[layer]]))
            del layers[:2]
        else:
            return None
    return ops


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


def _is_plain(layer: nn.Conv2d) -> bool:
    height, width = layer.kernel_size
    plain = layer.stride == (1, 1) and layer.padding in ((0, 0), "valid") and layer.dilation == (1, 1)
    return plain and layer.groups == 1 and height == width and layer.bias is not None


def _are_relu_and_pool(layers: list[nn.Module]) -> bool:
    """A ReLU and a 2x2 max pool, in either order: the two commute."""
    return any(isinstance(layer, nn.ReLU) for layer in layers) and any(is_pool_of_two(layer) for layer in layers)


def is_pool_of_two(layer: nn.Module) -> bool:
    return (
        isinstance(layer, nn.MaxPool2d)
        and layer.kernel_size in (2, (2, 2))
        and layer.stride in (2, (2, 2))
        and layer.padding in (0, (0, 0))
        and layer.dilation in (1, (1, 1))
        and not layer.ceil_mode
        and not layer.return_indices
    )


class BatchedNetwork:
    """The gradients of K clients' losses, for a chain."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self.ops = list(ops)

    def outputs(self, weights: Tensor, x: Tensor) -> Tensor:
        """[K, B, classes] for x [K, B, ...]; images come channels first."""
        x = x.permute(0, 1, 3, 4, 2) if x.ndim == 5 else x
        for op in self.ops:
            x = op.forward(weights, x)
        return x

    def gradients(self, weights: Tensor, x: Tensor, y: Tensor, scale: Tensor, grads: Tensor) -> Tensor:
        """Fill `grads` [K, P] with the gradient of sum(scale * cross entropy) and return that loss for each client."""
        log_p = torch.log_softmax(self.outputs(weights, x), 2)
        loss = -(log_p.gather(2, y.unsqueeze(2)).squeeze(2) * scale).sum(1)
        gy = log_p.exp_()
        gy.scatter_add_(2, y.unsqueeze(2), torch.full_like(gy[:, :, :1], -1.0))
        gy.mul_(scale.unsqueeze(2))
        for index in range(len(self.ops) - 1, -1, -1):
            gy = self.ops[index].backward(weights, grads, gy, index == 0)
        return loss
