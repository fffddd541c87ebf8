"""Every method on every setting: who is best where, and over all.

A setting is a study (`fedclade.compare`): each of its runs is an ordinary run, and what has been run is not run again.
The methods of a setting are ranked by the accuracy of what serves each client, each seed for itself; mean ranks over
all settings that differ by less than the critical difference are not told apart (Nemenyi's test; Demsar, "Statistical
Comparisons of Classifiers over Multiple Data Sets", JMLR 2006).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedclade.compare import Comparison, PlannedRun, Study, compare
from fedclade.data.sources import sources
from fedclade.errors import FedcladeError, unknown
from fedclade.methods import METHODS
from fedclade.result import Result
from fedclade.settings import merged

if TYPE_CHECKING:
    import pandas as pd

LEFT_OUT = ("centralized", "random")  # no federated method; no method at all


def plan() -> dict[str, Any]:
    """What there is to run."""
    import tomllib

    return tomllib.loads((files("fedclade.benchmark") / "benchmark.toml").read_text(encoding="utf-8"))


def studies(
    only: Sequence[str] = (), methods: Sequence[str] = (), seeds: int | None = None, data_dir: str | None = None
) -> dict[str, Study]:
    """The chosen settings (all), each with the chosen methods (all) and so many seeds."""
    told = plan()
    for name in only:
        if name not in told["settings"]:
            raise unknown("setting", name, told["settings"])
    cells = {name: {"method": name} for name in METHODS if name not in LEFT_OUT} | told["served"]
    for name in methods:
        if name not in cells:
            raise unknown("method", name, cells)
    chosen = [{"label": name, **cells[name]} for name in (methods or cells)]
    return {
        name: Study.of(
            {
                "title": name,
                "seeds": tuple(range(seeds)) if seeds else tuple(told["seeds"]),
                "settings": _settings(told["shared"], own, data_dir),
                "cells": chosen,
            }
        )
        for name, own in told["settings"].items()
        if not only or name in only
    }


def _settings(shared: Mapping[str, Any], own: Mapping[str, Any], data_dir: str | None) -> dict[str, Any]:
    """What a setting says beats what all share; "default" and "all" stand for what fedclade itself takes."""
    usual = {name for name, value in own.items() if value in ("default", "all")}
    kept = {name: value for name, value in own.items() if name not in usual}
    both = merged({name: value for name, value in shared.items() if name not in usual}, kept)
    return {**both, "workers": 1} | ({"data_dir": data_dir} if data_dir else {})


def is_there(study: Study, data_dir: str | None) -> bool:
    """Whether the data of a setting lie on this machine, or can be made."""
    from fedclade.data import federation_of

    settings = study.settings
    if settings["data"] not in sources():
        return False
    try:
        federation_of(settings["data"], split="iid", clients=2, seed=0, data_dir=data_dir)
    except FedcladeError:
        return False
    return True


@dataclass(frozen=True)
class Benchmark:
    """The runs of some settings in a folder."""

    studies: Mapping[str, Study]
    out: Path
    known: Mapping[tuple[str, str, int], Mapping[str, Any]] = field(default_factory=dict)  # by setting, run and seed

    def runs(self) -> list[PlannedRun]:
        every = [(name, run) for name, study in self.studies.items() for run in study.runs(self.out / name)]
        return [run for name, run in every if not self.is_known(name, run)]

    def go(self, workers: int | None = None, on_run: Callable[..., None] | None = None) -> dict[str, Comparison]:
        """Run what is missing, setting by setting."""
        done = {}
        for name, study in self.studies.items():
            more: dict[str, Any] = {"on_run": on_run} if on_run else {}
            done[name] = compare(study, self.out / name, workers=workers, is_known=partial(self.is_known, name), **more)
        return done

    def is_known(self, setting: str, run: PlannedRun) -> bool:
        """From runs that were made before, here or elsewhere."""
        return bool(self.known) and (setting, run.mark, run.seed) in self.known

    def table(self) -> "pd.DataFrame":
        """A row for each run that has ended."""
        import pandas as pd

        rows = []
        for name, study in self.studies.items():
            for run in study.runs(self.out / name):
                words = {"setting": name, "method": run.label, "seed": run.seed}
                if run.folder.is_finished:
                    rows.append({**words, **outcome(Result(run.folder)), "run": run.mark})
                elif self.is_known(name, run):
                    rows.append({**self.known[name, run.mark, run.seed], **words})
        if not rows:
            raise FedcladeError(f"no run of the benchmark in {self.out} has ended yet")
        return pd.DataFrame(rows)

    def everything(self) -> "pd.DataFrame":
        """The same, and what is known beyond what was asked for: a table may grow over days and machines."""
        import pandas as pd

        table = self.table()
        here = set(table[["setting", "run", "seed"]].itertuples(index=False, name=None))
        return pd.concat([table, pd.DataFrame([row for key, row in self.known.items() if key not in here])])


def read_known(path: Path) -> dict[tuple[str, str, int], dict[str, Any]]:
    """The rows of a table that a benchmark wrote, by setting, run and seed."""
    import pandas as pd

    try:
        rows = pd.read_csv(path).to_dict("records")
        named = [{str(name): value for name, value in row.items()} for row in rows]
        return {(str(row["setting"]), str(row["run"]), int(row["seed"])): row for row in named}
    except OSError as error:
        raise FedcladeError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError):
        raise FedcladeError(f"{path} is no table of a benchmark: it needs columns setting, run and seed") from None


def outcome(result: Result) -> dict[str, Any]:
    accuracy = np.sort(np.array(list(result.last("accuracy")), float))
    return {
        "accuracy": float(accuracy.mean()),
        "worst tenth": float(accuracy[: max(len(accuracy) // 10, 1)].mean()),
        "up MB": float(result.traffic["up"].iloc[-1]) / 1e6,
        "clusters": len(result.clusters),
        "ARI": result.agreement["ari"],
        "seconds": result.cpu_seconds,
    }


def mean_ranks(table: "pd.DataFrame", column: str = "accuracy") -> "tuple[pd.Series, float]":
    """Of each method that ran everywhere, over settings and seeds; and by how much they must differ (at 5 %)."""
    from scipy.stats import studentized_range

    wide = table.pivot_table(index=["setting", "seed"], columns="method", values=column)
    wide = wide.dropna(axis=1)
    ranks = wide.rank(axis=1, ascending=False).mean().sort_values()
    k, n = wide.shape[1], len(wide.groupby(level=0))  # seeds of a setting are no independent data sets
    least = (
        float(studentized_range.ppf(0.95, k, np.inf) / np.sqrt(2) * np.sqrt(k * (k + 1) / (6 * n))) if k > 1 else 0.0
    )
    return ranks, least


__all__ = ["Benchmark", "mean_ranks", "outcome", "plan", "studies"]
