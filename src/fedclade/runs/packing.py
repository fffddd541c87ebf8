"""Encoded values as safetensors files that know when they are damaged."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedclade.codec import Packet, decode, encode
from fedclade.errors import FedcladeError
from fedclade.files import write_atomically

CHECKSUM = 32  # characters


def save(path: Path, value: Any, *, flush: bool = True) -> None:
    """Arrays become tensors `0`, `1`, ...; the rest is JSON in the file's header, beside a checksum of all."""
    packet = encode(value)
    arrays = {str(place): np.ascontiguousarray(array) for place, array in enumerate(packet.arrays)}
    header = {"value": packet.checksum() + packet.text}  # one entry: several would come in any order
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
        packet = Packet(json.loads(value[CHECKSUM:]), tensors)
        if arrays and packet.checksum() != value[:CHECKSUM]:
            raise ValueError("its checksum is wrong")
        return decode(packet)
    except (SafetensorError, KeyError, IndexError, TypeError, OSError, ValueError) as error:
        raise FedcladeError(f"cannot read {path}: the file is damaged ({error})") from error
