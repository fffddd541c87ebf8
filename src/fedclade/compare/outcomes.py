"""What came of a study: a row for each run, a row for each cell, and tables of those in the forms that people paste."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedclade.compare.study import PlannedRun, Study
from fedclade.errors import FedcladeError
from fedclade.experiments import by_label, experiments, trained_by_all
from fedclade.files import write_atomically
from fedclade.result import MODELS, Result, over_clients
from fedclade.tables import to_html, to_latex, to_markdown

if TYPE_CHECKING:
    import pandas as pd

LEGEND = (
    "Accuracies are in percent, means over clients; `std` and `worst` are over clients too, ± is over seeds. `final` "
    "is the last round in which the clusters changed, `p` of a paired t-test over seeds against the best cluster "
    "model. Locally trained models are compared on the clients that all methods have trained (`clients trained`), in "
    "rounds that count. Megabytes are those of all clients together."
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

        ended = [_labelled(run) for run in self.study.runs(self.out) if run.folder.is_finished]
        compared: dict[str, frozenset[str]] = {}
        for runs in experiments(ended).values():
            for seed in {run.seed for run in runs}:
                alike = [run for run in runs if run.seed == seed]
                compared |= dict.fromkeys([str(run.path) for run in alike], trained_by_all(alike))
        return pd.DataFrame([outcome_of(run, self.study.target, compared[str(run.path)]) for run in ended])

    def table(self) -> "pd.DataFrame":
        """A row for each cell: means over seeds, and how sure it is that the best is better."""
        import pandas as pd

        results = self.results()
        if results.empty:
            raise FedcladeError(f"no run of the study in {self.out} has ended yet")
        cells = dict(iter(results.groupby("label", sort=False)))
        best = max(cells.values(), key=lambda runs: runs["accuracy_mean"].mean())
        return pd.DataFrame([_mean_row(runs, best) for runs in cells.values()])

    def words(self) -> list[list[str]]:
        """The table's cells as words, the header first; columns about a target only where there is one."""
        names = [name for name in COLUMNS if self.study.target is not None or "target" not in name]
        rows = self.table().replace({np.nan: None}).to_dict("records")
        return [names, *([COLUMNS[name](row) for name in names] for row in rows)]

    def warning(self) -> str:
        """That some cells are of another experiment than others, where it is so."""
        ended = [run for run in self.study.runs(self.out) if run.folder.is_finished]
        parts: dict[str, list[str]] = {}
        for name, results in experiments([_labelled(run) for run in ended]).items():
            parts[name] = list(by_label(results))
        told = "; ".join(f"{name}: {', '.join(labels)}" for name, labels in parts.items())
        return f"Not all rows are of one experiment ({told})." if len(parts) > 1 else ""

    def write(self) -> None:
        """The table beside the runs."""
        rows, title = self.words(), self.study.title
        legend = f"{LEGEND} {self.warning()}".rstrip()
        texts = {
            "table.md": f"{to_markdown(rows)}\n\n{legend}\n",
            "table.tex": f"{to_latex(rows)}\n",
            "table.html": to_html(rows, title, legend),
            "table.csv": self.table().to_csv(index=False),
            "runs.csv": self.results().to_csv(index=False),
        }
        for name, text in texts.items():
            write_atomically(self.out / name, lambda part, text=text: part.write_text(text, encoding="utf-8"))  # type: ignore[misc]


def _labelled(run: PlannedRun) -> Result:
    result = Result(run.folder)
    result.label = run.label
    return result


def outcome_of(result: Result, target: float | None, compared: frozenset[str]) -> dict[str, Any]:
    """What came of a run; of its locally trained models, those of the clients that all runs beside it trained too."""
    reached = None if target is None else result.first_reaching(target)
    sent = result.traffic / 1e6
    seen = {column: result.last(column) for column in MODELS}
    seen["accuracy_local"] = seen["accuracy_local"][seen["accuracy_local"].index.isin(compared)]
    measured = {column: over_clients(values) for column, values in seen.items()}
    return {
        "label": result.label,
        "seed": result.seed,
        "local_clients": len(seen["accuracy_local"]),
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


def _mean_row(runs: "pd.DataFrame", best: "pd.DataFrame") -> dict[str, Any]:
    """Means over the seeds of a cell."""
    numbers = runs.drop(columns=["label", "seed"]).astype(float)
    row: dict[str, Any] = {"label": runs["label"].iloc[0], "runs": len(runs), **dict(numbers.mean())}
    for name in ("rounds_to", "mb_to"):  # a mean over seeds of which some never got there would flatter
        row[name] = row[name] if numbers[name].notna().all() else None
    row["seeds_std"] = float(np.std(numbers["accuracy_mean"]))
    row["p_best"] = None if runs is best else paired_p(runs, best)
    return row


def paired_p(mine: "pd.DataFrame", best: "pd.DataFrame") -> float | None:
    """The two-sided p-value of a paired t-test over seeds: small means that the best is better by more than chance."""
    from scipy.stats import ttest_rel

    pairs = mine.merge(best, on="seed", suffixes=("", "_best"))
    if len(pairs) < 2:
        return None
    p = float(ttest_rel(pairs["accuracy_mean"].astype(float), pairs["accuracy_mean_best"].astype(float)).pvalue)
    return p if math.isfinite(p) else None


def _percent(name: str) -> Any:
    return lambda row: "-" if row[name] is None else f"{100 * row[name]:.1f}"


def _number(name: str, digits: int | None = None) -> Any:
    """With so many digits; without a number of them, with one where it is needed."""

    def word(row: dict[str, Any]) -> str:
        value = row[name]
        if value is None:
            return "-"
        return f"{value:.1f}".removesuffix(".0") if digits is None else f"{value:.{digits}f}"

    return word


COLUMNS = {
    "method": lambda row: row["label"],
    "cluster model": lambda row: f"{_percent('accuracy_mean')(row)} ± {_percent('seeds_std')(row)}",
    "std": _percent("accuracy_std"),
    "worst": _percent("accuracy_worst"),
    "locally trained model": _percent("accuracy_local_mean"),
    "local std": _percent("accuracy_local_std"),
    "local worst": _percent("accuracy_local_worst"),
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
