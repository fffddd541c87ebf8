"""How choices in `clade` were settled: by rows of the training files alone, on seeds that no table shows.

    python studies/choices.py --data-dir DIR --out docs/results/choices.md

Of each image data set a sixth of the official *training* rows stands in for the test rows; of people's sensors a fifth
of each person's training rows. The official test rows, and so those of the benchmark, are never looked at. Settings are
the benchmark's; what has been run is kept beside the page's name in a CSV file, and is not run again.
"""

import argparse
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedclade.tables import to_markdown

SETTINGS = (
    "fashion-skew-20", "fashion-skew-30", "fashion-dirichlet", "fashion-rotation", "mnist-non-iid-1", "mnist-non-iid-2",
    "mnist-rotation", "mnist-iid", "mnist-adacfl-alpha", "mnist-adacfl-b", "mnist-few-rows", "mnist-loners",
    "cifar-label-groups", "motionsense-held-out", "geotec-held-out",
)  # fmt: skip
PICK = {"name": "pick"}
VARIANTS: dict[str, dict[str, Any]] = {
    "clade": {},
    "nothing halfway": {"serving": {**PICK, "halfway": False}},
    "last weights, not averaged": {"serving": {**PICK, "averaged": 0.0}},
    "judged by log losses": {"judged": "log"},
    "clusters always apart": {"method": {"name": "clade", "share_body": False}},
    "no picking": {"serving": "model"},
    "FedAvg, picked": {"method": "fedavg", "serving": PICK},
}
NUMBERS: dict[str, dict[str, Any]] = {  # of `pick`: twice and half of each, or so
    "a tenth held out": {"serving": {**PICK, "held": 0.1}},
    "a third held out": {"serving": {**PICK, "held": 0.33}},
    "2 and 10 epochs": {"serving": {**PICK, "epochs": [2, 10]}},
    "10 and 40 epochs": {"serving": {**PICK, "epochs": [10, 40]}},
    "10 rows of all": {"serving": {**PICK, "strength": 10}},
    "1,000 rows of all": {"serving": {**PICK, "strength": 1000}},
}
TRIED = {**VARIANTS, **NUMBERS}
KEY = ["setting", "variant", "seed"]


def training_rows(name: str, data_dir: str | None) -> Any:
    """A data set without its official test rows."""
    from fedclade.data.sources import load

    data = load(name, data_dir)
    n = data.n_train
    if data.owner is not None:  # each person's own rows are divided
        return replace(data, x=data.x[:n], y=data.y[:n], owner=data.owner[:n])
    order = np.random.default_rng(99).permutation(n)
    return replace(data, x=data.x[order], y=data.y[order], n_train=n - n // 6)


@contextmanager
def judged_by(how: str) -> Iterator[None]:
    """Models are judged by log losses in place of Brier's score."""
    from fedclade.clients.objective import Classification

    usual = Classification.held_out_losses
    if how == "log":
        Classification.held_out_losses = Classification.losses  # type: ignore[method-assign]
    try:
        yield
    finally:
        Classification.held_out_losses = usual  # type: ignore[method-assign]


def one(case: tuple[str, str, int, str | None]) -> dict[str, Any]:
    import fedclade
    from fedclade.benchmark import studies

    setting, variant, seed, data_dir = case
    given: Mapping[str, Any] = studies([setting])[setting].settings
    data = training_rows(given["data"], data_dir)
    more = dict(TRIED[variant])
    view = {"test_view": "holdout"} if data.owner is not None else {}
    with judged_by(more.pop("judged", "")), tempfile.TemporaryDirectory() as folder:
        settings = {"method": "clade", **given, **view, **more, "seed": seed, "out": f"{folder}/run"}
        settings.pop("data")
        result = fedclade.run(data, **settings)
        accuracy = np.sort(np.array(list(result.last("accuracy")), float))
    worst = accuracy[: max(len(accuracy) // 10, 1)]
    return dict(zip(KEY, case, strict=False)) | {"accuracy": accuracy.mean(), "worst tenth": worst.mean()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir")
    parser.add_argument("--first", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("docs/results/choices.md"))
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    wanted = [(s, variant, seed, arguments.data_dir) for s in SETTINGS for variant in TRIED for seed in seeds]
    kept = arguments.out.with_suffix(".csv")
    table = pd.read_csv(kept) if kept.is_file() else pd.DataFrame(columns=[*KEY, "accuracy", "worst tenth"])
    done = set(table[KEY].itertuples(index=False, name=None))
    missing = [case for case in wanted if case[:3] not in done]
    with ProcessPoolExecutor(arguments.workers, mp_context=get_context("spawn")) as pool:
        for number, row in enumerate(pool.map(one, missing), 1):
            table.loc[len(table)] = row
            table.to_csv(kept, index=False, float_format="%.4f")
            print(f"{number}/{len(missing)} {row}", flush=True)
    arguments.out.write_text(document(table, list(seeds)))


def document(table: pd.DataFrame, seeds: list[int]) -> str:
    means = table[table["seed"].isin(seeds)].groupby(["setting", "variant"])[["accuracy", "worst tenth"]].mean() * 100
    over_all = means.groupby("variant").mean()

    def cell(numbers: pd.Series) -> str:
        return f"{numbers['accuracy']:.1f} / {numbers['worst tenth']:.1f}"

    def shown(variants: Iterable[str]) -> str:
        rows = [["setting", *variants]]
        rows += [[setting, *(cell(means.loc[setting, variant]) for variant in variants)] for setting in SETTINGS]
        return to_markdown([*rows, ["**mean**", *(cell(over_all.loc[variant]) for variant in variants)]])

    return f"""# How choices in clade were settled

Made by `make results-choices` on a 2-core CPU, seeds {", ".join(map(str, seeds))}. Accuracy of what serves each client, in
percent, and that of the worst tenth of clients. The settings are those of the [benchmark](../benchmark.md), but on rows of the
*training* files alone: a sixth of them stands in for the test rows. So no default was chosen by a row on which a table of
this project is tested. Each column changes one thing.

{shown(VARIANTS)}

- *nothing halfway*: the mean of a model as it is and after 20 epochs is not among those that are tried.
- *last weights, not averaged*: what a client trains for itself is its model after the last epoch, not the mean over the last
  half of the epochs.
- *judged by log losses*: models are picked by log losses in place of Brier's score.
- *clusters always apart*: clusters by labels never share layers; else they share all but the last where they hold the same
  classes in other shares, or where about one member of each trains in a round.

## The numbers of `pick`

A fifth of the rows is held out, 5 and 20 epochs are tried, and the losses of all clients count like 100 rows beside a client's
own. Other numbers:

{shown(["clade", *NUMBERS])}
"""


if __name__ == "__main__":
    main()
