"""Worker processes of this machine, of one torch thread each.

They are started once and map the rows from one file, so that all of them hold one copy.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, Listener, wait
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedclade.clients.runtime import ClientRuntime, save_runtime
from fedclade.clients.tasks import Failure, Task
from fedclade.codec import Packet, decode, encode, travels
from fedclade.data.federation import memory_folder
from fedclade.errors import FedcladeError


@travels
@dataclass(frozen=True)
class Work:
    """A piece of work for one worker: some clients' tasks, tasks of the server's, or one model's sweep over rows."""

    tasks: Mapping[str, Task] = field(default_factory=dict)
    at_server: tuple[Task, ...] = ()
    weights: np.ndarray | None = None
    rows: np.ndarray | None = None
    rows_of: Mapping[str, str] = field(default_factory=dict)

    def do(self, runtime: ClientRuntime, round: int) -> Any:
        runtime.rows_of = self.rows_of
        if self.rows is not None and self.weights is not None:
            return runtime.sweep(self.weights, self.rows)
        if self.at_server:
            return runtime.at_server(self.at_server, round)
        return runtime.perform(self.tasks, round)

    def failed(self, failure: Failure) -> dict[str, Failure]:
        return dict.fromkeys(self.tasks, failure)


class Hands(Protocol):
    """Who does pieces of work."""

    def run(self, works: list[Work], round: int) -> list[Any]:
        """The results in the order of the works; a Failure where one could not be done."""

    def close(self) -> None: ...


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
                connection.send_bytes(encode([works[number], round]).to_bytes())
                busy[connection] = (number, time.monotonic())
            ready = wait(list(busy), timeout=1.0 if self.timeout else None)
            late = [c for c, (_, since) in busy.items() if self.timeout and time.monotonic() - since > self.timeout]
            for connection in [c for c in busy if c in ready or c in late]:
                number, _ = busy.pop(connection)
                try:
                    if connection not in ready:
                        raise TimeoutError
                    results[number] = decode(Packet.from_bytes(connection.recv_bytes()))
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
        for number in retry:
            results[number] = one_by_one(self, works[number], round)
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


def one_by_one(hands: Hands, work: Work, round: int) -> dict[str, Any]:
    """One client of a group took a worker down: find out which."""
    alone = [replace(work, tasks={client: task}) for client, task in work.tasks.items()]
    answers: dict[str, Any] = {}
    for single, result in zip(alone, hands.run(alone, round), strict=True):
        answers |= single.failed(result) if isinstance(result, Failure) else result
    return answers


def _end(pid: int) -> None:
    import signal

    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL if os.name == "posix" else signal.SIGTERM)
