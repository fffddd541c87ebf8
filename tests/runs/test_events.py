"""Clients that join, leave or drift during a run, and newcomers after it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedclade
from fedclade.clients.tasks import Training
from fedclade.errors import FedcladeError
from fedclade.events import Calendar, Event
from synthetic import planted

TRAINING = Training(local_epochs=3, batch_size=8, learning_rate=0.1)
NAMES = tuple("abcdef")


def test_numbers_become_names() -> None:
    calendar = Calendar.of(
        NAMES, [Event(round=2, join=1), Event(round=3, leave=2, drift=2), Event(round=1, join=("c",))]
    )
    assert calendar.present(0) == ("a", "b", "d", "e")
    assert calendar.present(1) == ("a", "b", "c", "d", "e")
    assert calendar.present(2) == NAMES
    assert calendar.present(3) == ("c", "d", "e", "f")
    assert calendar.rows_of(2) == {}
    assert calendar.rows_of(3) == {"c": "e", "e": "c"}
    assert calendar.newcomers(2) == ("f",)
    assert calendar.newcomers(3) == ("c", "e")
    named_last = Calendar.of(NAMES, [Event(round=3, join=("f",)), Event(round=2, join=1)])
    assert [named_last.newcomers(round) for round in (2, 3)] == [("e",), ("f",)]


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([Event(round=1, leave=("x",))], "no client of this run"),
        ([Event(round=1, leave=6)], "no client is left"),
        ([Event(round=1, join=6)], "nobody is there"),
        ([Event(round=1, join=4), Event(round=2, join=3)], "only 2 are left"),
        ([Event(round=1, drift=1)], "lets a drift"),
        ([Event(round=1, drift=("a", "b", "a"))], "each once"),
        ([Event(round=2, join=("a",)), Event(round=1, leave=("a",))], "not there at that time"),
    ],
)
def test_impossible_events(events: list[Event], message: str) -> None:
    with pytest.raises(FedcladeError, match=message):
        Calendar.of(NAMES, events)


def test_clusters_follow_those_who_come_go_and_change(tmp_path: Path) -> None:
    federation = planted(n_clients=8, rows=60)
    events = [{"round": 2, "join": 2}, {"round": 3, "leave": ["c0"]}, {"round": 4, "drift": ["c1", "c2"]}]
    settings = dict(method={"name": "fedclust", "n_clusters": 2}, model="mlp", training=TRAINING, workers=1)
    result = fedclade.run(federation, rounds=5, events=events, out=tmp_path / "run", **settings)
    history = result.history
    assert set(history[history["round"] == 1]["client"]) == {f"c{k}" for k in range(6)}
    assert set(history[history["round"] == 5]["client"]) == {f"c{k}" for k in range(1, 8)}
    assert result.summary["clusters"]["ari"] == 1.0  # c1 and c2 changed sides
    assert result.cluster_of("c1") == result.cluster_of("c4")
    assert result.cluster_of("c2") == result.cluster_of("c3")
    half = fedclade.run(federation, rounds=3, events=events, out=tmp_path / "half", **settings)
    resumed = fedclade.resume(half.path, rounds=5, data=federation)
    assert np.array_equal(resumed.weights_for("c2"), result.weights_for("c2"))


@pytest.mark.parametrize("method", [{"name": "fedclust", "n_clusters": 2}, {"name": "ifca", "n_clusters": 2}, "fedavg"])
def test_newcomers_are_placed_after_the_run(tmp_path: Path, method: object) -> None:
    everybody = planted(n_clients=8, rows=60)
    here, new = replace(everybody, clients=everybody.clients[:6]), replace(everybody, clients=everybody.clients[6:])
    run = fedclade.run(here, method=method, model="mlp", training=TRAINING, rounds=4, workers=1, out=tmp_path / "run")
    placed = fedclade.place(tmp_path / "run", new)
    assert [placed[name].cluster for name in ("c6", "c7")] == [run.cluster_of("c0"), run.cluster_of("c1")]
    for one in placed.values():
        assert one.score is not None
        assert one.score_personalised is not None
        assert one.score_personalised >= 0.8
        assert one.model is not None
    assert (tmp_path / "run" / "placements" / "c6.safetensors").is_file()
    with pytest.raises(FedcladeError, match="shape"):
        fedclade.place(tmp_path / "run", planted(shape=(5,)))


def test_an_event_after_the_last_round_is_said(tmp_path: Path) -> None:
    events = [{"round": 20, "join": 2}]
    result = fedclade.run(
        "digits", split="label-groups:2", clients=6, method="fedavg", rounds=1, rows=20, events=events, workers=1
    )
    assert any("the event of round 20 comes after the last round, 1" in remark for remark in result.record["remarks"])
