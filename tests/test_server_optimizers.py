"""Server optimisers: against torch's, against the papers' formulas, and that they stop and go on."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedclade
from fedclade.aggregation.median import Median
from fedclade.ask import Ask
from fedclade.clients.tasks import Train
from fedclade.errors import FedcladeError
from fedclade.methods import Clusters
from fedclade.methods.fedavg import FedAvg
from fedclade.optimizers import SERVER_OPTIMIZERS, Stepping
from fedclade.settings import settings_from
from harness import Scripted, one_layer
from synthetic import planted

OTHERS = tuple(name for name in SERVER_OPTIMIZERS if name != "average")


def path_of(name: str, changes: np.ndarray, **settings: float) -> np.ndarray:
    """Where a model that begins at 1 stands after each of some changes of the aggregate."""
    stepping = Stepping(SERVER_OPTIMIZERS[name](**settings), changes.shape[1])
    model, places = np.ones(changes.shape[1], np.float32), []
    for change in changes:
        model = stepping(model, (model + change).astype(np.float32))
        stepping.keep([model])
        places.append(model)
    return np.stack(places)


CHANGES = np.random.default_rng(5).normal(size=(6, 4)).astype(np.float32) * 0.1


def test_momentum_and_adagrad_are_those_of_torch() -> None:
    """A change is what a gradient of the other sign would do."""
    for name, ours, make in (
        ("momentum", {"learning_rate": 0.5}, lambda w: torch.optim.SGD([w], lr=0.5, momentum=0.9)),
        ("adagrad", {"tau": 1e-3}, lambda w: torch.optim.Adagrad([w], 0.1, initial_accumulator_value=1e-6, eps=1e-3)),
    ):
        weights = torch.ones(4, requires_grad=True)
        optimizer, expected = make(weights), []
        for change in CHANGES:
            weights.grad = -torch.from_numpy(change)
            optimizer.step()
            expected.append(weights.detach().numpy().copy())
        assert np.allclose(path_of(name, CHANGES, **ours), expected, atol=1e-5), name


@pytest.mark.parametrize("name", ["adam", "yogi"])
def test_adam_and_yogi_are_those_of_the_paper(name: str) -> None:
    """Number by number, as Algorithm 2 of Reddi et al. has it."""
    eta, beta_1, beta_2, tau = 0.03, 0.8, 0.95, 0.01
    places = path_of(name, CHANGES, learning_rate=eta, beta_1=beta_1, beta_2=beta_2, tau=tau)
    for weight in range(4):
        x, m, v = 1.0, 0.0, tau * tau
        for step in range(len(CHANGES)):
            delta = float(CHANGES[step, weight])
            m = beta_1 * m + (1 - beta_1) * delta
            if name == "adam":
                v = beta_2 * v + (1 - beta_2) * delta**2
            else:
                v -= (1 - beta_2) * delta**2 * (1 if v > delta**2 else -1 if v < delta**2 else 0)
            x += eta * m / (v**0.5 + tau)
            assert places[step, weight] == pytest.approx(x, abs=1e-5)


def test_moments_follow_models() -> None:
    """Both parts of a split cluster go on with its moments, whenever; a new one has none."""
    stepping = Stepping(SERVER_OPTIMIZERS["momentum"](momentum=0.5), 1)

    def at(value: float) -> np.ndarray:
        return np.float32([value])

    parent = stepping(at(0), at(1))  # it moves by 1 and remembers that
    assert parent == 1
    stepping.keep([parent, parent])
    stepping.clear()
    assert stepping(parent, at(2)) == 2.5  # one part
    stepping.keep([at(2.5), parent])
    stepping.clear()
    assert stepping(parent, at(1.5)) == 2.0  # the other one, a round later
    assert stepping(at(7), at(8)) == 8  # no moments known
    assert stepping(parent, parent) == parent  # nobody reported
    stepping.hand_on(at(2.0), at(5))
    assert stepping(at(5), at(5.5)) == 6.0  # momentum 1.0, handed on


def test_running_statistics_are_taken_as_they_come() -> None:
    stepping = Stepping(SERVER_OPTIMIZERS["momentum"](learning_rate=0.5, momentum=0.0), 1)
    assert stepping(np.float32([0, 0]), np.float32([2, 2])).tolist() == [1, 2]


def test_a_robust_rule_comes_first() -> None:
    engine = Scripted({c: np.float32([v]) for c, v in zip("abc", (1, 2, 900), strict=True)}, layout=one_layer(1))
    half = SERVER_OPTIMIZERS["momentum"](learning_rate=0.5, momentum=0.0)
    ask = Ask(engine, aggregation=Median(), optimizer=half)  # type: ignore[arg-type]
    start = Clusters.single("abc", np.zeros(1, np.float32))
    assert FedAvg().trained(start, "abc", ask).models[0] == 1
    assert start.averaged(ask(Train(start.models[0]), to="abc")).models[0] == 1


@pytest.mark.parametrize(
    ("name", "method"),
    [*((name, "fedavg") for name in OTHERS), *(("adam", m) for m in ("ifca", "fedper", "clade", "cfl", "fednova"))],
)
def test_stopped_and_resumed_is_the_same(name: str, method: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = dict(method=method, model="mlp", server=name, serving="model", workers=1)
    settings["participation"] = 0.5
    whole = fedclade.run(planted(), rounds=4, **settings)
    fedclade.run(planted(), rounds=2, out=tmp_path / "run", **settings)
    resumed = fedclade.resume(tmp_path / "run", rounds=4, data=planted())
    plain = fedclade.run(planted(), rounds=4, **{**settings, "server": "average"})
    assert all(np.array_equal(resumed.weights_for(c), whole.weights_for(c)) for c in planted().names)
    assert any(not np.array_equal(plain.weights_for(c), whole.weights_for(c)) for c in planted().names)


@pytest.mark.parametrize("name", OTHERS)
def test_they_learn(name: str) -> None:
    result = fedclade.run(method="fedavg", server=name, clients=6, rounds=15, workers=1, evaluate_every=0)
    assert result.accuracy["mean"] > 0.6


def test_it_is_a_setting_of_the_run() -> None:
    settings = settings_from({"server": {"name": "adam", "learning_rate": 0.3}})
    dumped = settings.model_dump(mode="json")["server"]
    assert dumped == {"name": "adam", "learning_rate": 0.3, "beta_1": 0.9, "beta_2": 0.99, "tau": 0.001}
    assert settings_from({"server": dumped}).server == settings.server
    with pytest.raises(FedcladeError, match="server optimiser"):
        settings_from({"server": "adamm"})
