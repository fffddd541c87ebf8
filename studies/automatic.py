"""How well the automatic number of clusters does: against the hidden count, and the best threshold in hindsight.

    python studies/automatic.py --data-dir DIR --out docs/results/automatic.md

Each line is a way to deal out data; for every seed all clients train once from the same model, and their last layers are
clustered, as FedClust does. "Best in hindsight" is the highest adjusted Rand index that any cut of the same tree reaches.
Beside it, what else could be compared: all weights, by FedClust's tree or AdaCFL's (without pre-clusters); all updates
after five rounds of averaging, as FL+HC does; and the same with `halves`, for which clients also train on each half of
their rows, so that what repeats itself decides.
"""

import argparse
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

SETTINGS = [
    ("mnist", "label-groups:4"),
    ("mnist", "non-iid-1"),
    ("mnist", "non-iid-2:0.7"),
    ("mnist", "non-iid-3"),
    ("mnist", "rotation:4"),
    ("mnist", "adacfl-alpha:0.8"),
    ("mnist", "adacfl-b"),
    ("mnist", "iid"),
    ("fashion-mnist", "label-groups:4"),
    ("fashion-mnist", "non-iid-1"),
    ("fashion-mnist", "non-iid-3"),
    ("fashion-mnist", "rotation:4"),
    ("fashion-mnist", "adacfl-alpha:0.8"),
    ("fashion-mnist", "adacfl-b"),
    ("fashion-mnist", "iid"),
    ("motionsense", "label-groups:3"),
    ("motionsense", "label-groups:2"),
    ("motionsense", "iid"),
]
TRAINING = {"local_epochs": 4, "batch_size": 10, "learning_rate": 0.01, "momentum": 0.5}
BESIDE = 3  # seeds of what takes longer
WARMUP = 5  # rounds of averaging, FL+HC's own
ONCE, ALL, LATER, ADACFL = (
    {"name": "fedclust"},
    {"name": "fedclust", "layers": "all"},
    {"name": "fl-hc", "warmup": WARMUP},
    {"name": "adacfl", "layers": "all", "precluster": False},
)
ROUNDS = {"fedclust": 0, "fl-hc": WARMUP + 1, "adacfl": 1}  # until there are clusters
WAYS: dict[str, dict[str, Any]] = {
    "last layers": ONCE,
    "last layers, halves": {**ONCE, "halves": True},
    "all weights": ALL,
    "all weights, halves": {**ALL, "halves": True},
    f"all, after {WARMUP} rounds": LATER,
    f"all, after {WARMUP} rounds, halves": {**LATER, "halves": True},
    "AdaCFL, all weights": ADACFL,
    "AdaCFL, all weights, halves": {**ADACFL, "halves": True},
}


def one(case: tuple[str, str, int, str, str | None]) -> dict[str, Any]:
    import fedclade
    from fedclade.clustering.hierarchy import Tree, sweep
    from fedclade.clustering.scores import adjusted_rand

    data, split, seed, way, data_dir = case
    clients = 30 if split == "adacfl-b" else 20
    model = "mlp" if data in ("motionsense", "digits") else "lenet5"
    result = fedclade.run(
        data, split=split, clients=clients, rows=150, model=model, method=WAYS[way], rounds=ROUNDS[WAYS[way]["name"]],
        seed=seed, training=TRAINING, workers=1, data_dir=data_dir, evaluate_every=0,
    )  # fmt: skip
    groups = result.record["groups"]
    record, best = result.last_kept("dendrogram"), float("nan")
    if record:  # where halves show no difference there is no tree
        truth = np.array([groups[client] for client in record["clients"]])
        best = max(adjusted_rand(truth, level.labels) for level in sweep(Tree(record["merges"], record["linkage"])))
    return {
        "data": data, "split": split, "seed": seed, "way": way, "hidden": len(set(groups.values())),
        "found": len(result.clusters), "ari": result.agreement["ari"], "best": best,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seeds-beside", type=int, default=BESIDE, help="of rounds and halves, which take longer")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    cases = [
        (data, split, seed, way, arguments.data_dir)
        for data, split in SETTINGS
        for way, method in WAYS.items()
        for seed in range(arguments.seeds if method in (ONCE, ALL) else arguments.seeds_beside)
    ]
    with ProcessPoolExecutor(arguments.workers, mp_context=get_context("spawn")) as pool:
        rows = list(pool.map(one, cases))
    text = document(rows)
    print(text)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(text)


def document(rows: list[dict[str, Any]]) -> str:
    heads, wholes = ([row for row in rows if WAYS[row["way"]] == method] for method in (ONCE, ALL))
    seeds = len({row["seed"] for row in heads})
    gap, gain = mean(heads, "best") - mean(heads, "ari"), mean(heads, "ari") - mean(wholes, "ari")
    beside = {row["seed"] for row in rows if WAYS[row["way"]] == LATER}
    compared = [row for row in rows if row["seed"] in beside]
    by_way = {way: [row for row in compared if row["way"] == way] for way in WAYS}
    aris = [mean(some, "ari") for some in by_way.values()]
    once, every, later, ada = (halved - plain for plain, halved in zip(aris[::2], aris[1::2], strict=True))
    alike = [row for row in compared if row["hidden"] == 1]
    plain, halved = ([row for row in alike if ("halves" in row["way"]) is is_halved] for is_halved in (False, True))
    return f"""# The automatic number of clusters

Made by `make results-automatic` (20 or 30 clients, 150 rows each, {seeds} seeds; last layers after one local training, as
FedClust sends them; beside them all weights, clustered likewise). A case in which the data hold no groups (iid) counts like
any other: one cluster is then right, with ARI 1.

{against_hindsight(heads, wholes)}

- The rule's mean ARI is {gap:.3f} below the best cut in hindsight (the aim: at most 0.05).
- Where it finds one cluster although groups are hidden, hardly any cut shows them (turned images leave no trace in the last
  layer), or the groups overlap and even the best cut is poor (non-iid-1).
- Last layers against all weights (the claim that partial weights cluster better): {gain:+.3f} in mean ARI with the rule,
  {mean(heads, "best") - mean(wholes, "best"):+.3f} with the best cut in hindsight.

## Rounds, and two halves

What is compared matters more than the rule. FL+HC (`fl-hc`) compares all updates after {WARMUP} rounds of averaging, by the same
rule; AdaCFL (here without pre-clusters) all weights after the first round. With `halves = true` clients also train on each half
of their rows, and the number is found as in [clade](../clade.md), by what repeats itself in both halves. Each cell has the
numbers of clusters found ({len(beside)} seeds) and the mean ARI.

{side_by_side(by_way)}

- Halves change the mean ARI of last layers by {once:+.3f}: what is not there cannot repeat itself.
  Of all weights after one training: {every:+.3f}, for turned images show in the first layers.
  Of all updates after {WARMUP} rounds: {later:+.3f}. Of AdaCFL with all weights: {ada:+.3f}.
- Clients that are alike were split in {splits(plain)} runs without halves, in {splits(halved)} with them.
"""


def splits(rows: list[dict[str, Any]]) -> str:
    return f"{sum(row['found'] > 1 for row in rows)} of {len(rows)}"


def against_hindsight(heads: list[dict[str, Any]], wholes: list[dict[str, Any]]) -> str:
    lines = [
        "| data | split | hidden | found | count right | ARI | best in hindsight | all weights: ARI | best in hindsight |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for data, split in SETTINGS:
        mine, whole = (of_case(some, data, split) for some in (heads, wholes))
        right = sum(row["found"] == row["hidden"] for row in mine)
        cells = [mean(mine, "ari"), mean(mine, "best"), mean(whole, "ari"), mean(whole, "best")]
        numbers = " | ".join(f"{cell:.2f}" for cell in cells)
        lines.append(f"| {data} | {split} | {mine[0]['hidden']} | {counts(mine)} | {right}/{len(mine)} | {numbers} |")
    cells = [mean(heads, "ari"), mean(heads, "best"), mean(wholes, "ari"), mean(wholes, "best")]
    lines.append(f"| all | | | | {share(heads)} | {' | '.join(f'{cell:.3f}' for cell in cells)} |")
    return "\n".join(lines)


def side_by_side(by_way: dict[str, list[dict[str, Any]]]) -> str:
    lines = [f"| data | split | hidden | {' | '.join(WAYS)} |", "|---" * (3 + len(WAYS)) + "|"]
    for data, split in SETTINGS:
        mine = [of_case(some, data, split) for some in by_way.values()]
        cells = [f"{counts(some)}: {mean(some, 'ari'):.2f}" for some in mine]
        lines.append(f"| {data} | {split} | {mine[0][0]['hidden']} | {' | '.join(cells)} |")
    sums = [f"{share(some)}, {mean(some, 'ari'):.3f}" for some in by_way.values()]
    lines.append(f"| count right, mean ARI | | | {' | '.join(sums)} |")
    return "\n".join(lines)


def of_case(rows: list[dict[str, Any]], data: str, split: str) -> list[dict[str, Any]]:
    return [row for row in rows if (row["data"], row["split"]) == (data, split)]


def counts(rows: list[dict[str, Any]]) -> str:
    return ", ".join(str(row["found"]) for row in rows)


def share(rows: list[dict[str, Any]]) -> str:
    return f"{np.mean([row['found'] == row['hidden'] for row in rows]):.0%}"


def mean(rows: list[dict[str, Any]], key: str) -> float:
    return float(np.mean([row[key] for row in rows]))


if __name__ == "__main__":
    main()
