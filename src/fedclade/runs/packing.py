"""Plain values with arrays in them, as one safetensors file: nothing in it can run code when it is read.

Arrays become tensors `0`, `1`, ...; the rest is JSON in the file's header, with a mark where an array belongs.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedclade.errors import FedcladeError
from fedclade.files import write_atomically

ARRAY, PAIRS = "@array", "@pairs"


def save(path: Path, value: Any, *, flush: bool = True) -> None:
    arrays: dict[str, np.ndarray] = {}
    text = json.dumps(_flat(value, arrays, {}), allow_nan=True)
    write_atomically(path, lambda part: save_tensors(part, arrays, {"value": text}), flush=flush)


def save_tensors(path: Path, arrays: dict[str, np.ndarray], header: dict[str, str] | None = None) -> None:
    """A safetensors file; a full disk is an OSError, as with every other file."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    try:
        save_file(arrays, path, metadata=header)
    except SafetensorError as error:
        raise OSError(str(error)) from error


def load(path: Path, *, arrays: bool = True) -> Any:
    """The value; without its arrays, which may be large, there is None in their places."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            text = (file.metadata() or {})["value"]
            tensors = {name: file.get_tensor(name) if arrays else None for name in file.keys()}  # noqa: SIM118
            return _whole(json.loads(text), tensors)
    except (SafetensorError, KeyError, OSError, ValueError) as error:
        raise FedcladeError(f"cannot read {path}: the file is damaged ({error})") from error


def _flat(value: Any, arrays: dict[str, np.ndarray], seen: dict[int, str]) -> Any:
    match value:
        case np.ndarray():
            if id(value) not in seen:  # clusters that still share a model share it in the file too
                seen[id(value)] = str(len(arrays))
                arrays[seen[id(value)]] = np.ascontiguousarray(value)
            return {ARRAY: seen[id(value)]}
        case np.generic():
            return value.item()
        case dict():
            pairs = [[_flat(key, arrays, seen), _flat(item, arrays, seen)] for key, item in value.items()]
            return dict(pairs) if all(isinstance(key, str) for key in value) else {PAIRS: pairs}
        case list() | tuple() | set() | frozenset():
            return [_flat(item, arrays, seen) for item in value]
        case None | bool() | int() | float() | str():
            return value
    raise TypeError(f"a run can keep plain values and arrays, not {type(value).__name__}")


def _whole(value: Any, arrays: dict[str, np.ndarray | None]) -> Any:
    match value:
        case {"@array": str(name)}:
            return arrays[name]
        case {"@pairs": list(pairs)}:
            return {_whole(key, arrays): _whole(item, arrays) for key, item in pairs}
        case dict():
            return {key: _whole(item, arrays) for key, item in value.items()}
        case list():
            return [_whole(item, arrays) for item in value]
    return value
