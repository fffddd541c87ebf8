"""Run the studies and write docs/results.md: tables, and for every headline claim whether it holds here.

    python studies/results.py --data-dir DIR [--only small | rivals | small/hicfl-rotated ...]

Runs that are done already (in `runs/results`) are not run again. Nothing in the document is typed by hand: the verdicts
are computed from the tables.
"""

import argparse
import math
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedclade.clients.objective import ACCURACY
from fedclade.compare import Comparison, Study, compare
from fedclade.compare.outcomes import legend_for
from fedclade.methods import METHODS
from fedclade.settings import cores, read_toml
from fedclade.tables import to_markdown

HERE = Path(__file__).parent
STUDIES = (
    "small/hicfl-rotated",
    "small/hicfl-labels",
    "small/hicfl-few",
    "small/adacfl",
    "small/fedclust",
    "small/fedsccs",
    "small/fedsccs-holdout",
    "small/fedstack",
    "small/fedstack-holdout",
    "rivals/fashion-mnist",
    "rivals/motionsense",
)

Rows = dict[str, dict[str, Any]]

SEE_AUTOMATIC = "[automatic.md](results/automatic.md) compares the two on 18 ways to deal out data"

HOLDS, FAILS, UNCLEAR = "holds here", "does not hold here", "within what seeds differ by"


@dataclass(frozen=True)
class Claim:
    """What a paper says, what came out here, and whether they agree."""

    words: str
    here: str
    verdict: str
    more: str = ""

    def __str__(self) -> str:
        return f"{self.words}: {self.here}: **{self.verdict}**{self.more}."


def points(value: float) -> str:
    return f"{100 * value:+.1f} points"


def judged(holds: bool) -> str:
    return HOLDS if holds else FAILS


def above(words: str, mine: dict[str, Any], other: dict[str, Any], more: str = "") -> Claim:
    """How far the cluster models of one method are above another's, and whether that is more than seeds differ."""
    gain, std = mine["accuracy_mean"] - other["accuracy_mean"], max(mine["seeds_std"], other["seeds_std"])
    return Claim(words, points(gain), judged(gain > 0) if abs(gain) > std else UNCLEAR, more)


def hicfl(rows: Rows) -> list[Claim | str]:
    mine, paper, average, cfl = (rows[name] for name in ("HiCFL", "HiCFL, paper's rule", "FedAvg", "CFL (MTCFL)"))
    rivals = {name: row for name, row in rows.items() if name.startswith(("IFCA", "CFL"))}
    local = f"; for locally trained models {points(mine['accuracy_local_mean'] - average['accuracy_local_mean'])}"
    return [
        above("HiCFL above FedAvg (paper: about 9 points)", mine, average, local),
        *(above(f"HiCFL above {name} (paper: about 2 points)", mine, row) for name, row in rivals.items()),
        Claim(
            "Fewer rounds to final clusters than MTCFL (paper: 27 to 81 %)",
            f"{1 - mine['last_change'] / cfl['last_change']:.0%} fewer",
            judged(mine["last_change"] <= 0.73 * cfl["last_change"]),
            f" (round {mine['last_change']:.1f} with {mine['clusters']:.1f} clusters, ARI {mine['ari']:.2f}; MTCFL round "
            f"{cfl['last_change']:.1f} with {cfl['clusters']:.1f}, ARI {cfl['ari']:.2f})",
        ),
        f"The paper's own rule on the same runs: {paper['clusters']:.1f} clusters, ARI {paper['ari']:.2f}, "
        f"{points(paper['accuracy_mean'] - average['accuracy_mean'])} against FedAvg; ours: {mine['clusters']:.1f} clusters, ARI "
        f"{mine['ari']:.2f}.",
    ]


def hicfl_few(rows: Rows) -> list[Claim | str]:
    mine, half, average = rows["HiCFL"], rows["HiCFL, a quorum of half"], rows["FedAvg"]
    return [
        "The paper has all clients take part. With a tenth of them in a round, a cluster is tested once four fifths of its "
        "members have sent three updates, which takes some 45 rounds; with a quorum of half it is tested sooner.",
        above("HiCFL above FedAvg", mine, average, f" (ARI {mine['ari']:.2f})"),
        above("HiCFL with a quorum of half above FedAvg", half, average, f" (ARI {half['ari']:.2f})"),
    ]


def adacfl(rows: Rows) -> list[Claim | str]:
    mine, whole, average = rows["AdaCFL"], rows["AdaCFL, complete weights"], rows["FedAvg"]
    anchored, free = rows["AdaCFL, anchored pre-clusters"], rows["AdaCFL, no pre-clusters"]
    both = f" (ARI {mine['ari']:.2f} and {whole['ari']:.2f}, each with the automatic threshold); {SEE_AUTOMATIC}"
    return [
        above(
            "AdaCFL above FedAvg",
            mine,
            average,
            f"; for locally trained models {points(mine['accuracy_local_mean'] - average['accuracy_local_mean'])}",
        ),
        above("Partial weights above complete ones (paper: 3 to 47 points)", mine, whole, both),
        Claim(
            "Clusters final after the first rounds",
            f"round {mine['last_change']:.1f}",
            judged(mine["last_change"] <= 3),
        ),
        f"Pre-clusters by entropy: ARI {mine['ari']:.2f} where they end at a gap between neighbours (our reading), "
        f"{anchored['ari']:.2f} where they end 10 % above their smallest entropy, {free['ari']:.2f} without any. In the "
        "second reading like clients whose entropies differ by chance can never meet again.",
    ]


def fedclust(rows: Rows) -> list[Claim | str]:
    mine, average, whole = rows["FedClust"], rows["FedAvg"], rows["FedClust, all weights"]
    gain, local = (
        mine["accuracy_mean"] - average["accuracy_mean"],
        mine["accuracy_local_mean"] - average["accuracy_local_mean"],
    )
    words = "FedClust above FedAvg by tens of points (paper: 20.8 on Fashion-MNIST)"
    saved = f" (ARI {mine['ari']:.2f} and {whole['ari']:.2f}; {mine['up']:.1f} MB up against {whole['up']:.1f}); {SEE_AUTOMATIC}"
    return [
        Claim(f"{words}, cluster models", points(gain), judged(gain >= 0.1)),
        Claim(
            f"{words}, locally trained models",
            points(local),
            judged(local >= 0.1),
            "; so it depends on what is evaluated",
        ),
        above(
            "The last layer above all weights, four clusters",
            rows["FedClust, K = 4"],
            rows["FedClust, all weights, K = 4"],
        ),
        above("The last layer above all weights, the number found", mine, whole, saved),
    ]


def fedsccs(rows: Rows) -> list[Claim | str]:
    mine, average, chance = rows["FedSCCS, K = 10"], rows["FedAvg"], rows["random clusters, K = 10"]
    one, choice = (
        rows[f"FedSCCS, K = 10, {who}"]["up"] / average["up"] for who in ("one at random", "power of choice")
    )
    return [
        above("FedSCCS above random clusters", mine, chance),
        above("FedSCCS above FedAvg", mine, average),
        Claim(
            "Uplink of FedAvg's with one member at random (paper: 47.5 %)",
            f"{one:.1%}",
            judged(abs(one - 0.475) < 0.02),
        ),
        Claim(
            "Uplink of FedAvg's with power of choice (paper: 62.5 %)",
            f"{choice:.1%}",
            judged(abs(choice - 0.625) < 0.05),
            " (it depends on the sizes of clusters; probe rows are counted in both)",
        ),
    ]


def fedstack(rows: Rows) -> list[Claim | str]:
    claims: list[Claim | str] = []
    for single, mine in (
        ("FedStack (one stacked model)", "Clustered FedStack"),
        ("FedStack, ANN only (one stacked model)", "Clustered FedStack, ANN only, K = 4"),
        (
            "FedStack, ANN only, a fifth spared (one stacked model)",
            "Clustered FedStack, ANN only, a fifth spared, K = 4",
        ),
    ):
        local = f"; above their locally trained networks {points(rows[mine]['accuracy_mean'] - rows[mine]['accuracy_local_mean'])}"
        claims.append(above(f"{mine}: cluster models above the single stacked model", rows[mine], rows[single], local))
        claims.append(above(f"{mine}: above random clusters", rows[mine], rows[f"{mine}, random clusters"]))
    mine, others = rows["Clustered FedStack"], [rows[f"{name} (1-D CNN)"] for name in ("HypCluster, K = 3", "FL+HC")]
    for other in others:
        share = f" (with {mine['up'] / other['up']:.1%} of its uplink)"
        claims.append(above(f"Clustered FedStack above {other['label']}", mine, other, share))
    return claims


def rivals(rows: Rows) -> list[Claim | str]:
    """Who is ahead, by what is evaluated."""
    lines: list[Claim | str] = []
    for key, words in (("accuracy_mean", "cluster models"), ("accuracy_local_mean", "locally trained models")):
        known = [row for row in rows.values() if row[key] is not None and not math.isnan(row[key])]
        first, *rest = sorted(known, key=lambda row: -row[key])
        near = [row["label"] for row in rest if first[key] - row[key] < 0.01]
        lines.append(
            f"By {words}: {first['label']} with {first[key]:.1%}"
            + (f"; less than a point behind: {', '.join(near)}" if near else "")
            + f". FedAvg: {rows['FedAvg'][key]:.1%}; alone: {rows['Local'][key]:.1%}."
        )
    unsplit = [name for name in ("HiCFL", "CFL") if rows[name]["clusters"] == 1]
    if unsplit:
        lines.append(
            f"{' and '.join(unsplit)} split nothing, and so {'are' if unsplit[1:] else 'is'} FedAvg: to test a cluster they "
            "want updates of (nearly) all of its members, which so few clients and rounds do not give. With more rounds HiCFL "
            "does: see above."
        )
    lines.append(
        "Methods with personal models (ClusterFL, Ditto, FedPer, LG-FedAvg) give clients that were never drawn what "
        "the others left them or with the initial model, and these count too."
    )
    return lines


CLAIMS: dict[str, Callable[[Rows], list[Claim | str]]] = {
    "small/hicfl-rotated": hicfl,
    "small/hicfl-labels": hicfl,
    "small/hicfl-few": hicfl_few,
    "small/adacfl": adacfl,
    "small/fedclust": fedclust,
    "small/fedsccs": fedsccs,
    "small/fedsccs-holdout": fedsccs,
    "small/fedstack": fedstack,
    "small/fedstack-holdout": fedstack,
    "rivals/fashion-mnist": rivals,
    "rivals/motionsense": rivals,
}


def section(name: str, comparison: Comparison) -> tuple[str, list[str]]:
    """A study's part of the document, and its lines of the overview."""
    study, table = comparison.study, comparison.table()
    claims = CLAIMS[name]({row["label"]: row for row in table.to_dict("records")})
    listed = "\n".join(f"- {claim}" for claim in claims)
    judged = [claim for claim in claims if isinstance(claim, Claim)]
    titles = [study.title, *[""] * len(judged)]  # once is enough
    overview = [f"| {title} | {c.words} | {c.here} | {c.verdict} |" for title, c in zip(titles, judged, strict=False)]
    table = "\n\n".join(part for part in (to_markdown(comparison.words()), comparison.warning()) if part)
    return f"## {study.title}\n\n{table}\n\n{listed}\n", overview


def study_of(name: str, data_dir: str | None) -> Study:
    values = read_toml(HERE / f"{name}.toml")
    if data_dir:
        values["settings"]["data_dir"] = data_dir
    study = Study.of(values)
    if name.startswith("rivals/"):
        left_out = set(METHODS) - {study.settings_of(cell)["method"]["name"] for cell in study.cells}
        assert not left_out, f"{name}.toml lacks {left_out}"
    return study


HEAD = """# Results

Made by `make results-small` and `make results-rivals` on a {cores}-core CPU ({machine}), 3 seeds each, real data; the
studies are in `studies/small/` and `studies/rivals/`. They are cut to the size of a laptop (fewer rows and rounds than in
the papers), so they test the claims, not the papers' numbers. How well the automatic number of clusters does is told in
[automatic.md](results/automatic.md); single tables of the papers
beside ours: [FedClust](results/fedclust-table1.md), [HiCFL](results/hicfl-table2.md), [FedSCCS](results/fedsccs-fig8.md).

Every table has two accuracies: of each client's **cluster model** (where a method personalises, of the personalised
model), and of its **locally trained model**, the last that it trained itself. {legend}
A target is a mean accuracy of cluster models, looked at in the rounds that are evaluated.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir")
    parser.add_argument("--only", nargs="*", default=STUDIES, help="studies, or folders of them")
    parser.add_argument("--runs", type=Path, default=Path("runs/results"))
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "results.md")
    arguments = parser.parse_args()
    sections, overview = [], ["## The claims in short", "", "| study | claim | here | verdict |", "|---|---|---|---|"]
    for name in STUDIES:
        study = study_of(name, arguments.data_dir)
        folder = arguments.runs / name
        if name in arguments.only or name.split("/")[0] in arguments.only:
            done = compare(study, folder, on_run=lambda run, failure: print(run.path, failure or "done", flush=True))
        else:
            done = Comparison(study, folder)
        if len(done.results()) < len(study.runs(folder)):
            print(f"{name}: not all of its runs have ended, so it is left out of the document", flush=True)
            continue
        done.write()
        text, lines = section(name, done)
        sections.append(text)
        overview += lines
    head = HEAD.format(cores=cores(), machine=platform.machine(), legend=legend_for(ACCURACY))
    arguments.out.write_text("\n".join([head, *overview, "", *sections]))
    print(f"written: {arguments.out}")


if __name__ == "__main__":
    main()
