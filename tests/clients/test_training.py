"""Local training: the batched path against plain torch, and the extra terms of the loss."""

import numpy as np
import pytest
import torch
from parabola import trained
from torch import nn

from fedclade.clients.networks import BatchedNetwork, Built, PlainNetwork
from fedclade.clients.tasks import Training
from fedclade.clients.training import Job, batches_of, train
from fedclade.models import make
from fedclade.models.weights import flatten, load

pytestmark = pytest.mark.usefixtures("products")
NETWORKS = [("lenet5", (1, 28, 28)), ("lenet5", (3, 32, 32)), ("mlp", (12,)), ("mnist-cnn", (1, 28, 28))]


def jobs_of(module: nn.Module, n_rows: list[int], training: Training, **terms: object) -> list[Job]:
    jobs, start = [], 0
    for number, n in enumerate(n_rows):
        order = np.random.default_rng(number)
        rows = np.arange(start, start + n)
        weights = flatten(module) * np.float32(1 + 0.1 * number)  # start from different places
        jobs.append(Job(weights, batches_of(rows, training, order), **terms))  # type: ignore[arg-type]
        start += n
    return jobs


def rows_for(shape: tuple[int, ...], n: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    x, y = torch.rand(n, *shape), torch.randint(0, classes, (n,))
    if len(shape) == 3:
        x[..., : shape[1] // 3, :] = 0  # blank, as in real pictures: whole pooling blocks tie
    return x, y


def by_torch(module: nn.Module, job: Job, x: torch.Tensor, y: torch.Tensor, training: Training) -> np.ndarray:
    load(module, job.weights)
    sgd = torch.optim.SGD(
        module.parameters(), lr=training.learning_rate, momentum=training.momentum, weight_decay=training.weight_decay
    )
    for step in job.batches:
        rows = torch.from_numpy(step[step >= 0])
        sgd.zero_grad()
        nn.functional.cross_entropy(module(x[rows]), y[rows]).backward()
        sgd.step()
    return flatten(module)


@pytest.mark.parametrize(("name", "shape"), NETWORKS)
def test_batched_training_follows_torch(name: str, shape: tuple[int, ...]) -> None:
    training = Training(local_epochs=2, batch_size=10, learning_rate=0.01, momentum=0.5, weight_decay=0.01)
    built = Built(lambda: make(name, shape, 10), 0)
    module = built.module
    x, y = rows_for(shape, 60, 10)
    jobs = jobs_of(module, [23, 10, 27], training)
    network = built.learner(shape, 10)
    assert isinstance(network, BatchedNetwork)
    found, losses = train(network, x, y, jobs, training)
    for weights, job in zip(found, jobs, strict=True):
        expected = by_torch(module, job, x, y, training)
        np.testing.assert_allclose(weights, expected, atol=1e-4)  # where rounding decides a ReLU, paths part
    assert np.isfinite(losses).all()


def test_plain_training_follows_torch() -> None:
    training = Training(local_epochs=2, batch_size=8, learning_rate=0.05, momentum=0.9)
    module = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3))
    x, y = rows_for((6,), 20, 3)
    jobs = jobs_of(module, [20], training)
    found, _ = train(PlainNetwork(module), x, y, jobs, training)
    fresh = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3))
    np.testing.assert_allclose(found[0], by_torch(fresh, jobs[0], x, y, training), atol=1e-5)


ALIKE = [
    *(("lenet5", (1, 28, 28), batch) for batch in (3, 10, 16)),
    *(("mlp", (12,), batch) for batch in (1, 10, 32)),
    ("lenet5", (3, 32, 32), 10),
    ("digits-cnn", (1, 8, 8), 7),
    ("cnn1d", (3, 30), 10),
    ("har-cnn", (3, 40), 7),
    ("bilstm", (3, 9), 5),
]
TRAININGS = {
    "momentum": {"momentum": 0.5, "weight_decay": 0.01},
    "cyclic": {"momentum": 0.9, "schedule": "cyclic"},
    "first-order": {"meta": "first-order"},
    "hessian-free": {"meta": "hessian-free"},
}


@pytest.mark.parametrize("kind", TRAININGS)
@pytest.mark.parametrize(("name", "shape", "batch"), ALIKE)
def test_a_client_does_not_depend_on_who_trains_beside_it(
    name: str, shape: tuple[int, ...], batch: int, kind: str
) -> None:
    training = Training(local_epochs=1, batch_size=batch, learning_rate=0.05, **TRAININGS[kind])  # type: ignore[arg-type]
    built = Built(lambda: make(name, shape, 7), 0)
    network = built.learner(shape, batch)
    assert isinstance(network, BatchedNetwork)
    x, y = rows_for(shape, 150, 7)
    linear = np.full(built.layout.size, 0.01, np.float32)
    jobs = jobs_of(built.module, [23, 10, 27, 31, 9, 30], training, proximal=0.1, linear=linear)
    network.at_once = 6
    together, losses = train(network, x, y, jobs, training)
    for size in (1, 2, 5):
        network.at_once = size
        parts = [train(network, x, y, jobs[start : start + 5], training) for start in (0, 5)]
        assert np.array_equal(np.concatenate([weights for weights, _ in parts]), together)
        assert np.array_equal(np.concatenate([loss for _, loss in parts]), losses)


@pytest.mark.parametrize("kind", TRAININGS)
def test_both_paths_train_alike(kind: str) -> None:
    """Whatever is asked for, in the terms of the loss and in the steps: the plain path is the simple one."""
    training = Training(local_epochs=2, batch_size=8, learning_rate=0.05, inner_rate=0.1, **TRAININGS[kind])  # type: ignore[arg-type]
    built = Built(lambda: make("mlp", (12,), 6), 0)
    x, y = rows_for((12,), 150, 6)
    random = np.random.default_rng(0)
    centre, linear = (random.normal(size=built.layout.size).astype(np.float32) / 10 for _ in range(2))
    jobs = jobs_of(built.module, [23, 40, 9, 23], training, proximal=0.3, centre=centre, linear=linear)
    batched, plain = built.learner((12,), 8), PlainNetwork(built.module)
    assert isinstance(batched, BatchedNetwork)
    (weights, losses), (expected, same) = (train(each, x, y, jobs, training) for each in (batched, plain))
    assert np.abs(expected - np.stack([job.weights for job in jobs])).max() > 0.01
    np.testing.assert_allclose(weights, expected, atol=2e-5)
    np.testing.assert_allclose(losses, same, atol=1e-5)


def test_what_one_training_leaves_does_not_touch_the_next() -> None:
    """Tensors are used again: those of a client that diverged, too."""
    training = Training(batch_size=10, learning_rate=0.05)
    built = Built(lambda: make("lenet5", (1, 28, 28), 10), 0)
    network = built.learner((1, 28, 28), 10)
    x, y = rows_for((1, 28, 28), 60, 10)
    jobs = jobs_of(built.module, [23, 10, 27], training)
    before = train(network, x, y, jobs, training)[0]
    diverged = train(network, x, y, jobs, training.model_copy(update={"learning_rate": 1e20}))[0]
    assert not np.isfinite(diverged).all()
    assert np.array_equal(train(network, x, y, jobs, training)[0], before)


def wide(after: int, **options: int) -> nn.Module:
    layers = nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, after, 3, **options), nn.ReLU()  # type: ignore[arg-type]
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(10))


@pytest.mark.parametrize(
    ("factory", "shape", "batch", "batched"),
    [
        ("lenet5", (1, 28, 28), 10, True),
        ("lenet5", (3, 32, 32), 64, True),
        ("mlp", (3, 32, 32), 10, False),  # a matrix of 393,216 numbers
        ("mlp", (1, 28, 28), 256, True),
        ("har-cnn", (9, 128), 64, True),
        ("bilstm", (6, 32), 10, True),
        ("resnet9-gn", (3, 16, 16), 10, False),
        (lambda: wide(128), (3, 12, 12), 10, True),
        (lambda: wide(256), (3, 12, 12), 10, False),  # 36,864 weights of a convolution
        (lambda: wide(64, stride=2), (3, 12, 12), 32, True),
        (lambda: wide(64, stride=2), (3, 12, 12), 64, False),
    ],
)
def test_the_path_is_a_rule_of_shapes_and_batches(
    factory: object, shape: tuple[int, ...], batch: int, batched: bool
) -> None:
    built = Built(lambda: make(factory, shape, 10), 0)  # type: ignore[arg-type]
    assert built.is_batched(shape, batch) == batched


@pytest.mark.parametrize(("mu", "expected"), [(0.0, 0.19), (1.0, 0.18)])
def test_proximal_term_pulls_to_where_training_began(mu: float, expected: float) -> None:
    """Two steps of 0.1 from 0: the term must not take the live weights for its centre (then it would vanish)."""
    training = Training(learning_rate=0.1, batch_size=1, local_epochs=2, momentum=0)
    job = Job(np.zeros(1, np.float32), np.zeros((2, 1), np.int64), proximal=mu)
    assert trained([job], training)[0] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("meta", "expected"), [("first-order", 0.009), ("hessian-free", 0.0081)])
def test_a_meta_step_looks_one_step_ahead(meta: str, expected: float) -> None:
    """From 0 with inner rate 0.1 and outer rate 0.01; the Hessian is 1, so the full gradient is 0.9 times smaller."""
    training = Training(learning_rate=0.01, inner_rate=0.1, meta=meta, batch_size=1, local_epochs=1)  # type: ignore[arg-type]
    job = Job(np.zeros(1, np.float32), np.zeros((3, 1), np.int64))
    assert trained([job], training)[0] == pytest.approx(expected, abs=2e-5)


def test_a_hessian_free_step_holds_where_gradients_are_small() -> None:
    """The two gradients that stand for the Hessian must not be so near to each other that rounding tells them apart."""
    training = Training(learning_rate=1.0, inner_rate=0.5, meta="hessian-free", batch_size=1, local_epochs=1)
    job = Job(np.full(1, 0.9999, np.float32), np.zeros((3, 1), np.int64))
    assert 1 - trained([job], training)[0] == pytest.approx(0.75e-4, rel=0.05)


def test_a_hessian_free_step_is_never_turned_round() -> None:
    training = Training(learning_rate=0.01, inner_rate=1.9, meta="hessian-free", batch_size=1, local_epochs=1)
    job = Job(np.zeros(1, np.float32), np.zeros((3, 1), np.int64))
    assert trained([job], training)[0] == pytest.approx(0, abs=1e-4)  # a first-order step would go the wrong way


def test_linear_term_and_given_centre() -> None:
    training = Training(learning_rate=0.1, batch_size=1, momentum=0)
    centre, linear = np.full(1, 2, np.float32), np.full(1, 3, np.float32)
    job = Job(np.zeros(1, np.float32), np.zeros((1, 1), np.int64), 0.5, centre, linear)
    assert trained([job], training)[0] == pytest.approx(-0.1 * (-1 + 0.5 * -2 + 3), abs=1e-6)


def test_every_row_is_seen_once_an_epoch() -> None:
    rows = np.arange(100, 123)
    batches = batches_of(rows, Training(local_epochs=3, batch_size=10), np.random.default_rng(0))
    assert batches.shape == (9, 10)
    for epoch in batches.reshape(3, -1):
        assert sorted(epoch[epoch >= 0]) == sorted(rows)
    assert not np.array_equal(batches[:3], batches[3:6])


def test_a_short_last_batch_can_be_left_out() -> None:
    dropping = Training(local_epochs=2, batch_size=10, drop_last=True)
    for rows, steps in ((23, 2), (20, 2), (10, 1), (9, 1), (1, 1), (0, 0)):  # who has no full batch keeps the short one
        batches = batches_of(np.arange(rows), dropping, np.random.default_rng(0))
        assert len(batches) == 2 * steps == 2 * dropping.steps_an_epoch(rows)
        for epoch in batches.reshape(2, -1):
            seen = epoch[epoch >= 0]
            assert len(seen) == len(set(seen.tolist())) == min(rows, 10 * steps)
            assert (seen < rows).all()
