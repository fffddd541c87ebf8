"""The FedAvg family against numbers done by hand, and SCAFFOLD against plain torch."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from plain import PlainClients

import fedclade
from fedclade.aggregation import Aggregation
from fedclade.aggregation.geometric_median import GeometricMedian
from fedclade.aggregation.median import Median
from fedclade.aggregation.trimmed_mean import TrimmedMean
from fedclade.ask import TrainedClients
from fedclade.clients.memory import Memory
from fedclade.clients.tasks import Trained, Training, effective_steps
from fedclade.errors import FedcladeError
from fedclade.methods import Clusters, RoundContext
from fedclade.methods.fedavg import FedNova, FedProx
from fedclade.methods.scaffold import Scaffold
from fedclade.models.weights import Layout, average
from harness import Session, Travelled, local
from synthetic import planted

ONE = Layout(("w",), ((1,),), 1)


def context(**training: float) -> RoundContext:
    return RoundContext(("a", "b"), np.zeros(1, np.float32), ONE, Training(**{"momentum": 0, **training}), 0)


def sent(values: list[float], n_samples: list[int], steps: list[int] | None = None) -> TrainedClients:
    steps = steps or [1] * len(values)
    answers = {
        f"c{k}": Trained(np.float32([v]), n, s, 0.0)
        for k, (v, n, s) in enumerate(zip(values, n_samples, steps, strict=True))
    }
    return TrainedClients(answers, {})


def test_mean_is_weighted_by_rows_of_those_who_reported() -> None:
    clusters = Clusters.single(["c0", "c1"], np.zeros(1, np.float32))
    both = sent([0, 4], [1, 3])
    assert clusters.averaged(both).models[0] == 3
    assert clusters.averaged(both.of(["c1"])).models[0] == 4  # not 3: absent clients have no say
    assert clusters.averaged(both.of([])).models[0] == 0  # nobody reported: the model stays


@pytest.mark.parametrize(
    ("steps", "momentum", "expected"), [(1, 0.9, 1), (2, 0.9, 2.9), (3, 0.9, 5.61), (5, 0.5, 8.0625)]
)
def test_effective_steps(steps: int, momentum: float, expected: float) -> None:
    assert effective_steps(steps, momentum) == pytest.approx(expected)


def test_fednova_undoes_unlike_numbers_of_steps() -> None:
    trained = sent([-1, -4], [1, 1], [1, 2])
    model = np.zeros(1, np.float32)
    assert FedNova().normalised(model, trained, context()) == pytest.approx(-2.25)
    assert trained.combined(model) == pytest.approx(-2.5)


@pytest.mark.parametrize("rule", [Median(), GeometricMedian(), TrimmedMean()], ids=lambda rule: type(rule).__name__)
def test_fednova_believes_no_number_of_steps_under_a_robust_rule(rule: Aggregation) -> None:
    honest = [-1.0, -1.1, -0.9, -1.0]
    with_liar = TrainedClients(sent([*honest, -1.0], [1] * 5, [2] * 4 + [10**6]), {}, rule)
    moved = FedNova().normalised(np.zeros(1, np.float32), with_liar, context())
    assert -1.2 < moved[0] < -0.5


def test_fedprox_asks_for_the_term() -> None:
    assert FedProx(mu=0.3).task(np.zeros(1, np.float32)).proximal == 0.3


def test_average_does_not_lose_small_contributions() -> None:
    big, small = np.float32([1e8]), np.float32([1])
    assert average([big, small, -big], [1, 1, 1]) == pytest.approx(1 / 3, rel=1e-6)


def test_sampling_is_a_fraction_and_never_nobody() -> None:
    names = tuple(f"c{k}" for k in range(10))
    everyone = RoundContext(names, np.zeros(1, np.float32), ONE, Training(), 3)
    assert everyone.sample() == list(names)
    assert len(replace(everyone, participation=0.3).sample()) == 3
    assert len(replace(everyone, participation=0.01).sample()) == 1
    half = replace(everyone, participation=0.5)
    assert half.sample() == half.sample()


def test_splits_number_clusters_globally() -> None:
    clusters = Clusters.from_labels([f"c{k}" for k in range(8)], [0] * 4 + [1] * 4, np.zeros(1, np.float32))
    twice = clusters.split(1, [["c4", "c5"], ["c6", "c7"]], round=3).split(2, [["c4"], ["c5"]], round=4)
    assert dict(twice.members) == {0: ("c0", "c1", "c2", "c3"), 3: ("c6", "c7"), 4: ("c4",), 5: ("c5",)}
    assert [branch["children"] for branch in twice.tree] == [[2, 3], [4, 5]]
    with pytest.raises(FedcladeError, match="twice"):
        Clusters({0: ("c0",), 1: ("c0",)}, {0: np.zeros(1), 1: np.zeros(1)}).check(["c0"])


# --- SCAFFOLD ---------------------------------------------------------------------------------------------------------


def test_scaffold_is_that_of_the_paper(tmp_path: Path) -> None:
    """y -= eta (g(y) - c_i + c), then c_i+ = c_i - c + (x - y) / (K eta), c += the mean change, by those of a round."""
    training = Training(local_epochs=2, batch_size=8, learning_rate=0.05, momentum=0.0)
    federation = planted(n_clients=4)
    engine = local(federation, tmp_path, training)
    session = Session(Scaffold(), engine, training, participation=0.5)
    clusters = session.go(3)
    engine.close()
    clients, memory = PlainClients(federation, training), Memory(tmp_path)
    x, c, own = engine.initial.astype(float), np.zeros(engine.layout.size), {}
    for round in (1, 2, 3):
        sent, changes = {}, []
        for client in replace(session.context, round=round).sample():
            y, steps = x, 0
            for rows, labels in clients.batches(client, round):
                y = y - 0.05 * (clients.gradient(y, rows, labels) - own.get(client, 0) + c)
                steps += 1
            after = own.get(client, 0) - c + (x - y) / (steps * 0.05)
            changes.append(after - own.get(client, 0))
            sent[client], own[client] = y, after
        x, c = clients.mean(sent), c + sum(changes) / 4
    np.testing.assert_allclose(clusters.models[0], x, atol=1e-4)
    np.testing.assert_allclose(clusters.state.mean, c, atol=2e-3)
    for client, gradient in own.items():
        np.testing.assert_allclose(memory.read(client, "control"), gradient, atol=2e-3)
    memory.close()


def test_scaffold_sends_twice_as_much_and_resumes(tmp_path: Path) -> None:
    settings = dict(method="scaffold", model="mlp", workers=1, participation=0.5)
    whole = fedclade.run(planted(), rounds=4, **settings)
    floats = 8 * 128 + 128 + 128 * 64 + 64 + 64 * 32 + 32 + 32 * 4 + 4
    for sent in whole.summary["bytes"].values():
        assert Travelled(sent, 4 * 3) == 4 * 3 * 2 * floats
    fedclade.run(planted(), rounds=2, out=tmp_path / "run", **settings)
    resumed = fedclade.resume(tmp_path / "run", rounds=4, data=planted())
    assert np.array_equal(resumed.weights_for("c0"), whole.weights_for("c0"))
    with pytest.raises(FedcladeError, match="SGD"):
        fedclade.run(planted(), rounds=1, **settings, training={"optimizer": "adam"})
    with pytest.raises(FedcladeError, match="averaged"):
        fedclade.run(planted(), rounds=1, **settings, training={"averaged": 0.5})
