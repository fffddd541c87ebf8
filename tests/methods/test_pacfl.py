"""PACFL: clusters by the angles between the clients' subspaces, before any training."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedclade.data.federation import Federation
from fedclade.errors import FedcladeError
from fedclade.methods.pacfl import PACFL
from harness import Scripted, Session, local, parts, two, whole_and_resumed
from synthetic import planted

E = np.eye(6, dtype=np.float32)


def scripted(bases: dict[str, np.ndarray], **options: object) -> Scripted:
    told = {client: {"basis": basis} for client, basis in bases.items()}
    shape = next(iter(bases.values())).shape[:1]
    return Scripted(dict.fromkeys(bases, two((0, 0))), told, input_shape=shape, **options)  # type: ignore[arg-type]


def turned(degrees: float, first: int = 0) -> np.ndarray:
    """A line in the plane of two axes."""
    angle = np.radians(degrees)
    return (np.cos(angle) * E[first] + np.sin(angle) * E[first + 1])[:, None].astype(np.float32)


PAIRS = {"a": turned(0), "b": turned(8), "c": turned(0, 2), "d": turned(8, 2)}


def apart(first: int) -> Federation:
    """Clients whose rows lie along axes of their group."""
    federation = planted(n_clients=8, shape=(8,))
    x = federation.x.copy()
    for client in federation.clients:
        mine = np.concatenate([client.train, client.test])
        x[np.ix_(mine, np.arange(4, 8) if client.group == first else np.arange(4))] = 0
    return replace(federation, x=x)


@pytest.mark.parametrize(
    ("other", "principled", "legacy"),
    [(-E[:, :1], 0, 90), ((E[:, :1] + E[:, 1:2]) / np.float32(2**0.5), 0, 45), (E[:, 2:3], 90, 90)],
)
def test_angles_between_subspaces(other: np.ndarray, principled: float, legacy: float) -> None:
    for method, expected in ((PACFL(), principled), (PACFL(legacy=True), legacy)):
        session = Session(method, scripted({"a": E[:, :2], "b": other}))
        session.go(0)
        assert session.records["proximity"]["matrix"][0, 1] == pytest.approx(expected, abs=1e-2)


def test_a_threshold_in_degrees_or_a_number_of_clusters() -> None:
    assert parts(Session(PACFL(threshold=8.1), scripted(PAIRS)).go(1)) == {frozenset("ab"), frozenset("cd")}
    assert len(Session(PACFL(threshold=7.9), scripted(PAIRS)).go(1)) == 4
    assert len(Session(PACFL(threshold=90.1), scripted(PAIRS)).go(1)) == 1
    session = Session(PACFL(n_clusters=2), scripted(PAIRS))
    assert parts(session.go(1)) == {frozenset("ab"), frozenset("cd")}
    assert session.records["dendrogram"]["linkage"] == "weighted"
    assert len(Session(PACFL(n_clusters=9), scripted(PAIRS)).go(1)) == 4


def test_messages_are_those_of_the_table(tmp_path: Path) -> None:
    federation = apart(0)
    engine = local(federation, tmp_path)
    session = Session(PACFL(n_clusters=2, n_vectors=3), engine, participation=0.5)
    session.go(2)
    for client, counts in zip(federation.names, federation.label_counts(), strict=True):
        vectors = np.minimum(counts, 3).sum()  # of eight numbers; a class of two rows has two
        assert session.floats("cluster", "up", client) == vectors * 8
    assert session.floats("cluster", "down") == 0
    assert session.floats("train", "down") == 2 * 4 * engine.layout.size
    assert session.floats("train", "up") == 2 * 4 * (engine.layout.size + 1)
    engine.close()


def test_few_equal_absent_and_new_clients() -> None:
    for names in ("a", "ab", "abcdef"):
        assert len(Session(PACFL(), scripted(dict.fromkeys(names, E[:, :2]))).go(1)) == 1
    gone = scripted(PAIRS, absent=lambda client, round: client == "d" and round < 2)
    session = Session(PACFL(threshold=10), gone)
    assert session.go(1).unassigned == ("d",)
    assert parts(session.go(2)) == {frozenset("ab"), frozenset("cd")}
    with pytest.raises(FedcladeError, match=r"no client answered the clustering round \(absent"):
        Session(PACFL(), scripted(PAIRS, absent=lambda client, round: True)).go(0)
    session = Session(PACFL(threshold=10), scripted({**PAIRS, "new": turned(30)}))
    placement = session.place(session.go(1, without=["new"]), ["new"], 2)["new"]
    assert placement.cluster == 0
    assert placement.distances == pytest.approx({0: 26, 1: 90}, abs=1e-3)


def test_groups_in_other_directions_are_found_and_joined(tmp_path: Path) -> None:
    engine = local(apart(0), tmp_path)
    session = Session(PACFL(n_clusters=2), engine)
    clusters = session.go(1, without=["c6", "c7"])
    assert parts(clusters) == {frozenset({"c0", "c2", "c4"}), frozenset({"c1", "c3", "c5"})}
    joined = session.admit(clusters, ["c6", "c7"], 4).cluster_of
    assert (joined["c6"], joined["c7"]) == (joined["c0"], joined["c1"])
    engine.close()


def test_label_groups_and_an_exact_resume(tmp_path: Path) -> None:
    whole = whole_and_resumed({"name": "pacfl"}, tmp_path, rounds=2, stop=1, participation=0.5)
    assert whole.summary["clusters"] == {"found": 4, "ari": 1.0, "nmi": 1.0}


def holding(labels: str, client: int) -> np.ndarray:
    """A basis of somebody who has rows of some classes, each lying along an axis, give or take a few degrees."""
    random = np.random.default_rng(client)
    vectors = [np.eye(40)[int(label)] + random.normal(size=40) * 0.005 for label in labels]
    return np.stack([vector / np.linalg.norm(vector) for vector in vectors], axis=1).astype(np.float32)


def test_clients_that_share_one_class_of_two_are_told_apart() -> None:
    """The smallest angle is as small for one shared class as for two: clusters must not hang on it alone."""
    kinds = ["01", "12", "23", "34", "40"]  # every class is held by two kinds, so each is next to two others
    bases = {f"{kind}-{n}": holding(kind, 10 * k + n) for k, kind in enumerate(kinds) for n in range(4)}
    session = Session(PACFL(), scripted({**bases, "new": holding("23", 99)}))
    clusters = session.go(0, without=["new"])
    assert parts(clusters) == {frozenset(name for name in bases if name.startswith(kind)) for kind in kinds}
    assert session.admit(clusters, ["new"], 1).cluster_of["new"] == clusters.cluster_of["23-0"]
    alike = {f"c{n}": holding("01234", n) for n in range(20)}
    assert len(Session(PACFL(), scripted(alike)).go(0)) == 1


def test_a_basis_that_is_not_finite_is_left_out_and_named() -> None:
    session = Session(PACFL(threshold=10), scripted({**PAIRS, "e": np.full((6, 1), np.nan, np.float32)}))
    assert session.go(0).unassigned == ("e",)
    assert session.ask.failures[0]["failure"].startswith("not finite")
