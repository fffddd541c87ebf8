"""Convolutions by the compiled kernel: those of stride 1, with the maxima of pairs or of 2x2 blocks of their numbers.

Images are [K, channels, height, width, batch], as everywhere; the kernel reads them as they are.
"""

from collections.abc import Mapping
from functools import partial
from math import prod

import torch
from torch import Tensor, nn

from fedclade.clients.batched import kernel
from fedclade.clients.batched.convolutions import LARGEST_KERNELS, sides_of
from fedclade.clients.batched.layers import Operation, Pairs, Shape, Step, matrix_and_bias
from fedclade.clients.batched.places import SMALLEST, SPARE, Block, Place, filled, zeros


class CompiledConvolution(Operation):
    makes_plain = True

    def __init__(
        self,
        layer: nn.Conv1d | nn.Conv2d,
        places: Mapping[str, slice],
        shape: Shape,
        batch: int,
        pool: tuple[int, int] = (1, 1),
    ) -> None:
        self.places, self.shape, self.batch, self.pool = places, shape, batch, pool
        self.kernel, self.padding = sides_of(layer.kernel_size, 1), sides_of(layer.padding, 0)  # type: ignore[arg-type]
        self.takes_plain = not any(self.padding)
        self.image = tuple(n + 2 * extra for n, extra in zip(shape[1:], self.padding, strict=True))
        self.sides = tuple(n - k + 1 for n, k in zip(self.image, self.kernel, strict=True))
        self.made: Shape = (layer.out_channels, *(n // by for n, by in zip(self.sides, pool, strict=True)))
        self.weights = shape[0] * prod(self.kernel)
        self.form = (layer.out_channels, filled(self.weights + 1, layer.out_channels))
        self.numbers = batch * (2 * shape[0] * prod(self.image) + 3 * prod(self.made))
        self.worth_it = layer.weight.numel() <= LARGEST_KERNELS and layer.out_channels >= SMALLEST

    def parts(self, flat: Tensor, packed: Tensor) -> Pairs:
        return matrix_and_bias(flat, self.places, packed, self.weights)

    def entered(self, rows: Tensor) -> Tensor:
        return rows.reshape(*rows.shape[:2], *self.shape).movedim(1, 4)

    def _place(self, clients: int) -> Place:
        """Images, amid zeros where there is a padding."""
        if self.takes_plain:
            return Place.plain(clients, *self.shape, self.batch)
        (above, left), (_, height, width) = self.padding, self.shape
        whole, grad = (zeros(clients, self.shape[0], *self.image, self.batch) for _ in range(2))
        value, back = (t[:, :, above : above + height, left : left + width] for t in (whole, grad))
        return Place(whole, value, grad, back)

    def build(self, clients: int, out: Place, block: Block, first: bool) -> Step:
        (channels, (high, wide), (down, right)) = self.shape[0], self.sides, self.kernel
        outputs, batch = self.made[0], self.batch
        place = self._place(clients)
        x_channel, x_row = place.whole.stride(1), self.image[1] * batch
        g_row = (wide + 2 * (right - 1)) * batch + SPARE
        g_channel, w_row = high * g_row, block.value.stride(1)
        o, c, i, j = (torch.arange(n, dtype=torch.int32) for n in (outputs, channels, down, right))
        asked = kernel.filled_in(
            kernel.Convolution,
            **{"clients": clients, "outputs": outputs, "channels": channels, "batch": batch},
            **{
                "high": high,
                "wide": wide,
                "kernel_high": down,
                "kernel_wide": right,
                "pool_high": self.pool[0],
                "pool_wide": self.pool[1],
            },
            **{"x": place.whole, "g_x": None if first else place.whole_grad, "w": block.value, "g_w": block.grad},
            **{"out": out.whole, "g_out": out.whole_grad, "which": zeros(*out.whole.shape, dtype=torch.int32)},
            **{"made": zeros(self.pool[0], outputs, wide * batch + SPARE), "g_made": zeros(outputs, g_channel)},
            **{"x_client": place.whole.stride(0), "x_channel": x_channel, "x_row": x_row},
            **{"w_client": block.value.stride(0), "w_row": w_row},
            **{"out_client": out.whole.stride(0), "out_channel": out.whole.stride(1)},
            **{"g_channel": g_channel, "g_row": g_row},
            w_at=torch.arange(self.weights, dtype=torch.int32),
            x_at=_grid(c * x_channel, i * x_row, j * batch),
            back_at=_grid(i * right, o * w_row, j),
            g_at=_grid(-i * g_row, o * g_channel, (right - 1 - j) * batch),
        )
        assert kernel.KERNEL is not None
        return Step(place, partial(kernel.KERNEL.convolve, asked), partial(kernel.KERNEL.convolve_back, asked))


def _grid(*offsets: Tensor) -> Tensor:
    """All sums of an offset of each kind, those of the last kind next to each other."""
    total = torch.zeros(1, dtype=torch.int32)
    for some in offsets:
        total = (total.unsqueeze(1) + some).flatten()
    return total.contiguous()
