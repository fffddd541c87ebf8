"""Values as they travel and as they are kept: a JSON header and a list of arrays.

One codec serves the wire, the sockets of workers, checkpoints and records; the ledger counts what it makes. Nothing in
it can run code when it is read. A class that travels is registered (`travels`) and comes back as itself; of its fields
only those are written that are not at their defaults. Any other dataclass is kept as its plain fields.
"""

import dataclasses
import functools
import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

ARRAY, PAIRS, KIND = "@array", "@pairs", "@kind"

T = TypeVar("T", bound=type)
_KINDS: dict[str, type] = {}


def travels(kind: T) -> T:
    """Register a dataclass or a pydantic model as one that can be encoded and decoded as itself."""
    _KINDS[kind.__name__] = kind
    return kind


@dataclass(frozen=True)
class Packet:
    """An encoded value."""

    header: Any  # plain JSON, with marks where arrays belong
    arrays: list[np.ndarray]

    @property
    def text(self) -> str:
        return json.dumps(self.header, separators=(",", ":"))

    @property
    def nbytes(self) -> int:
        """What it takes to send this."""
        return len(self.text.encode()) + sum(array.nbytes for array in self.arrays)

    def checksum(self) -> str:
        digest = hashlib.blake2b(self.text.encode(), digest_size=16)
        for array in self.arrays:
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            digest.update(_bytes_of(array))
        return digest.hexdigest()

    def to_bytes(self) -> bytes:
        parts = io.BytesIO()
        about = [[array.dtype.str, array.shape] for array in self.arrays]
        text = json.dumps([self.header, about], separators=(",", ":")).encode()
        parts.write(len(text).to_bytes(8, "little") + text)
        for array in self.arrays:
            parts.write(_bytes_of(array))
        return parts.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Packet":
        held = bytearray(data)  # arrays over it can be written to
        start = 8 + int.from_bytes(held[:8], "little")
        header, about = json.loads(held[8:start])
        arrays = []
        for kind, shape in about:
            dtype = np.dtype(kind)
            array = np.frombuffer(held, dtype, int(np.prod(shape, dtype=np.int64)), start).reshape(shape)
            arrays.append(array)
            start += array.nbytes
        return cls(header, arrays)


def encode(value: Any) -> Packet:
    """The packet of a value. An array that occurs several times is written once."""
    arrays: list[np.ndarray] = []
    return Packet(_flat(value, arrays, {}), arrays)


def decode(packet: Packet) -> Any:
    """The value again. Raises KeyError, TypeError or ValueError where it is none."""
    return _whole(packet.header, packet.arrays, inside=False)


def _flat(value: Any, arrays: list[np.ndarray], seen: dict[tuple[Any, ...], int]) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case np.ndarray():
            place = _memory_of(value)
            if place not in seen:
                seen[place] = len(arrays)
                arrays.append(value)
            return {ARRAY: seen[place]}
        case np.generic():
            return value.item()
        case Mapping():
            pairs = [[_flat(key, arrays, seen), _flat(item, arrays, seen)] for key, item in value.items()]
            is_plain = all(isinstance(key, str) and not key.startswith("@") for key in value)
            return dict(pairs) if is_plain else {PAIRS: pairs}
        case list() | tuple() | set() | frozenset():
            return [_flat(item, arrays, seen) for item in value]
    fields = _fields(type(value))  # type: ignore[arg-type]
    if fields is None:
        raise TypeError(f"a run can keep plain values and arrays, not {type(value).__name__}")
    kind = type(value).__name__
    if _KINDS.get(kind) is not type(value):
        return {name: _flat(getattr(value, name), arrays, seen) for name in fields}
    given = {name: getattr(value, name) for name, default in fields.items() if getattr(value, name) is not default}
    changed = {name: one for name, one in given.items() if not _is_default(one, fields[name])}
    return {KIND: kind, **{name: _flat(one, arrays, seen) for name, one in changed.items()}}


def _whole(value: Any, arrays: list[np.ndarray], inside: bool) -> Any:
    """`inside` a registered class lists are tuples, as in its fields."""
    if isinstance(value, list):
        items = (_whole(item, arrays, inside) for item in value)
        return tuple(items) if inside else list(items)
    if not isinstance(value, dict):
        return value
    if ARRAY in value:
        return arrays[value[ARRAY]]
    if PAIRS in value:
        return {_whole(key, arrays, inside): _whole(item, arrays, inside) for key, item in value[PAIRS]}
    if KIND in value:
        kind = _KINDS[value[KIND]]
        given = {name: _whole(item, arrays, True) for name, item in value.items() if name != KIND}
        return kind(**given)
    return {key: _whole(item, arrays, inside) for key, item in value.items()}


def _bytes_of(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _memory_of(array: np.ndarray) -> tuple[Any, ...]:
    """Two arrays in the same place of memory are the same, also where one is a view of the other."""
    return array.__array_interface__["data"][0], array.shape, array.strides, array.dtype.str


_NO_DEFAULT = object()


@functools.cache
def _fields(kind: Any) -> dict[str, Any] | None:
    """The fields of a dataclass or a pydantic model, each with its default."""
    if dataclasses.is_dataclass(kind):
        return {
            field.name: field.default if field.default is not dataclasses.MISSING else _NO_DEFAULT
            for field in dataclasses.fields(kind)
        }
    known = getattr(kind, "model_fields", None)
    return None if known is None else {name: field.get_default() for name, field in known.items()}


def _is_default(value: Any, default: Any) -> bool:
    if isinstance(value, np.ndarray | tuple):
        return False
    return type(value) is type(default) and bool(value == default)


__all__ = ["Packet", "decode", "encode", "travels"]
