"""The splits by name: how each is written (`dirichlet:0.1`), and reading what a person wrote."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedclade.data.partition.allocation import Allocation
from fedclade.errors import FedcladeError, unknown


@dataclass(frozen=True)
class Argument:
    """A number in a split's name, after a colon."""

    name: str
    whole: bool = False
    up_to: float = np.inf
    optional: bool = False

    @property
    def wanted(self) -> str:
        if not self.whole:
            return f"a number above 0, up to {self.up_to:,g}"
        return f"a whole number, 1 {f'to {self.up_to:g}' if np.isfinite(self.up_to) else 'or more'}"

    def read(self, text: str) -> float:
        number = int(text) if self.whole else float(text)  # raises ValueError where it is none
        if not 0 < number <= self.up_to:
            raise ValueError(text)
        return number


@dataclass(frozen=True)
class Split:
    """A way to partition a data set among clients."""

    name: str
    description: str
    example: str
    paper: str
    allocate: Callable[..., Allocation] | None = None  # None: the data say whose row it is
    arguments: tuple[Argument, ...] = ()
    turns_images: bool = False

    @property
    def syntax(self) -> str:
        """An optional number can only be given with those before it, so that its brackets hold all that follow."""
        needed = "".join(f":{a.name}" for a in self.arguments if not a.optional)
        optional = [f"[:{a.name}" for a in self.arguments if a.optional]
        return self.name + needed + "".join(optional) + "]" * len(optional)


_SPLITS: dict[str, Split] = {}


def splits() -> dict[str, Split]:
    """Every split by name."""
    return dict(_SPLITS)


def add(split: Split) -> None:
    _SPLITS[split.name] = split


def registered(
    example: str, *arguments: Argument, paper: str, turns_images: bool = False
) -> Callable[[Callable[..., Allocation]], Callable[..., Allocation]]:
    """Make a function a split by the name its example starts with; its docstring is the split's description."""

    def register(allocate: Callable[..., Allocation]) -> Callable[..., Allocation]:
        name = example.split(":")[0]
        add(Split(name, allocate.__doc__ or "", example, paper, allocate, arguments, turns_images))
        return allocate

    return register


def parsed(spec: str) -> tuple[Split, list[float]]:
    """The split that a person wrote, and its numbers."""
    name, *texts = spec.split(":")
    if name not in _SPLITS:
        raise unknown("split", name, _SPLITS)
    split = _SPLITS[name]
    needed = sum(not argument.optional for argument in split.arguments)
    if not needed <= len(texts) <= len(split.arguments):
        problem = "lacks a number" if len(texts) < needed else "has a number too many"
        raise FedcladeError(f"split {spec!r} {problem}: write {split.syntax}, e.g. {split.example}")
    values = []
    for argument, text in zip(split.arguments, texts, strict=False):
        try:
            values.append(argument.read(text))
        except ValueError:
            wrong = f"split {spec!r}: {argument.name} is {text!r}"
            raise FedcladeError(f"{wrong}: give {argument.wanted}, e.g. {split.example}") from None
    return split, values
