"""What came of a study: a row for each run, a row for each cell, and tables of those in the forms that people paste."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedclade.charts import dots, scatter
from fedclade.clients.objective import Metric
from fedclade.compare.study import PlannedRun, Study
from fedclade.errors import FedcladeError
from fedclade.experiments import by_label, experiments, trained_by_all
from fedclade.files import write_atomically
from fedclade.result import Result
from fedclade.tables import html_table, paragraph, to_html, to_latex, to_markdown

if TYPE_CHECKING:
    import pandas as pd

LEGEND = (
    "{metric}, means over clients; `std` and `worst` are over clients too, ± is over seeds. `final` "
    "is the last round in which the clusters changed, `p` of a paired t-test over seeds against the best cluster "
    "model. Locally trained models are compared on the clients that all methods have trained (`clients trained`), in "
    "rounds that count. Megabytes are those of all clients together."
)


LOCAL = "locally trained model"  # a column's name


@dataclass
class Comparison:
    """What came of a study so far."""

    study: Study
    out: Path
    failures: dict[tuple[str, int], str] = field(default_factory=dict)

    def results(self) -> "pd.DataFrame":
        """A row for each run that has ended."""
        import pandas as pd

        ended = [_labelled(run) for run in self.study.runs(self.out) if run.folder.is_finished]
        compared: dict[str, frozenset[str]] = {}
        for runs in experiments(ended).values():
            for seed in {run.seed for run in runs}:
                alike = [run for run in runs if run.seed == seed]
                compared |= dict.fromkeys([str(run.path) for run in alike], trained_by_all(alike))
        return pd.DataFrame([outcome_of(run, self.study.target, compared[str(run.path)]) for run in ended])

    @property
    def metric(self) -> Metric:
        """The main one of the first run that has ended; of others, rows are of another experiment."""
        ended = next((run.folder for run in self.study.runs(self.out) if run.folder.is_finished), None)
        if ended is None:
            why = f": {next(iter(self.failures.values()))}" if self.failures else ""
            raise FedcladeError(f"no run of the study in {self.out} has ended yet{why}")
        return Result(ended).metric

    def table(self) -> "pd.DataFrame":
        """A row for each cell: means over seeds, and how sure it is that the best is better."""
        import pandas as pd

        mean = f"{self.metric.name}_mean"
        cells = dict(iter(self.results().groupby("label", sort=False)))
        best = self.metric.best(cells.values(), key=lambda runs: runs[mean].mean())
        return pd.DataFrame([_mean_row(runs, best, mean) for runs in cells.values()])

    def words(self) -> list[list[str]]:
        """The table's cells as words, the header first; columns about a target only where there is one."""
        columns = columns_for(self.metric)
        names = [name for name in columns if self.study.target is not None or "target" not in name]
        rows: list[dict[str, Any]] = self.table().replace({np.nan: None}).to_dict("records")  # type: ignore[assignment]
        return [names, *([columns[name](row) for name in names] for row in rows)]

    def best(self) -> list[tuple[int, int]]:
        """The cells with the best mean of each model, (line, column): none where rows cannot be compared."""
        if self.warning():
            return []
        columns, table = list(self.words()[0]), self.table()
        found = []
        for name, words in ((f"{self.metric.name}_mean", "cluster model"), (f"{self.metric.name}_local_mean", LOCAL)):
            known = {line: score for line, score in enumerate(table[name].astype(float)) if np.isfinite(score)}
            if known:
                line = self.metric.best(known, key=lambda line: known[line])
                found.append((line, columns.index(words)))
        return found

    def figures(self) -> list[str]:
        """Every seed of every method, and what it costs; of each experiment, for only like runs can be compared."""
        results, metric = self.results(), self.metric
        percent = 100 if metric.is_share else 1
        unit = f"{metric.words}{' in %' if metric.is_share else ''}, mean over clients"
        drawn = []
        for name, labels in self.parts().items():
            mine = results[results["label"].isin(labels)]
            where = f" ({name})" if name else ""
            for column, words in (
                (f"{metric.name}_mean", "Cluster model"),
                (f"{metric.name}_local_mean", "Locally trained model"),
            ):
                rows = {
                    str(label): (percent * runs[column].dropna().astype(float)).tolist()
                    for label, runs in mine.groupby("label", sort=False)
                }
                if any(rows.values()):
                    drawn.append(dots(rows, f"{words}{where}: a dot for each seed, a bar for their mean", unit))
            means = mine.groupby("label", sort=False)[["up", "down", f"{metric.name}_mean"]].mean()
            points = {
                str(label): (float(up + down), percent * float(score))
                for label, (up, down, score) in zip(means.index, means.to_numpy(), strict=True)
            }
            drawn.append(
                scatter(points, f"What it costs{where}: means over seeds, cluster models", "MB sent, up and down", unit)
            )
        return drawn

    def parts(self) -> dict[str, list[str]]:
        """The labels of each experiment."""
        ended = [_labelled(run) for run in self.study.runs(self.out) if run.folder.is_finished]
        return {name: list(by_label(results)) for name, results in experiments(ended).items()}

    def warning(self) -> str:
        """That some cells are of another experiment than others, where it is so."""
        parts = self.parts()
        told = "; ".join(f"{name}: {', '.join(labels)}" for name, labels in parts.items())
        return f"Not all rows are of one experiment ({told})." if len(parts) > 1 else ""

    def write(self) -> None:
        """The table beside the runs."""
        rows, title = self.words(), self.study.title
        legend = f"{legend_for(self.metric)} {self.warning()}".rstrip()
        texts = {
            "table.md": f"{to_markdown(rows)}\n\n{legend}\n",
            "table.tex": f"{to_latex(rows, self.best())}\n",
            "table.html": to_html(title, *self.figures(), html_table(rows, title), paragraph(legend)),
            "table.csv": self.table().to_csv(index=False),
            "runs.csv": self.results().to_csv(index=False),
        }
        for name, text in texts.items():
            write_atomically(self.out / name, lambda part, text=text: part.write_text(text, encoding="utf-8"))  # type: ignore[misc]


def legend_for(metric: Metric) -> str:
    """What the columns of the table mean."""
    words = f"{metric.words[:1].upper()}{metric.words[1:]}"
    return LEGEND.format(metric=f"{words} in percent" if metric.is_share else words)


def _labelled(run: PlannedRun) -> Result:
    result = Result(run.folder)
    result.label = run.label
    return result


def outcome_of(result: Result, target: float | None, compared: frozenset[str]) -> dict[str, Any]:
    """What came of a run; of its locally trained models, those of the clients that all runs beside it trained too."""
    reached = None if target is None else result.first_reaching(target)
    sent = result.traffic / 1e6
    seen = {column: result.last(column) for column in result.models}
    local = f"{result.metric.name}_local"
    seen[local] = seen[local][seen[local].index.isin(compared)]
    measured = {column: result.metric.over_clients(values) for column, values in seen.items()}
    return {
        "label": result.label,
        "seed": result.seed,
        "local_clients": len(seen[local]),
        **{f"{column}_{what}": found[what] for column, found in measured.items() for what in ("mean", "std", "worst")},
        "clusters": len(result.clusters),
        "ari": result.agreement["ari"],
        "last_change": result.last_change,
        "up": sent["up"].iloc[-1],
        "down": sent["down"].iloc[-1],
        "rounds_to": reached,
        "mb_to": None if reached is None else sent.loc[reached].sum(),
        "failures": len(result.failures),
        "cpu_seconds": result.cpu_seconds,  # not by the clock: runs side by side slow each other down
    }


def _mean_row(runs: "pd.DataFrame", best: "pd.DataFrame", score: str) -> dict[str, Any]:
    """Means over the seeds of a cell."""
    numbers = runs.drop(columns=["label", "seed"]).astype(float)
    row: dict[str, Any] = {"label": runs["label"].iloc[0], "runs": len(runs), **dict(numbers.mean())}
    for name in ("rounds_to", "mb_to"):  # a mean over seeds of which some never got there would flatter
        row[name] = row[name] if numbers[name].notna().all() else None
    row["seeds_std"] = float(np.std(numbers[score]))
    row["local_seeds_std"] = float(np.std(numbers[score.replace("_mean", "_local_mean")]))
    row["p_best"] = None if runs is best else paired_p(runs, best, score)
    return row


def paired_p(mine: "pd.DataFrame", best: "pd.DataFrame", score: str) -> float | None:
    """The two-sided p-value of a paired t-test over seeds: small means that the best is better by more than chance."""
    from scipy.stats import ttest_rel

    pairs = mine.merge(best, on="seed", suffixes=("", "_best"))
    if len(pairs) < 2:
        return None
    p = float(ttest_rel(pairs[score].astype(float), pairs[f"{score}_best"].astype(float)).pvalue)
    return p if math.isfinite(p) else None


def _score(name: str, metric: Metric) -> Callable[[dict[str, Any]], str]:
    if not metric.is_share:
        return lambda row: metric.written(row[name])
    return lambda row: "-" if row[name] is None else f"{100 * row[name]:.1f}"


def _number(name: str, digits: int | None = None) -> Any:
    """With so many digits; without a number of them, with one where it is needed."""

    def word(row: dict[str, Any]) -> str:
        value = row[name]
        if value is None:
            return "-"
        return f"{value:.1f}".removesuffix(".0") if digits is None else f"{value:.{digits}f}"

    return word


def columns_for(metric: Metric) -> dict[str, Callable[[dict[str, Any]], str]]:
    """The columns of the table, and how a cell of each is written."""

    def of(what: str) -> Callable[[dict[str, Any]], str]:
        return _score(f"{metric.name}{what}", metric)

    over_seeds, local_over_seeds = _score("seeds_std", metric), _score("local_seeds_std", metric)
    return {
        "method": lambda row: row["label"],
        "cluster model": lambda row: f"{of('_mean')(row)} ± {over_seeds(row)}",
        "std": of("_std"),
        "worst": of("_worst"),
        LOCAL: lambda row: f"{of('_local_mean')(row)} ± {local_over_seeds(row)}",
        "local std": of("_local_std"),
        "local worst": of("_local_worst"),
        "clients trained": _number("local_clients"),
        "clusters": _number("clusters"),
        "ARI": _number("ari", 2),
        "final": _number("last_change"),
        "up MB": _number("up"),
        "down MB": _number("down"),
        "rounds to target": _number("rounds_to"),
        "MB to target": _number("mb_to"),
        "p": _number("p_best", 3),
        "CPU seconds": _number("cpu_seconds"),
    }
