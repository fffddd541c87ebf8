"""StoCFL: who is merged with whom, against a slower way to work it out; and what clients train."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plain import PlainClients

import fedclade
from fedclade.clients.tasks import Training
from fedclade.methods.stocfl import StoCFL, unions
from harness import Session, Travelled, local, parts, whole_and_resumed
from synthetic import planted

TRAINING = Training(local_epochs=3, batch_size=8, learning_rate=0.1)


@pytest.mark.parametrize("seed", range(20))
def test_the_most_alike_merge_first_as_long_as_they_are_alike(seed: int) -> None:
    """Told by the members themselves: a cluster's mean is that of its members' directions."""
    random = np.random.default_rng(seed)
    rows = random.normal(size=(7, 3))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    groups = [[k] for k in range(7)]

    def cosine(one: list[int], other: list[int]) -> float:
        a, b = rows[one].mean(axis=0), rows[other].mean(axis=0)
        return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))

    while len(groups) > 1:
        best = max((cosine(a, b), i, j) for i, a in enumerate(groups) for j, b in enumerate(groups) if i < j)
        if best[0] < 0.4:
            break
        groups[best[1]] += groups.pop(best[2])

    means = {k: row.astype(np.float32) for k, row in enumerate(rows)}
    found = {k: {k} for k in means}
    for stays, goes in unions(means, dict.fromkeys(range(7), 1), range(7), 0.4):
        assert len(found[stays]) >= len(found[goes])
        found[stays] |= found.pop(goes)
    assert {frozenset(group) for group in groups} == {frozenset(group) for group in found.values()}
    for k, members in found.items():
        np.testing.assert_allclose(means[k], rows[sorted(members)].mean(axis=0), atol=1e-5)


def test_a_round_is_that_of_the_paper(tmp_path: Path) -> None:
    """Both models, in plain torch: that of all by FedAvg, a cluster's held near what that was before the round."""
    training = Training(local_epochs=2, batch_size=8, learning_rate=0.05, momentum=0.0)
    federation = planted(n_clients=3)
    engine = local(federation, tmp_path, training)
    session = Session(StoCFL(threshold=-1.0, strength=0.7), engine, training)
    clusters = session.go(2)
    engine.close()
    assert len(clusters) == 1  # at this threshold everybody is alike
    (cluster,) = clusters.members
    clients = PlainClients(federation, training)
    of_all = of_cluster = engine.initial.astype(float)
    for round in (1, 2):
        made: dict[str, dict[str, np.ndarray]] = {"all": {}, "cluster": {}}
        for client in federation.names:
            w, v = of_all, of_cluster
            for x, y in clients.batches(client, round):
                w = w - 0.05 * clients.gradient(w, x, y)
                v = v - 0.05 * (clients.gradient(v, x, y) + 0.7 * (v - of_all))
            made["all"][client], made["cluster"][client] = w, v
        of_all, of_cluster = clients.mean(made["all"]), clients.mean(made["cluster"])
    np.testing.assert_allclose(clusters.models[0], of_all, atol=1e-4)
    np.testing.assert_allclose(clusters.models[cluster], of_cluster, atol=1e-4)


def test_groups_are_found_as_clients_are_met(tmp_path: Path) -> None:
    engine = local(planted(n_clients=8, rows=80), tmp_path, TRAINING)
    session = Session(StoCFL(), engine, TRAINING, participation=0.5)
    early = session.go(1)
    assert len(early.members[0]) == 4  # they have not been met
    late = session.go(10)
    assert parts(late) == {frozenset(f"c{k}" for k in range(start, 8, 2)) for start in (0, 1)}
    engine.close()


def test_newcomers_and_those_who_go_with_nobody(tmp_path: Path) -> None:
    engine = local(planted(n_clients=8, rows=80), tmp_path, TRAINING)
    session = Session(StoCFL(), engine, TRAINING)
    clusters = session.go(3, without=["c6", "c7"])
    placed = session.place(clusters, ["c6", "c7"], 4)
    home = clusters.cluster_of
    assert [placed[c].cluster for c in ("c6", "c7")] == [home["c0"], home["c1"]]
    strict = session.method.model_copy(update={"threshold": 1.0})
    here = replace(session.context.only(["c6"]), round=4)
    assert strict.place(clusters, here, session.ask)["c6"].cluster is None
    waiting = session.admit(clusters, ["c6", "c7"], 4)
    assert waiting.members[0] == ("c6", "c7")
    engine.close()


def test_it_stops_and_goes_on_with_clients_that_come_and_change(tmp_path: Path) -> None:
    drifted = ["client-002", "client-003", "client-004"]
    events: list[dict[str, Any]] = [{"round": 3, "join": ["client-011"]}, {"round": 4, "drift": drifted}]
    whole_and_resumed({"name": "stocfl"}, tmp_path, rounds=5, stop=3, events=events, participation=0.5)


def test_what_travels() -> None:
    result = fedclade.run(planted(), method="stocfl", model="mlp", rounds=2, workers=1)
    floats = 8 * 128 + 128 + 128 * 64 + 64 + 64 * 32 + 32 + 32 * 4 + 4
    assert Travelled(result.summary["bytes"]["up"], 5 * 6) == (1 + 2 * 2) * 6 * floats  # the anchor once
    # In the first round a cluster's model is that of all, and the same numbers are sent once.
    assert Travelled(result.summary["bytes"]["down"], 5 * 6) == (1 + (1 + 1) + (2 + 1)) * 6 * floats
