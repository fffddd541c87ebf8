"""Clients whose updates are written down: a method's round can be checked against numbers done by hand."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedclade.ask import Ask
from fedclade.clients.tasks import Answer, Failure, Task, Train, Trained, Training
from fedclade.methods import Clusters, Method, RoundContext
from fedclade.models.weights import Layout

# (client, round) -> its update, or how the update follows from the model it gets; None: it is absent
Script = Callable[[str, int], Sequence[float] | np.ndarray | Callable[[np.ndarray], np.ndarray] | None]


class Scripted:
    """An engine whose clients add the update of the script to whatever model they get."""

    facts: Mapping[str, Any] = {}
    has_strangers = False

    def __init__(self, clients: Sequence[str], layout: Layout, script: Script, samples: Mapping[str, int]) -> None:
        self.clients, self.layout, self.script, self.samples = tuple(clients), layout, script, samples
        self.initial = np.zeros(layout.size, np.float32)

    def layout_of(self, client: str, through: str = "") -> Layout:
        return self.layout

    def answer(self, tasks: Mapping[str, Task], round: int) -> Mapping[str, Answer | Failure]:
        answers: dict[str, Answer | Failure] = {}
        for client, task in tasks.items():
            update = self.script(client, round)
            if update is None:
                answers[client] = Failure("timed out")
                continue
            assert isinstance(task, Train)
            if callable(update):
                update = update(task.candidates[0])
            weights = np.asarray(task.candidates[0] + np.float32(update), np.float32)
            place = self.layout.select(None if task.upload == "nothing" else task.upload)
            answers[client] = Trained(weights[place], self.samples.get(client, 1), 1, 0.0)
        return answers


class Play:
    """A method on scripted clients, round by round."""

    def __init__(
        self,
        method: Method,
        clients: Sequence[str],
        script: Script,
        layout: Layout | None = None,
        samples: Mapping[str, int] | None = None,
        learning_rate: float = 0.1,
    ) -> None:
        if layout is None:
            first = next(update for c in clients for t in range(1, 99) if (update := script(c, t)) is not None)
            layout = one_layer(len(first(np.zeros(1)) if callable(first) else first))
        self.method, self.round = method, 0
        self.ask = Ask(Scripted(clients, layout, script, samples or {}))  # type: ignore[arg-type]
        self.context = RoundContext(
            tuple(clients), self.ask.engine.initial, layout, Training(learning_rate=learning_rate), seed=0
        )
        self.clusters = method.start(self.context, self.ask)

    def go(self, rounds: int) -> Clusters:
        for _ in range(rounds):
            self.round += 1
            self.ask.clear()
            self.ask.round = self.round
            context = RoundContext(**{**vars(self.context), "round": self.round})
            self.clusters = self.method.round(self.clusters, context, self.ask).check(self.context.clients)
        return self.clusters

    @property
    def parts(self) -> set[frozenset[str]]:
        return {frozenset(part) for part in self.clusters.members.values()}


def pulling(places: Mapping[str, np.ndarray], noise: float = 0.1) -> Script:
    """Clients that pull a model a part of the way to a place of their own, each time by some other way."""

    def script(client: str, round: int) -> Callable[[np.ndarray], np.ndarray]:
        place = places[client]
        jitter = np.random.default_rng([round, *client.encode()]).normal(size=len(place)) * noise
        return lambda model: 0.3 * (place - model) + jitter

    return script


def one_layer(size: int) -> Layout:
    return Layout(("layer.weight",), ((1, size),), size)


def parts_of(*parts: str) -> set[frozenset[str]]:
    """`parts_of("ab", "c")` is the partition {{a, b}, {c}}."""
    return {frozenset(part) for part in parts}
