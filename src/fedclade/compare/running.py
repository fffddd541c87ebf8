"""The runs of a study, as many at a time as there are workers, each in a process of its own.

Cells that are finished are not run again, cells that were stopped are resumed, and a cell that fails is named while the
rest goes on.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from fedclade.compare.outcomes import Comparison
from fedclade.compare.study import PlannedRun, Study
from fedclade.engines.worker import end_when_parent_does
from fedclade.errors import FedcladeError
from fedclade.files import write_json


def compare(
    study: Study,
    out: Path | str,
    *,
    workers: int | None = None,
    on_run: Callable[[PlannedRun, str | None], None] = lambda run, failure: None,
    is_known: Callable[[PlannedRun], bool] = lambda run: False,
) -> Comparison:
    """Run what is missing of a study and not known; `on_run` hears of each run that ends, and why it failed."""
    from fedclade.settings import cores

    comparison = Comparison(study, Path(out))
    for run in study.runs(comparison.out):
        run.check()
    check_data(study.runs(comparison.out))
    write_json(comparison.out / "study.json", study.model_dump(mode="json"))
    missing = [run for run in study.runs(comparison.out) if not run.folder.is_finished and not is_known(run)]
    for run, failure in run_all(missing, workers or cores()):
        if failure is not None:
            comparison.failures[run.label, run.seed] = failure
        on_run(run, failure)
    return comparison


def check_data(runs: Iterable[PlannedRun]) -> None:
    """Refuse to take runs for these that were made with other rows: a person's files may have changed since."""
    from fedclade.assembly import make_federation
    from fedclade.data import fingerprint
    from fedclade.settings import settings_from

    now: dict[str, str] = {}
    for run in runs:
        settings = settings_from(run.settings)
        is_own = settings.data.startswith(("folder:", "table:"))
        if not is_own or settings.engine == "flower" or not (run.path / "settings.json").is_file():
            continue
        told = settings.model_dump_json(include={"data", "split", "clients", "rows", "test_view", "seed", "data_dir"})
        rows = f"{told}{settings.reading.model_dump_json()}"
        if rows not in now:
            now[rows] = fingerprint(make_federation(settings))
        if run.folder.settings["fingerprint"] != now[rows]:
            raise FedcladeError(
                f"{run.path} was made with other rows than {settings.data} holds now: delete it, or choose another "
                "--out"
            )


def run_all(runs: Sequence[PlannedRun], workers: int) -> Iterable[tuple[PlannedRun, str | None]]:
    """Each run as it ends, with the reason where it failed. A process that dies takes only its own runs with it."""
    waiting = list(runs)
    while waiting:
        # A study that is killed must not leave runs behind that hold their folders.
        pool = ProcessPoolExecutor(
            min(workers, len(waiting)), mp_context=get_context("spawn"), initializer=end_when_parent_does
        )
        under_way: dict[Future[str | None], PlannedRun] = {}
        try:
            while waiting or under_way:
                while waiting and len(under_way) < workers:
                    run = waiting.pop(0)
                    under_way[pool.submit(run_cell, dict(run.settings), str(run.path))] = run
                done, _ = wait(under_way, return_when=FIRST_COMPLETED)
                for future in done:
                    yield under_way.pop(future), future.result()
        except BrokenProcessPool:
            for run in under_way.values():
                yield run, "its process died"
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def run_cell(settings: dict[str, Any], path: str) -> str | None:
    """One run, in one process; returns why it failed."""
    from fedclade import api

    try:
        if (Path(path) / "settings.json").is_file():
            api.resume(path, workers=1)
        else:
            api.run(**{**settings, "workers": 1}, out=path)
    except FedcladeError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None
