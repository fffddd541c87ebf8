"""Convolutions and pools. Images are [K, channels, height, width, batch], signals the same with a height of one.

The batch is innermost, so that what one weight of a kernel meets are a few long runs of memory. They are copied out,
and a convolution is a product whose columns are positions times batch. As in dense layers, a row of ones bears the
bias.
"""

from collections.abc import Callable, Mapping
from math import prod

import torch
from torch import Tensor, nn

from fedclade.clients.batched.kernel import product
from fedclade.clients.batched.layers import Operation, Pairs, Shape, Step, matrix_and_bias, pass_above
from fedclade.clients.batched.places import SMALLEST, Block, Place, filled, zeros

# Weights of a convolution (with a stride: times the batch) beyond which torch's own is as fast: docs/benchmarks.md.
LARGEST_KERNELS, LARGEST_STRIDED = 32_000, 400_000
TIE = -1e-30  # a number that is ahead of another by no less than this is not the smaller one


class Convolution(Operation):
    """Any stride and padding."""

    takes_plain, makes_plain = False, True

    def __init__(self, layer: nn.Conv1d | nn.Conv2d, places: Mapping[str, slice], shape: Shape, batch: int) -> None:
        self.places, self.shape, self.batch = places, shape, batch
        self.kernel, self.stride = sides_of(layer.kernel_size, 1), sides_of(layer.stride, 1)
        self.padding = sides_of(layer.padding, 0)  # type: ignore[arg-type]
        sides = zip(shape[1:], self.padding, self.kernel, self.stride, strict=True)
        self.made: Shape = (layer.out_channels, *((n + 2 * extra - k) // step + 1 for n, extra, k, step in sides))
        self.weights = shape[0] * prod(self.kernel)
        self.columns = filled(prod(self.made[1:]) * batch, layer.out_channels)
        self.form = (layer.out_channels, filled(self.weights + 1, layer.out_channels, self.columns))
        self.numbers = 2 * self.columns * (self.form[1] + self.form[0])
        size = layer.weight.numel()
        self.worth_it = size <= LARGEST_KERNELS and (max(self.stride) == 1 or size * batch <= LARGEST_STRIDED)
        self.worth_it &= layer.out_channels >= SMALLEST

    def parts(self, flat: Tensor, packed: Tensor) -> Pairs:
        return matrix_and_bias(flat, self.places, packed, self.weights)

    def entered(self, rows: Tensor) -> Tensor:
        return rows.reshape(*rows.shape[:2], *self.shape).movedim(1, 4)

    def _image(self, clients: int) -> tuple[Tensor, Tensor]:
        """Zeros, and the part of them that is not padding."""
        (channels, height, width), (above, left) = self.shape, self.padding
        image = torch.zeros(clients, channels, height + 2 * above, width + 2 * left, self.batch)
        return image, image[:, :, above : above + height, left : left + width]

    def _windows(self, image: Tensor) -> Tensor:
        """[K, channels, i, j, height, width, batch]: what row i, column j of the kernel meets."""
        s = image.stride()
        size = (*image.shape[:2], *self.kernel, *self.made[1:], self.batch)
        return image.as_strided(size, (*s[:4], s[2] * self.stride[0], s[3] * self.stride[1], 1))

    def build(self, clients: int, out: Place, block: Block, first: bool) -> Step:
        place = Place(*self._image(clients), *self._image(clients))
        met, g_met = (self._windows(image) for image in (place.whole, place.whole_grad))
        x, copies = copied_out(met, 4, block.value.shape[2], self.columns)
        gx, pieces = copied_out(met, 4, block.value.shape[2], self.columns)
        sums = [(g_met[:, :, i, j], pieces[:, :, i, j]) for i in range(met.shape[2]) for j in range(met.shape[3])]
        make = product(block.value, x, out.whole)
        learn = product(out.whole_grad, x.transpose(1, 2), block.grad)
        give_back = product(block.value.transpose(1, 2), out.whole_grad, gx)

        def forward() -> None:
            copies.copy_(met)
            make(0.0)

        def backward(keep: float) -> None:
            learn(keep)
            if not first:
                give_back(0.0)
                add_up(place.whole_grad, sums)

        return Step(place, forward, backward)


class PooledConvolution(Operation):
    """A convolution (odd kernel, stride 1, no padding) and the maxima of its 2x2 blocks; height and width are even.

    A product's column is one block: the patch it needs makes the block's four numbers at once, with the kernel at its
    four shifts in one matrix. There are a quarter of the columns then, and the four numbers lie in four long runs of
    memory. So that patches are runs too, even and odd rows and columns of images are dealt apart. Where another such
    convolution follows, which wants to find the blocks dealt apart as well, images are dealt by four.
    """

    makes_plain = True

    def __init__(
        self, layer: nn.Conv2d, places: Mapping[str, slice], shape: Shape, batch: int, deals: bool = False
    ) -> None:
        self.places, self.shape, self.batch, self.deals = places, shape, batch, deals
        self.kernel, self.patch = layer.kernel_size, tuple(side + 1 for side in layer.kernel_size)
        sides = zip(shape[1:], layer.kernel_size, strict=True)
        self.made: Shape = (layer.out_channels, *((n - k + 1) // 2 for n, k in sides))
        self.weights = shape[0] * prod(self.kernel)
        self.form = (filled(self.weights + 1, layer.out_channels), layer.out_channels)
        self.numbers = (shape[0] * prod(self.patch) + 8 * self.made[0]) * prod(self.made[1:]) * batch
        self.worth_it = layer.weight.numel() <= LARGEST_KERNELS

    def parts(self, flat: Tensor, packed: Tensor) -> Pairs:
        return matrix_and_bias(flat, self.places, packed.transpose(1, 2), self.weights)

    def entered(self, rows: Tensor) -> Tensor:
        channels, height, width = self.shape
        by = 4 if self.deals else 2
        dealt = rows.view(*rows.shape[:2], channels, height // by, by, width // by, by).permute(0, 2, 4, 6, 3, 5, 1)
        return self._slabs(dealt.contiguous()) if self.deals else dealt

    def _slabs(self, dealt: Tensor) -> Tensor:
        """[K, channels, t // 4, t % 4, u // 4, u % 4, ...]: of every fourth row the t-th, of its columns the u-th."""
        s = dealt.stride()
        return dealt.as_strided((len(dealt), *self._dealt_shape()), (s[0], s[1], s[4], s[2], s[5], s[3], s[4], s[5], 1))

    def _dealt_shape(self) -> tuple[int, ...]:
        (channels, height, width), (_, high, wide), (down, right) = self.shape, self.made, self.patch
        if self.deals:
            return (channels, (down + 2) // 4, 4, (right + 2) // 4, 4, high // 2, wide // 2, self.batch)
        return (channels, 2, 2, height // 2, width // 2, self.batch)

    def _windows(self, dealt: Tensor) -> Tensor:
        """[K, channels, i // 2, i % 2, j // 2, j % 2, ...]: what row i, column j of a patch meets, block by block."""
        s, (_, high, wide) = dealt.stride(), self.made
        patch = (*dealt.shape[:2], self.patch[0] // 2, 2, self.patch[1] // 2, 2)
        if self.deals:
            run = high // 2 * (wide // 2) * self.batch
            return dealt.as_strided(
                (*patch, 2, 2, run), (*s[:2], 2 * s[3], s[3], 2 * s[5], s[5], 2 * s[3], 2 * s[5], 1)
            )
        return dealt.as_strided((*patch, high, wide * self.batch), (*s[:2], s[4], s[2], s[5], s[3], s[4], 1))

    def _shifts(self, band: Tensor) -> Tensor:
        """[K, channels, i, j, 2, 2, outputs]: where in [K, patch, 4 * outputs] the kernel stands at its four shifts."""
        o, wide, row = self.made[0], self.patch[1], band.stride(1)
        size = (len(band), self.shape[0], *self.kernel, 2, 2, o)
        return band.as_strided(
            size, (band.stride(0), prod(self.patch) * row, wide * row, row, wide * row + 2 * o, row + o, 1)
        )

    def build(self, clients: int, out: Place, block: Block, first: bool) -> Step:
        place = Place.plain(clients, *self._dealt_shape())
        o, columns, count = self.made[0], out.whole.shape[2], self.shape[0] * prod(self.patch)
        rows = filled(count + 1, columns, 4 * o)
        met = self._windows(place.value)
        x, copies = copied_out(met, 6, rows, columns)
        gx, sums = torch.zeros(0), []
        if not first:
            g_met, (gx, pieces) = self._windows(place.grad), copied_out(met, 6, rows, columns)
            both = [(i, j) for i in range(met.shape[2]) for j in range(met.shape[4])]
            sums = [(g_met[:, :, i, :, j], pieces[:, :, i, :, j]) for i, j in both]
        band, g_band = (torch.zeros(clients, rows, 4 * o) for _ in range(2))
        kernel, g_kernel = (
            t[:, : self.weights].unflatten(1, (self.shape[0], *self.kernel)) for t in (block.value, block.grad)
        )
        biases, g_biases = (t[:, count].unflatten(1, (4, o)) for t in (band, g_band))
        kernel, g_bias = kernel[:, :, :, :, None, None], block.grad[:, self.weights]
        bias = block.value[:, self.weights : self.weights + 1]
        at_shifts, g_shifts = self._shifts(band), self._shifts(g_band)
        shifts = [g_shifts[:, :, :, :, i, j] for i in (0, 1) for j in (0, 1)]
        y = torch.zeros(clients, 4 * o, columns)
        band_turned, y_turned = band.transpose(1, 2), y.transpose(1, 2)
        pool, give_back = maxima(y.view(clients, 2, 2, o * columns), out)

        def forward() -> None:
            at_shifts.copy_(kernel)
            biases.copy_(bias)
            copies.copy_(met)
            torch.bmm(band_turned, x, out=y)
            pool()

        def backward(keep: float) -> None:
            give_back()
            torch.bmm(x, y_turned, out=g_band)
            torch.add(shifts[0], g_kernel, alpha=keep, out=g_kernel)
            for shift in shifts[1:]:
                g_kernel.add_(shift)
            torch.add(g_biases.sum(1), g_bias, alpha=keep, out=g_bias)
            if not first:
                torch.bmm(band, y, out=gx)
                add_up(place.whole_grad, sums)

        return Step(place, forward, backward)


class MaxPool(Operation):
    """The maxima of pairs, or of 2x2 blocks; a last odd row or column is left out."""

    makes_plain = True

    def __init__(self, shape: Shape, batch: int, high: int) -> None:
        self.shape, self.batch, self.high = shape, batch, high
        self.made: Shape = (shape[0], shape[1] // high, shape[2] // 2)

    def _dealt(self, image: Tensor) -> Tensor:
        """[K, 1 or 2, 2, channels, height, width, batch]: each number of a block apart."""
        _, height, width = self.made
        used = image[:, :, : self.high * height, : 2 * width]
        return used.unflatten(3, (width, 2)).unflatten(2, (height, self.high)).permute(0, 3, 5, 1, 2, 4, 6)

    def build(self, clients: int, out: Place, block: Block, first: bool) -> Step:
        place = Place.plain(clients, *self.shape, self.batch)
        columns, live = out.whole.shape[2], prod(self.made[1:]) * self.batch
        apart = torch.zeros(clients, self.high, 2, self.made[0], columns)
        dealt = apart[..., :live].unflatten(4, (*self.made[1:], self.batch))
        value, grad = self._dealt(place.value), self._dealt(place.grad)
        pool, give_back = maxima(apart.flatten(3), out)

        def forward() -> None:
            dealt.copy_(value)
            pool()

        def backward(keep: float) -> None:
            give_back()
            grad.copy_(dealt)

        return Step(place, forward, backward)


class MeanPool(Operation):
    """The mean over all positions."""

    def __init__(self, shape: Shape, batch: int) -> None:
        self.shape, self.batch = shape, batch
        self.made: Shape = (shape[0], 1, 1)

    def build(self, clients: int, out: Place, block: Block, first: bool) -> Step:
        place = Place.plain(clients, *self.shape, self.batch)
        share = 1 / prod(self.shape[1:])
        value, grad = (part.flatten(2, 3) for part in (place.value, place.grad))
        mean, back = out.value.flatten(2), out.grad.flatten(2, 3).expand(grad.shape)
        return Step(
            place,
            lambda: torch.sum(value, 2, out=mean).mul_(share),
            lambda keep: torch.mul(back, share, out=grad),
        )


def copied_out(met: Tensor, n_rows: int, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """A product's operand for what kernels meet, with a row of ones after it, and where in it to copy that.

    The dimensions of `met` after the client's up to `n_rows` are its rows, the others its columns.
    """
    operand = zeros(len(met), rows, columns)
    count, live = prod(met.shape[1:n_rows]), prod(met.shape[n_rows:])
    operand[:, count, :live] = 1
    return operand, operand[:, :count, :live].unflatten(2, met.shape[n_rows:]).unflatten(1, met.shape[1:n_rows])


def add_up(total: Tensor, sums: Pairs) -> None:
    """What windows overlap in is added."""
    total.zero_()
    for window, piece in sums:
        window.add_(piece)


def maxima(apart: Tensor, out: Place) -> tuple[Callable[[], object], Callable[[], object]]:
    """Forward and backward of the maxima of [K, 1 or 2, 2, n]. Backward, gradients take the numbers' place."""
    pooled, g_pooled = out.whole.flatten(1), out.whole_grad.flatten(1)
    left, right = apart.unbind(2)
    if apart.shape[1] == 1:
        left, right = left.squeeze(1), right.squeeze(1)
        return lambda: torch.maximum(left, right, out=pooled), lambda: to_larger(g_pooled, left, right)
    of_row = torch.zeros(left.shape)
    upper, lower = of_row.unbind(1)

    def forward() -> None:
        torch.maximum(left, right, out=of_row)
        torch.maximum(upper, lower, out=pooled)

    def backward() -> None:
        to_larger(g_pooled, upper, lower)
        to_larger(of_row, left, right)

    return forward, backward


def to_larger(gradient: Tensor, first: Tensor, second: Tensor) -> None:
    """Put the gradient of maxima in the larger numbers' stead, and zeros in the others'; a tie goes to the first."""
    torch.sub(first, second, out=first)
    pass_above(gradient, first, TIE, grad_input=first)
    torch.sub(gradient, first, out=second)


def sides_of(sizes: tuple[int, ...], otherwise: int) -> tuple[int, int]:
    """Height and width; a signal has a height of one."""
    return (otherwise, sizes[0]) if len(sizes) == 1 else (sizes[0], sizes[1])
