"""From the name of an item to its page: run what is missing, read what is finished.

Every run is an ordinary run folder, named by its method and a hash of its settings. So items share runs, what is
finished is not run again, and what was stopped goes on.
"""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedclade.compare.running import run_all, run_cell
from fedclade.compare.study import PlannedRun, mark_of
from fedclade.errors import FedcladeError, unknown
from fedclade.reproduce.catalogue import item_named
from fedclade.reproduce.finished import Finished
from fedclade.reproduce.item import Cells, Item, Paper, Planned
from fedclade.reproduce.kinds import Counts, Grid, Measured
from fedclade.reproduce.page import Page, can_draw, machine
from fedclade.reproduce.scale import SCALES, Cut, differences, settings_table
from fedclade.settings import cores

EVERYTHING = Cut()


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
    cut: Cut = EVERYTHING,
    known: Path | str | None = None,
    only_finished: bool = False,
    publish: Path | str | None = None,
    data_dir: Path | str | None = None,
    workers: int | None = None,
    listener: Listener | None = None,
) -> Page:
    """Make a table or figure of a paper. Its page is also written to `out`, in a folder of its name and scale.

    `cut` takes some of it only. `known` is the runs.csv of a page that was made before, here or elsewhere: what it
    holds is not run again. `only_finished` runs nothing: the page shows what there is. `publish` is another place for
    the Markdown page, with its figure and the table of its runs beside it.
    """
    paper, item = item_named(name)
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    if item.why_not:
        raise FedcladeError(f"{name} cannot be made: {item.why_not}")
    if known is not None and not isinstance(item, Grid):
        raise FedcladeError(f"{name} is no table of numbers: only those can be gone on with from a file")
    where = None if data_dir is None else str(data_dir)
    everything, left_out = item.planned(paper.settings, paper.scales[scale], scale)
    cut.check((cell.row for cell in everything), (cell.column for cell in everything))
    everything = [replace(cell, settings=cut.of_rounds(cell.settings)) for cell in everything]
    planned = [cell for cell in everything if cut.keeps(cell.row, cell.column)]
    failures: dict[str, str] = {}
    cells: Cells = {}
    seeds = paper.scales[scale].seeds[: cut.seeds]
    records: list[Record] = []
    seconds, there = 0.0, set[tuple[str, str]]()
    not_run: list[str] = []
    fewer: list[str] = []
    if isinstance(item, Counts):
        lines, draw = item.count(scale, where), None
    else:
        told = read_known(known) if known is not None else {}

        def runs_of(cells: Iterable[Planned], seeds: Sequence[int]) -> Runs:
            folder = Path(out) / "runs"
            return {(c.row, c.column): [_planned_run(c, seed, folder, where) for seed in seeds] for c in cells}

        runs = runs_of(planned, seeds)
        every = [run for many in runs.values() for run in many]
        for run in every:
            run.check()
        if not only_finished:
            unknown_yet = [run for run in every if (run.path.parent.name, run.seed) not in told]
            failures = _run_missing(unknown_yet, workers or cores(), listener or Listener())
        cells = {
            (cell.row, cell.column): (cell, done)
            for cell in planned
            if (done := [_opened(r, where) for r in runs[cell.row, cell.column] if r.folder.is_finished])
        }
        if isinstance(item, Grid):
            shown = _records(item, runs, cells, told)
            lines, draw = item.table(planned, _measured(item, shown)), None
            not_run = _not_run(planned, shown) if only_finished else []
            fewer = _fewer_seeds(shown)
            seconds = sum(record.get("CPU seconds") or 0 for record in shown)
            there = {(record["row"], record["column"]) for record in shown}
            seeds = tuple(seed for seed in seeds if seed in {record["seed"] for record in shown})
            # The file goes on knowing what it knew of rows, columns and seeds that were not asked for.
            records = _records(item, runs_of(everything, paper.scales[scale].seeds), cells, told) if told else shown
        else:
            lines, draw = item.lines(cells), item.drawing(cells)
            seconds = sum(run.cpu_seconds for _, done in cells.values() for run in done)
            there = set(cells)
        if not lines:
            raise FedcladeError(f"{name}: not one run ended: {next(iter(failures.values()), 'nothing has been run')}")
    page = Page(
        name=name,
        title=title_of(paper, item),
        citation=paper.citation,
        scale=scale,
        seeds=seeds if planned else (),
        headings=item.headings,
        digits=item.digits(lines),
        lines=lines,
        notes=_notes(paper, item, planned, left_out, failures, _left_by(cut, everything), not_run, fewer),
        draw=draw,
        series=item.series(cells),
        runs=records,
        settings=settings_table({key: cell.settings for cell in planned if (key := (cell.row, cell.column)) in there}),
        seconds=seconds,
        asked=_asked(cut),
        failures=len(failures),
    )
    page.write(page_folder(out, name, scale))
    if publish is not None:
        page.publish(Path(publish))
    return page


# What was read from runs, kept in a file, so that a table can grow over days and machines.

Record = dict[str, Any]  # row, column, seed, run, measures by name, CPU seconds, machine
Runs = Mapping[tuple[str, str], Sequence[PlannedRun]]  # by row and column, one for each seed


def _records(item: Grid, runs: Runs, cells: Cells, told: Mapping[Any, Record]) -> list[Record]:
    """A record of every run that is finished or known, in the table's order."""
    here = item.measured(cells)
    seconds = {(*key, run.seed): run.cpu_seconds for key, (_, done) in cells.items() for run in done}
    records = []
    for key, many in runs.items():
        for run in many:
            place, mark = (*key, run.seed), (run.path.parent.name, run.seed)
            words = {"row": key[0], "column": key[1], "seed": run.seed, "run": mark[0]}
            if place in here:
                more = {"CPU seconds": round(seconds[place]), "machine": machine()}
                records.append({**words, **here[place], **more})
            elif mark in told:
                records.append({**told[mark], **words})
    return records


def _measured(item: Grid, records: Iterable[Record]) -> Measured:
    names = [measure.name for measure in item.measures]
    return {(r["row"], r["column"], r["seed"]): {name: r.get(name) for name in names} for r in records}


def read_known(path: Path | str) -> dict[tuple[str, int], Record]:
    """The records of a runs.csv, by run and seed."""
    import pandas as pd

    try:
        table = pd.read_csv(path, keep_default_na=False, na_values=[""])
        rows = table.astype(object).where(table.notna(), None).to_dict("records")
        return {(str(row["run"]), int(row["seed"])): {str(name): value for name, value in row.items()} for row in rows}
    except OSError as error:
        raise FedcladeError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError):
        raise FedcladeError(f"{path} is no runs.csv of a table: it needs columns run and seed") from None


def page_folder(out: Path | str, name: str, scale: str) -> Path:
    """Where an item's page goes."""
    return Path(out) / name.replace("/", "-") / scale


def title_of(paper: Paper, item: Item) -> str:
    number = item.name.removeprefix("table").removeprefix("fig")
    return f"{paper.title}, {'Table' if item.kind == 'table' else 'Figure'} {number}: {item.title}"


def _planned_run(cell: Planned, seed: int, folder: Path, data_dir: str | None) -> PlannedRun:
    settings = {**cell.settings, "seed": seed, **({"data_dir": data_dir} if data_dir else {})}
    label = ", ".join(word for word in (cell.row, cell.column) if word)
    return PlannedRun(label, seed, settings, folder / mark_of(settings) / f"seed-{seed}")


def _opened(run: PlannedRun, data_dir: str | None) -> Finished:
    finished = Finished.open(run.path)
    finished.data_dir = data_dir
    return finished


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


def _left_by(cut: Cut, everything: Sequence[Planned]) -> list[str]:
    """What there would be more, as the person asked for some of it only."""
    rows = dict.fromkeys(cell.row for cell in everything if cut.rows and cell.row not in cut.rows)
    columns = dict.fromkeys(cell.column for cell in everything if cut.columns and cell.column not in cut.columns)
    return [f"{kind} {_listed(names)}" for kind, names in (("rows", rows), ("columns", columns)) if names]


def _listed(names: Iterable[str]) -> str:
    """Names of rows and columns, some of which have commas themselves."""
    return ", ".join(f'"{name}"' if "," in name else name for name in names)


def _not_run(planned: Sequence[Planned], records: Sequence[Record]) -> list[str]:
    """The rows of each column of which no run is finished or known."""
    there = {(record["row"], record["column"]) for record in records}
    missing: dict[str, list[str]] = {}
    for cell in planned:
        if (cell.row, cell.column) not in there:
            missing.setdefault(cell.column, []).append(cell.row)
    return [f"{column}: {_listed(rows)}" if column else _listed(rows) for column, rows in missing.items()]


def _fewer_seeds(records: Sequence[Record]) -> list[str]:
    """The rows that lack seeds which others have, in their column or in another, by the seeds that they have."""
    by_column: dict[str, dict[str, list[int]]] = {}
    for record in records:
        by_column.setdefault(record["column"], {}).setdefault(record["row"], []).append(record["seed"])
    most = {record["seed"] for record in records}
    told = []
    for column, seeds_of in by_column.items():
        alike: dict[tuple[int, ...], list[str]] = {}
        for row, seeds in seeds_of.items():
            if set(seeds) != most:
                alike.setdefault(tuple(sorted(seeds)), []).append(row)
        for known, rows in alike.items():
            which = f"seed{'s' if len(known) > 1 else ''} {', '.join(map(str, known))}"
            words = f"{'all rows' if len(rows) == len(seeds_of) else _listed(rows)} ({which})"
            told.append(f"{column}: {words}" if column else words)
    return told


def _asked(cut: Cut) -> str:
    named = {"row": cut.rows, "column": cut.columns, "seeds": (cut.seeds,), "rounds": (cut.rounds,)}
    options = [(name, value) for name, values in named.items() for value in values if value is not None]
    return "".join(f" --{name} {shlex.quote(str(value))}" for name, value in options)


def _notes(
    paper: Paper,
    item: Item,
    planned: Sequence[Planned],
    left_out: Sequence[str],
    failures: Iterable[str],
    not_asked: Sequence[str],
    not_run: Sequence[str],
    fewer_seeds: Sequence[str],
) -> list[str]:
    notes = [f"The paper: {item.says}."] if item.says else []
    notes += [*item.notes, *(paper.notes if planned else ())]
    differing = differences((cell.papers, cell.settings) for cell in planned)
    if differing:
        notes.append(f"Cut at this scale: {'; '.join(differing)}.")
    if planned and not all(cell.same_data for cell in planned):
        notes.append("Other data than the paper's at this scale, so there is no difference to its numbers to show.")
    if not_asked:
        notes.append(f"Not asked for, and so not here: {'; '.join(not_asked)}.")
    if not_run:
        notes.append(f"Not run so far, and so not here: {'; '.join(not_run)}.")
    if fewer_seeds:
        notes.append(
            "Of fewer seeds than others, and so not to be ranked among them: seeds differ by as much as methods may. "
            f"{'; '.join(fewer_seeds)}."
        )
    if left_out:
        notes.append(f"Left out at this scale: {'; '.join(left_out)}.")
    notes += [f"Missing, for its run failed: {label}." for label in failures]  # why has been said: it may name paths
    if item.kind == "figure" and not can_draw():
        notes.append("No picture: it needs matplotlib, `pip install 'fedclade[pictures]'`.")
    return notes
