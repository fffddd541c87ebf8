"""Dynamic Clustering, as reconstructed: a federated GAN, calibration by losses, division of the worst cluster."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedclade
from fedclade.clients.describe import describe
from fedclade.clients.messages import pack, unpack
from fedclade.clients.tasks import Describe, Described, Training
from fedclade.data.federation import Federation
from fedclade.methods.base import Clusters
from fedclade.methods.dynamic import Division, Dynamic
from fedclade.models.generative import new_gan
from fedclade.models.weights import Layout
from harness import Session, local, parts, whole_and_resumed
from synthetic import planted

TRAINING = Training(local_epochs=3, batch_size=8, learning_rate=0.1)
ANY = Layout(("layer.weight",), ((1, 3),), 3)


def shifted(n_groups: int = 2, n_clients: int = 8, shape: tuple[int, ...] = (8,)) -> Federation:
    """Clients whose groups see the same kinds of rows, and name them differently, through sensors that are off."""
    federation = planted(n_clients=n_clients, n_groups=n_groups, rows=80, shape=shape)
    x, random = federation.x.copy(), np.random.default_rng(5)
    for group, shift in enumerate(random.normal(size=(n_groups, *shape)) * 1.5):
        for client in federation.clients:
            if client.group == group:
                x[np.concatenate([client.train, client.test])] += shift.astype(np.float32)
    return replace(federation, x=x)


@pytest.mark.parametrize("shape", [(8,), (1, 4, 4)])
def test_planted_groups_are_found(shape: tuple[int, ...], tmp_path: Path) -> None:
    federation = shifted(shape=shape)
    engine = local(federation, tmp_path)
    found = parts(Session(Dynamic(), engine).go(0))
    assert found == {frozenset(c.name for c in federation.clients if c.group == g) for g in (0, 1)}
    engine.close()


def test_clients_of_one_kind_stay_together(tmp_path: Path) -> None:
    engine = local(planted(n_clients=8, n_groups=1, rows=80), tmp_path)
    assert len(Session(Dynamic(), engine).go(0)) == 1
    engine.close()


def test_a_run_serves_every_group_and_finds_those_that_the_first_codes_missed() -> None:
    method = {"name": "dynamic", "calibrate_every": 2, "divide_every": 4}
    result = fedclade.run(shifted(3, 12), method=method, model="mlp", training=TRAINING, rounds=6, workers=1)
    assert result.summary["clusters"]["ari"] == 1.0
    assert result.accuracy["worst"] > 0.8


def test_calibration_moves_a_client_to_the_model_that_fits_it(tmp_path: Path) -> None:
    federation = planted(n_clients=8, rows=80)
    engine = local(federation, tmp_path)
    session = Session(Dynamic(calibrate_every=2, divide_every=99), engine)
    home = [0 if client.group == 0 or client.name == "c1" else 1 for client in federation.clients]
    clusters = Clusters.from_labels(federation.names, home, engine.initial)
    for number in (1, 2):
        clusters = session.method.round(clusters, replace(session.context, round=number), session.ask)
    assert clusters.cluster_of["c1"] == clusters.cluster_of["c3"] != clusters.cluster_of["c0"]
    engine.close()


def test_division_that_brings_nothing_ends_it(tmp_path: Path) -> None:
    engine = local(planted(n_clients=8, n_groups=1, rows=80), tmp_path)
    session = Session(Dynamic(divide_every=1, margin=0.0), engine)
    clusters = Clusters.single(engine.clients, engine.initial, Division())
    clusters = session.method.round(clusters, replace(session.context, round=1), session.ask)
    assert len(clusters) == 1
    assert clusters.state.is_over
    engine.close()


def test_only_gan_weights_and_codes_travel_before_training(tmp_path: Path) -> None:
    engine = local(planted(), tmp_path)
    session = Session(Dynamic(n_clusters=3, gan_turns=4), engine)
    session.go(0)
    size = len(new_gan(8, 3, 0))
    assert session.floats("gan", "down", "c0") == (4 + 3) * size  # and three times for the codes
    assert session.floats("gan", "up", "c0") == 4 * size + 3 * 9
    engine.close()


def test_it_travels_over_the_wire() -> None:
    task = Describe("gan", {"n_codes": 2, "epochs": 1, "learning_rate": 0.01, "turn": 3, "weights": new_gan(8, 2, 0)})
    back = unpack(pack(task, ANY))
    assert isinstance(back, Describe)
    assert [array.size for array in pack(task, ANY).arrays] == [len(task.options["weights"])]
    x, y = np.random.default_rng(0).normal(size=(30, 8)).astype(np.float32), np.zeros(30, np.int64)
    here, there = (describe("gan", dict(t.options), x, y, 2, np.random.default_rng(1)) for t in (task, back))
    assert np.array_equal(here["weights"], there["weights"])
    assert not np.array_equal(here["weights"], task.options["weights"])
    answer = unpack(pack(Described(here), ANY))
    assert isinstance(answer, Described)
    assert np.array_equal(answer.values["weights"], here["weights"])


def test_whoever_misses_the_clustering_is_placed_and_a_run_resumes_exactly(tmp_path: Path) -> None:
    method = {"name": "dynamic", "calibrate_every": 2, "divide_every": 3, "gan_turns": 2}
    whole_and_resumed(method, tmp_path, rounds=4, stop=2, events=[{"round": 2, "join": 1}])
