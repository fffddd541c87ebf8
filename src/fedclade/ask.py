"""`ask`: the one door between a method and its clients. It checks what comes back and counts what passes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar, overload

import numpy as np

from fedclade.clients.tasks import (
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
    scalars_of,
    sent_arrays,
)
from fedclade.models.weights import Layout

A = TypeVar("A", bound=Answer)

ABSURD = 1e4  # weights so many times as long as those that training began with are no honest answer
MOST_SAMPLES = 2**40  # whoever claims more wants to be the only one who counts


class Engine(Protocol):
    """Where clients run. It delivers tasks and brings back answers, with failures as values."""

    clients: tuple[str, ...]
    layout: Layout
    initial: np.ndarray
    input_shape: tuple[int, ...]  # of one row
    n_classes: int
    network_of: Mapping[str, str]  # the networks of clients that train another than the clusters'
    facts: Mapping[str, Any]  # what a run records about it
    has_strangers: bool  # what clients send may be absurd on purpose
    keeps_models: bool  # clients keep the last models they trained, and can be asked for them

    def answer(self, tasks: Mapping[str, Task], round: int) -> Mapping[str, Answer | Failure]: ...

    def at_server(self, tasks: Sequence[Task], round: int) -> Sequence[Answer | Failure]:
        """Do tasks that need no client's rows where the server is, with all the hands it has."""

    def layout_of(self, client: str, through: str = "") -> Layout:
        """Of the network that a client trains or, with `through`, of the one behind it."""

    def rewind(self, round: int) -> None:
        """Go back to what clients remembered at the end of a round."""

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
    """What trained clients sent."""

    def stack(self) -> np.ndarray:
        """(clients, numbers sent), one row a client."""
        return np.stack([answer.weights for answer in self.values()]) if len(self) else np.empty((0, 0), np.float32)

    def of(self, clients: Iterable[str]) -> "TrainedClients":
        """The answers of some of the clients."""
        wanted = set(clients)
        return TrainedClients({name: answer for name, answer in self.items() if name in wanted}, {})


class Ask:
    """Send tasks to clients and return their answers: `ask(Train(weights), to=clients)` or `ask({client: task})`."""

    def __init__(self, engine: Engine, quorum: float = 0.0) -> None:
        self.engine = engine
        self.quorum = quorum  # the share of those who train a model that must answer, or none of them counts
        self.round = 0
        self.clear()

    def clear(self) -> None:
        """Start a new round's books."""
        self.ledger: list[dict[str, Any]] = []
        self.failures: list[dict[str, Any]] = []
        self.trained: dict[str, Trained] = {}
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

    def __call__(self, tasks: Any, to: Iterable[str] | None = None, phase: str | None = None) -> Any:
        asked: dict[str, Task] = dict(tasks) if isinstance(tasks, Mapping) else dict.fromkeys(to or (), tasks)
        if not asked:
            return TrainedClients({}, {})
        kind = type(next(iter(asked.values())))
        phase = phase or kind.__name__.lower()
        answers = self.engine.answer(asked, self.round)
        if self.quorum and phase == "train":
            answers = self._with_quorum(asked, answers)
        good, failures = self._checked(asked, answers, phase)
        for client, task in asked.items():
            self._count(client, phase, "down", task)
            if client in good:
                self._count(client, phase, "up", good[client])
                if isinstance(answer := good[client], Trained):
                    self.trained[client] = answer
        return (TrainedClients if kind is Train else Answers)(good, failures)  # type: ignore[arg-type]

    def _with_quorum(
        self, tasks: Mapping[str, Task], answers: Mapping[str, Answer | Failure]
    ) -> Mapping[str, Answer | Failure]:
        """Too few answers from those who train one model would pull it their way: leave them out, and it stays."""
        groups: dict[int, list[str]] = {}
        for client, task in tasks.items():
            groups.setdefault(id(getattr(task, "weights", None)), []).append(client)
        kept = dict(answers)
        for clients in groups.values():
            good = [c for c in clients if self._is_good(c, tasks[c], answers.get(c))]
            if len(good) < self.quorum * len(clients):
                few = Failure("refused", f"only {len(good)} of the {len(clients)} who train its model answered")
                kept |= dict.fromkeys(good, few)
        return kept

    def _is_good(self, client: str, task: Task, answer: Answer | Failure | None) -> bool:
        return answer is not None and not isinstance(answer, Failure) and self._fault(client, task, answer) is None

    @overload
    def server(self, tasks: Mapping[str, Train]) -> TrainedClients: ...
    @overload
    def server(self, tasks: Mapping[str, Predict]) -> Answers[Predicted]: ...

    def server(self, tasks: Mapping[str, Any]) -> Any:
        """What the server works out by itself, one task for each name: nothing travels, so nothing is counted."""
        answers = dict(zip(tasks, self.engine.at_server(list(tasks.values()), self.round), strict=True))
        good, failures = self._checked(tasks, answers, "server")
        is_training = all(isinstance(answer, Trained) for answer in good.values())
        return (TrainedClients if is_training else Answers)(good, failures)  # type: ignore[arg-type]

    def _checked(
        self, tasks: Mapping[str, Task], answers: Mapping[str, Answer | Failure], phase: str
    ) -> tuple[dict[str, Answer], dict[str, Failure]]:
        """The answers that can be used, and why the others cannot."""
        good: dict[str, Answer] = {}
        failures: dict[str, Failure] = {}
        for client, task in tasks.items():
            answer = answers.get(client, Failure("absent"))
            wrong = answer if isinstance(answer, Failure) else self._fault(client, task, answer)
            if wrong is not None:
                failures[client] = wrong
                self.failures.append({"client": client, "phase": phase, "failure": str(wrong)})
            else:
                assert not isinstance(answer, Failure)
                good[client] = answer
        return good, failures

    def record(self, name: str, **values: Any) -> None:
        """Keep something worth seeing later (a distance matrix, a tree, a curve) with the run, under a name."""
        self.records[name] = values

    def _fault(self, client: str, task: Task, answer: Answer) -> Failure | None:
        """Why an answer must not be used, if so: it may come from anywhere, and hold anything."""
        try:
            match task, answer:
                case Train(), Trained():
                    return self._fault_of_training(client, task, answer)
                case Evaluate(), Evaluated():
                    numbers = np.array([answer.accuracy, answer.n_samples], np.float64)
                    return None if np.isfinite(numbers).all() else Failure("not finite", "the accuracy is not a number")
                case Predict(), Predicted():
                    if not np.isfinite(answer.values).all():
                        return Failure("not finite", "the predictions hold NaN or infinite numbers")
                    return None
                case Describe(), Described():
                    is_finite = all(np.isfinite(values).all() for values in answer.values.values())
                    return None if is_finite else Failure("not finite", "the statistics hold NaN or infinite numbers")
        except (AttributeError, TypeError, ValueError) as error:  # not even arrays and numbers
            return Failure("bad shape", f"sent what is no answer ({type(error).__name__}: {error})")
        return Failure("bad shape", f"answered with {type(answer).__name__}")

    def _fault_of_training(self, client: str, task: Train, answer: Trained) -> Failure | None:
        layout = self._layout(client, task)
        place = layout.select(None if task.upload == "nothing" else task.upload)
        wanted = 0 if task.upload == "nothing" else len(np.empty(layout.size, np.bool_)[place])
        if answer.weights.shape != (wanted,):
            return Failure("bad shape", f"sent {answer.weights.shape} numbers, {wanted} were asked for")
        if answer.weights.dtype != np.float32:
            return Failure("bad shape", f"sent {answer.weights.dtype}, float32 was asked for")
        if not 0 < answer.n_samples < MOST_SAMPLES:
            return Failure("refused", f"trained on {answer.n_samples or 'no'} samples")
        if not (np.isfinite(answer.weights).all() and np.isfinite(answer.loss)):
            return Failure("not finite", "the update holds NaN or infinite numbers")
        if not self.engine.has_strangers:
            return None
        begun = next(iter(task.candidates), self.engine.initial)
        length = float(np.linalg.norm(answer.weights.astype(np.float64)))
        if length > ABSURD * (1.0 + float(np.linalg.norm(begun.astype(np.float64)))):
            return Failure("refused", f"sent weights of length {length:.3g}, which is absurd")
        return None

    def _layout(self, client: str, message: Task | Answer) -> Layout:
        """Of the weights in a message."""
        return self.engine.layout_of(client, getattr(message, "through", ""))

    def _count(self, client: str, phase: str, direction: str, message: Task | Answer) -> None:
        arrays = sent_arrays(message, self._layout(client, message).select)
        size = sum(array.nbytes for array in arrays) + 4 * scalars_of(message)
        if size:
            entry = {"round": self.round, "client": client, "phase": phase, "direction": direction, "bytes": size}
            self.ledger.append(entry)
