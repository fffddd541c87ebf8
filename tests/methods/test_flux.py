"""FLUX: descriptors and dense regions by hand, when clients are told apart, and newcomers with and without labels."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedclade
from fedclade.clients.describe import describe
from fedclade.clients.tasks import Described, Training
from fedclade.clustering.density import dense_groups, elbow
from fedclade.data.federation import Client, Federation
from fedclade.methods.flux import Flux, Known, descriptors, ranges, recognised
from fedclade.newcomers import place_unlabelled
from harness import Session, local, parts, whole_and_resumed
from synthetic import planted

TRAINING = Training(local_epochs=3, batch_size=8, learning_rate=0.1)
EARLY = {"gain": 1.0}  # any gain is too small: clients are told apart in the fourth round


def turned(n_clients: int = 8, rows: int = 60, seed: int = 0) -> Federation:
    """Clients of two groups that see the same kinds of rows from opposite sides: rows alone tell them apart."""
    random = np.random.default_rng(seed)
    centres = random.normal(size=(4, 8)) * 2
    x, y, clients = [], [], []
    for number in range(n_clients):
        kind = random.integers(0, 4, rows + 20)
        sign = 1 if number % 2 else -1
        x.append(sign * centres[kind] + 3 * (number % 2) + random.normal(size=(len(kind), 8)) * 0.3)
        y.append(kind)
        held = np.arange(number * (rows + 20), (number + 1) * (rows + 20), dtype=np.int32)
        clients.append(Client(f"c{number}", held[:rows], held[rows:], number % 2))
    table = np.concatenate(x).astype(np.float32)
    return Federation(table, np.concatenate(y).astype(np.int64), tuple(clients), ("a", "b", "c", "d")).checked()


def test_moments_by_hand() -> None:
    features, y = np.float32([[1, 5], [3, 5], [10, 0], [0, 0]]), np.array([0, 0, 2, 1])
    told = describe("moments", {"features": features, "size": 4}, features, y, 3, np.random.default_rng(0))
    assert told["counts"].tolist() == [2, 1, 1]
    assert told["means"].tolist() == [[3.5, 2.5], [2, 5], [0, 0], [0, 0]]
    np.testing.assert_allclose(told["deviations"], [[np.sqrt(15.25), 2.5], [1, 0], [0, 0], [0, 0]], atol=1e-6)


def test_descriptors_are_scaled_part_by_part_and_absent_classes_stand_apart() -> None:
    def one(mean: float, held: int) -> Described:
        values = {"counts": [held], "means": [[mean, 0.0], [5.0 * held, 5.0]], "deviations": [[1, 2], [0, 0]]}
        return Described({name: np.float32(value) for name, value in values.items()})

    made, there = descriptors({"a": one(4.0, 2), "b": one(2.0, 4), "c": one(1.0, 0)})
    low, high = ranges(made, there)
    assert low.tolist() == [0, 1, 5, 0]
    assert high.tolist() == [4, 2, 20, 0]
    rows = Known((), None, low, high).scaled(made, there)
    third = 1 / 3
    assert rows.tolist() == [
        pytest.approx([1, 0, 0, 1, third, 0, 0, 0]),
        pytest.approx([0.5, 0, 0, 1, 1, 0, 0, 0]),
        pytest.approx([0.25, 0, 0, 1, -1, -1, -1, -1]),
    ]


def test_dense_regions_by_hand() -> None:
    assert elbow(np.array([1.0, 1.1, 1.2, 1.3, 9.0])) == 1.3
    assert elbow(np.array([2.0, 2.0])) == 2.0
    rows = np.array([[0.0], [1.0], [2.1], [20.0], [21.0], [22.1], [90.0]])
    labels, limit = dense_groups(rows)
    assert limit == pytest.approx(1.1)
    assert labels.tolist() == [0, 0, 0, 1, 1, 1, 2]  # the last one is alone
    assert dense_groups(np.zeros((1, 2)))[0].tolist() == [0]


def test_clients_are_told_apart_when_accuracy_hardly_grows(tmp_path: Path) -> None:
    method = Flux()
    session = Session(method, local(planted(), tmp_path, TRAINING), TRAINING)
    assert not method.is_time(Known((0.2, 0.5)), session.context)  # too early
    assert not method.is_time(Known((0.2, 0.5, 0.8)), session.context)
    assert method.is_time(Known((0.2, 0.5, 0.55)), session.context)
    session.engine.close()


@pytest.mark.parametrize("federation", [planted(n_clients=24, rows=80), turned(24)], ids=["labels", "rows"])
def test_groups_are_found(federation: Federation, tmp_path: Path) -> None:
    engine = local(federation, tmp_path, TRAINING)
    clusters = Session(Flux(**EARLY), engine, TRAINING).go(5)
    joined = {frozenset(part) for part in parts(clusters)}
    groups = [{f"c{k}" for k in range(start, 24, 2)} for start in (0, 1)]
    assert all(any(part <= group for group in groups) for part in joined)  # nobody is with the others
    assert len(joined) < 12  # most are with others
    engine.close()


def test_newcomers_with_and_without_labels(tmp_path: Path) -> None:
    federation = turned()
    late = ["c6", "c7"]
    early = [client for client in federation.clients if client.name not in late]
    known = Federation(federation.x, federation.y, tuple(early), federation.classes)
    settings: dict[str, Any] = dict(model="mlp", training=TRAINING, rounds=5, workers=1)
    run = fedclade.run(known, method={"name": "flux", **EARLY}, out=tmp_path / "run", **settings)
    rows = {client: federation.x[federation[client].train] for client in late}
    for client, placed in place_unlabelled(run.path, rows).items():
        group = federation[client].group
        alike = {run.cluster_of(c.name) for c in early if c.group == group}
        assert placed.cluster in alike


def test_who_would_be_placed_at_home_by_hand() -> None:
    random = np.random.default_rng(3)
    for apart in (0.0, 1.0, 20.0):
        labels = np.array([0, 0, 0, 2, 2, 2, 2, 5])
        rows = random.normal(size=(8, 6)) + apart * labels[:, None]
        centres = {k: rows[labels == k].mean(axis=0) for k in (0, 2, 5)}
        right = []
        for k in range(7):  # the last one is alone
            others = [j for j in range(8) if j != k]
            far = {
                label: np.linalg.norm(
                    rows[k, :4] - np.mean([rows[j, :4] for j in others if labels[j] == label], axis=0)
                )
                for label in (0, 2, 5)
            }
            right.append(min(far, key=far.__getitem__) == labels[k])
        assert recognised(rows[:, :4], labels, centres) == np.mean(right)
    assert recognised(np.eye(2), np.array([0, 1]), {0: np.ones(2), 1: np.ones(2)}) is None


def test_it_stops_and_goes_on(tmp_path: Path) -> None:
    events = [{"round": 6, "join": ["client-011"]}]
    whole_and_resumed({"name": "flux", **EARLY}, tmp_path, rounds=7, stop=5, events=events, participation=0.5)
