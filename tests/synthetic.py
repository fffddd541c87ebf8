"""Small data made in a moment: a federation with planted groups, and files in the format of MNIST."""

import gzip
import struct
from pathlib import Path

import numpy as np

from fedclade.data.federation import Client, Federation


def planted(
    n_clients: int = 6, n_groups: int = 2, rows: int = 24, shape: tuple[int, ...] = (8,), seed: int = 0
) -> Federation:
    """Clients whose groups hold different labels for the same kind of rows; sizes differ from client to client."""
    random = np.random.default_rng(seed)
    centres = random.normal(size=(4, *shape)).astype(np.float32) * 2
    x, y, clients, place = [], [], [], 0
    for number in range(n_clients):
        group = number % n_groups
        n_train = rows + 7 * number
        kind = random.integers(0, 4, n_train + 20)
        x.append(centres[kind] + random.normal(size=(len(kind), *shape)).astype(np.float32) * 0.5)
        y.append((kind + group) % 4)  # the groups disagree on what to call a kind
        held = np.arange(place, place + len(kind), dtype=np.int32)
        clients.append(Client(f"c{number}", held[:n_train], held[n_train:], group))
        place += len(kind)
    classes = ("a", "b", "c", "d")
    return Federation(
        np.concatenate(x), np.concatenate(y).astype(np.int64), tuple(clients), classes, "planted", "planted"
    ).checked()


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">I{array.ndim}I", 0x0800 + array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def write_mnist(folder: Path, train: int = 30, test: int = 20, packed: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for part, rows in (("train", train), ("t10k", test)):
        images = np.random.default_rng(rows).integers(0, 256, (rows, 28, 28))
        for name, array in ((f"{part}-images-idx3-ubyte", images), (f"{part}-labels-idx1-ubyte", np.arange(rows) % 10)):
            data = idx(array)
            (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(data) if packed else data)
    return folder
