"""`ask`: the one door between a method and its clients. It checks what comes back, counts what passes, and combines.

Answers come in the order asked, a block of clients at a time, so that whoever needs only their sum (`Ask.combined`)
never holds them all.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar, overload

import numpy as np

from fedclade.aggregation import Accumulator, Aggregation, Mean
from fedclade.clients.messages import pack
from fedclade.clients.objective import Metric
from fedclade.clients.tasks import (
    LOCAL,
    Answer,
    Describe,
    Described,
    Evaluate,
    Evaluated,
    Failure,
    Predict,
    Predicted,
    Task,
    Train,
    Trained,
    Training,
    Tried,
    Try,
)
from fedclade.clients.validation import Expected, fault, not_finite
from fedclade.errors import FedcladeError, listed
from fedclade.models.assigned import Through
from fedclade.models.weights import Layout
from fedclade.optimizers import ServerOptimizer, Stepping
from fedclade.updates import UpdateStep

A = TypeVar("A", bound=Answer)
K = TypeVar("K", bound=Hashable)

BLOCK = 1000  # clients whose answers are held at a time where only their sum is wanted
MAX_SAMPLES = 10**7  # rows of one client, unless a run says otherwise
NOTHING = np.empty(0, np.float32)


class Engine(Protocol):
    """Where clients run. It delivers tasks and brings back answers, with failures as values."""

    layout: Layout
    initial: np.ndarray
    input_shape: tuple[int, ...]  # of one row
    n_classes: int
    facts: Mapping[str, Any]  # what a run records about it
    has_strangers: bool  # what clients send may be absurd on purpose
    keeps_models: bool  # clients keep their locally trained models, and can be asked for them
    training: Training | None  # how clients train; None: that is their own business
    metrics: tuple[Metric, ...]  # what clients measure, the main metric first

    @property
    def clients(self) -> tuple[str, ...]: ...

    @property
    def network_of(self) -> Mapping[str, str]:
        """The networks of clients that train another than the clusters'."""

    def answer(self, tasks: Mapping[str, Task], round: int) -> Mapping[str, Answer | Failure]: ...

    def at_server(self, tasks: Sequence[Task], round: int) -> Sequence[Answer | Failure]:
        """Do tasks that need no client's rows where the server is, with all the hands it has."""

    def layout_of(self, client: str, through: Through = "") -> Layout:
        """Of the network that a client trains or, with `through`, of the one behind it."""

    def state_dict(self, weights: np.ndarray) -> Mapping[str, Any]:
        """A cluster model as torch, or whatever clients train with, would save it."""

    def arrivals(self) -> tuple[str, ...]:
        """Clients that have come by themselves since the last look, as they do on a real grid."""

    def rewind(self, round: int) -> None:
        """Go back to what clients remembered at the end of a round."""

    def remembered(self) -> Mapping[str, Mapping[str, int]]:
        """The checksum of what each client keeps, by slot, as far as it can be seen from here."""

    def check_memory(self, round: int, forget: bool) -> set[str]:
        """Whose memory of a round and before is damaged; `forget` what is."""

    def remember(self, client: str, slot: str, vector: np.ndarray, round: int) -> None:
        """Have a client keep something."""

    def flush(self) -> None:
        """Bring what clients remember to the disk: a checkpoint is about to be written."""

    def drift(self, rows_of: Mapping[str, str]) -> None:
        """From now on some clients hold the rows of others: their data have changed (for experiments)."""

    def close(self) -> None: ...


class Answers(Mapping[str, A]):
    """The answers of those who gave a good one, in the order asked; `failures` says why the others did not."""

    def __init__(self, answers: Mapping[str, A], failures: Mapping[str, Failure]) -> None:
        self._answers = dict(answers)
        self.failures = dict(failures)

    def __getitem__(self, client: str) -> A:
        return self._answers[client]

    def __iter__(self) -> Iterator[str]:
        return iter(self._answers)

    def __len__(self) -> int:
        return len(self._answers)

    @property
    def clients(self) -> tuple[str, ...]:
        return tuple(self._answers)


class TrainedClients(Answers[Trained]):
    """What trained clients sent, and the rule by which it is combined."""

    def __init__(
        self,
        answers: Mapping[str, Trained],
        failures: Mapping[str, Failure],
        rule: Aggregation | None = None,
        step: Callable[[np.ndarray, np.ndarray], np.ndarray] = lambda start, aggregate: aggregate,
    ) -> None:
        super().__init__(answers, failures)
        self.rule = rule or Mean()
        self.step = step  # from the model that they began with and the aggregate to the next model

    def stack(self) -> np.ndarray:
        """(clients, numbers sent), one row a client."""
        return np.stack([answer.weights for answer in self.values()]) if len(self) else np.empty((0, 0), np.float32)

    def of(self, clients: Iterable[str]) -> "TrainedClients":
        """The answers of some of the clients."""
        wanted = set(clients)
        return TrainedClients({c: answer for c, answer in self.items() if c in wanted}, {}, self.rule, self.step)

    def alike(self) -> "TrainedClients":
        """The same answers, each with the same say."""
        same = {c: replace(a, n_samples=1) for c, a in self.items()}
        return TrainedClients(same, self.failures, self.rule, self.step)

    def combined(self, start: np.ndarray) -> np.ndarray:
        """One vector of all that was sent; `start` where nothing was."""
        if not len(self):
            return start
        sent = next(iter(self.values())).weights
        if sent.shape != start.shape:
            raise FedcladeError(
                f"a method averages {sent.size} numbers that clients sent into a model of {start.size}: where they "
                "send some layers only (`upload=`), use ask.combined"
            )
        made = self.rule.of((a.weights for a in self.values()), (a.n_samples for a in self.values()), start)
        return self.step(start, made)


@dataclass(frozen=True)
class Combined(Generic[K]):
    """Models made of what clients sent, and who sent something (without the weights, which are gone)."""

    models: dict[K, np.ndarray]
    reports: dict[str, Trained]
    failures: dict[str, Failure]


DRAWN: dict[str, tuple[str, ...]] = {  # names of records that reports draw, and what these must hold
    "proximity": ("matrix", "clients", "measure"),
    "dendrogram": ("merges", "clients", "linkage", "labels"),
    "similarity": ("tests",),
    "norms": ("clusters", "mean", "max"),
    "bic": ("k", "bic", "chosen", "rule"),
    "selection": ("chosen", "times"),
}


class Ask:
    """Send tasks to clients and return their answers: `ask(Train(weights), to=clients)` or `ask({client: task})`."""

    def __init__(
        self,
        engine: Engine,
        *,
        aggregation: Aggregation | None = None,
        optimizer: ServerOptimizer | None = None,
        updates: Sequence[UpdateStep] = (),
        quorum: float = 0.0,
        max_samples: int = MAX_SAMPLES,
    ) -> None:
        self.engine = engine
        self.aggregation = aggregation or Mean()
        self.stepping = Stepping(optimizer or ServerOptimizer(), engine.layout.n_parameters)
        self.updates = tuple(updates)
        self.quorum = quorum  # the share of those who train a model that must answer, or none of them counts
        self.max_samples = max_samples
        self.spare = 0.0  # the share of clients' rows that nobody trains on now (see `fedclade.serving`)
        self.round = 0
        self.clear()

    def clear(self) -> None:
        """Start a new round's books."""
        self.stepping.clear()
        self.ledger: list[dict[str, Any]] = []
        self.failures: list[dict[str, Any]] = []
        self.trained: dict[str, Trained] = {}  # without weights
        self.trained_to_serve: set[str] = set()  # whose training was not for a comparison only
        self.answered: set[str] = set()
        self.asked: set[str] = set()
        self.records: dict[str, Any] = {}

    @overload
    def __call__(self, tasks: Train, to: Iterable[str], phase: str = "train") -> TrainedClients: ...
    @overload
    def __call__(self, tasks: Evaluate, to: Iterable[str], phase: str = "evaluate") -> Answers[Evaluated]: ...
    @overload
    def __call__(self, tasks: Predict, to: Iterable[str], phase: str = "predict") -> Answers[Predicted]: ...
    @overload
    def __call__(self, tasks: Describe, to: Iterable[str], phase: str = "describe") -> Answers[Described]: ...
    @overload
    def __call__(self, tasks: Mapping[str, Train], *, phase: str = "train") -> TrainedClients: ...
    @overload
    def __call__(self, tasks: Mapping[str, Evaluate], *, phase: str = "evaluate") -> Answers[Evaluated]: ...
    @overload
    def __call__(self, tasks: Mapping[str, Predict], *, phase: str = "predict") -> Answers[Predicted]: ...
    @overload
    def __call__(self, tasks: Mapping[str, Try], *, phase: str = "try") -> Answers[Tried]: ...

    def __call__(self, tasks: Any, to: Iterable[str] | None = None, phase: str | None = None) -> Any:
        if not isinstance(tasks, Mapping) and to is None:
            kind = type(tasks).__name__
            raise FedcladeError(f"a method asks for {kind} without saying whom: write ask({kind}(...), to=clients)")
        asked: dict[str, Task] = dict(tasks) if isinstance(tasks, Mapping) else dict.fromkeys(to or (), tasks)
        good: dict[str, Answer] = {}
        failures: dict[str, Failure] = {}
        for client, answer in self._answers(asked, phase):
            if isinstance(answer, Failure):
                failures[client] = answer
            else:
                good[client] = answer
        is_training = not asked or isinstance(next(iter(asked.values())), Train)
        if is_training:
            return TrainedClients(good, failures, self.aggregation, self.stepping)  # type: ignore[arg-type]
        return Answers(good, failures)

    def combined(
        self,
        tasks: Mapping[str, Train],
        models: Mapping[K, np.ndarray],
        home: Mapping[str, K] | Callable[[str, Trained], K],
        *,
        alike: bool = False,
        phase: str = "train",
    ) -> Combined[K]:
        """Let clients train, and make of what those of one home send its new model, by the run's aggregation rule
        and its server optimiser.

        `models` are the homes' models now; one of which nobody reported stays, and so do layers that are not sent.
        Answers are combined as they come and then dropped. `alike` gives every client the same say, whatever its rows.
        """
        sums: dict[K, Accumulator] = {}
        places: dict[K, slice | np.ndarray] = {}  # of what is sent in a home's model
        reports: dict[str, Trained] = {}
        failures: dict[str, Failure] = {}
        for client, answer in self._answers(tasks, phase):
            if isinstance(answer, Failure):
                failures[client] = answer
                continue
            assert isinstance(answer, Trained)
            key = home(client, answer) if callable(home) else home[client]
            if key not in sums:
                places[key] = self.engine.layout.select(tasks[client].upload)
                sums[key] = self.aggregation.accumulator(models[key][places[key]])
            sums[key].add(answer.weights, 1 if alike else answer.n_samples)
            reports[client] = self.trained[client]
        made = {}
        for key, total in sums.items():
            whole = models[key].copy()
            whole[places[key]] = total.result()
            made[key] = self.stepping(models[key], whole)
        return Combined({**models, **made}, reports, failures)

    @overload
    def server(self, tasks: Mapping[str, Train]) -> TrainedClients: ...
    @overload
    def server(self, tasks: Mapping[str, Predict]) -> Answers[Predicted]: ...

    def server(self, tasks: Mapping[str, Any]) -> Any:
        """What the server works out by itself, one task for each name: nothing travels, so nothing is counted."""
        answers = self.engine.at_server(list(tasks.values()), self.round)
        good: dict[str, Any] = {}
        failures: dict[str, Failure] = {}
        for name, came in zip(tasks, answers, strict=True):
            answer = came if isinstance(came, Failure) else not_finite(came) or came
            if isinstance(answer, Failure):
                failures[name] = answer
                self.failures.append({"client": name, "phase": "server", "failure": str(answer)})
            else:
                good[name] = answer
        is_training = all(isinstance(answer, Trained) for answer in good.values())
        return TrainedClients(good, failures) if is_training else Answers(good, failures)

    def record(self, name: str, **values: Any) -> None:
        """Keep something worth seeing later (a distance matrix, a tree, a curve) with the run, under a name.

        Names that reports draw (`DRAWN`) must hold what is drawn.
        """
        missing = [key for key in DRAWN.get(name, ()) if key not in values]
        if missing:
            raise FedcladeError(
                f"a method records {name!r} without {listed(missing)}: reports draw that name, so add it, or take "
                "another name"
            )
        self.records[name] = values

    # What comes back

    def _answers(self, tasks: Mapping[str, Task], phase: str | None) -> Iterator[tuple[str, Answer | Failure]]:
        """Every client's good answer or failure, in the order asked."""
        if not tasks:
            return
        phase = phase or type(next(iter(tasks.values()))).__name__.lower()
        sent = self._outgoing(tasks)
        is_quorum = bool(self.quorum) and phase == "train"
        sizes: dict[tuple[Any, ...], int] = {}  # of tasks that many clients share
        clients = iter(sent)
        while block := list(islice(clients, len(sent) if is_quorum else BLOCK)):
            part = {client: sent[client] for client in block}
            came = self.engine.answer(part, self.round)
            checked = {client: self._checked(client, task, came.get(client)) for client, task in part.items()}
            if is_quorum:
                checked = self._with_quorum(part, checked)
            for client, answer in checked.items():
                self._count(client, phase, part[client], answer, sizes)
                yield client, answer

    def _checked(self, client: str, task: Task, answer: Answer | Failure | None) -> Answer | Failure:
        if answer is None:
            return Failure("absent")
        if isinstance(answer, Failure):
            return answer
        expected = Expected(
            self.engine.layout_of(client, getattr(task, "through", "")),
            self.engine.initial,
            self.engine.input_shape,
            self.engine.n_classes,
            self.engine.training,
            self.max_samples,
            self.engine.has_strangers,
            self.engine.metrics,
        )
        wrong = fault(task, answer, expected)
        if wrong is None and isinstance(task, Train) and isinstance(answer, Trained):
            return self._arrived(task, answer)
        return wrong or answer

    def _outgoing(self, tasks: Mapping[str, Task]) -> dict[str, Task]:
        """The tasks as they are sent; what clients share they still share."""
        if self.engine.keeps_models and not self.updates and not self.spare:
            return dict(tasks)
        changed = {id(task): self._changed(task) for task in tasks.values()}
        return {client: changed[id(task)] for client, task in tasks.items()}

    def _changed(self, task: Task) -> Task:
        if not isinstance(task, Train):
            return task
        if task.save == LOCAL != task.start and not self.engine.keeps_models:
            task = replace(task, save="")  # nobody goes on from it
        if task.rows is not None:
            return task
        if self.updates and task.upload != "nothing":
            task = replace(task, outgoing=self.updates)
        return replace(task, spare=self.spare, refill=True) if self.spare and not task.spare else task

    def _arrived(self, task: Train, answer: Trained) -> Trained:
        for step in reversed(task.outgoing):
            answer = replace(answer, weights=step.arrive(answer.weights))
        return answer

    def _with_quorum(
        self, tasks: Mapping[str, Task], answers: Mapping[str, Answer | Failure]
    ) -> dict[str, Answer | Failure]:
        """Too few answers from those who train one model would pull it their way: leave them out, and it stays."""
        groups: dict[int, list[str]] = {}
        for client, task in tasks.items():
            groups.setdefault(id(getattr(task, "weights", None)), []).append(client)
        kept = dict(answers)
        for clients in groups.values():
            good = [client for client in clients if not isinstance(answers[client], Failure)]
            if len(good) < self.quorum * len(clients):
                few = Failure("refused", f"only {len(good)} of the {len(clients)} who train its model answered")
                kept |= dict.fromkeys(good, few)
        return kept

    # The books

    def _count(
        self, client: str, phase: str, task: Task, answer: Answer | Failure, sizes: dict[tuple[Any, ...], int]
    ) -> None:
        layout = self.engine.layout_of(client, getattr(task, "through", ""))
        parts = (part if isinstance(part, str | float | int) else id(part) for part in vars(task).values())
        shared = type(task), *parts, self.engine.network_of.get(client, "")
        if shared not in sizes:
            sizes[shared] = pack(task, layout).nbytes
        self.asked.add(client)
        self._enter(client, phase, "down", sizes[shared])
        if isinstance(answer, Failure):
            self.failures.append({"client": client, "phase": phase, "failure": str(answer)})
            return
        self.answered.add(client)
        self._enter(client, phase, "up", pack(answer, layout).nbytes)
        if isinstance(answer, Trained) and (phase == "train" or client not in self.trained_to_serve):
            self.trained[client] = replace(answer, weights=NOTHING, control=None)
            if phase == "train":
                self.trained_to_serve.add(client)

    def _enter(self, client: str, phase: str, direction: str, size: int) -> None:
        self.ledger.append(
            {"round": self.round, "client": client, "phase": phase, "direction": direction, "bytes": size}
        )
