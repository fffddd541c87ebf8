"""Clients of this machine, in this process or in worker processes of one torch thread each.

Workers are started once. They map the rows from one file, so that all of them hold one copy. A result does not depend
on their number: every random stream is named by client and round, a client's numbers do not depend on who trains beside
it, and rows are evaluated in chunks of a fixed size.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, Listener, wait
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedclade.clients.memory import Memory
from fedclade.clients.runtime import CHUNK, ClientRuntime, save_runtime, summary
from fedclade.clients.tasks import SERVER, Answer, Evaluate, Failure, Task, Train, Training
from fedclade.data.federation import Federation, memory_folder
from fedclade.errors import FedcladeError
from fedclade.models.assigned import Networks, as_networks
from fedclade.models.weights import Layout

LARGEST_GROUP = 12  # clients that train together: more would not be faster and would need more memory


@dataclass(frozen=True)
class Work:
    """A piece of work for one worker: some clients' tasks, or one model's sweep over some rows."""

    tasks: Mapping[str, Task] = field(default_factory=dict)
    weights: np.ndarray | None = None
    rows: np.ndarray | None = None
    rows_of: Mapping[str, str] = field(default_factory=dict)

    def do(self, runtime: ClientRuntime, round: int) -> Any:
        runtime.rows_of = self.rows_of
        if self.rows is not None and self.weights is not None:
            return runtime.sweep(self.weights, self.rows)
        return runtime.perform(self.tasks, round)

    def failed(self, failure: Failure) -> dict[str, Failure]:
        return dict.fromkeys(self.tasks, failure)


class LocalEngine:
    """Clients in this process or in worker processes of this machine."""

    has_strangers = False
    keeps_models = True

    def __init__(
        self,
        federation: Federation,
        networks: Networks | Callable[[], nn.Module],  # a function: one network for everybody
        *,
        seed: int,
        training: Training,
        memory: Path,
        workers: int = 1,
        timeout: float | None = None,
    ) -> None:
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)
        self.runtime = ClientRuntime(federation, as_networks(networks), Memory(memory), seed, training)
        self.clients = federation.names
        self.layout, self.initial = self.runtime.layout, self.runtime.initial
        self.network_of = self.runtime.networks.of
        self.input_shape, self.n_classes = federation.input_shape, federation.n_classes
        self.workers = workers
        self.facts: Mapping[str, Any] = {"engine": "local", **self.runtime.facts}
        self._pool = Pool(self.runtime, workers, timeout) if workers > 1 else None

    def answer(self, tasks: Mapping[str, Task], round: int) -> dict[str, Answer | Failure]:
        own = self.runtime.networks.of  # whoever trains a network of its own is evaluated apart
        shared = {client: task for client, task in tasks.items() if client not in own and _shares_rows(task)}
        others = {client: task for client, task in tasks.items() if client not in shared}
        answers: dict[str, Answer | Failure] = {}
        works = self._works(others)
        for work, result in zip(works, self._run(works, round), strict=True):
            answers |= work.failed(result) if isinstance(result, Failure) else result
        return answers | self._evaluate(shared, round)

    def at_server(self, tasks: Sequence[Task], round: int) -> list[Answer | Failure]:
        results = self._run([self._work(tasks={SERVER: task}) for task in tasks], round)
        return [result if isinstance(result, Failure) else result[SERVER] for result in results]

    def layout_of(self, client: str, through: str = "") -> Layout:
        return self.runtime.network(client, through).layout

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
        together = [c for c in ordered if isinstance(t := tasks[c], Train) and self.runtime.is_batched(c, t)]
        n_groups = max(min(self.workers, len(together)), -(-len(together) // LARGEST_GROUP))
        # Dealt to and fro, so that every group gets its share of the long ones.
        dealt = [0] * len(together)
        for place in range(len(together)):
            turn, seat = divmod(place, n_groups)
            dealt[place] = seat if turn % 2 == 0 else n_groups - 1 - seat
        groups = [[c for c, seat in zip(together, dealt, strict=True) if seat == group] for group in range(n_groups)]
        groups += [[client] for client in ordered if client not in set(together)]
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
            losses, right = np.empty(n_rows, np.float32), np.empty(n_rows, np.bool_)
            failure = None
            for work, result, whose in zip(works, results, owner, strict=True):
                if whose == key and isinstance(result, Failure):
                    failure = result
                elif whose == key:
                    losses[work.rows], right[work.rows] = result
            for client in clients:
                test = self.runtime.held(client).test
                answers[client] = failure or summary(losses[test], right[test])
        return answers


def _shares_rows(task: Task) -> bool:
    return (
        isinstance(task, Evaluate)
        and task.on == "test"
        and task.weights is not None
        and not task.start
        and not task.adapt
    )


class Pool:
    """Worker processes of this machine. One that dies is replaced, and its clients are tried once more one by one."""

    def __init__(self, runtime: ClientRuntime, size: int, timeout: float | None) -> None:
        self.timeout = timeout
        self.folder = Path(tempfile.mkdtemp(prefix="fedclade-", dir=memory_folder(runtime.federation.x.nbytes)))
        self.key = os.urandom(16)
        save_runtime(runtime, self.folder)
        self.listener = Listener(None, authkey=self.key, backlog=size)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.members: list[tuple[Connection, int]] = []
        try:
            started = [self._spawn() for _ in range(size)]
            for _ in started:
                self.members.append(self._greet(started))
        except BaseException:  # also Ctrl-C
            self.close()
            raise

    def _spawn(self) -> subprocess.Popen[bytes]:
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        environment = {**os.environ, **threads, "FEDCLADE_WORKER_KEY": self.key.hex()}
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        command = [sys.executable, "-m", "fedclade.engines.worker", str(self.listener.address), str(self.folder)]
        # In a process group of its own, Ctrl-C in the terminal reaches the main process only.
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, process_group=0)
        self.processes.append(process)
        return process

    def _greet(self, started: list[subprocess.Popen[bytes]]) -> tuple[Connection, int]:
        """Wait for a worker to report; one that ends before it does cannot load the work, so the run cannot start."""
        socket = self.listener._listener._socket  # type: ignore[attr-defined]
        socket.settimeout(1.0)
        while True:
            try:
                connection = self.listener.accept()
            except TimeoutError:
                if any(process.poll() is not None for process in started):
                    raise FedcladeError(
                        "a worker process could not start (its message is above): "
                        "put your own model in a module that can be imported, or use --workers 1"
                    ) from None
                continue
            pid = connection.recv()
            return connection, pid

    def run(self, works: list[Work], round: int) -> list[Any]:
        """The results in the order of the works; a Failure where a worker died or took too long."""
        results: list[Any] = [None] * len(works)
        waiting = deque(range(len(works)))
        busy: dict[Connection, tuple[int, float]] = {}
        idle = [connection for connection, _ in self.members]
        retry: list[int] = []
        while waiting or busy:
            while waiting and idle:
                number = waiting.popleft()
                connection = idle.pop()
                connection.send((works[number], round))
                busy[connection] = (number, time.monotonic())
            ready = wait(list(busy), timeout=1.0 if self.timeout else None)
            late = [c for c, (_, since) in busy.items() if self.timeout and time.monotonic() - since > self.timeout]
            for connection in [c for c in busy if c in ready or c in late]:
                number, _ = busy.pop(connection)
                try:
                    if connection not in ready:
                        raise TimeoutError
                    results[number] = connection.recv()
                    idle.append(connection)
                except (EOFError, OSError, TimeoutError) as error:
                    idle.append(self._replace(connection))
                    late_one = isinstance(error, TimeoutError)
                    failure = (
                        Failure("timed out", f"after {self.timeout} s")
                        if late_one
                        else Failure("died", "its process ended")
                    )
                    results[number] = failure
                    if not late_one and len(works[number].tasks) > 1:
                        retry.append(number)
        for number in retry:  # one client of the group took the worker down: find out which
            alone = [replace(works[number], tasks={client: task}) for client, task in works[number].tasks.items()]
            answers: dict[str, Any] = {}
            for work, result in zip(alone, self.run(alone, round), strict=True):
                answers |= work.failed(result) if isinstance(result, Failure) else result
            results[number] = answers
        return results

    def _replace(self, connection: Connection) -> Connection:
        pid = next(pid for member, pid in self.members if member is connection)
        connection.close()
        _end(pid)
        member = self._greet([self._spawn()])
        self.members = [m for m in self.members if m[0] is not connection] + [member]
        return member[0]

    def close(self) -> None:
        for connection, _ in self.members:
            connection.close()
        for process in self.processes:  # at once, not when it has ended the work at hand
            process.kill()
            process.wait()
        self.listener.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _end(pid: int) -> None:
    import signal

    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL if os.name == "posix" else signal.SIGTERM)
