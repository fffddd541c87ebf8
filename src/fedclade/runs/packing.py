"""Values and tables as files that know when they are damaged, and that other tools can read."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedclade.codec import Packet, decode, encode
from fedclade.errors import FedcladeError
from fedclade.files import write_atomically, write_json

if TYPE_CHECKING:
    import pyarrow as pa

CHECKSUM = 32  # characters


def checksum(*parts: bytes) -> str:
    digest = hashlib.blake2b(digest_size=CHECKSUM // 2)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def save(path: Path, value: Any, *, flush: bool = True) -> None:
    """Arrays become tensors `0`, `1`, ...; the rest is JSON in the file's header, after checksums of it and of all."""
    packet = encode(value)
    arrays = {str(place): np.ascontiguousarray(array) for place, array in enumerate(packet.arrays)}
    text = packet.text
    sums = checksum(text.encode()) + packet.checksum()
    header = {"value": sums + text}  # one entry: several would come in any order
    write_atomically(path, lambda part: save_tensors(part, arrays, header), flush=flush)


def save_tensors(path: Path, arrays: dict[str, np.ndarray], header: dict[str, str] | None = None) -> None:
    """A safetensors file; a full disk is an OSError, as with every other file."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    try:
        save_file(arrays, path, metadata=header)
    except SafetensorError as error:
        raise OSError(str(error)) from error


def save_state(path: Path, state: Mapping[str, Any], facts: Mapping[str, str] | None = None) -> None:
    """A state dict of torch tensors (or arrays), as any reader of safetensors takes it."""
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors = {name: torch.as_tensor(value).contiguous() for name, value in state.items()}
    try:
        save_file(tensors, path, metadata=dict(facts or {}))
    except SafetensorError as error:
        raise OSError(str(error)) from error


def load(path: Path, *, arrays: bool = True) -> Any:
    """The value; without its arrays, which may be large, there is nothing in their places."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            value = (file.metadata() or {})["value"]
            count = len(file.keys())
            tensors = [file.get_tensor(str(place)) if arrays else np.empty(0) for place in range(count)]
        text = value[2 * CHECKSUM :]
        if checksum(text.encode()) != value[:CHECKSUM]:
            raise ValueError("its checksum is wrong")
        packet = Packet(json.loads(text), tensors)
        if arrays and packet.checksum() != value[CHECKSUM : 2 * CHECKSUM]:
            raise ValueError("its checksum is wrong")
        return decode(packet)
    except (SafetensorError, AttributeError, KeyError, IndexError, TypeError, OSError, ValueError) as error:
        raise damaged(path, error) from error


def damaged(path: Path, error: object) -> FedcladeError:
    why = " ".join(str(error).split())  # some libraries say it in several lines
    return FedcladeError(f"cannot read {path}: the file is damaged ({why})")


# Tables: parquet files with a checksum in their metadata


def table_of(rows: Sequence[Mapping[str, Any]]) -> "pa.Table":
    """A column for every name, in the order in which they come up."""
    import pyarrow as pa

    names = dict.fromkeys(name for row in rows for name in row)
    columns = [_column([row.get(name) for row in rows]) for name in names]
    return pa.Table.from_arrays(columns, names=list(names))


def _column(values: list[Any]) -> "pa.Array":
    """Numbers, words or truths are laid out here: `pa.array` would load pandas, which takes longer than a short run."""
    import pyarrow as pa

    known = [value for value in values if value is not None]
    if not known:
        return pa.nulls(len(values))
    kinds, held = {type(value) for value in known}, np.array(known)
    if len(known) < len(values) and held.dtype.kind in "iuf":  # as pandas has it: what is missing is no number
        held = np.array([np.nan if value is None else value for value in values], np.float64)
    elif len(known) < len(values):
        return pa.array(values)
    if held.dtype.kind in "iuf":
        return pa.Array.from_buffers(pa.from_numpy_dtype(held.dtype), len(values), [None, pa.py_buffer(held)])
    if held.dtype.kind == "b":
        packed = np.packbits(held, bitorder="little")
        return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(packed)])
    if kinds != {str}:
        return pa.array(values)
    words = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, words)], dtype=np.int64)
    return pa.Array.from_buffers(
        pa.large_string(), len(values), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(words))]
    )


def save_table(path: Path, table: "pa.Table", *, flush: bool = True) -> None:
    import pyarrow.parquet as pq

    told = {**(table.schema.metadata or {}), b"checksum": _table_checksum(table).encode()}
    write_atomically(path, lambda part: pq.write_table(table.replace_schema_metadata(told), part), flush=flush)


def load_table(path: Path) -> "pa.Table":
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            table = file.read()
        if (table.schema.metadata or {}).get(b"checksum", b"").decode() != _table_checksum(table):
            raise ValueError("its checksum is wrong")
    except Exception as error:  # whatever readers make of damaged bytes
        raise damaged(path, error) from error
    return table


def values_of(column: "pa.ChunkedArray") -> np.ndarray:
    """As its own `to_numpy` would give them, without pandas: what is missing among numbers is NaN."""
    import pyarrow as pa

    if not pa.types.is_integer(column.type) and not pa.types.is_floating(column.type):
        words = column.to_pylist()
        return np.array(words, bool if pa.types.is_boolean(column.type) and None not in words else object)
    if column.null_count:
        kind = column.type.to_pandas_dtype() if pa.types.is_floating(column.type) else np.float64
        return np.array([np.nan if value is None else value for value in column.to_pylist()], kind)
    parts = [np.frombuffer(part.buffers()[1], column.type.to_pandas_dtype()) for part in column.chunks if len(part)]
    cut = [
        of[part.offset : part.offset + len(part)] for of, part in zip(parts, filter(len, column.chunks), strict=True)
    ]
    return np.concatenate(cut) if cut else np.empty(0, column.type.to_pandas_dtype())


def _table_checksum(table: "pa.Table") -> str:
    """Of the names of the columns and of what they hold: numbers by their bytes, all else by its words."""
    parts = []
    for name in table.column_names:
        values = values_of(table[name])
        is_number = values.dtype.kind in "biuf"
        held = values.tobytes() if is_number else "\n".join(map(str, values)).encode()
        parts += [f"{name} {values.dtype.str if is_number else 'words'} {len(held)} ".encode(), held]
    return checksum(*parts)


# JSON with a checksum as its last entry


def save_json(path: Path, value: Mapping[str, Any]) -> None:
    write_json(path, {**value, "checksum": _json_checksum(value)})


def load_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(value, dict) or value.pop("checksum", None) != _json_checksum(value):
            raise ValueError("it was changed: its checksum is wrong")
    except FileNotFoundError:
        raise
    except (ValueError, OSError, RecursionError) as error:
        raise damaged(path, error) from error
    return value


def _json_checksum(value: Mapping[str, Any]) -> str:
    return checksum(json.dumps(value).encode())
