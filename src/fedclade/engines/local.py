"""Clients of this machine, in this process or in worker processes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedclade.clients.memory import Memory
from fedclade.clients.networks import CHUNK
from fedclade.clients.objective import Classification, Objective
from fedclade.clients.runtime import ClientRuntime
from fedclade.clients.tasks import Answer, Evaluate, Failure, Task, Training
from fedclade.data.federation import Federation
from fedclade.engines.engine import TransportEngine
from fedclade.engines.pool import Hands, Pool, Work
from fedclade.models.assigned import Networks

LARGEST_GROUP = 24  # clients that train together: more would not be faster and would need more memory


def local_engine(
    federation: Federation,
    networks: Networks,
    *,
    seed: int,
    training: Training,
    memory: Path,
    task: Objective = Classification(),  # noqa: B008  (it never changes)
    device: str = "cpu",
    workers: int = 1,
    timeout: float | None = None,
) -> TransportEngine:
    """Clients in this process or in worker processes of this machine."""
    runtime = ClientRuntime(federation, networks, Memory(memory), seed, training, task, device)
    return TransportEngine(runtime, LocalTransport(runtime, workers, timeout))


class LocalTransport:
    """This process, or a pool of workers that map the same rows."""

    has_strangers = False

    def __init__(
        self, runtime: ClientRuntime, workers: int = 1, timeout: float | None = None, hands: Hands | None = None
    ) -> None:
        """`hands` do the work in place of a pool of our own."""
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)
        runtime.built  # noqa: B018  (a model that cannot be made must fail here)
        if runtime.x.device.type != "cpu":
            workers = 1  # one process a GPU
        self.runtime, self.workers = runtime, workers
        self.clients = runtime.federation.names
        self.name = "local" if hands is None else "flower-sim"
        self._pool: Hands | None = hands or (Pool(runtime, workers, timeout) if workers > 1 else None)

    def deliver(self, tasks: Mapping[str, Task], round: int) -> dict[str, Answer | Failure]:
        own = self.runtime.networks.of  # whoever trains a network of its own is evaluated apart
        shared = {client: task for client, task in tasks.items() if client not in own and _shares_rows(task)}
        others = {client: task for client, task in tasks.items() if client not in shared}
        answers: dict[str, Answer | Failure] = {}
        works = self._works(others)
        for work, result in zip(works, self._run(works, round), strict=True):
            answers |= work.failed(result) if isinstance(result, Failure) else result
        return answers | self._evaluate(shared, round)

    def at_server(self, tasks: Sequence[Task], round: int) -> list[Answer | Failure]:
        results = self._run([self._work(at_server=(task,)) for task in tasks], round)
        return [result if isinstance(result, Failure) else result[0] for result in results]

    def arrivals(self) -> tuple[str, ...]:
        return ()

    def rewind(self, round: int) -> None:
        self.runtime.memory.forget_after(round)

    def drift(self, rows_of: Mapping[str, str]) -> None:
        self.runtime.rows_of = dict(rows_of)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
        torch.set_num_threads(self._threads)

    def _run(self, works: list[Work], round: int) -> list[Any]:
        if self._pool is not None:
            return self._pool.run(works, round)
        return [work.do(self.runtime, round) for work in works]

    def _works(self, tasks: Mapping[str, Task]) -> list[Work]:
        """Cut tasks into pieces of work, the longest first; those who train together in as many groups as workers."""
        cost = {client: self._cost(client, task) for client, task in tasks.items()}
        ordered = sorted(tasks, key=lambda client: -cost[client])
        together = [client for client in ordered if self.runtime.is_batched(client, tasks[client])]
        n_groups = max(min(self.workers, len(together)), -(-len(together) // LARGEST_GROUP))
        # Dealt to and fro, so that every group gets its share of the long ones.
        dealt = [0] * len(together)
        for place in range(len(together)):
            turn, seat = divmod(place, n_groups)
            dealt[place] = seat if turn % 2 == 0 else n_groups - 1 - seat
        groups = [[c for c, seat in zip(together, dealt, strict=True) if seat == group] for group in range(n_groups)]
        grouped = set(together)
        groups += [[client] for client in ordered if client not in grouped]
        return [self._work(tasks={client: tasks[client] for client in group}) for group in groups if group]

    def _work(self, **parts: Any) -> Work:
        return Work(**parts, rows_of=self.runtime.rows_of)

    def _cost(self, client: str, task: Task) -> int:
        return len(self.runtime.held(client).train) if client in self.runtime.clients else 0

    def _evaluate(self, tasks: Mapping[str, Task], round: int) -> dict[str, Answer | Failure]:
        """Evaluate each distinct (model, test row) once, and gather every client's own rows from that."""
        by_model: dict[int, list[str]] = {}
        models: dict[int, np.ndarray] = {}
        for client, task in tasks.items():
            assert isinstance(task, Evaluate)
            assert task.weights is not None
            by_model.setdefault(id(task.weights), []).append(client)
            models[id(task.weights)] = task.weights
        works, owner = [], []
        for key, clients in by_model.items():
            views = {id(self.runtime.held(c).test): self.runtime.held(c).test for c in clients}
            rows = np.unique(np.concatenate(list(views.values())))
            size = CHUNK * -(-len(rows) // (CHUNK * self.workers * 4))  # a few pieces a worker, equally long
            for start in range(0, len(rows), size):
                works.append(self._work(weights=models[key], rows=rows[start : start + size]))
                owner.append(key)
        results = self._run(works, round)
        answers: dict[str, Answer | Failure] = {}
        n_rows = len(self.runtime.federation.y)
        for key, clients in by_model.items():
            losses, notes = np.empty(n_rows, np.float32), np.empty(0)
            failure = None
            for work, result, whose in zip(works, results, owner, strict=True):
                if whose == key and isinstance(result, Failure):
                    failure = result
                elif whose == key:
                    if not len(notes):
                        notes = np.empty((n_rows, *result[1].shape[1:]), result[1].dtype)
                    losses[work.rows], notes[work.rows] = result
            for client in clients:
                test = self.runtime.held(client).test
                labels = self.runtime.federation.y
                answers[client] = failure or self.runtime.summary(losses[test], notes[test], labels[test])
        return answers


def _shares_rows(task: Task) -> bool:
    return (
        isinstance(task, Evaluate)
        and task.on == "test"
        and task.weights is not None
        and not task.start
        and not task.adapt
    )
