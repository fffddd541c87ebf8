"""Thresholds for CFL in HiCFL's Table 2 (there MTCFL) and in AdaCFL's (FMTL), tuned on training rows alone.

    python studies/mtcfl.py --data-dir DIR --out docs/results/mtcfl.md

The thresholds of CFL's authors (0.4 and 1.6) are lengths of updates, which depend on rows, rate and batch: at these
settings no update is as long as 1.6, and nothing is ever split. Here the rounds in which splits are forbidden tell how
long updates are when they become possible, and thresholds beside these lengths are tried. A sixth of the official training rows stands in for the
test rows; the seed is none of those that tables show. What has been run is kept in a CSV file beside the page.
"""

import argparse
import shutil
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from choices import training_rows

from fedclade.tables import to_markdown

if TYPE_CHECKING:
    from fedclade.methods.cfl import CFL


@dataclass(frozen=True)
class Case:
    """Where CFL stands in a paper, and from when on it may split."""

    table: str
    row: str
    min_round: int  # no split up to this one
    longest: tuple[float, ...]  # what is tried as eps2, times the longest update of the last round before splits


# No split up to round 20, as in the authors' code.
HICFLS = Case("hicfl/table2", "MTCFL", 20, (0.4, 0.6, 0.8, 1.0))
# The paper's has its accuracy in round 10 and later.
ADACFLS = Case("adacfl/table2", "FMTL", 5, (0.4, 0.8))
COLUMNS = {
    **{f"{data}, Non-IID-{n}": HICFLS for data in ("MNIST", "FashionMNIST", "CIFAR10") for n in (1, 2, 3)},
    **{f"MNIST, {split}": ADACFLS for split in ("alpha 0.5", "alpha 0.8", "alpha 1.0", "B")},
}
SEED = 200
ROUNDS = 30
NEVER = 1e9
STILL = 1.2  # times the mean update in the last round before splits are possible: the model stands still


def settings_of(column: str) -> dict[str, Any]:
    """CFL's in the paper's table, at full scale, but for short last batches: what they add to a length is a step in 20."""
    from fedclade.reproduce.catalogue import item_named
    from fedclade.settings import merged

    case = COLUMNS[column]
    paper, item = item_named(case.table)
    cells, _ = item.planned(paper.settings, paper.scales["full"], "full")
    settings = next(cell.settings for cell in cells if (cell.row, cell.column) == (case.row, column))
    return merged(settings, {"training": {"drop_last": False}})


def column_tried(asked: tuple[str, str | None]) -> list[dict[str, Any]]:
    """All that is tried on one column. No thresholds matter before splits are possible: those rounds are run once."""
    import torch

    import fedclade
    from fedclade.methods.cfl import CFL

    torch.set_num_threads(1)
    column, data_dir = asked
    case = COLUMNS[column]
    settings = settings_of(column)
    data = training_rows(settings.pop("data"), data_dir)
    never = CFL(eps1=NEVER, eps2=NEVER, min_round=case.min_round)
    with tempfile.TemporaryDirectory() as folder:
        begun, more = Path(folder, "begun"), {"evaluate_every": 0, "seed": SEED, "workers": 1}
        first = fedclade.run(data, **{**settings, "method": never, "rounds": never.min_round, **more}, out=begun)
        norms = first.kept("norms")[never.min_round]
        mean, longest = norms["mean"][0], norms["max"][0]
        rows = []
        for method in (never, *candidates(mean, longest, case)):
            copy = Path(shutil.copytree(begun, Path(folder, f"with-{len(rows)}")))
            result = fedclade.resume(copy, rounds=ROUNDS, data=data, method=method, workers=1)
            rows.append(
                {
                    "column": column,
                    "eps1": method.eps1,
                    "eps2": method.eps2,
                    "accuracy": result.accuracy["mean"],
                    "clusters": len(result.clusters),
                    "ARI": result.agreement["ari"],
                    "mean update": mean,
                    "longest update": longest,
                }
            )
        return rows


def candidates(mean: float, longest: float, case: Case) -> list["CFL"]:
    """Thresholds beside the lengths that updates have when splits become possible, to two digits."""
    from fedclade.methods.cfl import CFL

    eps1 = float(f"{STILL * mean:.2g}")
    tried = [float(f"{factor * longest:.2g}") for factor in case.longest]
    return [CFL(eps1=eps1, eps2=eps2, min_round=case.min_round) for eps2 in tried]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir")
    parser.add_argument("--column", action="append", choices=COLUMNS, help="may be given often; all unless told")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("docs/results/mtcfl.md"))
    arguments = parser.parse_args()
    kept = arguments.out.with_suffix(".csv")
    table = pd.read_csv(kept) if kept.is_file() else pd.DataFrame(columns=["column"])
    missing = [
        (column, arguments.data_dir) for column in arguments.column or COLUMNS if column not in set(table["column"])
    ]
    with ProcessPoolExecutor(arguments.workers, mp_context=get_context("spawn")) as pool:
        for rows in pool.map(column_tried, missing):
            table = pd.concat([table, pd.DataFrame(rows)], ignore_index=True)
            table.to_csv(kept, index=False, float_format="%.5g")
            print(pd.DataFrame(rows).to_string(), flush=True)
    arguments.out.write_text(document(table))


def document(table: pd.DataFrame) -> str:
    rows = [["data", "eps1", "eps2", "held-out accuracy, %", "clusters", "ARI", "mean update", "longest update"]]
    for column in dict.fromkeys(table["column"]):
        here = table[table["column"] == column]
        best = here["accuracy"].idxmax()
        for place, row in here.iterrows():
            never = row["eps1"] == NEVER
            accuracy = f"{100 * row['accuracy']:.2f}"
            rows.append(
                [
                    column,
                    "never splits" if never else f"{row['eps1']:g}",
                    "" if never else f"{row['eps2']:g}",
                    f"**{accuracy}**" if place == best else accuracy,
                    f"{row['clusters']:.0f}",
                    f"{row['ARI']:.2f}",
                    f"{row['mean update']:.3f}",
                    f"{row['longest update']:.3f}",
                ]
            )
    tuned = ADACFLS in (COLUMNS[column] for column in set(table["column"]))
    also = f" and `{ADACFLS.table}`" if tuned else ". On AdaCFL's settings it has not been run"
    return f"""# CFL's thresholds

Made by `make results-mtcfl` on a 2-core CPU, seed {SEED}: CFL (Sattler et al. 2021) at the settings of HiCFL's Table 2
(but for short last batches), where it is called MTCFL, and of AdaCFL's (if they are below), where it is FMTL, on rows of the *training* files alone (a sixth of them stands
in for the test rows). It splits a cluster whose mean update is shorter than eps1 and whose longest is longer than eps2;
the first split is possible after round {HICFLS.min_round} (Non-IID), as its authors have it, or after round
{ADACFLS.min_round} (AdaCFL's: the paper's FMTL has its accuracy on MNIST in rounds 10 to 24). Accuracy, the mean over
clients, is that of round {ROUNDS} (the tables' last is 50, by when clusters have been split further). The lengths are
those of the last round before a split is possible; short last batches, which HiCFL's tables leave out, are taken. Only eps2 is tuned: eps1 is {STILL} times the mean update. Where the lowest eps2 is best, lower ones, which split
further, have not been tried; one seed does not tell rows apart that differ by a few tenths. The authors' 0.4 and 1.6
never split here. What is best here, in bold, is what CFL has in `fedclade reproduce {HICFLS.table} --scale full`{also}.

{to_markdown(rows)}
"""


if __name__ == "__main__":
    main()
