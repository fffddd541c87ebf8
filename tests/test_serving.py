"""What serves clients: any method can be fine-tuned or picked; rows are held out until models are judged, then used."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import fedclade
from fedclade.clients.objective import Classification, Tokens
from fedclade.clients.tasks import Evaluate, Train, Training, Tried, Try
from fedclade.methods.base import RoundContext
from fedclade.methods.fedavg import FedAvg
from fedclade.serving import Pick, capped, losses_of, picks, plan
from harness import contents, local
from synthetic import planted

TRAINING = {"local_epochs": 1, "batch_size": 8, "learning_rate": 0.05, "momentum": 0.5}


def run(out: Path, method: str = "fedavg", rounds: int = 5, **settings: object) -> fedclade.Result:
    given = {"model": "mlp", "training": TRAINING, "workers": 1, "seed": 1, "method": method} | settings
    return fedclade.run(planted(n_clients=6, n_groups=2, rows=60), rounds=rounds, out=out, **given)


def test_picks_are_shrunk_to_what_is_best_for_all() -> None:
    table = np.array([[1.0, 2.0], [1.0, 2.0], [2.0, 1.9], [9.0, 1.0]])
    rows = np.full(4, 20.0)
    assert picks(table, rows, 0.0) == [0, 0, 1, 1]  # everybody for itself
    everybody = table.mean(axis=0)
    by_hand = [int(np.argmin((20 * own + 100 * everybody) / 120)) for own in table]
    assert picks(table, rows, 100.0) == by_hand
    assert picks(table[:3], rows[:3], 100.0) == [0, 0, 0]
    missing = np.array([[1.0, 2.0], [np.nan, np.nan]])
    assert picks(missing, np.array([5.0, 5.0]), 10.0) == [0, 0]


def test_no_single_client_decides_what_serves_everybody() -> None:
    context: Any = SimpleNamespace(n_classes=4)
    honest, rows = np.tile([0.6, 0.5, 0.4, 0.45], (20, 1)), np.full(20, 40.0)
    for lie in ([-1e30, 2.0, 2.0, 2.0], [0.0, 2.0, 2.0, 2.0]):
        table, claimed = np.vstack([honest, lie]), np.append(rows, 1e7 if lie[0] == 0 else 40)
        assert picks(capped(table, context), claimed, 100.0)[:20] == [2] * 20
    losses = {f"c{k}": Tried(np.tile(np.float32([[0.5, 0.4, 0.3, 0.6, 0.7]]), (1, 1)), 40) for k in range(40)}
    diverged = losses | {"bad": Tried(np.float32([[0.1, 0.2, 1e20, 1e20, 1e20]]), 40)}
    assert losses_of(diverged, 1, context)[0, 0] == pytest.approx(0.3)  # the temperature that suits the forty


def test_losses_of_any_size_are_told_apart() -> None:
    """Of amounts, or a person's own: none is cut to what a class can cost."""
    context: Any = SimpleNamespace(n_classes=1)
    table = np.random.default_rng(0).normal([79.3, 64.7, 66.5, 77.1], 0.5, (6, 4))
    assert picks(capped(table, context), np.full(6, 20.0), 100.0) == [1] * 6


def test_who_has_one_row_does_not_judge_models_by_it(tmp_path: Path) -> None:
    """Labels are noise, so that nothing is better than the model as it is; a row that is trained on would say else."""
    federation = planted(n_clients=12, n_groups=1, rows=12, seed=3)
    labels = np.random.default_rng(0).integers(0, 4, len(federation.y))
    few = tuple(replace(c, train=c.train[: 1 if k % 2 else 12]) for k, c in enumerate(federation.clients))
    noise = replace(federation, y=labels, clients=few)
    result = fedclade.run(noise, rounds=3, out=tmp_path, model="mlp", training=TRAINING, workers=1, serving="pick")
    told = result.last_kept("serving")
    alone = np.array([client in {c.name for c in few if len(c.train) == 1} for client in told["clients"]])
    assert (told["losses"][alone, :3] == 0).all()
    assert len({told["picked"][place] for place in np.flatnonzero(alone)}) == 1  # what is best for all


@pytest.mark.parametrize("places", [None, 3])
def test_models_are_judged_by_briers_score(places: int | None) -> None:
    random = np.random.default_rng(0)
    shape = (7, 4) if places is None else (7, 4, places)
    outputs, y = random.normal(size=shape) * 3, random.integers(0, 4, (7,) if places is None else (7, places))
    by_hand = []
    for row, label in zip(outputs, y, strict=True):
        columns = row[:, None] if places is None else row
        scores = []
        for column, wanted in zip(columns.T, np.atleast_1d(label), strict=True):
            share = np.exp(column) / np.exp(column).sum()
            scores.append(sum((p - (k == wanted)) ** 2 for k, p in enumerate(share)))
        by_hand.append(np.mean(scores))
    task = Classification() if places is None else Tokens()
    found = task.held_out_losses(torch.from_numpy(outputs), torch.from_numpy(y))
    np.testing.assert_allclose(found.numpy(), by_hand, rtol=1e-12)


def test_rows_are_held_out_until_models_are_judged(tmp_path: Path) -> None:
    context = RoundContext((), np.zeros(1), None, None, 0, rounds=10)  # type: ignore[arg-type]
    from dataclasses import replace

    pick = Pick()
    assert [pick.spare(replace(context, round=r)) for r in (0, 1, 9, 10)] == [0.2, 0.2, 0.2, 0.0]
    result = run(tmp_path, serving="pick", rounds=10)
    assert result.summary["accuracy"]["clients"] == 6


@pytest.mark.parametrize("method", ["fedavg", "fedclust", "ifca", "ditto", "fedper", "local", "clade", "fedstack"])
def test_every_method_can_be_served_by_picking(tmp_path: Path, method: str) -> None:
    result = run(tmp_path, method, serving="pick", **({"model": None} if method == "fedstack" else {}))
    assert result.summary["accuracy"]["clients"] == 6
    if method != "fedstack":  # its models read what others put out, and are left as they are
        assert set(result.state_of_clusters.choices) == {f"c{k}" for k in range(6)}


def test_fine_tuned_models_are_what_evaluation_and_readers_see(tmp_path: Path) -> None:
    plain, tuned = run(tmp_path / "plain"), run(tmp_path / "tuned", serving={"name": "fine-tune", "epochs": 8})
    name = "c0"
    assert tuned.served(name).start == "served"
    assert not plain.served(name).start
    assert not np.array_equal(tuned.weights_for(name), plain.weights_for(name))
    cluster = tuned.state_of_clusters.model_of(name)
    assert np.array_equal(cluster, plain.state_of_clusters.model_of(name))  # the rounds are the same
    assert tuned.summary["accuracy"]["mean"] > plain.summary["accuracy"]["mean"] + 0.1
    assert fedclade.load(tuned.path).record["settings"]["serving"] == {"name": "fine-tune", "epochs": 8}


@pytest.mark.parametrize("method", ["clade", "fedavg"])
def test_stopped_runs_go_on_as_if_nothing_had_happened(tmp_path: Path, method: str) -> None:
    whole = run(tmp_path / "whole", method, serving="pick", rounds=6)
    from fedclade.runs.folder import RunFolder

    def stop(progress: object) -> None:
        if progress.round == 5:  # type: ignore[attr-defined]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "part", method, serving="pick", rounds=6, on_round=stop)
    assert RunFolder(tmp_path / "part").last_checkpoint() is not None
    part = fedclade.resume(tmp_path / "part", data=planted(n_clients=6, n_groups=2, rows=60), workers=1)
    for client in whole.history["client"].unique():
        assert np.array_equal(whole.weights_for(client), part.weights_for(client))
    assert contents(part.path) == contents(whole.path)


def test_workers_make_no_difference(tmp_path: Path) -> None:
    one, two = (run(tmp_path / str(n), "clade", workers=n, rounds=3) for n in (1, 2))
    for client in one.history["client"].unique():
        assert np.array_equal(one.weights_for(client), two.weights_for(client))


def test_tasks_travel() -> None:
    from fedclade.clients.messages import pack, unpack
    from fedclade.clients.tasks import Evaluate
    from fedclade.codec import Packet
    from harness import TWO

    task = Try(Evaluate(np.ones(4, np.float32)), (0, 1), 0.2, (np.zeros(4, np.float32),), 3)
    back = unpack(Packet.from_bytes(pack(task, TWO).to_bytes()))
    assert back.epochs == (0, 1)
    assert back.alone == 3
    assert np.array_equal(back.model.weights, task.model.weights)
    assert isinstance(Train(), Train)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_halfway_is_the_mean_of_a_model_before_and_after_training(tmp_path: Path, seed: int) -> None:
    data = planted(n_clients=4, rows=60, seed=seed)
    training = Training(**TRAINING)
    engine = local(data, tmp_path, training)
    start = engine.initial
    whole, half = (engine.answer({"c1": Train(start, way=way)}, 1)["c1"] for way in (1.0, 0.5))
    assert np.allclose(half.weights, (start + whole.weights) / 2, atol=1e-7)
    assert not np.array_equal(half.weights, whole.weights)
    trial = Try(Evaluate(start), (0, 3), 0.2, (whole.weights,), halfway=True)
    losses = engine.answer({"c1": trial}, 1)["c1"].losses[:, 0]
    after = Train(start, training=training.model_copy(update={"local_epochs": 3}), spare=0.2, refill=True, save="")
    trained = engine.answer({"c1": after}, 1)["c1"].weights
    mean = Try(Evaluate((start + trained) / 2), (0,), 0.2)
    assert np.allclose(losses[2], engine.answer({"c1": mean}, 1)["c1"].losses[0, 0], atol=1e-5)
    plain = engine.answer({"c1": Try(Evaluate(start), (0, 3), 0.2, (whole.weights,))}, 1)["c1"].losses[:, 0]
    assert np.array_equal(losses[[0, 1, 3]], plain)


def test_what_is_chosen_halfway_is_made_so(tmp_path: Path) -> None:
    result = run(tmp_path, serving={"name": "pick", "epochs": [4]})
    kept = result.last_kept("serving")
    assert kept["candidates"][:3] == ["as it is", "4 epochs", "halfway to 4 epochs"]
    assert (
        "halfway to 4 epochs"
        not in run(tmp_path / "without", serving={"name": "pick", "epochs": [4], "halfway": False}).last_kept(
            "serving"
        )["candidates"]
    )
    clusters = result.state_of_clusters
    now = FedAvg().served(clusters, "c0")
    context = RoundContext((), np.zeros(1), None, Training(**TRAINING), 0, rounds=10)  # type: ignore[arg-type]
    ways = {choice: plan(choice, now, clusters, context, 0.5) for choice in kept["candidates"][1:3]}
    assert [task.way for task in ways.values()] == [1.0, 0.5]
    assert {task.training.local_epochs for task in ways.values()} == {4}
