"""The runs that a page is about: what tells them apart, and which of them can be compared."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from fedclade.experiments import CONDITIONS, differences, experiments
from fedclade.methods import METHODS
from fedclade.result import Result, readable
from fedclade.settings import flat, settings_from

BESIDE_THE_POINT = {"seed", "workers", "data_dir", "timeout", "engine", "method.name", *CONDITIONS}


def read_runs(paths: Iterable[Path | str]) -> list[Result]:
    """The runs in these folders, of a study all of them; their labels tell their methods apart."""
    runs = [_read(folder) for path in paths for folder in run_folders(Path(path))]
    for mine in experiments(runs).values():
        for method in {run.method for run in mine}:
            _label([run for run in mine if run.method == method])
    return runs


def _read(folder: Path) -> Result:
    """All of a run at once, so that a page does not show two states of one that is under way."""
    run = Result.open(folder)
    with readable(folder):
        _ = run.clusters, run.traffic, run.records
    return run


def run_folders(path: Path) -> list[Path]:
    if (path / "settings.json").exists():
        return [path]
    of_study = sorted(found.parent for found in path.glob("*/seed-*/settings.json"))
    return of_study or [path]


def defaults_of(method: str) -> dict[str, Any]:
    """The settings of a run in which nothing but the method was chosen; none for a method that is not at hand."""
    return settings_from({"method": method}).model_dump(mode="json") if method in METHODS else {}


def _label(runs: Sequence[Result]) -> None:
    """The runs of one method are told apart by the settings in which they differ, as far as these were chosen."""
    usual = flat(defaults_of(runs[0].method))
    facts = [
        {
            name.rpartition(".")[2]: str(value)
            for name, value in flat(run.settings).items()
            if name not in BESIDE_THE_POINT and (name not in usual or value != usual[name])
        }
        for run in runs
    ]
    differing = differences(facts)
    for run, mine in zip(runs, facts, strict=True):
        run.label = ", ".join([run.method, *(f"{name}={mine[name]}" for name in sorted(differing) if name in mine)])


def for_each_experiment(runs: Sequence[Result], words: Callable[[Sequence[Result]], str]) -> str:
    """What is said of runs that can be compared, said of each experiment."""
    parts = experiments(runs)
    return " ".join(f"For {name}: {words(mine)}" if name else words(mine) for name, mine in parts.items())


def names_of(runs: Sequence[Result]) -> list[str]:
    """What each run is called where there are several."""
    where = {id(run): name for name, mine in experiments(runs).items() for run in mine}
    return [", ".join(word for word in (run.label, where[id(run)], f"seed {run.seed}") if word) for run in runs]
