"""Many runs side by side: a study is a grid of settings and seeds, and a table of what came of it.

Every cell of the grid is an ordinary run in a folder of its own. Cells that are finished are not run again, cells that
were stopped are resumed, and a cell that fails is named while the rest goes on.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedclade.engines.worker import end_when_parent_does
from fedclade.errors import FedcladeError
from fedclade.files import write_json
from fedclade.result import Result
from fedclade.runs.folder import RunFolder

if TYPE_CHECKING:
    import pandas as pd


class Cell(BaseModel):
    """One row of the table: a label, and the settings in which it differs from the others."""

    model_config = ConfigDict(frozen=True, extra="allow")

    label: str

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class Study(BaseModel):
    """What is compared with what."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str = "Comparison"
    seeds: tuple[int, ...] = Field(default=(0, 1, 2), min_length=1)
    target: float | None = None  # an accuracy: the table says after how many rounds and bytes it is reached
    settings: dict[str, Any] = Field(default_factory=dict)  # what all cells share
    cells: tuple[Cell, ...] = Field(min_length=1)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Study":
        from fedclade.settings import in_one_line, settings_from

        try:
            study = cls(**values)
        except ValidationError as error:
            raise FedcladeError(in_one_line(error, "study", cls.model_fields)) from None
        labels = [cell.label for cell in study.cells]
        if len(set(labels)) < len(labels):
            raise FedcladeError("study: two cells have the same label: give each its own")
        for cell in study.cells:  # what is wrong must be known before hours of work
            settings_from(study.settings_of(cell))
        return study

    def settings_of(self, cell: Cell) -> dict[str, Any]:
        from fedclade.settings import merged

        return merged(self.settings, cell.settings)

    def runs(self, out: Path) -> "list[PlannedRun]":
        return [
            PlannedRun(
                cell.label,
                seed,
                {**self.settings_of(cell), "seed": seed},
                out / _name(cell.label) / f"seed-{seed}",
            )
            for cell in self.cells
            for seed in self.seeds
        ]


@dataclass(frozen=True)
class PlannedRun:
    label: str
    seed: int
    settings: Mapping[str, Any]
    path: Path

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.path)

    def check(self) -> None:
        """Refuse to take a run for this one that was made with other settings."""
        from fedclade.settings import settings_from

        if not (self.path / "settings.json").is_file():
            return
        made = self.folder.settings["settings"]
        wanted = settings_from(self.settings).model_dump(mode="json", exclude={"workers", "data_dir", "timeout"})
        if wanted["model"] is None:  # the default, whose name is recorded
            wanted["model"] = made["model"]
        for name in wanted.keys() & made.keys():  # older runs may know fewer settings
            if wanted[name] != made[name]:
                raise FedcladeError(
                    f"{self.path} was made with {name} = {made[name]!r}, not {wanted[name]!r}: "
                    "delete it, or choose another --out"
                )


@dataclass
class Comparison:
    """What came of a study so far."""

    study: Study
    out: Path
    failures: dict[tuple[str, int], str] = field(default_factory=dict)

    def results(self) -> "pd.DataFrame":
        """A row for each run that has ended."""
        import pandas as pd

        rows = [outcome_of(run, self.study.target) for run in self.study.runs(self.out) if run.folder.is_finished]
        return pd.DataFrame(rows)

    def table(self) -> "pd.DataFrame":
        """A row for each cell: means over seeds, spreads, and how sure it is that the best is better."""
        import pandas as pd

        results = self.results()
        if results.empty:
            raise FedcladeError(f"no run of the study in {self.out} has ended yet")
        labels = [cell.label for cell in self.study.cells if (results["label"] == cell.label).any()]
        means = results.groupby("label", sort=False)["accuracy"].mean()
        best = str(means.idxmax())
        rows = [summary_row(label, results, best) for label in labels]
        return pd.DataFrame(rows)


def compare(
    study: Study,
    out: Path | str,
    *,
    workers: int | None = None,
    on_run: Callable[[PlannedRun, str | None], None] = lambda run, failure: None,
) -> Comparison:
    """Run what is missing of a study, as many runs at a time as there are workers; `on_run` hears of each."""
    from fedclade.settings import cores

    comparison = Comparison(study, Path(out))
    for run in study.runs(comparison.out):
        run.check()
    write_json(comparison.out / "study.json", study.model_dump(mode="json"))
    missing = [run for run in study.runs(comparison.out) if not run.folder.is_finished]
    for run, failure in run_all(missing, workers or cores()):
        if failure is not None:
            comparison.failures[run.label, run.seed] = failure
        on_run(run, failure)
    return comparison


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


def _name(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9._=-]+", "-", label).strip("-.") or "cell"


# What a run came to


def outcome_of(run: PlannedRun, target: float | None) -> dict[str, Any]:
    """What stands in a run's row."""
    result = Result(run.folder)
    reached = None if target is None else result.first_reaching(target)
    sent = result.traffic / 1e6
    return {
        "label": run.label,
        "seed": run.seed,
        "accuracy": result.accuracy["mean"],
        "std": result.accuracy["std"],
        "worst": result.accuracy["worst"],
        "local": result.accuracy_local["mean"],
        "local_std": result.accuracy_local["std"],
        "local_worst": result.accuracy_local["worst"],
        "clusters": len(result.clusters),
        "ari": result.agreement["ari"],
        "last_change": result.last_change,
        "up": sent["up"].iloc[-1],
        "down": sent["down"].iloc[-1],
        "rounds_to": reached,
        "mb_to": None if reached is None else sent.loc[reached].sum(),
        "failures": len(result.failures),
        "seconds": result.cpu_seconds,  # not by the clock: runs side by side slow each other down
    }


def summary_row(label: str, results: "pd.DataFrame", best: str) -> dict[str, Any]:
    mine = results[results["label"] == label]
    row: dict[str, Any] = {"label": label, "runs": len(mine)}
    for name in (
        "accuracy",
        "std",
        "worst",
        "local",
        "local_std",
        "local_worst",
        "clusters",
        "ari",
        "last_change",
        "up",
        "down",
        "seconds",
    ):
        row[name] = mean_of(mine[name])
    row["accuracy_spread"] = float(np.std(mine["accuracy"].astype(float))) if len(mine) > 1 else 0.0
    for name in ("rounds_to", "mb_to"):  # a mean over seeds of which some never got there would flatter
        row[name] = mean_of(mine[name]) if mine[name].notna().all() else None
    row["p_best"] = None if label == best else paired_p(mine, results[results["label"] == best])
    return row


def mean_of(values: "pd.Series[Any]") -> float | None:
    known = values.dropna()
    return float(known.astype(float).mean()) if len(known) else None


def paired_p(mine: "pd.DataFrame", best: "pd.DataFrame") -> float | None:
    """The two-sided p-value of a paired t-test over seeds: small means that the best is better by more than chance."""
    from scipy.stats import ttest_rel

    pairs = mine.merge(best, on="seed", suffixes=("", "_best"))
    if len(pairs) < 2:
        return None
    p = float(ttest_rel(pairs["accuracy"].astype(float), pairs["accuracy_best"].astype(float)).pvalue)
    return p if math.isfinite(p) else None


# The table in several forms

COLUMNS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "method": ("label", lambda row: row["label"]),
    "accuracy": (
        "server's model: mean over clients ± over seeds",
        lambda row: f"{_percent(row['accuracy'])} ± {100 * row['accuracy_spread']:.1f}",
    ),
    "worst client": ("of the server's model", lambda row: _percent(row["worst"])),
    "std": ("over clients", lambda row: _percent(row["std"])),
    "own model": ("client's own last model", lambda row: _percent(row["local"])),
    "own std": ("over clients", lambda row: _percent(row["local_std"])),
    "own worst": ("of the own models", lambda row: _percent(row["local_worst"])),
    "clusters": ("found", lambda row: _number(row["clusters"])),
    "ARI": ("agreement with the hidden groups", lambda row: _number(row["ari"], 2)),
    "settled": ("last round in which clusters changed", lambda row: _number(row["last_change"])),
    "up MB": ("all clients", lambda row: _number(row["up"])),
    "down MB": ("all clients", lambda row: _number(row["down"])),
    "rounds to target": ("", lambda row: _number(row["rounds_to"])),
    "MB to target": ("", lambda row: _number(row["mb_to"])),
    "p": ("paired over seeds, against the best", lambda row: _number(row["p_best"], 3)),
    "CPU seconds": ("", lambda row: _number(row["seconds"])),
}


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def _number(value: float | None, digits: int = 1) -> str:
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:.{digits}f}".rstrip("0").rstrip(".") if digits == 1 else f"{value:.{digits}f}"


def written(table: "pd.DataFrame", study: Study) -> list[list[str]]:
    """The table's cells as words, the header first; target columns only where there is a target."""
    names = [name for name in COLUMNS if study.target is not None or "target" not in name]
    rows = [[COLUMNS[name][1](dict(row)) for name in names] for row in table.replace({np.nan: None}).to_dict("records")]  # type: ignore[arg-type]
    return [names, *rows]


def to_markdown(rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def to_latex(rows: Sequence[Sequence[str]]) -> str:
    def escaped(word: str) -> str:
        return re.sub(r"([&%$#_{}])", r"\\\1", word).replace("±", r"$\pm$")

    body = [" & ".join(escaped(word) for word in row) + r" \\" for row in rows]
    columns = "l" + "r" * (len(rows[0]) - 1)
    return "\n".join(
        [rf"\begin{{tabular}}{{{columns}}}", r"\hline", body[0], r"\hline", *body[1:], r"\hline", r"\end{tabular}"]
    )


def to_html(rows: Sequence[Sequence[str]], title: str) -> str:
    from html import escape

    head = "".join(f"<th>{escape(word)}</th>" for word in rows[0])
    body = "\n".join("<tr>" + "".join(f"<td>{escape(word)}</td>" for word in row) + "</tr>" for row in rows[1:])
    style = (
        "body{font-family:system-ui,sans-serif;margin:2rem;color-scheme:light dark}"
        "table{border-collapse:collapse}td,th{padding:.3rem .7rem;border-bottom:1px solid #8884;text-align:right}"
        "td:first-child,th:first-child{text-align:left}div{overflow-x:auto}"
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{style}</style><h1>{escape(title)}</h1><div><table>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></html>"
    )


def write_tables(comparison: Comparison) -> None:
    """The table beside the runs, in every form that people paste."""
    from fedclade.files import write_atomically

    table = comparison.table()
    rows = written(table, comparison.study)
    texts = {
        "table.md": to_markdown(rows) + "\n",
        "table.tex": to_latex(rows) + "\n",
        "table.html": to_html(rows, comparison.study.title),
        "table.csv": table.to_csv(index=False),
        "runs.csv": comparison.results().to_csv(index=False),
    }
    for name, text in texts.items():
        write_atomically(comparison.out / name, lambda part, text=text: part.write_text(text, encoding="utf-8"))  # type: ignore[misc]
