"""Rivals on data with planted groups: what they must find, what they send, and that they resume."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedclade
from fedclade.clients.tasks import Training
from fedclade.methods.fedgroup import decomposed_cosines
from planting import planted

TRAINING = Training(local_epochs=3, batch_size=8, learning_rate=0.1)
FINDERS = {
    "ifca": {"n_clusters": 2},
    "hypcluster": {"n_clusters": 2, "fraction": 1.0},
    "fesem": {"n_clusters": 2},
    "fedgroup": {"n_clusters": 2},
    "flis": {"fraction": 1.0},
}


@pytest.mark.parametrize("name", FINDERS)
def test_planted_groups_are_found(name: str) -> None:
    federation = planted(n_clients=8, rows=80)
    settings = {"name": name, **FINDERS[name]}
    result = fedclade.run(federation, method=settings, model="mlp", training=TRAINING, rounds=6, workers=1)
    assert result.summary["clusters"]["ari"] == 1.0
    assert result.accuracy["worst"] > 0.8


@pytest.mark.parametrize("name", ["lg-fedavg", "fedper", "ditto"])
def test_personal_parts_serve_groups_that_one_model_cannot(name: str) -> None:
    federation = planted(n_clients=8, rows=80)
    one = fedclade.run(federation, method="fedavg", model="mlp", training=TRAINING, rounds=6, workers=1)
    result = fedclade.run(federation, method=name, model="mlp", training=TRAINING, rounds=6, workers=1)
    assert one.accuracy["mean"] < 0.7
    assert result.accuracy["worst"] > 0.8
    module = result.model_for("c0")
    test = federation["c0"].test
    import torch

    right = module(torch.from_numpy(federation.x[test])).argmax(1).numpy() == federation.y[test]
    history = result.history
    last = history[(history["round"] == 6) & (history["client"] == "c0")]
    assert right.mean() == pytest.approx(last["accuracy"].item())


def test_per_fedavg_serves_groups_after_a_step_of_their_own() -> None:
    federation = planted(n_clients=8, rows=80)
    for variant in ("first-order", "hessian-free"):
        method = {"name": "per-fedavg", "variant": variant, "inner_rate": 0.1, "outer_rate": 0.1, "adapt_epochs": 2}
        result = fedclade.run(federation, method=method, model="mlp", training=TRAINING, rounds=8, workers=1)
        assert result.accuracy["worst"] > 0.8


def test_ditto_sends_as_much_as_fedavg() -> None:
    bytes_of = [
        fedclade.run(planted(), method=method, model="mlp", rounds=2, workers=1).summary["bytes"]
        for method in ("fedavg", "ditto")
    ]
    assert bytes_of[0] == bytes_of[1]


def test_only_the_shared_layers_travel() -> None:
    federation = planted()
    sizes = {"fc1": 8 * 128 + 128, "fc2": 128 * 64 + 64, "fc3": 64 * 32 + 32, "fc4": 32 * 4 + 4}
    for method, floats in (("lg-fedavg", sizes["fc3"] + sizes["fc4"]), ("fedper", sum(sizes.values()) - sizes["fc4"])):
        result = fedclade.run(federation, method=method, model="mlp", rounds=2, workers=1)
        assert result.summary["bytes"] == {"down": 2 * 6 * 4 * floats, "up": 2 * 6 * 4 * (floats + 1)}


def test_ifca_sends_all_models_down_and_one_up() -> None:
    result = fedclade.run(planted(), method={"name": "ifca", "n_clusters": 3}, model="mlp", rounds=2, workers=1)
    floats = 8 * 128 + 128 + 128 * 64 + 64 + 64 * 32 + 32 + 32 * 4 + 4
    assert result.summary["bytes"]["down"] == 2 * 6 * 3 * 4 * floats
    assert result.summary["bytes"]["up"] == 2 * 6 * 4 * (floats + 2)  # with the row count and the number of the model


def test_ifca_chooses_by_training_rows_not_by_test_rows() -> None:
    """Test labels that contradict the training labels must not change who chooses what."""
    federation = planted(rows=80)
    lied = federation.y.copy()
    for client in federation.clients:
        lied[client.test] = (lied[client.test] + 2) % 4
    settings = dict(method={"name": "ifca", "n_clusters": 2}, model="mlp", training=TRAINING, rounds=4, workers=1)
    honest, fooled = fedclade.run(federation, **settings), fedclade.run(replace(federation, y=lied), **settings)
    assert honest.clusters == fooled.clusters


@pytest.mark.parametrize("name", [*FINDERS, "lg-fedavg", "ditto", "per-fedavg"])
def test_stopped_and_resumed_is_the_same(tmp_path: Path, name: str) -> None:
    federation = planted()
    settings = dict(method={"name": name, **FINDERS.get(name, {})}, model="mlp", training=TRAINING, workers=1)
    whole = fedclade.run(federation, rounds=4, **settings)
    half = fedclade.run(federation, rounds=2, out=tmp_path / "run", **settings)
    resumed = fedclade.resume(half.path, rounds=4, data=federation)
    assert resumed.clusters == whole.clusters
    assert all(np.array_equal(resumed.weights_for(c), whole.weights_for(c)) for c in federation.names)


def test_decomposed_cosines_tell_directions_apart() -> None:
    updates = np.array([[1, 0.1, 0], [2, 0, 0], [0, 1, 0], [0, 3, 0.1]])
    cosines = decomposed_cosines(updates, 2)
    assert cosines.shape == (4, 2)
    near = np.linalg.norm(cosines[0] - cosines[1]), np.linalg.norm(cosines[2] - cosines[3])
    assert max(near) < 0.2 < np.linalg.norm(cosines[0] - cosines[2])
