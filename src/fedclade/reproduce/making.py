"""From the name of an item to its page: run what is missing, read what is finished.

Every run is an ordinary run folder, named by its method and a hash of its settings. So items share runs, what is
finished is not run again, and what was stopped goes on.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedclade.compare.running import run_all, run_cell
from fedclade.compare.study import PlannedRun
from fedclade.errors import FedcladeError, unknown
from fedclade.reproduce.catalogue import item_named
from fedclade.reproduce.finished import Finished
from fedclade.reproduce.item import Cells, Item, Paper, Planned
from fedclade.reproduce.kinds import Counts
from fedclade.reproduce.page import Page, can_draw
from fedclade.reproduce.scale import SCALES, differences, whole
from fedclade.settings import cores


@dataclass(frozen=True)
class Listener:
    """Who wants to hear how it goes."""

    plan: Callable[[int, int], None] = lambda runs, done: None  # how many runs there are, how many of them are done
    run: Callable[[PlannedRun, str | None], None] = lambda run, failure: None  # each that ends, and why it failed


def reproduce(
    name: str,
    scale: str = "small",
    out: Path | str = "runs/reproduce",
    *,
    data_dir: Path | str | None = None,
    workers: int | None = None,
    listener: Listener | None = None,
) -> Page:
    """Make a table or figure of a paper. Its page is also written to `out`, in a folder of its name and scale."""
    paper, item = item_named(name)
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    if item.why_not:
        raise FedcladeError(f"{name} cannot be made: {item.why_not}")
    where = None if data_dir is None else str(data_dir)
    planned, left_out = item.planned(paper.settings, paper.scales[scale], scale)
    failures: dict[str, str] = {}
    cells: Cells = {}
    if isinstance(item, Counts):
        lines = item.count(scale, where)
    else:
        seeds = paper.scales[scale].seeds
        runs = [[_planned_run(cell, seed, Path(out) / "runs", where) for seed in seeds] for cell in planned]
        failures = _run_missing([run for many in runs for run in many], workers or cores(), listener or Listener())
        cells = {
            (cell.row, cell.column): (cell, [_opened(run, where) for run in many])
            for cell, many in zip(planned, runs, strict=True)
            if all(run.folder.is_finished for run in many)
        }
        if not cells:
            raise FedcladeError(f"{name}: not one run ended: {next(iter(failures.values()), 'nothing to run')}")
        lines = item.lines(cells)
    page = Page(
        name=name,
        title=title_of(paper, item),
        citation=paper.citation,
        scale=scale,
        seeds=paper.scales[scale].seeds if cells else (),
        headings=item.headings,
        digits=item.digits(lines),
        lines=lines,
        notes=_notes(paper, item, planned, left_out, failures),
        draw=item.drawing(cells),
        series=item.series(cells),
        failures=len(failures),
    )
    page.write(page_folder(out, name, scale))
    return page


def page_folder(out: Path | str, name: str, scale: str) -> Path:
    """Where an item's page goes."""
    return Path(out) / name.replace("/", "-") / scale


def title_of(paper: Paper, item: Item) -> str:
    number = item.name.removeprefix("table").removeprefix("fig")
    return f"{paper.title}, {'Table' if item.kind == 'table' else 'Figure'} {number}: {item.title}"


def _planned_run(cell: Planned, seed: int, folder: Path, data_dir: str | None) -> PlannedRun:
    settings = {**cell.settings, "seed": seed, **({"data_dir": data_dir} if data_dir else {})}
    label = ", ".join(word for word in (cell.row, cell.column) if word)
    return PlannedRun(label, seed, settings, folder / run_name(settings) / f"seed-{seed}")


def _opened(run: PlannedRun, data_dir: str | None) -> Finished:
    finished = Finished.open(run.path)
    finished.data_dir = data_dir
    return finished


def run_name(settings: dict[str, Any]) -> str:
    """The method and a hash of all that makes up a run."""
    known = whole(settings)
    digest = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()
    return f"{known['method']['name'].rpartition(':')[2].lower()}-{digest[:12]}"


def _run_missing(runs: Sequence[PlannedRun], workers: int, listener: Listener) -> dict[str, str]:
    """Run what is not finished; returns why some failed, by label and seed."""
    different = {run.path: run for run in runs}  # rows may stand for one and the same run
    missing = [run for run in different.values() if not run.folder.is_finished]
    listener.plan(len(different), len(different) - len(missing))
    failures = {}
    for run, failure in _all(missing, workers):
        if failure is not None:
            failures[f"{run.label}, seed {run.seed}"] = failure
        listener.run(run, failure)
    return failures


def _all(runs: Sequence[PlannedRun], workers: int) -> Iterable[tuple[PlannedRun, str | None]]:
    """Each run as it ends. One at a time needs no process of its own, which takes seconds to start."""
    if workers > 1 and len(runs) > 1:
        yield from run_all(runs, workers)
        return
    for run in runs:
        yield run, run_cell(dict(run.settings), str(run.path))


def _notes(
    paper: Paper, item: Item, planned: Sequence[Planned], left_out: Sequence[str], failures: Iterable[str]
) -> list[str]:
    notes = [f"The paper: {item.says}."] if item.says else []
    notes += [*item.notes, *(paper.notes if planned else ())]
    differing = differences((cell.papers, cell.settings) for cell in planned)
    if differing:
        notes.append(f"Cut at this scale: {'; '.join(differing)}.")
    if planned and not all(cell.same_data for cell in planned):
        notes.append("Other data than the paper's at this scale, so there is no difference to its numbers to show.")
    if left_out:
        notes.append(f"Left out at this scale: {'; '.join(left_out)}.")
    notes += [f"Missing, for its run failed: {label}." for label in failures]  # why has been said: it may name paths
    if item.kind == "figure" and not can_draw():
        notes.append("No picture: it needs matplotlib, `pip install 'fedclade[pictures]'`.")
    return notes
