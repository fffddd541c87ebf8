"""Run folders as plain tables and dicts, whether the run has ended, is under way or was stopped."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedclade.errors import FedcladeError
from fedclade.events import hidden_groups
from fedclade.runs.folder import UNCOUNTED, RunFolder

if TYPE_CHECKING:
    import pandas as pd

State = Literal["ended", "running", "stopped"]


@dataclass(frozen=True, eq=False)
class Run:
    """All that a report says of a run."""

    path: Path
    record: Mapping[str, Any]  # settings.json
    state: State
    round: int  # the last that has ended; -1 before the first
    history: "pd.DataFrame"
    ledger: "pd.DataFrame"
    tree: Sequence[Mapping[str, Any]]  # the splits
    records: Mapping[tuple[int, str], Any]
    groups: Mapping[str, int] | None  # the hidden ones
    seconds: float
    label: str = ""  # what tells its method from the other runs' methods

    @property
    def settings(self) -> Mapping[str, Any]:
        return self.record["settings"]

    @property
    def method(self) -> str:
        return _method(self.record)

    @property
    def seed(self) -> int:
        return int(self.settings["seed"])

    @property
    def rounds(self) -> int:
        return int(self.settings["rounds"])

    @cached_property
    def clients(self) -> list[str]:
        """Who is there after the last round, cluster by cluster."""
        return [client for part in self.members.values() for client in part]

    @cached_property
    def members(self) -> dict[int, list[str]]:
        """Who is in which cluster after the last round."""
        last = self.history[self.history["round"] == self.round]
        return {int(str(cluster)): list(part) for cluster, part in last.groupby("cluster")["client"]}

    @cached_property
    def cluster_of(self) -> dict[str, int]:
        return {client: cluster for cluster, part in self.members.items() for client in part}

    @cached_property
    def place_of(self) -> dict[int, int]:
        """Clusters counted from 0, whatever their numbers: it gives each its colour."""
        return {cluster: place for place, cluster in enumerate(self.members)}

    def measured(self, column: str) -> "pd.DataFrame":
        """Clients by rounds (rows by columns), those rounds in which the column was measured."""
        seen = self.history.dropna(subset=[column])
        return seen.pivot(index="client", columns="round", values=column)

    def last(self, column: str) -> "pd.Series":
        """The last value that was measured of each client that is still there."""
        seen = self.history[self.history["client"].isin(self.clients)].dropna(subset=[column])
        return seen.groupby("client")[column].last()

    @cached_property
    def partitions(self) -> dict[int, dict[str, int]]:
        """Who was in which cluster, for the first round and each in which that changed."""
        parts: dict[int, dict[str, int]] = {}
        before: dict[str, int] = {}
        for number, rows in self.history.groupby("round"):
            now = dict(zip(rows["client"], rows["cluster"].astype(int), strict=True))
            if now != before:
                parts[int(str(number))] = before = now
        return parts

    @cached_property
    def traffic(self) -> "pd.DataFrame":
        """Bytes sent until the end of each round, by direction."""
        import pandas as pd

        rounds = pd.RangeIndex(self.round + 1, name="round")
        if self.ledger.empty:
            return pd.DataFrame(0, rounds, ["up", "down"])
        counted = self.ledger[~self.ledger["phase"].isin(UNCOUNTED)]
        sums = counted.pivot_table(index="round", columns="direction", values="bytes", aggfunc="sum")
        return sums.reindex(index=rounds, columns=["up", "down"]).fillna(0).cumsum()

    @cached_property
    def label_counts(self) -> dict[str, np.ndarray] | None:
        """How many training rows of each label a client began with, where the run says so."""
        counts = self.record.get("label_counts")
        if counts is None:
            return None
        return {name: np.asarray(row) for name, row in zip(self.record["clients"], counts, strict=True)}

    def kept(self, name: str) -> dict[int, Any]:
        """The method's records of one name, by round."""
        return {number: record for (number, what), record in self.records.items() if what == name}


def read_run(path: Path | str) -> Run:
    folder = RunFolder.open(path)
    try:
        return _read(folder)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FedcladeError(f"{folder.path}: the files of this run are damaged ({error!r}); run it again") from error


def _read(folder: RunFolder) -> Run:
    record = folder.settings
    if folder.is_finished:
        state: State = "ended"
        result = folder.read_json("result.json")
        number, seconds, tree = int(result["rounds"]), result["seconds"], folder.read_json("clusters.json")["tree"]
    else:
        state = "running" if folder.is_running else "stopped"
        saved = folder.last_checkpoint(arrays=False)
        number, seconds, tree = (saved[0], saved[1]["seconds"], saved[1]["tree"]) if saved else (-1, 0.0, [])
    if number < 0:  # what its first round has left so far does not count yet
        import pandas as pd

        return Run(folder.path, record, state, -1, pd.DataFrame(), pd.DataFrame(), [], {}, None, 0.0, _method(record))
    history, ledger = folder.table("history"), folder.table("ledger")
    if history.empty:
        raise FedcladeError(f"{folder.path} has no history: its files are damaged or were taken away; run it again")
    return Run(
        path=folder.path,
        record=record,
        state=state,
        round=number,
        history=history[history["round"] <= number],
        ledger=ledger[ledger["round"] <= number] if len(ledger) else ledger,
        tree=tree,
        records={key: value for key, value in folder.records().items() if key[0] <= number},
        groups=hidden_groups(record, number),
        seconds=float(seconds),
        label=_method(record),
    )


def _method(record: Mapping[str, Any]) -> str:
    return str(record["settings"]["method"]["name"])


def read_runs(paths: Iterable[Path | str]) -> list[Run]:
    """The runs in these folders; of a study, all of them. Their labels say in which settings their methods differ."""
    runs = [read_run(folder) for path in paths for folder in run_folders(Path(path))]
    return labelled(runs)


def run_folders(path: Path) -> list[Path]:
    if (path / "settings.json").exists():
        return [path]
    of_study = sorted(found.parent for found in path.glob("*/seed-*/settings.json"))
    return of_study or [path]


def labelled(runs: Sequence[Run]) -> list[Run]:
    """With labels that name the method and, where that does not tell runs apart, the settings that differ."""
    same_method = Counter(run.method for run in runs)
    facts = [_facts(run) for run in runs]
    labels = []
    for run, mine in zip(runs, facts, strict=True):
        rivals = [other for one, other in zip(runs, facts, strict=True) if one.method == run.method]
        differs = sorted(
            {name for name in {*mine, *(n for r in rivals for n in r)} if len({r.get(name) for r in rivals}) > 1}
        )
        words = [f"{name}={mine[name]}" for name in differs if name in mine]
        labels.append(", ".join([run.method, *words]) if same_method[run.method] > 1 else run.method)
    return [replace(run, label=label) for run, label in zip(runs, labels, strict=True)]


def _facts(run: Run) -> dict[str, str]:
    """The settings that make a run another kind of run; seeds and workers do not."""
    beside_the_point = {"seed", "workers", "data_dir", "method", "training", "timeout", "engine"}
    facts = {name: str(value) for name, value in run.settings.items() if name not in beside_the_point}
    facts["split"] = str(run.record["split"])
    facts |= {name: str(value) for name, value in run.settings["method"].items() if name != "name"}
    return facts | {name: str(value) for name, value in (run.settings.get("training") or {}).items()}
