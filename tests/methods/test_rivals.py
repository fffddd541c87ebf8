"""Rivals on data with planted groups: what they must find, what they send, and that they resume."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedclade
from fedclade.clients.tasks import Training
from fedclade.errors import FedcladeError
from fedclade.methods import METHODS, Clusters
from fedclade.methods.ditto import Ditto
from fedclade.methods.fedgroup import decomposed_cosines
from fedclade.methods.ifca import IFCA
from fedclade.methods.shared_layers import LGFedAvg
from fedclade.models import make
from fedclade.models.weights import Layout
from harness import Session, Travelled, local
from synthetic import planted

TRAINING = Training(local_epochs=3, batch_size=8, learning_rate=0.1)
FINDERS = {
    "ifca": {"n_clusters": 2},
    "hypcluster": {"n_clusters": 2},
    "fesem": {"n_clusters": 2},
    "fedgroup": {"n_clusters": 2},
    "flis": {},
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


@pytest.mark.parametrize("variant", ["first-order", "hessian-free"])
@pytest.mark.parametrize("seed", range(4))
def test_per_fedavg_serves_groups_after_a_step_of_their_own(variant: str, seed: int) -> None:
    """One model serves two groups that disagree at half; some client may be served badly by chance, most may not."""
    federation = planted(n_clients=8, rows=80, seed=seed)
    method = {"name": "per-fedavg", "variant": variant, "inner_rate": 0.1, "outer_rate": 0.1, "adapt_epochs": 2}
    result = fedclade.run(federation, method=method, model="mlp", training=TRAINING, rounds=8, workers=1, seed=seed)
    assert result.accuracy["mean"] > 0.85
    assert np.abs(result.weights_for("c0")).max() < 10


def test_ditto_sends_as_much_as_fedavg() -> None:
    plain, ditto = (
        fedclade.run(planted(), method=method, model="mlp", rounds=2, workers=1).summary["bytes"]
        for method in ("fedavg", "ditto")
    )
    assert ditto["up"] == plain["up"]
    assert 0 < ditto["down"] - plain["down"] < 2 * 6 * 200  # the words that tell of the second training


def test_rows_in_one_place_that_cannot_be_trained_on_are_an_error() -> None:
    with pytest.raises(FedcladeError, match=r"not finite.*learning_rate"):
        fedclade.run(method="centralized", clients=2, rounds=1, rows=20, workers=1, training={"learning_rate": 1e30})


def test_only_the_shared_layers_travel() -> None:
    federation = planted()
    sizes = {"fc1": 8 * 128 + 128, "fc2": 128 * 64 + 64, "fc3": 64 * 32 + 32, "fc4": 32 * 4 + 4}
    for method, floats in (("lg-fedavg", sizes["fc3"] + sizes["fc4"]), ("fedper", sum(sizes.values()) - sizes["fc4"])):
        result = fedclade.run(federation, method=method, model="mlp", rounds=2, workers=1)
        for sent in result.summary["bytes"].values():
            assert Travelled(sent, 2 * 6) == 2 * 6 * floats


def test_ifca_sends_all_models_down_and_one_up() -> None:
    result = fedclade.run(planted(), method={"name": "ifca", "n_clusters": 3}, model="mlp", rounds=2, workers=1)
    floats = 8 * 128 + 128 + 128 * 64 + 64 + 64 * 32 + 32 + 32 * 4 + 4
    assert Travelled(result.summary["bytes"]["down"], 2 * 6) == 2 * 6 * 3 * floats
    assert Travelled(result.summary["bytes"]["up"], 2 * 6) == 2 * 6 * floats


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


@pytest.mark.parametrize("name", FINDERS)
def test_newcomers_join_their_group(name: str, tmp_path: Path) -> None:
    engine = local(planted(n_clients=8, rows=80), tmp_path, TRAINING)
    session = Session(METHODS[name](**FINDERS[name]), engine, TRAINING)
    clusters = session.go(6, without=["c6", "c7"])
    joined = session.admit(clusters, ["c6", "c7"], 7).cluster_of
    assert joined["c6"] == joined["c0"] != joined["c7"] == joined["c1"]
    engine.close()


@pytest.mark.parametrize("name", [*FINDERS, "clusterfl", "dynamic", "lg-fedavg", "fedper", "ditto", "per-fedavg"])
def test_half_of_the_clients_a_round_and_one_that_never_answers(name: str, tmp_path: Path) -> None:
    engine = local(planted(n_clients=8, rows=40), tmp_path, TRAINING)
    answer = engine.answer
    engine.answer = lambda tasks, round: {  # type: ignore[method-assign]
        client: reply for client, reply in answer(tasks, round).items() if client != "c3"
    }
    session = Session(METHODS[name](**FINDERS.get(name, {})), engine, TRAINING, participation=0.5)
    clusters = session.go(3)  # it checks that they are a partition
    assert all(np.isfinite(model).all() for model in clusters.models.values())
    trained = [e for e in session.ledger if e["phase"] == "train" and e["direction"] == "down" and e["round"] == 3]
    assert len({entry["client"] for entry in trained}) == 4
    engine.close()


def test_a_model_that_nobody_chose_stays_and_ties_go_to_the_first(tmp_path: Path) -> None:
    engine = local(planted(), tmp_path)
    session = Session(IFCA(n_clusters=3), engine)
    same = Clusters({0: engine.clients}, {0: engine.initial, 1: engine.initial + 100, 2: engine.initial})
    after = session.method.round(same, replace(session.context, round=1), session.ask)
    assert after.members == {0: engine.clients}
    assert np.array_equal(after.models[1], same.models[1])
    assert np.array_equal(after.models[2], same.models[2])
    assert not np.array_equal(after.models[0], same.models[0])
    engine.close()


def test_the_last_two_layers_of_lenet_are_what_lg_fedavg_shares() -> None:
    layout = Layout.of(make("lenet5", (3, 32, 32), 10))
    assert len(np.zeros(layout.size)[layout.select(LGFedAvg().shared(layout))]) == 11_014


def test_momentum_has_no_part_in_meta_steps(tmp_path: Path) -> None:
    """Its two gradients are of different places: a buffer shared by both would mix them."""
    federation = planted()
    runs = [
        fedclade.run(
            federation,
            method={"name": "per-fedavg", "outer_rate": 0.1},
            model="mlp",
            training=TRAINING.model_copy(update={"momentum": momentum}),
            rounds=2,
            workers=1,
        )
        for momentum in (0.0, 0.9)
    ]
    assert np.array_equal(*(run.weights_for("c0") for run in runs))


def test_dittos_own_models_are_held_near_the_shared_one(tmp_path: Path) -> None:
    federation = planted(rows=80)
    apart = []
    for number, strength in enumerate((0.0, 5.0)):
        engine = local(federation, tmp_path / str(number), TRAINING)
        session = Session(Ditto(strength=strength), engine, TRAINING)
        clusters = session.go(3)
        own = engine.runtime.memory.read("c0", "personal")
        apart.append(np.linalg.norm(own - clusters.models[0]))
        engine.close()
    assert apart[1] < 0.7 * apart[0]
