"""Runs in memory: a method on an engine whose clients answer what the test tells them to, or on a real one."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import fedclade
from fedclade.ask import Ask
from fedclade.clients.memory import Memory
from fedclade.clients.objective import ACCURACY, LOSS, Metric
from fedclade.clients.tasks import (
    Answer,
    Describe,
    Described,
    Failure,
    Predict,
    Predicted,
    Task,
    Train,
    Trained,
    Training,
)
from fedclade.data.federation import Federation
from fedclade.engines.engine import TransportEngine
from fedclade.engines.local import local_engine
from fedclade.methods import Clusters, Method, RoundContext
from fedclade.models.assigned import Networks
from fedclade.models.weights import Layout

TRAINING = Training(local_epochs=3, batch_size=8, learning_rate=0.1, momentum=0.0)
# A convolution of one weight, and a head of two weights and a bias.
TWO = Layout(("body.weight", "head.weight", "head.bias"), ((1, 1, 1, 1), (1, 2), (1,)), 4)


def two(head: Sequence[float], body: float = 0.0, bias: float = 0.0) -> np.ndarray:
    """Weights in the layout TWO."""
    return np.array([body, *head, bias], np.float32)


# (client, round) -> its update, or how the update follows from the model it gets; None: it is absent
Script = Callable[[str, int], Sequence[float] | np.ndarray | Callable[[np.ndarray], np.ndarray] | None]


@dataclass
class Scripted:
    """Clients that come back with given weights whatever they start from, or add the update of a script to them.

    They tell given things about their rows.
    """

    weights: Mapping[str, np.ndarray]  # of every client; with a script only the names count
    told: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)  # how many they train on; 1 unless told
    absent: Callable[[str, int], bool] = lambda client, round: False
    output: Callable[[np.ndarray], np.ndarray] = lambda weights: weights[None]  # of a model, at the server
    layout: Layout = TWO
    input_shape: tuple[int, ...] = (2,)
    n_classes: int = 4
    metrics: tuple[Metric, ...] = (ACCURACY, LOSS)
    facts: Mapping[str, Any] = field(default_factory=dict)
    has_strangers: bool = False
    keeps_models: bool = False
    training: Training | None = None  # what clients do is not training
    network_of: Mapping[str, str] = field(default_factory=dict)
    script: Script | None = None

    @property
    def clients(self) -> tuple[str, ...]:
        return tuple(self.weights)

    @property
    def initial(self) -> np.ndarray:
        return np.zeros(self.layout.size, np.float32)

    def layout_of(self, client: str, through: str = "") -> Layout:
        return self.layout

    def answer(self, tasks: Mapping[str, Task], round: int) -> dict[str, Answer | Failure]:
        return {
            c: Failure("absent") if self.absent(c, round) else self.one(c, task, round) for c, task in tasks.items()
        }

    def one(self, client: str, task: Task, round: int) -> Answer | Failure:
        if isinstance(task, Describe):
            return Described(self.told[client])
        assert isinstance(task, Train)
        weights = self.weights[client] if self.script is None else self.scripted(client, task, round)
        if weights is None:
            return Failure("timed out")
        sent = weights[self.layout.select(None if task.upload == "nothing" else task.upload)]
        return Trained(sent, self.rows.get(client, 1), 1, 0.0)

    def scripted(self, client: str, task: Train, round: int) -> np.ndarray | None:
        assert self.script is not None
        update = self.script(client, round)
        if callable(update):
            update = update(task.candidates[0])
        return None if update is None else np.asarray(task.candidates[0] + np.float32(update), np.float32)

    def at_server(self, tasks: Sequence[Task], round: int) -> list[Answer | Failure]:
        return [Predicted(self.output(t.weights), np.empty(0, np.int64)) for t in tasks if isinstance(t, Predict)]

    def arrivals(self) -> tuple[str, ...]:
        return ()

    def remembered(self) -> Mapping[str, Mapping[str, int]]:
        return {}

    def check_memory(self, round: int, forget: bool) -> set[str]:
        return set()

    def rewind(self, round: int) -> None: ...

    def flush(self) -> None: ...

    def drift(self, rows_of: Mapping[str, str]) -> None: ...

    def close(self) -> None: ...


HEADER = 320  # bytes that a message may take besides its arrays


@dataclass
class Travelled:
    """Bytes of some messages. They equal a number of floats if they hold so many, besides their headers."""

    bytes: int
    messages: int

    def __eq__(self, floats: object) -> bool:
        return 0 <= self.bytes - 4 * float(floats) <= HEADER * self.messages  # type: ignore[arg-type]


def travelled(sizes: Iterable[int]) -> Travelled:
    held = list(sizes)
    return Travelled(int(sum(held)), len(held))


@dataclass
class Session:
    """A method at work, round by round. After each the clusters must be a partition."""

    method: Method
    engine: Any
    training: Training = TRAINING
    participation: float = 1.0

    def __post_init__(self) -> None:
        self.ask = Ask(self.engine)
        self.records: dict[str, Any] = {}
        self.ledger: list[dict[str, Any]] = []
        engine = self.engine
        known = {"input_shape": engine.input_shape, "n_classes": engine.n_classes, "participation": self.participation}
        self.context = RoundContext(engine.clients, engine.initial, engine.layout, self.training, 0, **known)

    def go(self, rounds: int, *, without: Sequence[str] = ()) -> Clusters:
        """From the start to the end of a round, with some clients not there yet."""
        here = self.context.only(set(self.context.clients) - set(without))
        clusters = self._end(self.method.start(self._begin(here), self.ask), here)
        for number in range(1, rounds + 1):
            now = self._begin(replace(here, round=number))
            clusters = self._end(self.method.round(clusters, now, self.ask), now)
        return clusters

    def admit(self, clusters: Clusters, newcomers: Sequence[str], round: int) -> Clusters:
        """Newcomers join before a round."""
        now = self._begin(replace(self.context.only([*clusters.cluster_of, *newcomers]), round=round))
        return self._end(self.method.admit(clusters, newcomers, now, self.ask), now)

    def place(self, clusters: Clusters, newcomers: Sequence[str], round: int) -> Mapping[str, Any]:
        return self.method.place(clusters, self._begin(replace(self.context.only(newcomers), round=round)), self.ask)

    def _begin(self, context: RoundContext) -> RoundContext:
        self.ask.clear()
        self.ask.round = context.round
        return context

    def _end(self, clusters: Clusters, context: RoundContext) -> Clusters:
        self.records |= self.ask.records
        self.ledger += self.ask.ledger
        return clusters.check(context.clients)

    def floats(self, phase: str, direction: str, client: str | None = None) -> "Travelled":
        """What travelled, in numbers of four bytes."""
        entries = [e for e in self.ledger if e["phase"] == phase and e["direction"] == direction]
        return travelled(e["bytes"] for e in entries if client in (None, e["client"]))


def local(federation: Federation, folder: Path, training: Training = TRAINING, workers: int = 1) -> TransportEngine:
    """A real engine for a small network."""
    networks = Networks.shared("mlp", federation.input_shape, federation.n_classes)
    return local_engine(federation, networks, seed=0, training=training, memory=folder, workers=workers)


def parts(clusters: Clusters) -> set[frozenset[str]]:
    return {frozenset(members) for members in clusters.members.values()}


def whole_and_resumed(
    method: dict[str, Any],
    folder: Path,
    *,
    rounds: int,
    stop: int,
    events: Sequence[dict[str, Any]] = (),
    participation: float = 1.0,
) -> fedclade.Result:
    """A run on digits with four groups. One that stopped on the way must end like it, bit for bit."""
    gentle = Training(local_epochs=1, batch_size=32, learning_rate=0.05, momentum=0.0)
    settings = dict(data="digits", split="label-groups:4", clients=12, model="mlp", workers=1, training=gentle)
    settings |= {"method": method, "events": list(events), "seed": 1, "participation": participation}
    whole = fedclade.run(**settings, rounds=rounds, out=folder / "whole")
    fedclade.run(**settings, rounds=stop, out=folder / "half")
    resumed = fedclade.resume(folder / "half", rounds=rounds)
    assert resumed.clusters == whole.clusters
    for client in whole.history["client"].unique():
        assert np.array_equal(resumed.weights_for(client), whole.weights_for(client))
    sent = [result.ledger[result.ledger["phase"] != "measure"] for result in (resumed, whole)]
    assert sent[0].reset_index(drop=True).equals(sent[1].reset_index(drop=True))
    return whole


# --- scripts, round by round ------------------------------------------------------------------------------------------


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
        participation: float = 1.0,
    ) -> None:
        if layout is None:
            first = next(update for c in clients for t in range(1, 99) if (update := script(c, t)) is not None)
            layout = one_layer(len(first(np.zeros(1)) if callable(first) else first))
        self.method, self.round = method, 0
        engine = Scripted(dict.fromkeys(clients, np.empty(0)), rows=samples or {}, layout=layout, script=script)
        self.ask = Ask(engine)  # type: ignore[arg-type]
        training = Training(learning_rate=learning_rate)
        self.context = RoundContext(
            tuple(clients), engine.initial, layout, training, seed=0, participation=participation
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


def contents(run: Path) -> dict[tuple[str, str], bytes]:
    """What clients remember at the end of a run."""
    memory = Memory(run / "clients")
    kept = {(c, slot): memory.read(c, slot) for slot, clients in memory.known().items() for c in clients}
    memory.close()
    return {key: vector.tobytes() for key, vector in kept.items() if vector is not None}
