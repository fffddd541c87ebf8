"""What one lying client in ten can do, by method, attack and aggregation rule.

    python studies/attacks.py --data-dir DIR --out docs/results/attacks.md

Every run is kept under --runs and is not done again. Each group of ten clients has one liar. It trains honestly and
then sends something else; it begins after the clusters are made (where they are made at once, a liar there is placed
by its own lies and harms itself).
Accuracies are the means over the honest clients, of the models that serve them.
"""

import argparse
import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fedclade.assembly import go, make_engine, make_federation, make_networks
from fedclade.clients.tasks import Answer, Failure, Task, Train, Trained
from fedclade.data import Federation
from fedclade.errors import FedcladeError
from fedclade.result import Result
from fedclade.runs.folder import RunFolder
from fedclade.runs.record import run_record
from fedclade.settings import Settings, settings_from
from fedclade.tables import to_markdown

LIAR_OF_GROUP, FROM_ROUND = 3, 2  # the fourth client of each group lies, from the second round on
SETTING = {
    "data": "mnist", "split": "rotation:2", "clients": 20, "rows": 150, "model": "mlp", "rounds": 15, "workers": 1,
    "evaluate_every": 0, "training": {"local_epochs": 2, "batch_size": 16, "learning_rate": 0.05, "momentum": 0.5},
}  # fmt: skip
METHODS: dict[str, Any] = {
    "FedAvg": "fedavg",
    "FedProx": "fedprox",
    "FedNova": "fednova",
    "FedClust": {"name": "fedclust", "n_clusters": 2},
    "FL+HC": {"name": "fl-hc", "n_clusters": 2, "warmup": 0},
    "IFCA": {"name": "ifca", "n_clusters": 2},
    "FeSEM": {"name": "fesem", "n_clusters": 2},
    "Agreement": "agreement",
}
Lie = Callable[[Trained, np.ndarray, np.random.Generator], Trained]


def scaled(factor: float, rows: int | None = None) -> Lie:
    def lie(honest: Trained, start: np.ndarray, random: np.random.Generator) -> Trained:
        weights = (start + np.float32(factor) * (honest.weights - start)).astype(np.float32)
        return replace(honest, weights=weights) if rows is None else claiming(replace(honest, weights=weights), rows)

    return lie


def claiming(answer: Trained, rows: int) -> Trained:
    """With so many rows, and as many steps as these would make."""
    return replace(answer, n_samples=rows, steps=2 * -(-rows // 16))


def noise(honest: Trained, start: np.ndarray, random: np.random.Generator) -> Trained:
    update = honest.weights - start
    drawn = random.standard_normal(update.shape) * (10 * np.linalg.norm(update) / np.sqrt(update.size))
    return replace(honest, weights=(start + drawn).astype(np.float32))


def nothing(honest: Trained, start: np.ndarray, random: np.random.Generator) -> Trained:
    return replace(honest, weights=np.zeros_like(start))


ATTACKS: dict[str, Lie | None] = {
    "none": None,
    "update x -10": scaled(-10),
    "update x 100": scaled(100),
    "update x -1": scaled(-1),
    "flipped, 10^12 rows claimed": scaled(-1, 10**12),
    "flipped, 10^6 rows claimed": scaled(-1, 10**6),
    "noise, 10 x as long": noise,
    "all zeros": nothing,
}
RULES: dict[str, Any] = {
    "mean": "mean",
    "mean, shares up to 0.2": {"name": "mean", "max_share": 0.2},
    "median": "median",
    "trimmed-mean": "trimmed-mean",
    "geometric-median": "geometric-median",
    "clip": "clip",
}


class Attacked:
    """An engine, some of whose clients lie."""

    def __init__(self, engine: Any, liars: Sequence[str], lie: Lie | None, seed: int) -> None:
        self._engine, self._liars, self._lie, self._seed = engine, liars, lie, seed
        self.has_strangers = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def answer(self, tasks: Mapping[str, Task], round: int) -> dict[str, Answer | Failure]:
        answers = dict(self._engine.answer(tasks, round))
        if self._lie is None or round < FROM_ROUND:
            return answers
        for k, liar in enumerate(self._liars):
            task, answer = tasks.get(liar), answers.get(liar)
            if isinstance(task, Train) and isinstance(answer, Trained) and len(answer.weights):
                start = task.candidates[answer.chosen or 0]
                if answer.weights.shape == start.shape:
                    answers[liar] = self._lie(answer, start, np.random.default_rng([self._seed, round, k]))
        return answers


def liars_of(groups: Mapping[str, Any]) -> list[str]:
    """One client of each group."""
    members: dict[Any, list[str]] = {}
    for client, group in groups.items():
        members.setdefault(group, []).append(client)
    return [names[LIAR_OF_GROUP] for names in members.values()]


@lru_cache
def clients_of(seed: int, data_dir: str | None) -> Federation:
    return make_federation(settings_from({**SETTING, "seed": seed, "data_dir": data_dir}))


def accuracy(folder: Path, settings: Settings, lie: Lie | None) -> float:
    """Of the honest clients, in a run that is done if it was not yet."""
    run = RunFolder(folder)
    if not run.is_finished:
        federation = clients_of(settings.seed, settings.data_dir)
        shape, n_classes = federation.input_shape, federation.n_classes
        networks = make_networks(settings, settings.model, federation.names, shape, n_classes)
        if not (folder / "settings.json").exists():
            facts = {"groups": federation.groups, "classes": federation.classes, "input_shape": shape}
            record = run_record(settings, clients=federation.names, fingerprint="", split=federation.split, **facts)
            run = RunFolder.create(folder, record)
        # Where the models are driven away the run ends with an error, as it should.
        with contextlib.suppress(FedcladeError):
            engine = make_engine(run, settings, federation, networks)
            attacked = Attacked(engine, liars_of(federation.groups), lie, settings.seed)
            go(run, settings, lambda: attacked, federation.names, groups=federation.groups)
    if not run.is_finished:
        return float("nan")
    result = Result.open(folder)
    return float(result.last("accuracy").drop(liars_of(result.record["groups"])).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir")
    parser.add_argument("--runs", type=Path, default=Path("runs/attacks"))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("docs/results/attacks.md"))
    asked = parser.parse_args()
    means: dict[tuple[str, str, str], float] = {}
    for method, named in METHODS.items():
        for rule, told in RULES.items():
            for attack, lie in ATTACKS.items():
                values = []
                for seed in range(asked.seeds):
                    given = {**SETTING, "method": named, "aggregation": told, "seed": seed, "data_dir": asked.data_dir}
                    name = "-".join(
                        word.replace(" ", "_").replace(",", "") for word in (method, rule, attack, str(seed))
                    )
                    values.append(accuracy(asked.runs / name, settings_from(given), lie))
                means[method, rule, attack] = float(np.mean(values))
                print(f"{method} {rule} {attack}: {means[method, rule, attack]:.3f}", flush=True)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(page(means, asked.seeds), encoding="utf-8")
    (asked.runs / "means.json").write_text(json.dumps([[*key, value] for key, value in means.items()]))


def page(means: Mapping[tuple[str, str, str], float], seeds: int) -> str:
    parts = [
        "# One liar in ten\n",
        "Made by `python studies/attacks.py` (2-core CPU). MNIST in two rotations, 20 clients of 150 rows (10 of each "
        f"rotation), an MLP, 15 rounds, {seeds} seeds. One client of each ten lies from round {FROM_ROUND} on. Mean accuracy in % of the "
        "honest clients, of the models that serve them; the rule is the run's `aggregation`. A claim of 10^12 rows is "
        "refused by the bound on rows (`max_samples`), whatever the rule.\n",
    ]
    worst: dict[str, tuple[float, str]] = {}
    for rule in RULES:
        rows = []
        for method in METHODS:
            base = means[method, "mean", "none"]
            row = [method]
            for attack in ATTACKS:
                value = means[method, rule, attack]
                row.append("diverged" if np.isnan(value) else f"{100 * value:.1f}")
                loss = base - (0.0 if np.isnan(value) else value)
                worst[rule] = max(worst.get(rule, (0.0, "")), (loss, f"{method}, {attack}"))
            rows.append(row)
        table = to_markdown([["method", *ATTACKS], *rows])
        parts.append(f"## {rule}\n\n{table}\n")
    lines = "\n".join(
        f"- {rule}: at most {100 * loss:.1f} points below the mean without an attack ({where})"
        for rule, (loss, where) in worst.items()
    )
    best = min(worst, key=lambda rule: worst[rule])
    advice = f'Where clients may lie, `aggregation = "{best}"` costs least: with one liar in ten, '
    advice += f"it loses at most {100 * worst[best][0]:.1f} points to the attacks tried here."
    return "\n".join([*parts[:2], lines + "\n", advice + "\n", *parts[2:]])


if __name__ == "__main__":
    main()
