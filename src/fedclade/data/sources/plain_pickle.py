"""Reading pickles that hold nothing but numpy arrays and plain containers.

A pickle is a program: whoever wrote it chooses which functions its reader calls. This reader knows six names, the ones
that an array needs, and refuses a file that asks for any other before anything of it is called.
"""

import pickle
from collections.abc import Callable
from typing import IO, Any

import numpy as np


def load_plain_pickle(stream: IO[bytes]) -> Any:
    """What a pickle of Python 2 or 3 holds, if that is arrays, numbers, strings and plain containers of them."""
    return _PlainUnpickler(stream, encoding="latin1").load()  # Python 2 wrote an array's bytes as a string


def _dtype(code: str, *_: object) -> np.dtype:
    dtype = np.dtype(code)
    if dtype.kind not in "biufcSU":
        raise pickle.UnpicklingError(f"refused: an array of {dtype}, where only numbers and strings are admitted")
    return np.dtype(code, copy=True)  # the pickle sets the byte order on it, so it must not be numpy's own


def _latin1(text: str, *_: object) -> bytes:
    return text.encode("latin1")  # how Python 3 writes bytes in the pickles of Python 2


def _reconstruct(kind: type, *_: object) -> np.ndarray:
    if kind is not np.ndarray:
        raise pickle.UnpicklingError(f"refused: it builds a {kind}, not an array")
    return np.ndarray.__new__(np.ndarray, (0,), np.int8)  # its state follows


def _scalar(dtype: np.dtype, data: bytes | str) -> Any:
    raw = data.encode("latin1") if isinstance(data, str) else data
    return np.frombuffer(raw, dtype, count=1)[0]


_ADMITTED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _dtype,
    ("_codecs", "encode"): _latin1,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _reconstruct for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _scalar for core in ("core", "_core")},
}


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"refused: it asks for {module}.{name}, which could run code, where only arrays are admitted"
            ) from None
