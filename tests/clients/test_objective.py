"""Tasks: metrics against scikit-learn's, and training for each of them against torch, on both paths."""

import numpy as np
import pytest
import torch
from sklearn import metrics
from torch import nn

from fedclade.clients.networks import BatchedNetwork, Built, Network
from fedclade.clients.objective import (
    Classification,
    MultiLabel,
    Objective,
    Own,
    Regression,
    Tokens,
    label_statistics,
)
from fedclade.clients.tasks import Training
from fedclade.clients.training import Job, batches_of, train
from fedclade.errors import FedcladeError
from fedclade.models import make
from fedclade.models.weights import flatten, load

RANDOM = np.random.default_rng(3)


def measured(task: Objective, outputs: np.ndarray, y: np.ndarray) -> dict[str, float]:
    told, targets = torch.from_numpy(outputs), torch.from_numpy(y)
    found = task.measure(task.losses(told, targets).numpy(), task.notes(told).numpy(), y)
    assert [metric.name for metric in task.measured] == [*found, "loss"]
    return found


@pytest.mark.parametrize("held", [5, 2])  # also where some classes are in no row
def test_scores_of_classes(held: int) -> None:
    outputs, y = RANDOM.normal(size=(40, 5)).astype(np.float32), RANDOM.integers(0, held, 40)
    told = outputs.argmax(1)
    found = measured(Classification(), outputs, y)
    assert found["accuracy"] == pytest.approx(metrics.accuracy_score(y, told))
    with pytest.warns() if set(told) - set(y) else torch.no_grad():
        assert found["balanced_accuracy"] == pytest.approx(metrics.balanced_accuracy_score(y, told))
    assert found["f1"] == pytest.approx(metrics.f1_score(y, told, average="macro"))
    losses = Classification().losses(torch.from_numpy(outputs), torch.from_numpy(y))
    chances = torch.from_numpy(outputs).softmax(1).numpy()
    assert losses.mean().item() == pytest.approx(metrics.log_loss(y, chances, labels=range(5)), rel=1e-5)


def test_scores_of_amounts_are_in_their_own_unit() -> None:
    y = np.stack([RANDOM.normal(5000, 300, 30), RANDOM.normal(0.1, 0.02, 30)], 1).astype(np.float32)
    task = Regression().fitted([label_statistics(y[:10]), label_statistics(y[10:])])
    assert task.scale is not None
    np.testing.assert_allclose(np.array(task.scale).T, [y.mean(axis=0), y.std(axis=0)], rtol=1e-4)
    outputs = RANDOM.normal(size=(30, 2)).astype(np.float32)
    told = outputs * y.std(axis=0) + y.mean(axis=0)
    found = measured(task, outputs, y)
    assert found["rmse"] == pytest.approx(metrics.root_mean_squared_error(y, told), rel=1e-4)
    assert found["mae"] == pytest.approx(metrics.mean_absolute_error(y, told), rel=1e-4)
    assert found["r2"] == pytest.approx(metrics.r2_score(y, told), rel=1e-3)
    same = np.ones((4, 1), np.float32)  # nothing to explain
    assert measured(Regression(scale=((0, 1),)), same, same)["r2"] == 1
    assert measured(Regression(scale=((0, 1),)), 2 * same, same)["r2"] == 0


def test_scores_of_sets() -> None:
    outputs, y = RANDOM.normal(size=(25, 4)).astype(np.float32), RANDOM.integers(0, 2, (25, 4)).astype(np.float32)
    found = measured(MultiLabel(), outputs, y)
    assert found["micro_f1"] == pytest.approx(metrics.f1_score(y, outputs > 0, average="micro"))
    assert found["f1"] == pytest.approx(metrics.f1_score(y, outputs > 0, average="macro"))
    assert found["exact_match"] == pytest.approx(metrics.accuracy_score(y, outputs > 0))
    nothing = np.zeros((3, 4), np.float32)
    assert measured(MultiLabel(), nothing - 1, nothing)["micro_f1"] == 1


def test_scores_of_tokens_at_every_place() -> None:
    outputs, y = RANDOM.normal(size=(6, 5, 7)).astype(np.float32), RANDOM.integers(0, 5, (6, 7))
    found = measured(Tokens(), outputs, y)
    assert found["accuracy"] == pytest.approx((outputs.argmax(1) == y).mean())
    chances = torch.from_numpy(outputs).log_softmax(1).numpy()
    mean = -np.mean([chances[row, y[row, place], place] for row in range(6) for place in range(7)])
    assert found["perplexity"] == pytest.approx(np.exp(mean), rel=1e-4)


def pinball(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return torch.maximum(0.9 * (targets - outputs), 0.1 * (outputs - targets))


def coverage(outputs: np.ndarray, targets: np.ndarray) -> float:
    return float((targets <= outputs).mean())


def test_own_losses_and_metrics() -> None:
    y = RANDOM.normal(size=(5, 1)).astype(np.float32)
    task = Own(loss=pinball, metrics=[coverage])
    assert task.metric.name == "coverage"
    assert measured(task, y + 1, y) == {"coverage": 1.0}
    assert measured(Own(loss="torch.nn.functional:huber_loss"), y, y) == {}  # asked for a loss a row
    assert not Own(loss=nn.HuberLoss()).losses(torch.ones(3, 2), torch.ones(3, 2)).any()
    assert Own(loss=nn.HuberLoss()).metric.name == "loss"
    with pytest.raises(FedcladeError, match="return a loss for each row"):
        Own(loss=lambda o, t: (o - t).mean()).losses(torch.ones(3, 1), torch.ones(3, 1))
    with pytest.raises(FedcladeError, match="names 'x', but the metrics are coverage"):
        _ = Own(loss=pinball, metrics=coverage, lower_is_better="x").measured


# --- training ---------------------------------------------------------------------------------------------------------


CASES = {
    "classes": (Classification(), nn.functional.cross_entropy),
    "amounts": (Regression(scale=((2.0, 3.0), (0.0, 0.5))), None),
    "sets": (MultiLabel(), nn.functional.binary_cross_entropy_with_logits),
}


def labels_for(task: Objective, n: int) -> torch.Tensor:
    torch.manual_seed(1)
    if task.labels == "classes":
        return torch.randint(0, 2, (n,))
    return torch.randint(0, 2, (n, 2)).float() if task.labels == "sets" else 2 + 3 * torch.randn(n, 2)


def learners(task: Objective) -> list[Network]:
    built = Built(lambda: make("mlp", (12,), 2), 0)
    built.work_for(task, torch.device("cpu"))
    batched = built.learner((12,), 8)
    assert isinstance(batched, BatchedNetwork)
    return [batched, built.plain]


@pytest.mark.parametrize("case", CASES)
def test_both_paths_train_as_torch_does(case: str) -> None:
    task, by_torch = CASES[case]
    training = Training(local_epochs=2, batch_size=8, learning_rate=0.05, momentum=0.5, weight_decay=0.01)
    torch.manual_seed(0)
    x, y = torch.rand(50, 12), labels_for(task, 50)
    module = make("mlp", (12,), 2)
    rows = [np.arange(21), np.arange(21, 50)]
    jobs = [Job(flatten(module), batches_of(r, training, np.random.default_rng(k))) for k, r in enumerate(rows)]
    scaled = (y - torch.tensor([2.0, 0.0])) / torch.tensor([3.0, 0.5]) if case == "amounts" else y
    for learner in learners(task):
        found, losses = train(learner, x, y, jobs, training)
        for weights, job, loss in zip(found, jobs, losses, strict=True):
            load(module, job.weights)
            sgd = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.5, weight_decay=0.01)
            seen = []
            for step in job.batches:
                used = torch.from_numpy(step[step >= 0])
                sgd.zero_grad()
                value = (by_torch or nn.functional.mse_loss)(module(x[used]), scaled[used])
                value.backward()
                sgd.step()
                seen.append(value.item())
            np.testing.assert_allclose(weights, flatten(module), atol=2e-5)
            assert loss == pytest.approx(np.mean(seen), rel=1e-4)


@pytest.mark.parametrize("given", ["balanced", (1.0, 4.0)])
def test_classes_count_as_they_are_told(given: object) -> None:
    task = Classification(class_weights=given)
    y = np.array([0] * 15 + [1] * 5)
    counts = task.row_weights(y, ("a", "b"))
    assert counts is not None
    assert counts[:15].sum() == pytest.approx(counts[15:].sum() * (1 if given == "balanced" else 15 / 20))
    training = Training(local_epochs=2, batch_size=8, learning_rate=0.1, momentum=0.0)
    torch.manual_seed(0)
    x, labels = torch.rand(20, 12), torch.from_numpy(y)
    module = make("mlp", (12,), 2)
    job = Job(flatten(module), batches_of(np.arange(20), training, np.random.default_rng(0)))
    of_class = torch.tensor([counts[0], counts[-1]])
    sgd = torch.optim.SGD(module.parameters(), lr=0.1)
    for step in job.batches:
        used = torch.from_numpy(step[step >= 0])
        sgd.zero_grad()
        nn.functional.cross_entropy(module(x[used]), labels[used], of_class).backward()
        sgd.step()
    for learner in learners(task):
        found, _ = train(learner, x, labels, [job], training, torch.from_numpy(counts))
        np.testing.assert_allclose(found[0], flatten(module), atol=2e-5)
