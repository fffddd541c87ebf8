"""Local training: the batched path against plain torch, and the extra terms of the loss."""

import numpy as np
import pytest
import torch
from torch import nn

from fedclade.clients.networks import Batched, Built, PlainNetwork
from fedclade.clients.tasks import Training
from fedclade.clients.training import Job, batches_of, train
from fedclade.models import make
from fedclade.models.weights import Layout, flatten, load

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
    assert isinstance(network, Batched)
    trained, losses = train(network, Layout.of(module).n_parameters, x, y, jobs, training)
    for weights, job in zip(trained, jobs, strict=True):
        expected = by_torch(module, job, x, y, training)
        np.testing.assert_allclose(weights, expected, atol=1e-4)  # where rounding decides a ReLU, paths part
    assert np.isfinite(losses).all()


def test_plain_training_follows_torch() -> None:
    training = Training(local_epochs=2, batch_size=8, learning_rate=0.05, momentum=0.9)
    module = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3))
    x, y = rows_for((6,), 20, 3)
    jobs = jobs_of(module, [20], training)
    trained, _ = train(PlainNetwork(module), Layout.of(module).n_parameters, x, y, jobs, training)
    fresh = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3))
    np.testing.assert_allclose(trained[0], by_torch(fresh, jobs[0], x, y, training), atol=1e-5)


@pytest.mark.parametrize(("name", "shape"), NETWORKS)
def test_a_client_does_not_depend_on_who_trains_beside_it(name: str, shape: tuple[int, ...]) -> None:
    training = Training(local_epochs=1, batch_size=10, learning_rate=0.05, momentum=0.5)
    built = Built(lambda: make(name, shape, 10), 0)
    x, y = rows_for(shape, 150, 10)
    jobs = jobs_of(built.module, [23, 10, 27, 31, 9, 30], training)
    n = built.layout.n_parameters
    together, _ = train(built.learner(shape, 10), n, x, y, jobs, training)
    for size in (1, 2, 5):
        for start in range(0, len(jobs), size):
            part, _ = train(built.learner(shape, 10), n, x, y, jobs[start : start + size], training)
            assert np.array_equal(part, together[start : start + size])


class Parabola:
    """A network whose loss is (w - 1)^2 / 2."""

    frozen = ()

    def bind(self, weights: torch.Tensor, grads: torch.Tensor) -> None:
        self.weights, self.grads = weights, grads

    def gradients(self, x: torch.Tensor, y: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        self.grads[: len(rows)] = self.weights[: len(rows)] - 1
        return torch.zeros(len(rows))

    def release(self) -> None:
        pass


@pytest.mark.parametrize(("mu", "expected"), [(0.0, 0.19), (1.0, 0.18)])
def test_proximal_term_pulls_to_where_training_began(mu: float, expected: float) -> None:
    """Two steps of 0.1 from 0: the term must not take the live weights for its centre (then it would vanish)."""
    training = Training(learning_rate=0.1, batch_size=1, local_epochs=2, momentum=0)
    job = Job(np.zeros(1, np.float32), np.zeros((2, 1), np.int64), proximal=mu)
    trained, _ = train(Parabola(), 1, torch.zeros(1, 1), torch.zeros(1, dtype=torch.long), [job], training)
    assert trained[0, 0] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("meta", "expected"), [("first-order", 0.009), ("hessian-free", 0.0081)])
def test_a_meta_step_looks_one_step_ahead(meta: str, expected: float) -> None:
    """From 0 with inner rate 0.1 and outer rate 0.01; the Hessian is 1, so the full gradient is 0.9 times smaller."""
    training = Training(learning_rate=0.01, inner_rate=0.1, meta=meta, batch_size=1, local_epochs=1)  # type: ignore[arg-type]
    job = Job(np.zeros(1, np.float32), np.zeros((3, 1), np.int64))
    trained, _ = train(Parabola(), 1, torch.zeros(1, 1), torch.zeros(1, dtype=torch.long), [job], training)
    assert trained[0, 0] == pytest.approx(expected, abs=2e-5)


def test_a_hessian_free_step_holds_where_gradients_are_small() -> None:
    """The two gradients that stand for the Hessian must not be so near to each other that rounding tells them apart."""
    training = Training(learning_rate=1.0, inner_rate=0.5, meta="hessian-free", batch_size=1, local_epochs=1)
    job = Job(np.full(1, 0.9999, np.float32), np.zeros((3, 1), np.int64))
    trained, _ = train(Parabola(), 1, torch.zeros(1, 1), torch.zeros(1, dtype=torch.long), [job], training)
    assert 1 - trained[0, 0] == pytest.approx(0.75e-4, rel=0.05)


def test_a_hessian_free_step_is_never_turned_round() -> None:
    training = Training(learning_rate=0.01, inner_rate=1.9, meta="hessian-free", batch_size=1, local_epochs=1)
    job = Job(np.zeros(1, np.float32), np.zeros((3, 1), np.int64))
    trained, _ = train(Parabola(), 1, torch.zeros(1, 1), torch.zeros(1, dtype=torch.long), [job], training)
    assert trained[0, 0] == pytest.approx(0, abs=1e-4)  # the first-order step goes the wrong way; this one stays


def test_linear_term_and_given_centre() -> None:
    training = Training(learning_rate=0.1, batch_size=1, momentum=0)
    centre, linear = np.full(1, 2, np.float32), np.full(1, 3, np.float32)
    job = Job(np.zeros(1, np.float32), np.zeros((1, 1), np.int64), 0.5, centre, linear)
    trained, _ = train(Parabola(), 1, torch.zeros(1, 1), torch.zeros(1, dtype=torch.long), [job], training)
    assert trained[0, 0] == pytest.approx(-0.1 * (-1 + 0.5 * -2 + 3), abs=1e-6)


def test_every_row_is_seen_once_an_epoch() -> None:
    rows = np.arange(100, 123)
    batches = batches_of(rows, Training(local_epochs=3, batch_size=10), np.random.default_rng(0))
    assert batches.shape == (9, 10)
    for epoch in batches.reshape(3, -1):
        assert sorted(epoch[epoch >= 0]) == sorted(rows)
    assert not np.array_equal(batches[:3], batches[3:6])
