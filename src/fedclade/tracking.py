"""What each round gave, in the places where people already look: TensorBoard, MLflow, Weights & Biases, or a CSV file.

A tracker hears of every round. How far it has heard is kept in the run folder, so that a run which is resumed goes on
where its tracking stopped: no round comes twice, and rounds that were run without it are told from the history.
"""

import csv
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from fedclade.errors import FedcladeError, unknown
from fedclade.files import write_atomically, write_json
from fedclade.result import MODELS, Result
from fedclade.rounds import Progress
from fedclade.runs.folder import RunFolder
from fedclade.settings import Settings, flat

HEARD = "tracking.json"  # the last round that each tracker heard of


def names_of(metric: str) -> list[str]:
    """What is told of a round, where this is the main metric."""
    scores = [f"{metric}{model}/{what}" for model in MODELS for what in ("mean", "worst")]
    return [*scores, "clusters", "bytes/up", "bytes/down", "failures", "seconds"]


def told_of(p: Progress) -> dict[str, float | None]:
    values = (p.score, p.worst, p.local, p.local_worst, p.clusters, p.bytes_up, p.bytes_down, p.failures, p.seconds)
    return dict(zip(names_of(p.metric.name), values, strict=True))


class Tracker(Protocol):
    """Where rounds are told.

    It is made for a run folder, a run's settings, the last round it has heard of (-1) and the names of what it is told.
    """

    def log(self, round: int, metrics: Mapping[str, float | None]) -> None: ...

    def close(self, ended: bool) -> None:
        """The run has ended, or was stopped."""


class CSV:
    """`rounds.csv` in the run folder."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], heard: int, names: Sequence[str]) -> None:
        self.path, self.names = folder / "rounds.csv", names
        known: list[list[str]] = []
        if self.path.is_file():
            with self.path.open(newline="", encoding="utf-8") as file:
                known = [row for row in csv.reader(file) if row and row[0].isdecimal() and int(row[0]) <= heard]
        write_atomically(self.path, partial(self._begin, known))

    def _begin(self, rows: Sequence[Sequence[str]], path: Path) -> None:
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([["round", *self.names], *rows])

    def log(self, round: int, metrics: Mapping[str, float | None]) -> None:
        values = ["" if metrics[name] is None else metrics[name] for name in self.names]
        with self.path.open("a", newline="", encoding="utf-8") as file:
            csv.writer(file).writerow([round, *values])

    def close(self, ended: bool) -> None:
        pass


class TensorBoard:
    """Event files in `tensorboard/` of the run folder: `tensorboard --logdir runs` shows all runs side by side."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], heard: int, names: Sequence[str]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
            from torch.utils.tensorboard.summary import hparams
        except ImportError:
            raise _not_installed("tensorboard") from None
        # Steps that an earlier process wrote beyond what counts are hidden by the library.
        self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=heard + 1 if heard >= 0 else None)
        if heard < 0:
            plain = {name: value if isinstance(value, int | float) else str(value) for name, value in settings.items()}
            for summary in hparams(plain, dict.fromkeys(names)):
                self.writer._get_file_writer().add_summary(summary)

    def log(self, round: int, metrics: Mapping[str, float | None]) -> None:
        for name, value in metrics.items():
            if value is not None:
                self.writer.add_scalar(name, value, round)
        self.writer.flush()

    def close(self, ended: bool) -> None:
        self.writer.close()


class MLflow:
    """A run of the experiment `fedclade`, where MLFLOW_TRACKING_URI says or else beside the current folder."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], heard: int, names: Sequence[str]) -> None:
        try:
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise _not_installed("mlflow") from None
        logging.getLogger("mlflow").setLevel(logging.WARNING)  # how it makes its tables is nobody's news
        note = folder / "mlflow.json"
        self.client = MlflowClient(tracking_uri=_mlflow_address())
        if note.is_file():
            self.run = json.loads(note.read_text(encoding="utf-8"))["run"]
            self.client.update_run(self.run, status="RUNNING")
            return
        found = self.client.get_experiment_by_name("fedclade")
        experiment = found.experiment_id if found is not None else self.client.create_experiment("fedclade")
        self.run = self.client.create_run(experiment, run_name=folder.name).info.run_id
        write_json(note, {"run": self.run})
        for name, value in settings.items():
            self.client.log_param(self.run, name, value)

    def log(self, round: int, metrics: Mapping[str, float | None]) -> None:
        for name, value in metrics.items():
            if value is not None:
                self.client.log_metric(self.run, name, value, step=round)

    def close(self, ended: bool) -> None:
        self.client.set_terminated(self.run, status="FINISHED" if ended else "KILLED")


class WandB:
    """A run of the project `fedclade` in Weights & Biases, on the disk unless WANDB_MODE says otherwise.

    `wandb sync RUN/wandb/offline-run-...` sends it to the service later, where the parts of a resumed run are one.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], heard: int, names: Sequence[str]) -> None:
        try:
            import wandb
        except ImportError:
            raise _not_installed("wandb") from None
        note = folder / "wandb.json"
        known = json.loads(note.read_text(encoding="utf-8"))["run"] if note.is_file() else None
        self.run = wandb.init(
            project="fedclade", name=folder.name, id=known, resume="allow" if known else None, dir=str(folder),
            config=dict(settings), mode=os.environ.get("WANDB_MODE", "offline"),
            settings=wandb.Settings(silent=True, console="off"),
        )  # fmt: skip
        write_json(note, {"run": self.run.id})

    def log(self, round: int, metrics: Mapping[str, float | None]) -> None:
        self.run.log({name: value for name, value in metrics.items() if value is not None}, step=round)

    def close(self, ended: bool) -> None:
        self.run.finish(exit_code=0 if ended else 1)


TRACKERS: dict[str, Callable[[Path, Mapping[str, Any], int, Sequence[str]], Tracker]] = {
    "csv": CSV,
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WandB,
}


def _mlflow_address() -> str:
    """Where the user says; else MLflow's own default, or plain files where the small edition cannot open a database."""
    if address := os.environ.get("MLFLOW_TRACKING_URI"):
        return address
    if find_spec("sqlalchemy") is not None:
        return "sqlite:///mlflow.db"
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    return Path("mlruns").resolve().as_uri()


def _not_installed(name: str) -> FedcladeError:
    return FedcladeError(f"track = {name!r} needs a package: install it with `pip install 'fedclade[{name}]'`")


def named_trackers(track: str | Sequence[str] | None) -> tuple[str, ...]:
    """The trackers that were asked for, after making sure that they can be had."""
    names = (track,) if isinstance(track, str) else tuple(track or ())
    for name in names:
        if name not in TRACKERS:
            raise unknown("tracker", name, TRACKERS)
        package = {"tensorboard": "tensorboard", "mlflow": "mlflow", "wandb": "wandb"}.get(name)
        if package is not None and find_spec(package) is None:
            raise _not_installed(name)
    return names


@contextmanager
def tracking(
    names: Sequence[str], folder: RunFolder, settings: Settings, on_round: Callable[[Progress], None]
) -> Iterator[Callable[[Progress], None]]:
    """What a run calls after each round: it tells the trackers, then `on_round`."""
    note = folder.path / HEARD
    heard: dict[str, int] = json.loads(note.read_text(encoding="utf-8")) if note.is_file() else {}
    with ExitStack() as stack:
        trackers: dict[str, Tracker] = {}
        for name in names:
            plain, told = flat(settings.model_dump(mode="json")), names_of(Result(folder).metric.name)
            tracker = TRACKERS[name](folder.path, plain, heard.get(name, -1), told)
            stack.push(partial(_closed, tracker))
            trackers[name] = tracker

        def tell(round: int, metrics: Mapping[str, float | None]) -> None:
            for name, tracker in trackers.items():
                if round > heard.get(name, -1):
                    tracker.log(round, metrics)
                    heard[name] = round
            if trackers:
                write_json(note, heard)

        def hear(progress: Progress) -> None:
            tell(progress.round, told_of(progress))
            on_round(progress)

        for round, metrics in earlier_rounds(Result(folder)).items() if names else ():
            tell(round, metrics)
        yield hear


def _closed(tracker: Tracker, kind: type[BaseException] | None, *about: object) -> None:
    tracker.close(ended=kind is None)


def earlier_rounds(result: Result) -> dict[int, dict[str, float | None]]:
    """The metrics of rounds that have ended, from the run folder; how long they took is not known any more."""
    table = result.traffic.add_prefix("bytes/")
    table["clusters"] = result.history.groupby("round")["cluster"].nunique()
    table["failures"] = result.failures.groupby("round").size().reindex(table.index, fill_value=0)
    for column in result.models:
        table = table.join(result.by_round(column)[["mean", "worst"]].add_prefix(f"{column}/"))
    known = table.reindex(columns=names_of(result.metric.name)).astype(object)
    return known.where(known.notna(), None).to_dict("index")  # type: ignore[return-value]
