"""Faults made on purpose: a process killed at any file operation, a disk that is full, bits that flip, files that go.

Every fault is tried in a child process, forked from one that has imported everything already.
"""

import errno
import hashlib
import io
import json
import os
import random
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import fedclade
from fedclade.clients.memory import Memory
from fedclade.display import outcome
from fedclade.errors import FedcladeError
from fedclade.result import Result
from harness import contents

METHODS = ("fedavg", "ditto", "fedclust", "agreement", "fedstack")
ROUNDS = 2
KILLED, REFUSED, BROKEN = 9, 2, 1  # how a child ends that does not end well
BAD = ("silently different", "broken", "does not go on")  # what must never come of a fault
PATIENCE = 120.0  # seconds: a child that takes longer hangs


def settings_of(method: str) -> dict[str, Any]:
    return {
        "data": "digits", "split": "label-groups:2", "clients": 4, "rows": 30, "workers": 1, "seed": 5,
        "model": "mlp", "evaluate_local_every": 1, "training": {"local_epochs": 1, "batch_size": 15}, "method": method,
    }  # fmt: skip


def begin(method: str, run: Path, rounds: int = ROUNDS) -> None:
    fedclade.run(**settings_of(method), rounds=rounds, out=run)


def go_on(method: str, run: Path, rounds: int = ROUNDS) -> None:
    """As a person would: begin again what had not begun, else resume."""
    if (run / "settings.json").is_file():
        fedclade.resume(run, rounds=rounds)
    else:
        begin(method, run, rounds)


# --- what a run left --------------------------------------------------------------------------------------------------


def left_by(run: Path) -> dict[str, str]:
    """Everything that must come out the same, shortened."""
    result = fedclade.load(run)
    passing = ("seconds", "cpu_seconds", "remarks")
    found: dict[str, Any] = {
        "history": result.history.to_csv().encode(),
        "ledger": result.ledger.to_csv().encode(),
        "clusters": (run / "clusters.json").read_bytes(),
        "result": json.dumps({k: v for k, v in result.summary.items() if k not in passing}).encode(),
        "memory": repr(sorted(contents(run).items())).encode(),
        "served": b"".join(result.weights_for(client).tobytes() for client in sorted(result.clients)),
    }
    for folder in ("models", "records"):
        found |= (
            {str(path.relative_to(run)): path.read_bytes() for path in sorted((run / folder).iterdir())}
            if (run / folder).is_dir()
            else {}
        )
    return {name: hashlib.sha256(data).hexdigest()[:16] for name, data in found.items()}


def shown(run: Path) -> str:
    paper = io.StringIO()
    Console(file=paper, width=400, markup=False, highlight=False).print(outcome(Result.open(run)))
    return paper.getvalue()


def reported(run: Path) -> str:
    from fedclade.report.page import page_data, sections_of
    from fedclade.report.reading import read_runs

    runs = read_runs([run])
    return json.dumps(page_data(runs, sections_of(runs)), default=str)


def models(run: Path) -> str:
    """Of the models that serve clients and of those they trained."""
    result, digest = fedclade.load(run), hashlib.sha256()
    for client in sorted(result.clients):
        digest.update(result.weights_for(client).tobytes())
        digest.update(np.concatenate([v.numpy().ravel() for v in result.local_model_of(client).state_dict().values()]))
    return digest.hexdigest()


def placed(run: Path) -> str:
    rows = np.random.default_rng(0).random((20, 1, 8, 8)).astype(np.float32)
    found = fedclade.place(run, {"new": (rows, np.arange(20) % 10)}, personalise=0, save=False)
    return f"{found['new'].cluster} {found['new'].distances} {hashlib.sha256(found['new'].weights).hexdigest()}"


# --- children ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    code: int
    words: str  # what it returned, or its error

    @property
    def is_fine(self) -> bool:
        return self.code == 0


def in_child(action: Callable[[], object], *, kill_after: float | None = None) -> Ended:
    """Do something in a forked child. It ends with 0 and what it returned, or as a command would."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code, words = _done(action)
        os.write(writing, words.encode()[:60_000])
        os._exit(code)
    os.close(writing)
    end, status = time.monotonic() + (PATIENCE if kill_after is None else kill_after), 0
    while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            break
        time.sleep(0.002)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with os.fdopen(reading, "rb") as pipe:
        words = pipe.read().decode()
    return Ended(KILLED if status == -signal.SIGKILL and kill_after is not None else status, words)


def _done(action: Callable[[], object]) -> tuple[int, str]:
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)  # remarks are looked for in the result
    try:
        return 0, str(action())
    except FedcladeError as error:
        return (REFUSED, str(error)) if "\n" not in str(error) else (BROKEN, f"more than a line: {error}")
    except BaseException:
        return BROKEN, traceback.format_exc()


# --- the k-th file operation ------------------------------------------------------------------------------------------

OPERATIONS = ("replace", "unlink", "fsync", "mkdir", "rmdir", "chmod")


@contextmanager
def counted(hit: Callable[[int], None]) -> Iterator[Callable[[], int]]:
    """Call `hit` with its number before every file operation, and before every statement of the clients' memory."""
    count = 0

    def step(*_: Any) -> None:
        nonlocal count
        count += 1
        hit(count)

    def before(real: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*given: Any, **named: Any) -> Any:
            step()
            return real(*given, **named)

        return operation

    real = {name: getattr(os, name) for name in OPERATIONS}
    connected = Memory._connected

    def watched(memory: Memory) -> Any:
        database = connected(memory)
        database.set_trace_callback(step)
        return database

    try:
        for name, function in real.items():
            setattr(os, name, before(function))
        Memory._connected = watched  # type: ignore[method-assign]
        yield lambda: count
    finally:
        for name, function in real.items():
            setattr(os, name, function)
        Memory._connected = connected  # type: ignore[method-assign]


def operations(action: Callable[[], object]) -> int:
    """How many there are."""

    def all_of_it() -> int:
        with counted(lambda number: None) as count:
            action()
            return count()

    return int(in_child(all_of_it).words)


def killed_at(number: int, action: Callable[[], object]) -> Ended:
    def killed() -> None:
        with counted(lambda now: os._exit(KILLED) if now == number else None):
            action()

    return in_child(killed)


def failing_from(number: int, action: Callable[[], object], code: int = errno.ENOSPC) -> Ended:
    """From this operation on all those fail that would write, as on a disk that is full or has gone read-only."""

    def fail(now: int) -> None:
        if now >= number:
            raise OSError(code, os.strerror(code))

    def failing() -> None:
        with counted(fail):
            action()

    return in_child(failing)


# --- damage -----------------------------------------------------------------------------------------------------------


def files_in(run: Path) -> list[Path]:
    return sorted(path.relative_to(run) for path in run.rglob("*") if path.is_file() and path.stat().st_size)


def flip(path: Path, dice: random.Random) -> int:
    """Flip one bit; returns which."""
    data = bytearray(path.read_bytes())
    bit = dice.randrange(8 * len(data))
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    return bit


def copied(run: Path, place: Path) -> Path:
    shutil.rmtree(place, ignore_errors=True)
    return Path(shutil.copytree(run, place))


def stopped_run(method: str, run: Path) -> Path:
    """A run of which two rounds have ended and one is under way when its process dies."""
    total = operations(lambda: begin(method, run, ROUNDS + 1))
    shutil.rmtree(run)
    killed_at(total - 40, lambda: begin(method, run, ROUNDS + 1))
    return run


READERS: dict[str, Callable[[Path], str]] = {
    "show": shown, "report": reported, "model_for": models, "place": placed,
}  # fmt: skip


def resumed(run: Path) -> str:
    result = fedclade.resume(run, rounds=ROUNDS + 2)
    return json.dumps([left_by(run), result.remarks])


def judged(now: Ended, expected: str, earlier: str = "") -> str:
    """The class of an outcome; `earlier` is what a run gives that was stopped a round before."""
    if now.code == REFUSED:
        return "refused in one line"
    if not now.is_fine:
        return "broken"
    if now.words == expected:
        return "same result"
    if "is damaged" in now.words:
        return "said, older checkpoint shown"
    if any(words in now.words and words not in expected for words in ("fedclade resume", "stopped: round")):
        return "shown as stopped"
    if now.words == earlier:
        return "the round before is the last"
    return "silently different"


def judged_resume(now: Ended, expected: str) -> str:
    if now.is_fine:
        (left, remarks), (wanted, _) = json.loads(now.words), json.loads(expected)
        if left == wanted:
            return "said, older checkpoint used, same result" if remarks else "same result"
        return "silently different"
    return judged(now, expected)
