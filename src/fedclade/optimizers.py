"""Server optimisers: the step from a cluster's model and the aggregate of its members' answers to its next model.

FedAvg takes the aggregate itself. The others take what it changed for a gradient (the pseudo-gradient) and step along
it as an optimiser would. It is a setting of the run (`server`), after the aggregation rule, whatever the method:

- `momentum` (FedAvgM): Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated
  Visual Classification", 2019.
- `adam`, `yogi`, `adagrad`: Reddi et al., "Adaptive Federated Optimization", ICLR 2021. As there, moments are not
  corrected for their start, and the second ones begin at tau squared.

What an optimiser remembers belongs to a model and is found by it. Whoever goes on from that model goes on from its
moments: the cluster itself in its next round, or each part of a cluster that was split. A model that was made otherwise
(a new one, or one made of several clusters) begins without, unless the method hands moments on (`Stepping.hand_on`).
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Moments = tuple[np.ndarray, ...]  # float64, as many as the optimiser keeps


class ServerOptimizer(BaseModel):
    """The aggregate as it is."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    is_plain: ClassVar[bool] = True  # it takes the aggregate and remembers nothing

    def begin(self, size: int) -> Moments:
        """What is remembered before the first step."""
        return ()

    def step(self, change: np.ndarray, moments: Moments) -> tuple[np.ndarray, Moments]:
        """How far the model goes for what the aggregate changed, and what is remembered afterwards."""
        return change, moments


class Momentum(ServerOptimizer):
    is_plain: ClassVar[bool] = False

    learning_rate: Rate = 1.0  # how far a step goes
    momentum: Decay = 0.9  # how much of the step before goes on

    def begin(self, size: int) -> Moments:
        return (np.zeros(size),)

    def step(self, change: np.ndarray, moments: Moments) -> tuple[np.ndarray, Moments]:
        way = self.momentum * moments[0] + change
        return self.learning_rate * way, (way,)


class Adaptive(ServerOptimizer):
    """Every weight has a rate of its own, by the squares of its changes so far."""

    is_plain: ClassVar[bool] = False

    learning_rate: Rate = 0.01  # how far a step goes
    beta_1: Decay = 0.9  # how much of the earlier changes counts in the direction
    tau: Rate = 1e-3  # the least that a change is divided by: the larger, the less adaptive

    def begin(self, size: int) -> Moments:
        return np.zeros(size), np.full(size, self.tau**2)

    def step(self, change: np.ndarray, moments: Moments) -> tuple[np.ndarray, Moments]:
        first = self.beta_1 * moments[0] + (1 - self.beta_1) * change
        second = self.squares(moments[1], change**2)
        return self.learning_rate * first / (np.sqrt(second) + self.tau), (first, second)

    def squares(self, before: np.ndarray, square: np.ndarray) -> np.ndarray:
        raise NotImplementedError


class Adam(Adaptive):
    beta_2: Decay = 0.99  # how much of the earlier squares counts

    def squares(self, before: np.ndarray, square: np.ndarray) -> np.ndarray:
        return np.asarray(self.beta_2 * before + (1 - self.beta_2) * square)


class Yogi(Adam):
    def squares(self, before: np.ndarray, square: np.ndarray) -> np.ndarray:
        return np.asarray(before - (1 - self.beta_2) * square * np.sign(before - square))


class Adagrad(Adaptive):
    learning_rate: Rate = 0.1  # how far a step goes: it shrinks by itself
    beta_1: Decay = 0.0  # how much of the earlier changes counts in the direction

    def squares(self, before: np.ndarray, square: np.ndarray) -> np.ndarray:
        return np.asarray(before + square)


SERVER_OPTIMIZERS: dict[str, type[ServerOptimizer]] = {
    "average": ServerOptimizer,
    "momentum": Momentum,
    "adam": Adam,
    "yogi": Yogi,
    "adagrad": Adagrad,
}


@dataclass
class Stepping:
    """A server optimiser at work: it keeps the moments of every model that somebody may go on from."""

    optimizer: ServerOptimizer
    n_parameters: int  # running statistics behind them are no result of steps: they are taken as they come
    kept: dict[str, Moments] = field(default_factory=dict)  # as of the last round
    made: dict[str, Moments] = field(default_factory=dict)  # in this one, which may have to be done again

    def __call__(self, start: np.ndarray, aggregate: np.ndarray) -> np.ndarray:
        """The next model, for one that began at `start`. Where nothing has changed, nothing is done."""
        if self.optimizer.is_plain or np.array_equal(start, aggregate):
            return aggregate
        n = min(self.n_parameters, len(start))
        change = aggregate[:n].astype(np.float64) - start[:n]
        name = name_of(start)
        moments = self.made.get(name) or self.kept.get(name) or self.optimizer.begin(n)
        way, moments = self.optimizer.step(change, moments)
        stepped = aggregate.copy()
        stepped[:n] = start[:n] + way
        self.made[name_of(stepped)] = moments
        return stepped

    def hand_on(self, model: np.ndarray, changed: np.ndarray) -> None:
        """What a method has made of a model goes on with its moments."""
        known = {**self.kept, **self.made}
        if name_of(model) in known:
            self.made[name_of(changed)] = known[name_of(model)]

    def clear(self) -> None:
        """A round begins, or begins again."""
        self.made.clear()

    def keep(self, models: Iterable[np.ndarray]) -> Mapping[str, Moments]:
        """A round is over, and these are the models from which others can begin: what a checkpoint keeps of it."""
        known, names = {**self.kept, **self.made}, () if self.optimizer.is_plain else map(name_of, models)
        self.kept = {name: known[name] for name in names if name in known}
        return self.kept

    def restore(self, saved: Mapping[str, Iterable[np.ndarray]]) -> None:
        self.kept = {name: tuple(moments) for name, moments in saved.items()}


def name_of(model: np.ndarray) -> str:
    return hashlib.blake2b(np.ascontiguousarray(model).tobytes(), digest_size=16).hexdigest()


__all__ = ["SERVER_OPTIMIZERS", "ServerOptimizer", "Stepping"]
