"""Every task in one process, in workers, simulated and on nodes; from files and Python, resumed, shown, compared."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from torch import nn
from typer.testing import CliRunner

import fedclade
from expect import refused
from fedclade.cli import app
from fedclade.compare.running import compare
from fedclade.compare.study import Cell, Study
from fedclade.data import federation_of
from fedclade.data.options import DataOptions
from fedclade.errors import FedcladeError
from fedclade.newcomers import place
from fedclade.settings import settings_from

TRAINING = {"local_epochs": 3, "batch_size": 8, "learning_rate": 0.05}


def towns(folder: Path, n: int = 4) -> str:
    """Two kinds of towns: what a house costs grows with its size in some, and falls in others."""
    random = np.random.default_rng(0)
    folder.mkdir(exist_ok=True)
    for number in range(n):
        size = random.uniform(20, 200, 40 + 5 * number)
        price = 2e5 + (3000 if number % 2 else -1500) * (size - 110) + random.normal(0, 3000, len(size))
        table = pd.DataFrame({"size": size, "floor": random.integers(0, 9, len(size)), "price": price.round()})
        table["garden"], table["garage"] = (size > 110).astype(int), (price > 2e5).astype(int)
        table.to_csv(folder / f"town-{number}.csv", index=False)
    return f"folder:{folder}"


def texts(folder: Path) -> str:
    folder.mkdir()
    for number, words in enumerate(["abcd ", "dcba ", "abcd ", "äxyz "]):
        (folder / f"author-{number}.txt").write_text(words * 60, encoding="utf-8")
    return f"folder:{folder}"


CASES: dict[str, dict[str, Any]] = {
    "regression": {"task": "regression", "data_options": {"label": "price"}},
    "two amounts": {"task": "regression", "data_options": {"label": ["price", "size"]}},
    "multilabel": {"task": "multilabel", "data_options": {"label": ["garden", "garage"]}},
    "class weights": {
        "task": {"name": "classification", "class_weights": "balanced"},
        "data_options": {"label": "garden"},
    },
    "tokens": {"task": "tokens", "data_options": {"length": 12}},
    "own": {
        "task": {"loss": "torch.nn.functional:huber_loss", "metrics": ["test_tasks:bias"], "lower_is_better": "bias"},
        "data_options": {"label": "size", "labels": "numbers"},
    },
}


def bias(outputs: np.ndarray, targets: np.ndarray) -> float:
    return abs(float((outputs - targets).mean()))


def a_run(case: str, folder: Path, **more: Any) -> fedclade.Result:
    data = folder / ("texts" if case == "tokens" else "towns")
    if not data.exists():
        (texts if case == "tokens" else towns)(data)
    settings = {"method": {"name": "ifca", "n_clusters": 2}, "rounds": 2, "training": TRAINING, "workers": 1, "seed": 3}
    return fedclade.run(f"folder:{data}", **{**settings, **CASES[case], **more})


@pytest.mark.parametrize("case", CASES)
def test_a_task_is_the_same_in_workers_and_resumed(case: str, tmp_path: Path) -> None:
    whole = a_run(case, tmp_path, out=tmp_path / "whole")
    spread = a_run(case, tmp_path, workers=2)
    a_run(case, tmp_path, rounds=1, out=tmp_path / "part")
    resumed = fedclade.resume(tmp_path / "part", rounds=2)
    assert (whole.summary["training_path"] == "plain") == (case in ("tokens", "own"))
    for other in (spread, resumed):
        for column in ("cluster", "train_loss", *whole.metrics):
            assert other.history[column].equals(whole.history[column])
        for client in whole.clients:
            assert np.array_equal(other.weights_for(client), whole.weights_for(client))
    if case != "own":
        means = whole.by_round(whole.metric.name)["mean"]
        assert whole.metric.gain(means[2], means[0]) > 0  # it learns
    assert not len(whole.failures)


@pytest.mark.parametrize("case", ["regression", "tokens"])
def test_a_task_is_the_same_in_the_simulation(case: str, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    local, simulated = (a_run(case, tmp_path, engine=engine) for engine in ("local", "flower-sim"))
    for client in local.clients:
        assert np.array_equal(simulated.weights_for(client), local.weights_for(client))
    np.testing.assert_allclose(simulated.history[local.metric.name], local.history[local.metric.name], rtol=1e-6)


@pytest.mark.parametrize("case", [name for name in CASES if name != "own"])
def test_a_task_is_the_same_on_nodes(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr")
    from engines.grids import FakeGrid
    from engines.test_deployed import a_node
    from fedclade.deploy import worker
    from fedclade.deploy.server import serve

    monkeypatch.setattr(worker, "hand_over", worker.perform)
    local = a_run(case, tmp_path)
    grid, data = FakeGrid(), tmp_path / ("texts" if case == "tokens" else "towns")
    for number, name in enumerate(local.record["clients"]):
        grid.add(10 + number, a_node(10 + number, name, data, tmp_path / "memory", seed=3), f"key {name}", name)
    task = CASES[case]["task"]
    told = {"task": task} if isinstance(task, str) else {f"task.{name}": value for name, value in task.items()}
    options = [
        f"data_options.{name}={value!r}".replace("'", '"') for name, value in CASES[case]["data_options"].items()
    ]
    config = {"clients": 4, "wait": 0.5, "rounds": 2, "seed": 3, "out": str(tmp_path / "run"), **told}
    config |= {f"training.{name}": value for name, value in TRAINING.items()}
    config |= {"method.name": "ifca", "method.n-clusters": 2, "set": " ".join(f"'{option}'" for option in options)}
    nodes = fedclade.Result(serve(grid, config))
    assert nodes.metric == local.metric
    assert nodes.clusters == local.clusters
    np.testing.assert_allclose(nodes.history[nodes.metric.name], local.history[local.metric.name], rtol=1e-6)


def test_amounts_are_reported_in_their_unit_and_ranked_by_error(tmp_path: Path) -> None:
    apart = a_run("regression", tmp_path, rounds=8, out=tmp_path / "ifca")
    together = a_run("regression", tmp_path, rounds=8, method="fedavg", out=tmp_path / "fedavg")
    assert list(apart.metrics) == ["rmse", "mae", "r2", "loss"]
    assert apart.score["mean"] < 0.6 * together.score["mean"]
    assert apart.score["worst"] == apart.last("rmse").max() > apart.score["mean"] > 1000
    model, table = apart.model_for("town-1"), pd.read_csv(tmp_path / "towns" / "town-1.csv")
    assert model is not None
    means = apart.by_round("rmse")["mean"]
    assert apart.first_reaching(float(means[3])) == int((means <= means[3]).idxmax()) > 0
    with pytest.raises(FedcladeError, match="measured no 'accuracy', but rmse, mae, r2, loss"):
        _ = apart.accuracy
    shown = CliRunner().invoke(app, ["show", str(tmp_path / "ifca")]).output
    assert "RMSE" in shown
    assert f"R2 {apart.over_clients('r2')['mean']:.4g}" in shown
    worst = apart.last("rmse").idxmax()
    assert next(line for line in shown.splitlines() if "cluster model" in line).split()[-1] == worst
    placed = place(tmp_path / "ifca", f"folder:{tmp_path / 'towns'}", personalise=0, save=False)
    assert {one.metric.name for one in placed.values()} == {"rmse"}
    assert len(table) == 45


def test_comparisons_pages_and_trackers_use_the_main_metric(tmp_path: Path) -> None:
    from fedclade.compare import Study, compare
    from fedclade.report.making import make_report

    data = towns(tmp_path / "towns")
    shared = {"data": {"name": data, "label": "price"}, "task": "regression", "rounds": 3, "training": TRAINING}
    cells = [
        {"label": "ifca", "method": {"name": "ifca", "n_clusters": 2}},
        {"label": "fedavg", "method": "fedavg"},
    ]
    study = Study.of({"title": "homes", "settings": shared, "cells": cells, "seeds": (0, 1), "target": 1e6})
    compared = compare(study, tmp_path / "study", workers=1)
    assert compare(study, tmp_path / "study", workers=1).failures == {}  # what is done is known again
    table = compared.table().set_index("label")
    assert table.loc["ifca", "rmse_mean"] < table.loc["fedavg", "rmse_mean"]
    assert list(table["p_best"].isna()) == [True, False]  # the first is the best
    assert (table["rounds_to"] == 0).all()
    compared.write()
    words = (tmp_path / "study" / "table.md").read_text()
    assert "RMSE, means over clients" in words
    runs = sorted((tmp_path / "study").glob("*/seed-*"))
    make_report(runs, tmp_path / "page.html", markdown=True)
    told = (tmp_path / "page.md").read_text()
    assert "RMSE by round" in told
    assert "With cluster models ifca is best" in told
    tracked = a_run("regression", tmp_path, track="csv", out=tmp_path / "tracked")
    rounds = pd.read_csv(tracked.path / "rounds.csv")
    assert rounds["rmse/mean"].iloc[-1] == pytest.approx(tracked.score["mean"])
    assert rounds["rmse/worst"].iloc[-1] == pytest.approx(tracked.score["worst"])


def test_methods_that_look_at_classes_say_so(tmp_path: Path) -> None:
    for method in ("adacfl", "fedstack", "flis", "pacfl"):
        refused(lambda name=method: a_run("regression", tmp_path, method=name), method, "class labels", "regression")


class Small(nn.Module):
    """Its rows must be whole numbers."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.embedding, self.head = nn.EmbeddingBag(50, 8), nn.Linear(8, n_classes)

    def forward(self, tokens: Any) -> Any:
        assert not tokens.is_floating_point()
        return self.head(self.embedding(tokens))


def test_token_ids_reach_an_own_network(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    ids = random.integers(0, 50, (60, 5))
    words = np.where(ids.mean(1) > 25, "high", "low")
    clients = {f"c{k}": (ids[k::3], words[k::3]) for k in range(3)}
    result = fedclade.run(clients, task="tokens", model=Small, rounds=1, workers=1)
    assert not len(result.failures)
    assert list(result.metrics) == ["accuracy", "perplexity", "loss"]


def test_texts_become_rows_of_characters(tmp_path: Path) -> None:
    texts(tmp_path / "texts")
    read = federation_of(
        f"folder:{tmp_path / 'texts'}", options=DataOptions(labels="classes", rows="tokens", length=12)
    )
    assert read.classes == (" ", "a", "b", "c", "d", "x", "y", "z", "ä")
    assert read.input_shape == (12,)
    letters = np.array(read.classes)
    for client, words in zip(read.clients, ["abcd ", "dcba ", "abcd ", "äxyz "], strict=True):
        rows = np.sort(np.concatenate([client.train, client.test]))
        assert "".join(letters[read.x[rows]].ravel()) == (words * 60)[: 12 * len(rows)]
        assert "".join(letters[read.y[rows]].ravel()) == (words * 60)[1 : 12 * len(rows) + 1]
    refused(lambda: fedclade.run({"a": "abc"}, task="tokens"), "client 'a'", "3 characters", "data.length")


def test_amounts_taken_for_classes_are_remarked_on(tmp_path: Path) -> None:
    data = towns(tmp_path / "towns")
    found = {label: federation_of(data, options=DataOptions(label=label)).remarks for label in ("price", "garden")}
    assert any("set task=regression" in remark for remark in found["price"])
    assert not any("regression" in remark for remark in found["garden"])


def test_labels_that_do_not_fit_the_task(tmp_path: Path) -> None:
    data = towns(tmp_path / "towns")

    def run(task: Any, **options: Any) -> fedclade.Result:
        return fedclade.run(data, task=task, data_options=options, rounds=1, workers=1)

    refused(lambda: run("multilabel", label="size"), "town-0.csv", "0 or 1")
    refused(lambda: run("regresion"), "unknown task", "did you mean 'regression'")
    refused(lambda: run("classification", label=["size", "price"]), "data.label", "regression or multilabel")
    refused(lambda: run("classification", label="size"), "fractions", "task=regression")
    refused(
        lambda: run({"name": "classification", "class_weights": [1, 2, 3]}, label="garden"), "class_weights", "0, 1"
    )
    refused(lambda: run({"name": "classification", "class_weights": [1, -2]}, label="garden"), "above 0")
    refused(lambda: run("own"), "loss is missing")
    refused(lambda: run({"loss": "nowhere:loss"}), "nowhere")
    refused(lambda: run({"loss": bias}, labels="numbers", label="size"), "return a loss for each row")
    refused(lambda: fedclade.run(task="regression", rounds=1), "numbers", "classes")
    refused(lambda: fedclade.run(task="tokens", rounds=1), "tokens")
    refused(lambda: run("regression", labels="sets"), "numbers", "sets")
    with pytest.raises(FedcladeError, match="given its task in Python"):
        fedclade.resume(run_with_lambda(data, tmp_path / "lambda"))
    assert settings_from({"task": "regression"}).reading.labels == "numbers"


def run_with_lambda(data: str, out: Path) -> Path:
    options = {"label": "size", "labels": "numbers"}
    fedclade.run(data, task={"loss": lambda o, t: (o - t).abs()}, data_options=options, rounds=1, workers=2, out=out)
    return out


def test_baselines_tell_whether_a_method_paid(tmp_path: Path) -> None:
    run = a_run("regression", tmp_path, rounds=4, baselines=True, out=tmp_path / "run")
    for name, method in (("fedavg", "fedavg"), ("local", "local")):
        alone = a_run("regression", tmp_path, rounds=4, method=method)
        assert run.baselines[name].last("rmse").equals(alone.last("rmse"))
    ends = {name: run.baselines[name].score["mean"] for name in run.baselines}
    assert ("ifca paid: RMSE" in run.verdict) == (run.score["mean"] < min(ends.values()))
    better = (run.baselines["local"].last("rmse") < run.last("rmse")).sum()
    assert f"{better} of 4 clients would be better off alone." in run.verdict
    assert run.verdict.split(":")[0] in CliRunner().invoke(app, ["show", str(run.path)]).output
    fedclade.run(planted_alone(), method="fedavg", rounds=6, workers=1, baselines=True, out=tmp_path / "odd")
    odd = fedclade.resume(tmp_path / "odd", rounds=8, data=planted_alone())
    assert {found.round for found in odd.baselines.values()} == {8}
    assert "fedavg did not pay" in odd.verdict
    assert "Training alone was better" in odd.verdict


def planted_alone() -> Any:
    from synthetic import planted

    return planted(n_clients=4, n_groups=4, rows=60)


def test_few_rows_are_gone_through_more_often_where_nobody_has_said_how_often(tmp_path: Path) -> None:
    task = {"task": "regression", "data_options": {"label": "price"}, "method": "fedavg", "evaluate_every": 0}

    def run(**settings: Any) -> tuple[int, list[str]]:
        result = fedclade.run(towns(tmp_path / "towns"), workers=1, **{**task, **settings})
        said = [remark for remark in result.record["remarks"] if "few rows" in remark]
        return result.settings["training"]["local_epochs"], said

    epochs, (remark,) = run()  # 38 rows are 3 batches
    assert epochs == 7
    assert "(38, the median): clients go through them 7 times a round, not 2, for 210 steps in place of 60" in remark
    assert run(participation=0.5)[0] == 14
    for said in ({"rounds": 1}, {"training": {"local_epochs": 2}}, {"training": {"batch_size": 4}}):
        assert run(**said) == (2, [])
    pooled = {"task": "classification", "data_options": {"label": "garden"}, "method": "centralized"}
    assert run(**pooled) == (2, [])  # in one place there are the rows of all

    stopped = tmp_path / "stopped"  # what was settled stays so, also with more rounds
    fedclade.run(towns(tmp_path / "towns"), workers=1, **task, out=stopped)
    assert fedclade.resume(stopped, rounds=11, workers=1).settings["training"]["local_epochs"] == 7


def test_a_study_knows_its_runs_again_whose_length_and_place_they_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    towns(Path("towns"))
    study = Study(
        cells=(Cell.model_validate({"label": "all", "method": "fedavg"}),),
        settings={"data": "folder:towns", "data_options": {"label": "garden"}, "evaluate_every": 0},
        seeds=(0,),
    )
    first = compare(study, tmp_path / "out", workers=1)
    assert not first.failures
    again = compare(study, tmp_path / "out", workers=1)
    assert again.table()["label"].tolist() == ["all"]
    longer = study.model_copy(update={"settings": {**study.settings, "training": {"local_epochs": 3}}})
    assert [run.mark for run in longer.runs(tmp_path)] != [run.mark for run in study.runs(tmp_path)]
