"""FL+HC: clusters of updates after some rounds of averaging."""

from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from fedclade.methods.fl_hc import FLHC
from harness import TWO, Scripted, Session, local, parts, two, whole_and_resumed
from synthetic import planted


def scripted(places: dict[str, tuple[float, float]], **options: object) -> Scripted:
    return Scripted({client: two(head) for client, head in places.items()}, **options)  # type: ignore[arg-type]


FAR = {"a": (1.0, 0.0), "b": (9.0, 0.5), "c": (0.0, 1.0), "d": (0.2, 9.0)}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"metric": "cosine", "threshold": 0.3}, ["ab", "cd"]),  # by direction
        ({"metric": "euclidean", "threshold": 2}, ["ac", "b", "d"]),  # by place
        ({"metric": "l1", "threshold": 1.9}, ["a", "b", "c", "d"]),  # |a - c| is 2 here
        ({"metric": "l1", "threshold": 2}, ["ac", "b", "d"]),
        ({"linkage": "ward", "n_clusters": 3}, ["ac", "b", "d"]),
        ({"n_clusters": 99}, ["a", "b", "c", "d"]),
    ],
)
def test_updates_are_compared_as_told(settings: dict[str, object], expected: list[str]) -> None:
    session = Session(FLHC(warmup=0, **settings), scripted(FAR))  # type: ignore[arg-type]
    assert parts(session.go(1)) == {frozenset(part) for part in expected}
    assert session.records["proximity"]["matrix"].shape == (4, 4)
    assert session.records["dendrogram"]["merges"].shape == (3, 4)


def test_ward_is_euclidean() -> None:
    with pytest.raises(ValidationError, match="Ward"):
        FLHC(metric="l1", linkage="ward")


def test_clusters_part_at_the_joint_model_and_cost_nothing_more() -> None:
    session = Session(FLHC(warmup=2, threshold=2), scripted(FAR, rows={"c": 3}))
    joint = session.go(2)
    assert len(joint) == 1
    session.ledger.clear()
    clusters = session.go(3)
    assert np.array_equal(clusters.state.start, joint.models[0])
    mean = (two(FAR["a"]) + two(FAR["c"])) / 2
    assert np.allclose(clusters.state.centres[0], mean - joint.models[0])
    assert np.allclose(clusters.models[0], (two(FAR["a"]) + 3 * two(FAR["c"])) / 4)  # its first round by itself
    assert session.floats("train", "down") == 3 * 4 * TWO.size
    assert session.floats("train", "up") == 3 * 4 * (TWO.size + 1)
    assert {entry["phase"] for entry in session.ledger} == {"train"}


def test_few_equal_absent_and_new_clients() -> None:
    for places in ({"a": (1, 1)}, {"a": (1, 1), "b": (1, 1)}, dict.fromkeys("abcdef", (1, 1))):
        assert len(Session(FLHC(warmup=1), scripted(places)).go(3)) == 1  # type: ignore[arg-type]
    gone = scripted(FAR, absent=lambda client, round: client == "d" and round < 2)
    session = Session(FLHC(warmup=0, metric="cosine", threshold=0.3), gone)
    assert session.go(1).unassigned == ("d",)
    assert parts(session.go(2)) == {frozenset("ab"), frozenset("cd")}
    nobody = scripted(FAR, absent=lambda client, round: round < 3)
    assert [len(Session(FLHC(warmup=1, threshold=2), nobody).go(rounds)) for rounds in (2, 3)] == [1, 3]
    still = Session(FLHC(warmup=1, metric="cosine"), scripted({"a": (0, 0), "b": (0, 0)}))  # updates without direction
    assert len(still.go(2)) in (1, 2)


def test_planted_groups_are_found_and_joined(tmp_path: Path) -> None:
    engine = local(planted(n_clients=8, rows=60), tmp_path)
    session = Session(FLHC(warmup=1, n_clusters=2), engine)
    clusters = session.go(2, without=["c6", "c7"])
    assert parts(clusters) == {frozenset({"c0", "c2", "c4"}), frozenset({"c1", "c3", "c5"})}
    joined = session.admit(clusters, ["c6", "c7"], 4).cluster_of
    assert (joined["c6"], joined["c7"]) == (joined["c0"], joined["c1"])
    waiting = Session(FLHC(warmup=9), engine)
    assert waiting.place(waiting.go(1, without=["c6"]), ["c6"], 2)["c6"].cluster == 0
    engine.close()


def test_label_groups_and_an_exact_resume(tmp_path: Path) -> None:
    whole = whole_and_resumed({"name": "fl-hc", "warmup": 1}, tmp_path, rounds=3, stop=2)
    assert whole.summary["clusters"] == {"found": 4, "ari": 1.0, "nmi": 1.0}
