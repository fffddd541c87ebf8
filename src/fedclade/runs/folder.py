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
which is the last thing it does; whatever else it left behind is dropped when the run resumes.
"""

import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fedclade.errors import FedcladeError, listed
from fedclade.files import flush_all, write_atomically, write_json
from fedclade.runs import packing

if TYPE_CHECKING:
    import pandas as pd

TABLES = ("history", "ledger")
# Phases that are not a method's traffic: our own measuring, and work that the server does by itself.
UNCOUNTED = frozenset({"measure", "server"})
RECORDED = {"settings", "split", "clients", "groups", "classes", "input_shape", "fingerprint"}  # needed to go on


def _is_leftover(path: Path) -> bool:
    """A file that a run leaves which is killed before it begins."""
    return path.is_file() and path.name.startswith(".") and (path.suffix == ".part" or path.name == ".lock")


class RunFolder:
    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._lock: Any = None

    @classmethod
    def create(cls, path: Path | str, settings: Mapping[str, Any]) -> "RunFolder":
        run = cls(path).unused()
        try:
            run.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise run._unusable(error) from error
        for left in run.path.iterdir():  # by a run that was killed before it began
            left.unlink(missing_ok=True)
        write_json(run.path / "settings.json", settings)
        return run

    def write_held_out(self, rows: Mapping[str, Any]) -> None:
        """Which rows of their own files clients without test rows are tested on."""
        import pandas as pd

        if rows:
            table = [{"client": client, "row": int(row)} for client, numbers in rows.items() for row in numbers]
            path = self.path / "held_out.parquet"
            write_atomically(path, partial(pd.DataFrame(table).to_parquet, index=False))

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
        path = self.path / name
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise FedcladeError(f"{self.path} has no {name}: the run has not come that far") from None
        except (ValueError, OSError) as error:
            raise FedcladeError(f"cannot read {path}: the file is damaged ({error})") from error

    @property
    def settings(self) -> dict[str, Any]:
        record = self.read_json("settings.json")
        missing = RECORDED - (record.keys() if isinstance(record, dict) else set())
        if missing:
            raise FedcladeError(f"cannot read {self.path / 'settings.json'}: it lacks {listed(sorted(missing))}")
        return record

    def update_settings(self, settings: Mapping[str, Any]) -> None:
        write_json(self.path / "settings.json", settings)

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
        import pandas as pd

        for name, rows in tables.items():
            if rows:
                frame = pd.DataFrame(rows)
                path = self.path / "parts" / f"{round:06d}.{name}.parquet"
                write_atomically(path, partial(frame.to_parquet, index=False), flush=False)
        for name, record in records.items():
            packing.save(self.path / "records" / f"{round:06d}.{name}.safetensors", record, flush=False)
        fresh = (f"parts/{round:06d}.*", f"records/{round:06d}.*")
        flush_all(path for pattern in fresh for path in self.path.glob(pattern))
        packing.save(self.path / "checkpoints" / f"{round:06d}.safetensors", state)
        for old in self._checkpoints()[:-2]:
            old.unlink(missing_ok=True)

    def _checkpoints(self) -> list[Path]:
        found = (self.path / "checkpoints").glob("*.safetensors")
        return sorted(path for path in found if path.stem.isdecimal())

    @property
    def last_round(self) -> int | None:
        """The newest round that counts; None before the first checkpoint."""
        saved = self._checkpoints()
        return int(saved[-1].stem) if saved else None

    def last_checkpoint(self, *, arrays: bool = True) -> tuple[int, Any] | None:
        """The newest round that counts and its state. A damaged file is passed over for the one before."""
        damaged: FedcladeError | None = None
        for path in reversed(self._checkpoints()):
            try:
                return int(path.stem), packing.load(path, arrays=arrays)
            except FedcladeError as error:
                damaged = error
        if damaged is not None:
            raise damaged
        return None

    def rewind(self, round: int) -> None:
        """Drop what later rounds left behind, and open a finished run again."""
        self._unfold()
        self._check_complete(round)
        (self.path / "result.json").unlink(missing_ok=True)
        for name in TABLES:
            (self.path / f"{name}.parquet").unlink(missing_ok=True)
        for pattern in ("parts/*", "records/*", "checkpoints/*"):
            for path in self.path.glob(pattern):
                number = path.name.split(".")[0]
                if path.name.startswith(".") or (number.isdecimal() and int(number) > round):
                    path.unlink(missing_ok=True)

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
            frame = self.table(name)
            write_atomically(self.path / f"{name}.parquet", partial(frame.to_parquet, index=False))
        shutil.rmtree(self.path / "models", ignore_errors=True)
        for cluster, state in models.items():
            path = self.path / "models" / f"cluster-{cluster}.safetensors"
            write_atomically(path, partial(packing.save_state, state=state, facts=facts))
        write_json(self.path / "clusters.json", clusters)
        write_json(self.path / "result.json", result)
        shutil.rmtree(self.path / "parts", ignore_errors=True)

    def _unfold(self) -> None:
        """Turn the tables of a finished run into parts again, where there are none, so that it can go on."""
        for name in TABLES:
            path = self.path / f"{name}.parquet"
            if path.is_file():
                for number, rows in self._read(name, [path]).groupby("round"):
                    part = self.path / "parts" / f"{int(str(number)):06d}.{name}.parquet"
                    if not part.is_file():
                        write_atomically(part, partial(rows.to_parquet, index=False))

    def _check_complete(self, round: int) -> None:
        """No round that counts may be missing from the history: it would be lost without a word."""
        held = {int(path.name.split(".")[0]) for path in (self.path / "parts").glob("[0-9]*.history.parquet")}
        missing = sorted(set(range(round + 1)) - held)
        if missing:
            raise FedcladeError(
                f"the history of {self.path} lacks {'round' if len(missing) == 1 else 'rounds'} {listed(missing, 5)}: "
                "put its files back from a copy, or begin a new run"
            )

    # Reading

    def table(self, name: str) -> "pd.DataFrame":
        """`history` or `ledger`, of a finished run or of one under way."""
        whole = self.path / f"{name}.parquet"
        paths = sorted((self.path / "parts").glob(f"[0-9]*.{name}.parquet")) or ([whole] if whole.is_file() else [])
        if self.is_finished:
            if not whole.is_file():
                raise FedcladeError(f"{self.path} has no {name}.parquet any more: put it back from a copy")
            paths = [whole]
        return self._read(name, paths)

    def _read(self, name: str, paths: Sequence[Path]) -> "pd.DataFrame":
        import pandas as pd

        try:
            frames = [pd.read_parquet(path) for path in paths]
        except (OSError, ValueError) as error:
            raise FedcladeError(f"cannot read the {name} of {self.path}: a file is damaged ({error})") from error
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()

    def records(self) -> dict[tuple[int, str], Any]:
        """Everything the method kept to look at, by round and name."""
        paths = sorted((self.path / "records").glob("[0-9]*.safetensors"))
        return {(int(path.name.split(".")[0]), path.name.split(".")[1]): packing.load(path) for path in paths}
