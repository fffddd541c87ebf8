"""The numeric arrays of a MATLAB 5 file.

scipy reads these files too, but it can take the whole process down with it when a byte of an uncompressed file is
wrong (it uses a type number from the file as an index). Here every number of the file is checked before it is used.
"""

import zlib
from collections.abc import Collection

import numpy as np

MATRIX, COMPRESSED = 14, 15
STORED_AS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
ARRAY_CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}


def load_mat(data: bytes, wanted: Collection[str]) -> dict[str, np.ndarray]:
    """The wanted arrays by name. Raises ValueError or zlib.error where the bytes are no MATLAB 5 file."""
    order = {b"IM": "<", b"MI": ">"}.get(data[126:128])
    if order is None:
        raise ValueError("it is no MATLAB 5 file")
    arrays = {}
    rest = memoryview(data)[128:]
    while rest:
        kind, body, rest = _element(rest, order, padded=False)
        if kind == COMPRESSED:
            kind, body, _ = _element(memoryview(zlib.decompress(body)), order, padded=False)
        if kind == MATRIX:
            name, array = _matrix(body, order, wanted)
            if array is not None:
                arrays[name] = array
    return arrays


def _element(data: memoryview, order: str, padded: bool = True) -> tuple[int, memoryview, memoryview]:
    """(type, contents, what follows) of the element that the data starts with."""
    if len(data) < 8:
        raise ValueError("it ends too early")
    kind, size = (int(number) for number in np.frombuffer(data[:8], f"{order}u4"))
    if kind >> 16:  # a small element: type and size share four bytes, the contents are the other four
        kind, size, start = kind & 0xFFFF, kind >> 16, 4
        stop = 8
    else:
        start = 8
        stop = start + (-(-size // 8) * 8 if padded else size)
    if start + size > len(data) or start + size > stop:
        raise ValueError("it ends too early")
    return kind, data[start : start + size], data[stop:]


def _matrix(data: memoryview, order: str, wanted: Collection[str]) -> tuple[str, np.ndarray | None]:
    """(name, array) of a matrix element, without the array if it is not wanted."""
    _, flags, data = _element(data, order)
    _, dimensions, data = _element(data, order)
    _, name, data = _element(data, order)
    title = bytes(name).decode("latin1")
    if title not in wanted:
        return title, None
    array_class = int(np.frombuffer(flags, f"{order}u4")[0]) & 0xFF
    shape = tuple(int(length) for length in np.frombuffer(dimensions, f"{order}i4"))
    kind, body, _ = _element(data, order)
    if array_class not in ARRAY_CLASSES or kind not in STORED_AS:
        raise ValueError(f"{title} is no numeric array")
    values = np.frombuffer(body, f"{order}{STORED_AS[kind]}")  # MATLAB stores whole numbers in the fewest bytes
    return title, values.reshape(shape, order="F").astype(ARRAY_CLASSES[array_class], copy=False)
