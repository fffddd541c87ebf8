"""Sizes are known before anything is read."""

from dataclasses import dataclass
from pathlib import Path

from fedclade.errors import FedcladeError


@dataclass
class Budget:
    """The memory that the data may still take."""

    gigabytes: float
    taken: float = 0.0

    @property
    def left(self) -> int:
        return int(self.gigabytes * 1e9 - self.taken)

    def take(self, path: Path, n_bytes: float, only_check: bool = False) -> None:
        if n_bytes > self.left:
            raise self.exceeded(path, n_bytes)
        if not only_check:
            self.taken += n_bytes

    def exceeded(self, path: Path, n_bytes: float | None = None) -> FedcladeError:
        size = (
            "more memory than is left of"
            if n_bytes is None
            else f"{(self.taken + n_bytes) / 1e9:.1f} GB of memory, more than"
        )
        return FedcladeError(
            f"{path}: with it the data take {size} the {self.gigabytes:g} GB that they may: "
            "give fewer rows, or set data.max_gigabytes"
        )
