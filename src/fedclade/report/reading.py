"""The runs that a page is about, with labels that tell them apart."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedclade.result import Result, readable


def read_runs(paths: Iterable[Path | str]) -> list[Result]:
    """The runs in these folders; of a study, all of them. Their labels say in which settings their methods differ."""
    runs = [_read(folder) for path in paths for folder in run_folders(Path(path))]
    label(runs)
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


def label(runs: Sequence[Result]) -> None:
    """Labels name the method and, where that does not tell runs apart, the settings that differ."""
    same_method = Counter(run.method for run in runs)
    facts = [_facts(run) for run in runs]
    for run, mine in zip(runs, facts, strict=True):
        rivals = [other for one, other in zip(runs, facts, strict=True) if one.method == run.method]
        differs = sorted(
            {name for name in {*mine, *(n for r in rivals for n in r)} if len({r.get(name) for r in rivals}) > 1}
        )
        words = [f"{name}={mine[name]}" for name in differs if name in mine]
        run.label = ", ".join([run.method, *words]) if same_method[run.method] > 1 else run.method


def _facts(run: Result) -> dict[str, str]:
    """The settings that make a run another kind of run; seeds and workers do not."""
    beside_the_point = {"seed", "workers", "data_dir", "method", "training", "timeout", "engine"}
    facts = {name: str(value) for name, value in run.settings.items() if name not in beside_the_point}
    facts["split"] = str(run.record["split"])
    facts |= {name: str(value) for name, value in run.settings["method"].items() if name != "name"}
    return facts | {name: str(value) for name, value in (run.settings.get("training") or {}).items()}
