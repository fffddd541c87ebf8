"""What an aggregation rule is."""

from collections.abc import Iterable
from typing import Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict


class Accumulator(Protocol):
    """Takes answers one after the other, so that a rule that needs sums only need not keep them."""

    def add(self, weights: np.ndarray, mass: float) -> None: ...

    def result(self) -> np.ndarray: ...


class Aggregation(BaseModel):
    """A rule that makes one vector of many. Its fields are its settings.

    A rule that needs all vectors at once overrides `combine`; one that can do with sums overrides `accumulator`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    def accumulator(self, start: np.ndarray) -> Accumulator:
        """For one cluster; `start` is the model that its members began with."""
        return _Collected(self, start)

    def combine(self, vectors: np.ndarray, masses: np.ndarray, start: np.ndarray) -> np.ndarray:
        """One vector of the rows of `vectors` (clients, numbers); `masses` are the rows that each trained on."""
        raise NotImplementedError

    def of(self, vectors: Iterable[np.ndarray], masses: Iterable[float], start: np.ndarray) -> np.ndarray:
        """The rule, applied to vectors that are there already."""
        accumulator = self.accumulator(start)
        for vector, mass in zip(vectors, masses, strict=True):
            accumulator.add(vector, mass)
        return accumulator.result()


class _Collected:
    def __init__(self, rule: Aggregation, start: np.ndarray) -> None:
        self.rule, self.start = rule, start
        self.vectors: list[np.ndarray] = []
        self.masses: list[float] = []

    def add(self, weights: np.ndarray, mass: float) -> None:
        self.vectors.append(weights)
        self.masses.append(float(mass))

    def result(self) -> np.ndarray:
        combined = self.rule.combine(np.stack(self.vectors), np.array(self.masses), self.start)
        return combined.astype(np.float32)
