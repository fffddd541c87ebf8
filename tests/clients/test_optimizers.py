"""Optimisers, clipping and schedules against torch's, on both paths."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedclade
from fedclade.clients.networks import BatchedNetwork, Built
from fedclade.clients.tasks import Training
from fedclade.clients.training import Job, batches_of, train
from fedclade.errors import FedcladeError
from fedclade.models import make
from fedclade.models.weights import flatten, load
from synthetic import planted

BY_TORCH: dict[str, Any] = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("optimizer", BY_TORCH)
@pytest.mark.parametrize(("name", "shape"), [("mlp", (12,)), ("lenet5", (1, 16, 16))])
def test_both_paths_step_as_torch_does(name: str, shape: tuple[int, ...], optimizer: str, clip: float | None) -> None:
    rate = 0.05 if optimizer == "sgd" else 0.002
    training = Training(
        local_epochs=2,
        batch_size=8,
        learning_rate=rate,
        momentum=0.5,
        weight_decay=0.02,
        optimizer=optimizer,
        clip=clip,
    )
    torch.manual_seed(0)
    x, y = torch.rand(50, *shape), torch.randint(0, 4, (50,))
    built = Built(lambda: make(name, shape, 4), 0)
    module = make(name, shape, 4)
    rows = [np.arange(11), np.arange(11, 50)]  # of unlike length: the shorter one stops earlier
    jobs = [Job(flatten(module), batches_of(r, training, np.random.default_rng(k))) for k, r in enumerate(rows)]
    batched = built.learner(shape, 8)
    assert isinstance(batched, BatchedNetwork)
    expected = []
    for job in jobs:
        load(module, job.weights)
        momentum = {"momentum": 0.5} if optimizer == "sgd" else {}
        steps = BY_TORCH[optimizer](module.parameters(), lr=rate, weight_decay=0.02, **momentum)
        for step in job.batches:
            used = torch.from_numpy(step[step >= 0])
            steps.zero_grad()
            nn.functional.cross_entropy(module(x[used]), y[used]).backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(module.parameters(), clip)
            steps.step()
        expected.append(flatten(module))
    for learner in (batched, built.plain):
        found, _ = train(learner, x, y, jobs, training)
        far = np.abs(found - np.stack(expected))
        # Where a gradient is nothing but rounding, Adam still takes a step of full length: those are very few.
        assert np.quantile(far, 0.99) < 2e-5
        assert far.max() < 4 * rate
        assert far.mean() < 1e-5


@pytest.mark.parametrize(("averaged", "kept"), [(0.0, 1), (0.1, 1), (0.5, 2), (1.0, 4)])
def test_the_weights_of_the_last_epochs_are_averaged(averaged: float, kept: int) -> None:
    training = Training(local_epochs=4, batch_size=8, learning_rate=0.1, momentum=0.5, averaged=averaged)
    torch.manual_seed(1)
    x, y = torch.rand(50, 12), torch.randint(0, 4, (50,))
    built = Built(lambda: make("mlp", (12,), 4), 0)
    module = make("mlp", (12,), 4)
    rows = [np.arange(11), np.arange(11, 50), np.arange(50)]  # epochs of 2, 5 and 7 steps
    jobs = [Job(flatten(module), batches_of(r, training, np.random.default_rng(k))) for k, r in enumerate(rows)]
    expected = []
    for job in jobs:
        load(module, job.weights)
        steps, ends = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5), []
        for number, step in enumerate(job.batches, 1):
            used = torch.from_numpy(step[step >= 0])
            steps.zero_grad()
            nn.functional.cross_entropy(module(x[used]), y[used]).backward()
            steps.step()
            if number % (len(job.batches) // 4) == 0:
                ends.append(flatten(module).copy())
        expected.append(np.mean(ends[-kept:], axis=0))
    for learner in (built.learner((12,), 8), built.plain):
        found, _ = train(learner, x, y, jobs, training)
        np.testing.assert_allclose(found, np.stack(expected), atol=2e-5)


def test_a_frozen_layer_does_not_decay() -> None:
    built = Built(lambda: make("mlp", (12,), 4), 0)
    module = built.module
    next(iter(module.parameters())).requires_grad_(False)
    built.work_for(built.objective, torch.device("cpu"))
    training = Training(optimizer="adamw", weight_decay=0.5, learning_rate=0.01, batch_size=8, local_epochs=1)
    x, y = torch.rand(16, 12), torch.randint(0, 4, (16,))
    job = Job(flatten(module), batches_of(np.arange(16), training, np.random.default_rng(0)))
    for learner in (built.learner((12,), 8), built.plain):
        found, _ = train(learner, x, y, [job], training)
        frozen = 12 * 128
        assert np.array_equal(found[0][:frozen], job.weights[:frozen])
        assert not np.array_equal(found[0][frozen:], job.weights[frozen:])


def rates(training: Training, rounds: int) -> list[float]:
    paced = training.for_run(rounds)
    return [paced.in_round(number).learning_rate for number in range(1, rounds + 1)]


def test_schedules_by_round() -> None:
    base = {"learning_rate": 1.0, "base_rate": 0.0}
    assert rates(Training(**base), 3) == [1, 1, 1]
    cosine = [(1 + math.cos(math.pi * done / 10)) / 2 for done in range(10)]
    assert rates(Training(**base, schedule="cosine"), 10) == pytest.approx(cosine)
    assert rates(Training(**base, schedule="cosine", period=2), 4) == pytest.approx([1, 0.5, 0, 0])
    assert rates(Training(**base, schedule="step", gamma=0.5), 6) == pytest.approx([1, 1, 0.5, 0.5, 0.25, 0.25])
    assert rates(Training(**base, warmup=3), 5) == pytest.approx([0.25, 0.5, 0.75, 1, 1])
    assert Training(schedule="cosine", warmup=2).unhurried == Training()


def test_a_run_follows_its_schedule_and_goes_on_with_it(tmp_path: Any) -> None:
    settings: dict[str, Any] = {
        "training": {"optimizer": "adam", "schedule": "cosine", "period": 4, "warmup": 1, "local_epochs": 1},
        "model": "mlp",
        "method": "fedavg",  # of which a longer run is a shorter one, gone on with
        "seed": 1,
    }
    whole = fedclade.run(planted(), **settings, rounds=4, workers=1)
    fedclade.run(planted(), **settings, rounds=2, workers=2, out=tmp_path / "part")
    resumed = fedclade.resume(tmp_path / "part", rounds=4, data=planted())
    assert whole.settings["training"]["learning_rate"] == 0.001  # Adam's own
    assert np.array_equal(whole.weights_for("c0"), resumed.weights_for("c0"))
    steps = whole.history.groupby("round")["train_loss"].mean()
    assert steps[4] < steps[1]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"optimizer": "adma"}, "training.optimizer = 'adma' is wrong"),
        ({"clip": 0}, "training.clip = 0 is wrong"),
        ({"schedule": "cosinus"}, "training.schedule"),
        ({"gama": 0.3}, "did you mean 'gamma'"),
        ({"warmup": -1}, "training.warmup"),
    ],
)
def test_wrong_settings_are_one_line(given: dict[str, Any], words: str) -> None:
    with pytest.raises(FedcladeError) as caught:
        fedclade.run(planted(), training=given)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
