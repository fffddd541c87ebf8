"""Run the studies and write docs/results.md: tables, and for every headline claim whether it holds here.

    python studies/results.py --data-dir DIR [--only small | rivals | small/hicfl-rotated ...]

Runs that are done already (in `runs/results`) are not run again. Nothing in the document is typed by hand: the verdicts
are computed from the tables.
"""

import argparse
import math
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedclade.compare import Comparison, Study, compare, to_markdown, write_tables, written
from fedclade.methods import METHODS
from fedclade.settings import cores, read_toml

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


def points(value: float) -> str:
    return f"{100 * value:+.1f} points"


def verdict(holds: bool) -> str:
    return "**holds here**" if holds else "**does not hold here**"


def above(mine: dict[str, Any], other: dict[str, Any]) -> str:
    """How far the server's models of one method are above another's, and whether that is more than the spread of seeds."""
    gain, spread = mine["accuracy"] - other["accuracy"], max(mine["accuracy_spread"], other["accuracy_spread"])
    return f"{points(gain)}: {verdict(gain > 0) if abs(gain) > spread else '**within the spread of seeds**'}"


def hicfl(rows: Rows) -> list[str]:
    mine, paper, average = rows["HiCFL"], rows["HiCFL, paper's rule"], rows["FedAvg"]
    rivals = {name: row for name, row in rows.items() if name.startswith(("IFCA", "CFL"))}
    lines = [
        f"HiCFL above FedAvg (paper: about 9 points): {above(mine, average)}; for the clients' own models "
        f"{points(mine['own'] - average['own'])}."
    ]
    for name, row in rivals.items():
        lines.append(f"HiCFL above {name} (paper: about 2 points): {above(mine, row)}.")
    cfl = rows["CFL (MTCFL)"]
    lines.append(
        "Fewer rounds to final clusters than MTCFL (paper: 27 to 81 % fewer): HiCFL settled in round "
        f"{mine['settled']:.1f} with {mine['clusters']:.1f} clusters (ARI {mine['ari']:.2f}), MTCFL in round "
        f"{cfl['settled']:.1f} with {cfl['clusters']:.1f} (ARI {cfl['ari']:.2f}), so {1 - mine['settled'] / cfl['settled']:.0%} "
        f"fewer: {verdict(mine['settled'] <= 0.73 * cfl['settled'])}."
    )
    lines.append(
        f"The paper's own rule on the same runs: {paper['clusters']:.1f} clusters, ARI {paper['ari']:.2f}, "
        f"{points(paper['accuracy'] - average['accuracy'])} against FedAvg; ours: {mine['clusters']:.1f} clusters, ARI "
        f"{mine['ari']:.2f}."
    )
    return lines


def hicfl_few(rows: Rows) -> list[str]:
    mine, half, average = rows["HiCFL"], rows["HiCFL, a quorum of half"], rows["FedAvg"]
    return [
        "The paper has all clients take part. With a tenth of them in a round, a cluster is tested once four fifths of its "
        f"members have sent three updates, which takes some 45 rounds: above FedAvg {above(mine, average)}, ARI "
        f"{mine['ari']:.2f}.",
        f"With a quorum of half of the members it splits sooner: above FedAvg {above(half, average)}, ARI {half['ari']:.2f}.",
    ]


def adacfl(rows: Rows) -> list[str]:
    mine, whole, average = rows["AdaCFL"], rows["AdaCFL, complete weights"], rows["FedAvg"]
    anchored, free = rows["AdaCFL, anchored pre-clusters"], rows["AdaCFL, no pre-clusters"]
    return [
        f"Pre-clusters by entropy: ARI {mine['ari']:.2f} where they end at a gap between neighbours (our reading), "
        f"{anchored['ari']:.2f} where they end 10 % above their smallest entropy, {free['ari']:.2f} without any. In the "
        "second reading like clients whose entropies differ by chance can never meet again.",
        f"Partial weights above complete ones (paper: 3 to 47 points): {above(mine, whole)}, ARI {mine['ari']:.2f} and "
        f"{whole['ari']:.2f}, each with the automatic threshold. [automatic.md](results/automatic.md) compares the two on 18 "
        "ways to deal out data.",
        f"Clusters settled after the first rounds: round {mine['settled']:.1f}: {verdict(mine['settled'] <= 3)}.",
        f"AdaCFL above FedAvg: {above(mine, average)}; for the clients' own models {points(mine['own'] - average['own'])}.",
    ]


def fedclust(rows: Rows) -> list[str]:
    mine, average = rows["FedClust"], rows["FedAvg"]
    head, whole = rows["FedClust, K = 4"], rows["FedClust, all weights, K = 4"]
    gain, own = mine["accuracy"] - average["accuracy"], mine["own"] - average["own"]
    return [
        f"FedClust above FedAvg by tens of points (paper: 20.8 on Fashion-MNIST): {points(gain)} for the server's models: "
        f"{verdict(gain >= 0.1)}; for the clients' own last models {points(own)}: {verdict(own >= 0.1)}. The claim depends on "
        "what is evaluated.",
        f"The last layer above all weights: with four clusters {above(head, whole)}; {above(mine, rows['FedClust, all weights'])} "
        f"where the number is found (ARI {mine['ari']:.2f} and {rows['FedClust, all weights']['ari']:.2f}). What the last "
        f"layer does save is traffic: {mine['up']:.1f} MB against {rows['FedClust, all weights']['up']:.1f} MB up. "
        "[automatic.md](results/automatic.md) compares the two on 18 ways to deal out data.",
    ]


def fedsccs(rows: Rows) -> list[str]:
    mine, average, chance = rows["FedSCCS, K = 10"], rows["FedAvg"], rows["random clusters, K = 10"]
    one, choice = rows["FedSCCS, K = 10, one at random"], rows["FedSCCS, K = 10, power of choice"]
    return [
        f"FedSCCS above random clusters: {above(mine, chance)}; above FedAvg: {above(mine, average)}.",
        f"Uplink of FedAvg's (paper: 47.5 % with one member at random, 62.5 % with power of choice): "
        f"{one['up'] / average['up']:.1%} and {choice['up'] / average['up']:.1%}, probe rows included: "
        f"{verdict(abs(one['up'] / average['up'] - 0.475) < 0.02)} for the first.",
    ]


def fedstack(rows: Rows) -> list[str]:
    lines = []
    for single, clustered, control in (
        ("FedStack (one stacked model)", "Clustered FedStack", "Clustered FedStack, random clusters"),
        (
            "FedStack, ANN only (one stacked model)",
            "Clustered FedStack, ANN only, K = 4",
            "Clustered FedStack, ANN only, K = 4, random clusters",
        ),
    ):
        mine = rows[clustered]
        lines.append(
            f"{clustered}, its cluster models above the single stacked model: {above(mine, rows[single])}; above random "
            f"clusters: {above(mine, rows[control])}; above the clients' own networks: "
            f"{points(mine['accuracy'] - mine['own'])}."
        )
    return lines


def rivals(rows: Rows) -> list[str]:
    """Who is ahead, by what is evaluated."""
    lines = []
    for key, words in (("accuracy", "the server's models"), ("own", "the clients' own last models")):
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
        "Methods with personal models (ClusterFL, Ditto, FedPer, LG-FedAvg) serve clients that were never drawn with what "
        "the others left them or with the initial model, and these count too."
    )
    return lines


CLAIMS: dict[str, Callable[[Rows], list[str]]] = {
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


def section(name: str, comparison: Comparison) -> str:
    study, table = comparison.study, comparison.table()
    rows = {row["label"]: row for row in table.to_dict("records")}
    claims = "\n".join(f"- {claim}" for claim in CLAIMS[name](rows))
    return f"## {study.title}\n\n{to_markdown(written(table, study))}\n\n{claims}\n"


def study_of(name: str, data_dir: str | None) -> Study:
    values = read_toml(HERE / f"{name}.toml")
    if data_dir:
        values["settings"]["data_dir"] = data_dir
    study = Study.of(values)
    if name.startswith("rivals/"):
        left_out = set(METHODS) - {cell.settings["method"]["name"] for cell in study.cells}
        assert not left_out, f"{name}.toml lacks {left_out}"
    return study


HEAD = """# Results

Made by `make results-small` and `make results-rivals` on a {cores}-core CPU ({machine}), 3 seeds each, real data; the
studies are in `studies/small/` and `studies/rivals/`. They are cut to the size of a laptop (fewer rows and rounds than in
the papers), so they test the claims, not the papers' numbers. How well the automatic number of clusters does is told in
[automatic.md](results/automatic.md); single tables of the papers beside ours lie in [results/](results/).

Every table has two accuracies, in percent: of the model that the **server** holds for each client (where a method has
personal models, of the model that serves the client), and of each client's **own** last trained model. `±` is over seeds,
`std` and `worst` are over clients; `settled` is the last round in which the clusters changed; a target is a mean accuracy of
the first kind, looked at in the rounds that are evaluated; `p` is of a paired t-test over seeds against the best server's
model.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir")
    parser.add_argument("--only", nargs="*", default=STUDIES, help="studies, or folders of them")
    parser.add_argument("--runs", type=Path, default=Path("runs/results"))
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "results.md")
    arguments = parser.parse_args()
    sections = []
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
        write_tables(done)
        sections.append(section(name, done))
    arguments.out.write_text("\n".join([HEAD.format(cores=cores(), machine=platform.machine()), *sections]))
    print(f"written: {arguments.out}")


if __name__ == "__main__":
    main()
