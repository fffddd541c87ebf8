"""The local engine: the same numbers whatever the number of workers, and failures that stay with their client."""

import os
import sqlite3
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedclade
from fedclade.clients.memory import Memory
from fedclade.clients.tasks import LOCAL, Describe, Evaluate, Failure, Predict, Train, Trained, Training
from fedclade.data.federation import Federation
from fedclade.engines.engine import TransportEngine
from fedclade.engines.local import local_engine
from fedclade.models import make
from fedclade.models.assigned import Networks
from synthetic import planted

TRAINING = Training(local_epochs=2, batch_size=8, learning_rate=0.05, momentum=0.5)


class Fragile(nn.Module):
    """A network that takes its process down, or raises, when it meets a marked row in training."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and (x > 1e6).any():
            os._exit(1)
        if self.training and (x < -1e6).any():
            raise RuntimeError("a marked row")
        return self.layer(self.drop(x))


def engine_of(federation: Federation, folder: Path, workers: int, factory=None) -> TransportEngine:  # type: ignore[no-untyped-def]
    factory = factory or (lambda: make("mlp", federation.input_shape, federation.n_classes))
    return local_engine(federation, Networks({"": factory}), seed=1, training=TRAINING, memory=folder, workers=workers)


@pytest.mark.parametrize("method", ["fedavg", "fedclust", "ifca"])
def test_weights_do_not_depend_on_the_number_of_workers(federation: Federation, method: str) -> None:
    results = [
        fedclade.run(federation, method=method, model="mlp", training=TRAINING, rounds=2, workers=workers)
        for workers in (1, 2, 4)
    ]
    one, *others = [np.stack([result.weights_for(name) for name in federation.names]) for result in results]
    assert all(np.array_equal(one, other) for other in others)
    history = [result.history for result in results]
    assert history[0].equals(history[1])
    assert history[0].equals(history[2])


@pytest.mark.parametrize("drops", [False, True])
def test_short_batches_are_taken_or_left_out(tmp_path: Path, federation: Federation, drops: bool) -> None:
    training = TRAINING.model_copy(update={"drop_last": drops})
    result = fedclade.run(federation, model="mlp", method="fedavg", training=training, rounds=1)
    assert result.failures.empty  # server and clients agree on how many steps so many rows are
    engine = engine_of(federation, tmp_path, 1)
    answers = engine.answer({name: Train(engine.initial, training=training) for name in engine.clients}, 1)
    engine.close()
    for client in federation.clients:
        full, left = divmod(len(client.train), 8)
        assert answers[client.name].steps == 2 * (full + (left > 0 and not drops))  # type: ignore[union-attr]
    assert any(len(client.train) % 8 for client in federation.clients)


def test_images_of_a_convolutional_network_too(tmp_path: Path) -> None:
    federation = planted(n_clients=5, shape=(1, 28, 28))
    weights = []
    for workers in (1, 2):
        engine = engine_of(federation, tmp_path / str(workers), workers, lambda: make("lenet5", (1, 28, 28), 4))
        assert engine.facts["training_path"] in ("batched", "compiled")
        answers = engine.answer({name: Train(engine.initial) for name in engine.clients}, 1)
        weights.append(np.stack([answers[name].weights for name in engine.clients]))  # type: ignore[union-attr]
        engine.close()
    assert np.array_equal(*weights)


def test_shared_evaluation_equals_evaluating_one_by_one(tmp_path: Path, federation: Federation) -> None:
    engine = engine_of(federation, tmp_path, 1)
    other = engine.initial * np.float32(0.5)
    tasks = {name: Evaluate(engine.initial if k % 2 else other) for k, name in enumerate(engine.clients)}
    together = engine.answer(tasks, 1)
    for name, task in tasks.items():
        alone = engine.runtime.perform({name: task}, 1)[name]
        assert together[name].metrics == alone.metrics  # type: ignore[union-attr]
        assert together[name].loss == pytest.approx(alone.loss, rel=1e-5)  # type: ignore[union-attr]
    engine.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_client_that_raises_fails_alone(tmp_path: Path, federation: Federation, workers: int) -> None:
    federation.x[federation["c2"].train[3]] = -1e7
    engine = engine_of(federation, tmp_path, workers, Fragile)
    answers = engine.answer({name: Train(engine.initial) for name in engine.clients}, 1)
    engine.close()
    assert answers["c2"] == Failure("raised", "RuntimeError: a marked row")
    assert all(isinstance(answers[name], Trained) for name in engine.clients if name != "c2")


def test_a_client_that_takes_its_worker_down_fails_alone(tmp_path: Path, federation: Federation) -> None:
    federation.x[federation["c1"].train[0]] = 1e7
    engine = engine_of(federation, tmp_path, 2, Fragile)
    for round in (1, 2):  # the worker is replaced, so the next round works as well
        answers = engine.answer({name: Train(engine.initial) for name in engine.clients}, round)
        assert isinstance(answers["c1"], Failure)
        assert answers["c1"].kind == "died"
        assert all(isinstance(answers[name], Trained) for name in engine.clients if name != "c1")
    engine.close()


def test_a_bad_update_is_left_out_and_named(federation: Federation) -> None:
    """A learning rate that explodes for the client with huge rows only."""
    federation.x[federation["c3"].train] *= np.float32(1e30)
    result = fedclade.run(federation, method="fedavg", model="mlp", training=TRAINING, rounds=2, workers=1)
    history = result.history
    failed = history[history["failure"] != ""]
    assert set(failed["client"]) == {"c3"}
    assert failed["failure"].str.contains("not finite").all()
    assert np.isfinite(result.weights_for("c0")).all()
    assert result.summary["failures"] == 2


def test_clients_remember_and_can_be_set_back(tmp_path: Path, federation: Federation) -> None:
    engine = engine_of(federation, tmp_path, 1)
    first = engine.answer({"c0": Train(start=LOCAL, upload=None)}, 1)["c0"].weights  # type: ignore[union-attr]
    second = engine.answer({"c0": Train(start=LOCAL, upload=None)}, 2)["c0"].weights  # type: ignore[union-attr]
    assert not np.array_equal(first, second)
    engine.rewind(1)
    again = engine.answer({"c0": Train(start=LOCAL, upload=None)}, 2)["c0"].weights  # type: ignore[union-attr]
    assert np.array_equal(second, again)
    head = engine.answer({"c0": Train(engine.initial, layers="head", start=LOCAL, upload="head")}, 3)["c0"]
    assert head.weights.shape == (32 * 4 + 4,)  # type: ignore[union-attr]
    engine.close()


def test_predictions_and_descriptions(tmp_path: Path, federation: Federation) -> None:
    engine = engine_of(federation, tmp_path, 1)
    rows = np.zeros((5, 8), np.float32)
    predicted = engine.answer({"c0": Predict(engine.initial, rows=rows)}, 1)["c0"]
    assert predicted.values.shape == (5, 4)  # type: ignore[union-attr]
    np.testing.assert_allclose(predicted.values.sum(1), 1, rtol=1e-5)  # type: ignore[union-attr]
    hidden = engine.answer({"c0": Predict(engine.initial, rows=rows, output="fc3")}, 1)["c0"]
    assert hidden.values.shape == (5, 32)  # type: ignore[union-attr]
    described = engine.answer({"c0": Describe("class-entropy")}, 1)["c0"].values  # type: ignore[union-attr]
    counts = np.bincount(federation.y[federation["c0"].train])
    share = counts[counts > 0] / counts.sum()
    assert described["entropy"][0] == pytest.approx(-(share * np.log2(share)).sum(), rel=1e-5)
    assert isinstance(engine.answer({"c0": Describe("secrets")}, 1)["c0"], Failure)
    engine.close()


def test_an_unequal_federation_trains(tmp_path: Path, federation: Federation) -> None:
    """One row, or one class, is enough for a client."""
    lonely = replace(federation.clients[0], train=federation.clients[0].train[:1])
    engine = engine_of(replace(federation, clients=(lonely, *federation.clients[1:])), tmp_path, 1)
    answers = engine.answer({name: Train(engine.initial) for name in engine.clients}, 1)
    assert all(isinstance(answer, Trained) for answer in answers.values())
    assert answers["c0"].n_samples == 1  # type: ignore[union-attr]
    engine.close()


def test_workers_may_open_a_new_memory_at_the_same_time(tmp_path: Path) -> None:
    """SQLite does not wait by itself where several want to set how a new database is journalled."""
    other = sqlite3.connect(tmp_path / "memory.sqlite", isolation_level=None, check_same_thread=False)
    other.execute("create table something (it)")
    other.execute("begin immediate")
    ends = threading.Timer(0.3, lambda: other.execute("commit"))
    ends.start()
    Memory(tmp_path).write("c0", LOCAL, np.ones(3, np.float32), 1)
    ends.join()
    assert np.array_equal(Memory(tmp_path).read("c0", LOCAL), np.ones(3))
    other.close()
