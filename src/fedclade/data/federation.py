"""The two values that flow out of this room: a `Dataset` as its owners published it, and a `Federation` of clients.

Both hold their rows once, in one array; clients are index arrays into it. Rows are either `uint8` images
(channels first, fed to a network as x / 255), `float32` features (fed as they are) or `int32` tokens (fed as int64).
Labels are one class a row or (tokens) a class for each place of it, or `float32` amounts (rows, amounts), which are
0 and 1 where a row has any of several labels.
"""

import os
import re
import shutil
import tempfile
import weakref
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedclade.data.options import LabelKind
from fedclade.data.preprocessing import Preprocessing
from fedclade.errors import FedcladeError
from fedclade.randomness import stream


@dataclass(frozen=True)
class Dataset:
    """One data set: the official training rows first, then the official test rows (if there are any)."""

    name: str
    x: np.ndarray  # (rows, channels, height, width) uint8, or (rows, ...) float32
    y: np.ndarray  # (rows,) int64, 0 .. n_classes - 1
    n_train: int  # rows [0, n_train) are for training, the rest for testing
    classes: tuple[str, ...]
    owner: np.ndarray | None = None  # (rows,) int64: whose row it is, where people (or drugs) own rows
    owners: tuple[str, ...] = ()  # the owners' names, by that number
    groups: tuple[int, ...] = ()  # the owners' hidden groups, where these are known
    remarks: tuple[str, ...] = ()  # what was done with the data that nobody asked for, in sentences

    @property
    def n_classes(self) -> int:
        return len(self.classes)


@dataclass(frozen=True)
class Client:
    """One client: which rows of its federation it holds, and the hidden group it belongs to where that is known."""

    name: str
    train: np.ndarray  # int32 row numbers, no row belongs to two clients' training data
    test: np.ndarray  # int32 row numbers; clients may share test rows
    group: int | None = None
    held_out: bool = False  # whether its test rows were taken from its training rows

    def __post_init__(self) -> None:
        if self.name.encode("utf-8", "replace").decode() != self.name:
            raise FedcladeError(f"the name {self.name!a} of a client is not UTF-8: give it another")


@dataclass(frozen=True)
class Federation:
    """Many clients over one pool of rows."""

    x: np.ndarray
    y: np.ndarray
    clients: tuple[Client, ...]
    classes: tuple[str, ...]
    data: str = "own"  # what it was made from, for the record
    split: str = "own"
    columns: tuple[str, ...] = ()  # the names of the features in their order, where tables gave them
    row_numbers: np.ndarray | None = None  # of each row in its client's own file or table; None: as in the pool
    labels: LabelKind = "classes"  # what `y` holds: then `classes` are the names of classes, amounts or labels
    is_text: bool = False  # rows are made of the classes, which are characters
    preprocessing: Preprocessing | None = None  # what made the rows of own data
    remarks: tuple[str, ...] = ()  # what was done with the data that nobody asked for, in sentences

    @property
    def n_classes(self) -> int:
        return len(self.classes)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.x.shape[1:])

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(client.name for client in self.clients)

    @property
    def groups(self) -> dict[str, int] | None:
        """The hidden group of every client, or None where any is unknown."""
        if any(client.group is None for client in self.clients):
            return None
        return {client.name: int(client.group) for client in self.clients if client.group is not None}

    def __len__(self) -> int:
        return len(self.clients)

    def __getitem__(self, name: str) -> Client:
        for client in self.clients:
            if client.name == name:
                return client
        raise KeyError(name)

    @property
    def held_out(self) -> dict[str, np.ndarray]:
        """The row numbers (from 0, in its own file or table) that a client tests on, of clients without test rows."""
        numbers = np.arange(len(self.y)) if self.row_numbers is None else self.row_numbers
        return {client.name: numbers[client.test] for client in self.clients if client.held_out}

    def alone(self, name: str, known_as: str = "") -> "Federation":
        """One client with its rows only: training rows first, then test rows."""
        client = self[name]
        rows, cut = np.concatenate([client.train, client.test]), len(client.train)
        places = np.arange(len(rows), dtype=np.int32)
        alone = replace(client, name=known_as or name, train=places[:cut], test=places[cut:])
        numbers = rows if self.row_numbers is None else self.row_numbers[rows]
        x = np.ascontiguousarray(self.x[rows])
        return replace(self, x=x, y=self.y[rows], clients=(alone,), row_numbers=numbers)

    def label_counts(self) -> np.ndarray | None:
        """(clients, classes): how many training rows of each class a client holds; None where there are no classes."""
        if self.labels == "numbers":
            return None
        if self.labels == "sets":
            return np.stack([self.y[client.train].sum(axis=0).astype(np.int64) for client in self.clients])
        if self.y.ndim > 1:
            return np.stack([np.bincount(self.y[c.train].ravel(), minlength=self.n_classes) for c in self.clients])
        return np.stack([np.bincount(self.y[client.train], minlength=self.n_classes) for client in self.clients])

    def pooled(self, name: str) -> "Federation":
        """This federation with one more member that holds everybody's training rows: all data in one place."""
        everything = np.concatenate([client.train for client in self.clients])
        return replace(self, clients=(*self.clients, Client(name, everything, everything[:1])))

    def limited(self, rows: int | None, seed: int) -> "Federation":
        """With at most so many training rows a client, drawn at random: for trying things out on a small machine."""
        if rows is None:
            return self

        def some(client: Client) -> Client:
            drawn = stream(seed, "rows", client.name).permutation(len(client.train))[:rows]
            return replace(client, train=client.train[np.sort(drawn)])

        return replace(self, clients=tuple(some(client) for client in self.clients))

    def shared(self) -> "Federation":
        """This federation with its rows in a mapped file that worker processes map too, so that all hold one copy."""
        folder = Path(tempfile.mkdtemp(prefix="fedclade-rows-", dir=memory_folder(self.x.nbytes)))
        rows = np.lib.format.open_memmap(folder / "x.npy", "w+", self.x.dtype, self.x.shape)
        rows[:] = self.x
        rows.flush()
        rows = np.load(folder / "x.npy", mmap_mode="r")
        weakref.finalize(rows, shutil.rmtree, folder, ignore_errors=True)
        return replace(self, x=rows)

    def checked(self) -> "Federation":
        """This federation, after making sure that every client can train and be tested."""
        if not self.clients:
            raise FedcladeError("the federation has no clients: give at least one")
        if len(set(self.names)) < len(self.clients):
            raise FedcladeError("two clients have the same name: give each its own")
        if self.x.dtype not in (np.uint8, np.float32, np.int32):
            raise FedcladeError(f"rows are {self.x.dtype}: give uint8 images, float32 features or int32 tokens")
        if len(self.x) != len(self.y):
            raise FedcladeError(f"{len(self.x)} rows but {len(self.y)} labels: give one label for each row")
        if self.labels != "classes":
            self._check_amounts()
        elif self.y.dtype.kind not in "iu":
            raise FedcladeError(f"labels are {self.y.dtype}: give whole numbers for classes, or choose task=regression")
        elif len(self.y) and (self.y.min() < 0 or self.y.max() >= self.n_classes):
            raise FedcladeError(
                f"labels run from {self.y.min()} to {self.y.max()}: they must be 0 .. {self.n_classes - 1}"
            )
        checked: set[int] = set()  # clients often share their test rows
        for client in self.clients:
            for part, rows in (("training", client.train), ("test", client.test)):
                if len(rows) == 0:
                    raise FedcladeError(
                        f"client {client.name!r} has no {part} rows: give it some, use fewer clients, or leave it out"
                    )
                if self.x.dtype != np.float32 or id(rows) in checked:
                    continue
                checked.add(id(rows))
                finite = np.isfinite(self.x[rows]).all(axis=tuple(range(1, self.x.ndim)))
                if not finite.all():
                    raise FedcladeError(
                        f"client {client.name!r}: {part} row {int(np.argmin(finite))} holds a NaN or infinite value: "
                        "clean it or leave it out"
                    )
        return self

    def _check_amounts(self) -> None:
        if self.y.shape != (len(self.x), self.n_classes) or self.y.dtype != np.float32:
            wanted = f"float32 of shape {(len(self.x), self.n_classes)}"
            raise FedcladeError(f"labels are {self.y.dtype} of shape {self.y.shape}: give {wanted}")
        if not np.isfinite(self.y).all() or (self.labels == "sets" and not np.isin(self.y, (0, 1)).all()):
            raise FedcladeError("some label is no number: give an amount, or 0 or 1, for each")


def memory_folder(n_bytes: int) -> str | None:
    """Where rows lie while processes map them: in memory where the system offers a file system there with room."""
    memory = Path("/dev/shm")
    if memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > n_bytes + (64 << 20):
        return str(memory)
    return None


def natural_order(name: str) -> tuple[list[str | tuple[int, str]], str]:
    """A sorting key under which client-2 comes before client-10."""
    words = re.split(r"([0-9]+)", name)
    numbers = [word.lstrip("0") for word in words]  # the longer, the larger, of however many digits
    return [(len(number), number) if i % 2 else words[i] for i, number in enumerate(numbers)], name
