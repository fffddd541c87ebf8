"""How well the automatic number of clusters does: against the hidden count, and the best threshold in hindsight.

    python studies/automatic.py --data-dir DIR --out docs/results/automatic.md

Each line is a way to deal out data; for every seed all clients train once from the same model, and their last layers are
clustered, as FedClust does. "Best in hindsight" is the highest adjusted Rand index that any cut of the same tree reaches.
Beside it, what else could be compared: all weights; all updates after five rounds of averaging, as FL+HC does; or what
clients send who train once on each half of their rows, by the rule of clade, which asks what repeats itself in both.
"""

import argparse
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import fedclade
from fedclade import About, Method, Train
from fedclade.clustering.evidence import View, find_groups
from fedclade.clustering.hierarchy import Tree, sweep
from fedclade.clustering.scores import adjusted_rand
from fedclade.data import federation_of
from fedclade.data.federation import Federation

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
ROWS = 150
WARMUP = 5  # rounds of averaging, FL+HC's own
WAYS = {
    "head": "last layers",
    "all": "all weights",
    "rounds": f"all, after {WARMUP} rounds",
    "head of halves": "two halves, last layers",
    "all of halves": "two halves, all layers",
}
Case = tuple[str, str, int, str | None]


def one(case: Case) -> list[dict[str, Any]]:
    """What every way finds."""
    data, split, seed, data_dir = case
    clients = 30 if split == "adacfl-b" else 20
    model = "mlp" if data in ("motionsense", "digits") else "lenet5"
    how: dict[str, Any] = {"model": model, "seed": seed, "training": TRAINING, "workers": 1, "evaluate_every": 0}
    dealt: dict[str, Any] = {"split": split, "clients": clients, "data_dir": data_dir}
    about = {"data": data, "split": split}
    found = []
    for way, rounds, method in (
        ("head", 0, {"name": "fedclust", "layers": "head"}),
        ("all", 0, {"name": "fedclust", "layers": "all"}),
        ("rounds", WARMUP + 1, {"name": "fl-hc", "warmup": WARMUP}),
    ):
        result = fedclade.run(data, method=method, rounds=rounds, rows=ROWS, **dealt, **how)
        record = result.last_kept("dendrogram")
        groups = result.record["groups"]
        truth = np.array([groups[client] for client in record["clients"]])
        best = max(adjusted_rand(truth, level.labels) for level in sweep(Tree(record["merges"], record["linkage"])))
        found.append(about | {"way": way, **judged(truth, np.asarray(record["labels"])), "best": best})
    whole = federation_of(data, seed=seed, **dealt).limited(ROWS, seed)
    result = fedclade.run(halved(whole, seed), method=OfHalves(), rounds=0, **how)
    truth = np.array([str(client.group) for client in whole.clients])
    for layers, labels in result.last_kept("halves").items():
        found.append(about | {"way": f"{layers} of halves", **judged(truth, np.asarray(labels))})
    return found


def judged(truth: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    return {"hidden": len(set(truth.tolist())), "found": int(labels.max()) + 1, "ari": adjusted_rand(truth, labels)}


def halved(whole: Federation, seed: int) -> Federation:
    """Each client as two, with half of its rows each; they are there twice, so that training is as long."""
    clients = []
    for number, client in enumerate(whole.clients):
        order, count = np.random.default_rng([seed, number]).permutation(client.train), len(client.train)
        for name, half in (("a", order[: count // 2]), ("b", order[count // 2 :])):
            rows = np.sort(np.resize(half, count))
            clients.append(replace(client, name=f"{client.name}{name}", train=rows))
    return replace(whole, clients=tuple(clients))


class OfHalves(Method):
    """Who is alike by what both of its halves send: by the last layer alone, and by every layer as far as it repeats."""

    about: ClassVar[About] = About("groups by updates of two halves", "ours")

    def start(self, context: Any, ask: Any) -> Any:
        trained = ask(Train(context.initial), to=context.clients)
        moved = trained.stack() - context.initial
        a, b = moved[::2], moved[1::2]
        noise = np.ones((len(a), 2))  # all have as many rows
        layers = {name: (a[:, place], b[:, place]) for name, place in context.layout.layers.items()}
        head = {context.layout.head: layers[context.layout.head]}
        labels = {
            name: find_groups({"updates": View({"updates": some}, noise)}, context.seed).labels
            for name, some in (("head", head), ("all", layers))
        }
        ask.record("halves", **labels)
        return super().start(context, ask)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    cases = [(data, split, seed, arguments.data_dir) for data, split in SETTINGS for seed in range(arguments.seeds)]
    with ProcessPoolExecutor(arguments.workers, mp_context=get_context("spawn")) as pool:
        rows = [row for found in pool.map(one, cases) for row in found]
    text = document(rows, arguments.seeds)
    print(text)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(text)


def document(rows: list[dict[str, Any]], seeds: int) -> str:
    by_way = {way: [row for row in rows if row["way"] == way] for way in WAYS}
    heads, wholes, later = by_way["head"], by_way["all"], by_way["rounds"]
    gap, gain = mean(heads, "best") - mean(heads, "ari"), mean(heads, "ari") - mean(wholes, "ari")
    alike = {way: [row for row in some if row["hidden"] == 1] for way, some in by_way.items()}
    split = {way: sum(row["found"] > 1 for row in some) for way, some in alike.items()}
    splits = ", ".join(f"{WAYS[way]} {count}" for way, count in split.items())
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

## What else could be compared

The same rule on all updates after {WARMUP} rounds of averaging, as FL+HC does (`fl-hc` with its own linkage); and the rule of
[clade](../clade.md) on what clients send who train from the initial model once on each half of their rows, as long as on
all of them. Each cell has the numbers of clusters found and the mean ARI.

{side_by_side(by_way)}

- Rounds of averaging bring out what the initial model hides: {share(later)} and {mean(later, "ari"):.3f} (the best cuts in
  hindsight: {mean(later, "best"):.3f}), with no other rule and nothing more to train or send than FL+HC does.
- Two halves, for which everybody trains twice and sends twice as much, do not: in last layers they have no more than the
  whole has, and of all layers half the rows say too little. So the methods keep their rule. `clade` asks the halves for sums
  over rows in place of updates, where labels can be set apart ([groups.md](groups.md)).
- Clients that are alike, of {len(alike["head"])} runs each, were split in: {splits}.
"""


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
    lines = [f"| data | split | hidden | {' | '.join(WAYS.values())} |", "|---" * (3 + len(WAYS)) + "|"]
    cell: Callable[[list[dict[str, Any]]], str] = lambda some: f"{counts(some)}: {mean(some, 'ari'):.2f}"  # noqa: E731
    for data, split in SETTINGS:
        mine = [of_case(some, data, split) for some in by_way.values()]
        lines.append(f"| {data} | {split} | {mine[0][0]['hidden']} | {' | '.join(map(cell, mine))} |")
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
