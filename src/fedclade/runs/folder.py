"""A run folder: all that is known about a run, in files that other tools can read.

    settings.json         every setting as used, what the run met, and the versions
    history.parquet       a row for each round and client: cluster, accuracy, loss, failures
    ledger.parquet        bytes by round, client, phase and direction
    clusters.json         who is in which cluster at the end, and the tree of splits
    models/               the models, one safetensors file a cluster, tensors named as in the network
    held_out.parquet      which rows of own files were held out for testing
    clients/              what the clients remember: their locally trained models
    records/              what a method kept to look at: distance matrices, trees, curves
    checkpoints/          the state after the last two rounds, from which a run resumes
    result.json           the outcome

While a run goes on, history and ledger lie in `parts/`, a file a round. A round counts once its checkpoint is written,
which is the last thing it does; whatever else it left behind is dropped when the run resumes. Every file that is read
again carries a checksum: what is damaged or lost is said, never passed over.
"""

import os
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from fedclade.errors import FedcladeError, listed
from fedclade.files import flush_all, unwritable, write_atomically
from fedclade.runs import packing

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

TABLES = ("history", "ledger")
# Phases that are not a method's traffic: our own measuring, and work that the server does by itself.
UNCOUNTED = frozenset({"measure", "server"})
FROM_A_COPY = "put it back from a copy, or begin a new run"


def _is_leftover(path: Path) -> bool:
    """A file that a run leaves which is killed before it begins."""
    return path.is_file() and path.name.startswith(".") and (path.suffix == ".part" or path.name == ".lock")


class RunFolder:
    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._lock: Any = None
        self.damaged: list[str] = []  # checkpoints that were passed over

    @classmethod
    def create(cls, path: Path | str, settings: Mapping[str, Any]) -> "RunFolder":
        run = cls(path).unused()
        try:
            run.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise run._unusable(error) from error
        for left in run.path.iterdir():  # by a run that was killed before it began
            left.unlink(missing_ok=True)
        run.update_settings(settings)
        return run

    def write_held_out(self, rows: Mapping[str, Any]) -> None:
        """Which rows of their own files clients without test rows are tested on."""
        if rows:
            table = [{"client": client, "row": int(row)} for client, numbers in rows.items() for row in numbers]
            packing.save_table(self.path / "held_out.parquet", packing.table_of(table))

    def unused(self) -> "RunFolder":
        """This folder, after making sure that a run can begin in it."""
        try:
            if self.path.exists() and not self.path.is_dir():
                raise FedcladeError(f"{self.path} is a file: choose another --out")
            if (self.path / "settings.json").exists():
                go_on = f"go on with it by `fedclade resume {self.path}`, or choose another --out"
                raise FedcladeError(f"{self.path} holds a run already: {go_on}")
            if self.path.exists() and not all(_is_leftover(path) for path in self.path.iterdir()):
                raise FedcladeError(f"{self.path} exists and is not empty: choose another --out")
        except OSError as error:
            raise self._unusable(error) from error
        return self

    def _unusable(self, error: OSError) -> FedcladeError:
        return FedcladeError(f"cannot make the run folder {self.path}: {error.strerror or error}; choose another --out")

    @classmethod
    def open(cls, path: Path | str) -> "RunFolder":
        run = cls(path)
        if not (run.path / "settings.json").is_file():
            left = list(run.path.iterdir()) if run.path.is_dir() else []
            if left and all(_is_leftover(path) for path in left):
                raise FedcladeError(
                    f"the run in {run.path} was stopped before it began: give the same `fedclade run` again"
                )
            raise FedcladeError(f"{run.path} is no run folder: it has no settings.json; give one that a run made")
        return run

    def __enter__(self) -> "RunFolder":
        """Hold the folder, so that no second process writes to it."""
        try:
            self._lock = (self.path / ".lock").open("w")
        except OSError as error:
            raise FedcladeError(f"cannot write to {self.path}: {error.strerror or error}") from error
        if os.name == "posix":
            self._take_lock(patience=0.2)  # who looks whether the run goes on holds the lock for a moment
        return self

    def _take_lock(self, patience: float) -> None:
        import fcntl

        end = time.monotonic() + patience
        while True:
            try:
                return fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if time.monotonic() > end:
                    self._lock.close()
                    raise FedcladeError(f"another process is running in {self.path}: wait for it or stop it") from None
            time.sleep(0.01)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.close()

    def read_json(self, name: str) -> Any:
        try:
            return packing.load_json(self.path / name)
        except FileNotFoundError:
            raise FedcladeError(
                f"{self.path} has no {name}: `fedclade resume {self.path}` goes on to where it is written"
            ) from None
        except FedcladeError as error:
            cure = FROM_A_COPY if name == "settings.json" else f"`fedclade resume {self.path}` writes it anew"
            raise FedcladeError(f"{error}: {cure}") from error

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        packing.save_json(self.path / name, value)

    @property
    def settings(self) -> dict[str, Any]:
        return self.read_json("settings.json")

    def update_settings(self, settings: Mapping[str, Any]) -> None:
        self.write_json("settings.json", settings)

    @property
    def is_finished(self) -> bool:
        return (self.path / "result.json").is_file()

    @property
    def is_running(self) -> bool:
        """Whether a process holds the folder now."""
        if os.name != "posix" or not (self.path / ".lock").is_file():
            return False
        import fcntl

        with (self.path / ".lock").open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return True
        return False

    def discard_unbegun(self) -> None:
        """Take away a folder in which not one step of a run has ended."""
        if not self._checkpoints():
            shutil.rmtree(self.path, ignore_errors=True)

    # One round

    def write_round(
        self,
        round: int,
        state: Any,
        tables: Mapping[str, list[dict[str, Any]]],
        records: Mapping[str, Any],
    ) -> None:
        """Write what a round gave; its checkpoint comes last and makes it count."""
        for name, rows in tables.items():
            packing.save_table(self._part(round, name), packing.table_of(rows), flush=False)
        for name, record in records.items():
            packing.save(self.path / "records" / f"{round:06d}.{name}.safetensors", record, flush=False)
        fresh = (f"parts/{round:06d}.*", f"records/{round:06d}.*")
        flush_all(path for pattern in fresh for path in self.path.glob(pattern))
        self.write_checkpoint(round, state)
        _remove(self._checkpoints()[:-2])

    def write_checkpoint(self, round: int, state: Any) -> None:
        packing.save(self.path / "checkpoints" / f"{round:06d}.safetensors", state)

    def _part(self, round: int, name: str) -> Path:
        return self.path / "parts" / f"{round:06d}.{name}.parquet"

    def _checkpoints(self) -> list[Path]:
        found = (self.path / "checkpoints").glob("*.safetensors")
        return sorted(path for path in found if path.stem.isdecimal())

    @property
    def last_round(self) -> int | None:
        """The newest round that counts; None before the first checkpoint."""
        saved = self._checkpoints()
        return int(saved[-1].stem) if saved else None

    def last_checkpoint(self, *, arrays: bool = True) -> tuple[int, Any] | None:
        """The newest round that counts and its state. A file in `damaged` was passed over for the one before."""
        self.damaged = []
        for path in reversed(self._checkpoints()):
            try:
                return int(path.stem), packing.load(path, arrays=arrays)
            except FedcladeError as error:
                self.damaged.append(str(error))
        if self.damaged:
            raise FedcladeError(f"{self.damaged[0]}, and there is no other: {FROM_A_COPY}")
        self._check_reached(-1)
        return None

    def rewind(self, round: int) -> None:
        """Drop what later rounds left behind, and open a finished run again."""
        self._unfold()
        self._check_reached(round)
        for name in TABLES:
            self._check_complete(name, round)
        _remove(self.path / name for name in ("result.json", *(f"{name}.parquet" for name in TABLES)))
        _remove(self.path.glob(".*.part"))
        for pattern in ("parts/*", "records/*", "checkpoints/*"):
            for path in self.path.glob(pattern):
                number = path.name.split(".")[0]
                if path.name.startswith(".") or (number.isdecimal() and int(number) > round):
                    _remove([path])

    # The end

    def finish(
        self,
        result: Mapping[str, Any],
        clusters: Mapping[str, Any],
        models: Mapping[int, Mapping[str, Any]],
        facts: Mapping[str, str] | None = None,
    ) -> None:
        """Write the outcome; `models` are complete state dicts, and `facts` what their files say of themselves."""
        for name in TABLES:
            packing.save_table(self.path / f"{name}.parquet", self._whole(name))
        shutil.rmtree(self.path / "models", ignore_errors=True)
        for cluster, state in models.items():
            path = self.path / "models" / f"cluster-{cluster}.safetensors"
            write_atomically(path, partial(packing.save_state, state=state, facts=facts))
        packing.save_json(self.path / "clusters.json", clusters)
        packing.save_json(self.path / "result.json", result)
        shutil.rmtree(self.path / "parts", ignore_errors=True)

    def _unfold(self) -> None:
        """Turn the tables of a finished run into parts again, so that it can go on."""
        wholes = {name: self.path / f"{name}.parquet" for name in TABLES}
        frames = {name: packing.load_table(path) for name, path in wholes.items() if path.is_file()}
        fresh = []
        reached = max((int(packing.values_of(one["round"]).max()) for one in frames.values() if len(one)), default=-1)
        for name, frame in frames.items():
            for number in range(reached + 1):
                part = self._part(number, name)
                some = frame.take((packing.values_of(frame["round"]) == number).nonzero()[0]) if len(frame) else frame
                packing.save_table(part, some, flush=False)
                fresh.append(part)
        flush_all(fresh)

    def _held(self, name: str) -> set[int]:
        """The rounds of a table that lie in parts."""
        return {int(path.name.split(".")[0]) for path in (self.path / "parts").glob(f"[0-9]*.{name}.parquet")}

    def _check_reached(self, round: int) -> None:
        """A run leaves no round behind before the checkpoint of the one before."""
        is_whole = round < 0 and (self.path / "history.parquet").is_file()
        if is_whole or max(self._held("history"), default=-1) > round + 1:
            raise FedcladeError(
                f"{self.path} has a history, but the checkpoints that belong to it are gone: {FROM_A_COPY}"
            )

    def _check_complete(self, name: str, round: int) -> None:
        """No round that counts may be missing from a table: it would be lost without a word."""
        missing = sorted(set(range(round + 1)) - self._held(name))
        if missing:
            rounds = "round" if len(missing) == 1 else "rounds"
            raise FedcladeError(f"the {name} of {self.path} lacks {rounds} {listed(missing, 5)}: {FROM_A_COPY}")

    # Reading

    def table(self, name: str) -> "pd.DataFrame":
        """`history` or `ledger`, of a finished run or of one under way."""
        return self._whole(name).to_pandas(ignore_metadata=True)

    def column(self, table: str, name: str) -> np.ndarray:
        """One column of it, without pandas."""
        whole = self._whole(table)
        return packing.values_of(whole[name]) if len(whole) else np.empty(0)

    def _whole(self, name: str) -> "pa.Table":
        import pyarrow as pa

        whole, last = self.path / f"{name}.parquet", -1 if self.last_round is None else self.last_round
        held = self._held(name)
        if self.is_finished and not whole.is_file():
            raise FedcladeError(f"{self.path} has no {name}.parquet any more: {FROM_A_COPY}")
        if whole.is_file() and (self.is_finished or not held.issuperset(range(last + 1))):
            return packing.load_table(whole)
        self._check_complete(name, last)
        frames = [packing.load_table(self._part(number, name)) for number in range(last + 1)]
        frames = [frame for frame in frames if len(frame)]
        return pa.concat_tables(frames, promote_options="permissive") if frames else pa.table({})

    def records(self, until: int, expected: Mapping[str, int]) -> dict[tuple[int, str], Any]:
        """What the method kept to look at until the end of a round, by round and name: of each name so many."""
        found = {}
        for path in sorted((self.path / "records").glob("[0-9]*.safetensors")):
            number, name, _ = path.name.split(".")
            if int(number) <= until:
                found[int(number), name] = path
        held = Counter(name for _, name in found)
        for name, count in expected.items():
            if held[name] < count:
                raise FedcladeError(
                    f"{self.path / 'records'} lacks {count - held[name]} of {count} {name}: {FROM_A_COPY}"
                )
        return {key: packing.load(path) for key, path in found.items()}


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise unwritable(path, error) from error
