"""The compiled kernel (kernel.c), where it was built: on CPUs, more than twice as fast as torch's own products.

Everything works without it; `FEDCLADE_KERNEL=off` in the environment leaves it aside.
"""

import ctypes
import os
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from fedclade.clients.batched.places import zeros

WIDTHS = (4, 8, 16)  # numbers in a vector
Multiply = Callable[[float], object]


class Kernel:
    """The functions of kernel.c for vectors of one width."""

    def __init__(self, library: ctypes.CDLL, lanes: int) -> None:
        self.lanes = lanes
        self.multiply = _function(library, f"multiply_{lanes}", ctypes.c_float)
        self.convolve = _function(library, f"convolve_{lanes}")
        self.convolve_back = _function(library, f"convolve_back_{lanes}", ctypes.c_float)


def _function(library: ctypes.CDLL, name: str, *arguments: Any) -> Any:
    function = getattr(library, name)
    function.argtypes, function.restype = [ctypes.c_void_p, *arguments], None
    return function


def load(lanes: int = max(WIDTHS)) -> Kernel | None:
    """With vectors of at most this width; None where the kernel was not built."""
    found = find_spec("fedclade.clients.batched._kernel")
    if found is None or found.origin is None:
        return None
    library = ctypes.CDLL(found.origin)
    return Kernel(library, min(lanes, library.lanes()))


KERNEL = None if os.environ.get("FEDCLADE_KERNEL") == "off" else load()


def is_used(device: torch.device) -> bool:
    return KERNEL is not None and device.type == "cpu"


def whole_rows() -> tuple[int, ...]:
    """What `filled` needs for rows of whole vectors, which the kernel likes: they end sooner."""
    return () if KERNEL is None else (2,)


def _structure(name: str, fields: str) -> Any:
    """A structure of kernel.c: a star stands for a pointer, everything else is a whole number of 64 bits."""
    kinds = [(each.lstrip("*"), ctypes.c_void_p if each[0] == "*" else ctypes.c_int64) for each in fields.split()]
    return type(name, (ctypes.Structure,), {"_fields_": kinds})


Product = _structure(
    "Product",
    "clients m n k *a *b *c *turned a_client b_client c_client a_m b_n c_m *a_at *b_at *turned_at",
)
Convolution = _structure(
    "Convolution",
    "clients outputs channels kernel_high kernel_wide batch high wide pool_high pool_wide *x *w *g_out *g_x *g_w *out "
    "*which *made *g_made x_client x_channel x_row w_client w_row out_client out_channel g_channel g_row "
    "*w_at *x_at *back_at *g_at",
)


def filled_in(structure: Any, **values: Any) -> Any:
    """A reference to it, which keeps everything alive that it points to: tensors become pointers."""
    whole = structure(
        **{name: value.data_ptr() if isinstance(value, Tensor) else value for name, value in values.items()}
    )
    whole.alive = values
    return ctypes.byref(whole)


def product(a: Tensor, b: Tensor, out: Tensor) -> Multiply:
    """What sets `out` to a share of itself and the products of K matrices, [K, m, k] and [K, k, n]."""
    if KERNEL is None or not out.is_cpu or out.stride(2) != 1 or 1 not in b.stride()[1:]:
        return lambda keep: torch.baddbmm(out, a, b, beta=keep, out=out)
    (clients, m, k), n = a.shape, b.shape[2]
    steps = torch.arange(k, dtype=torch.int32)
    asked = filled_in(
        Product,
        **{"clients": clients, "m": m, "n": n, "k": k, "a": a, "b": b, "c": out, "turned": zeros(k, n)},
        **{"a_client": a.stride(0), "b_client": b.stride(0), "c_client": out.stride(0)},
        **{"a_m": a.stride(1), "b_n": b.stride(2), "c_m": out.stride(1)},
        **{"a_at": steps * a.stride(2), "b_at": steps * b.stride(1), "turned_at": steps * n},
    )
    return partial(KERNEL.multiply, asked)
