"""Where numbers lie between two operations.

Matrix products take and make whole tensors [K, rows, columns], a matrix a client. Each client's matrix has a multiple
of 32 numbers, filled up with zeros: the last bit of a product may depend on where in memory its matrices begin, that of
a sum on whether it is the remainder of a loop over vectors, and a client's numbers must not depend on its place in a
group. For the same reason no matrix is a vector: products with those are done otherwise for one client than for many.
"""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

ALIGNED = 32
SMALLEST = 2
SPARE = 16  # numbers that a vector of the compiled kernel may read beyond the end of a tensor


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """With some to spare behind them."""
    count = prod(shape)
    return torch.zeros(count + SPARE, dtype=dtype)[:count].view(shape)


def filled(n: int, *others: int) -> int:
    """The smallest number from `n` on that makes matrices of such a size with each of the others."""
    n = max(n, SMALLEST)
    while any(n * other % ALIGNED for other in others):
        n += 1
    return n


@dataclass(frozen=True)
class Place:
    """Numbers and their gradients: `whole` as products see them, `value` (a view of it) as they are meant."""

    whole: Tensor
    value: Tensor
    whole_grad: Tensor
    grad: Tensor

    @classmethod
    def plain(cls, clients: int, rows: int, *columns: int, shared: bool = False) -> "Place":
        """[K, rows, *columns], with zeros after them only, so that a product can write it.

        `shared`: nobody looks at the numbers once their gradients are known, so that these take their place.
        """
        count = prod(columns)
        size = clients, rows, filled(count, rows)
        whole = zeros(*size)
        grad = whole if shared else zeros(*size)
        return cls(whole, whole[..., :count].unflatten(2, columns), grad, grad[..., :count].unflatten(2, columns))


@dataclass(frozen=True)
class Block:
    """A layer's parameters for K clients, and their gradients: a matrix a client, filled up with zeros."""

    value: Tensor
    grad: Tensor

    @classmethod
    def of(cls, clients: int, form: tuple[int, int] | None) -> "Block":
        rows, columns = form or (0, 0)
        return cls(*(zeros(clients, rows, columns) for _ in range(2)))
