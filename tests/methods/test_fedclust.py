"""FedClust: one round on the last layer, all four linkages, three ways to cut, and newcomers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

import fedclade
from fedclade.clustering.hierarchy import Tree, sweep
from fedclade.errors import FedcladeError
from fedclade.methods.fedclust import FedClust
from harness import TWO, Scripted, Session, local, parts, two, whole_and_resumed
from synthetic import planted

# At 0, 3, 5 and 11 on a line: single 2, 3, 6; complete 2, 5, 11; average 2, 4, 25/3; weighted 2, 4, 9.
LINE = {"a": 0.0, "b": 3.0, "c": 5.0, "d": 11.0}
HEIGHTS = {"single": (2, 3, 6), "complete": (2, 5, 11), "average": (2, 4, 25 / 3), "weighted": (2, 4, 9)}


def on_a_line(places: dict[str, float], **options: Any) -> Scripted:
    """Only the first weight of their heads tells clients apart; what they do elsewhere must not matter."""
    weights = {c: two((place, 0), body=100.0 * 2**k) for k, (c, place) in enumerate(places.items())}
    return Scripted(weights, **options)


@pytest.mark.parametrize("linkage", HEIGHTS)
def test_four_linkages_of_last_layers(linkage: str) -> None:
    session = Session(FedClust(linkage=linkage, n_clusters=2), on_a_line(LINE))  # type: ignore[arg-type]
    assert parts(session.go(0)) == {frozenset("abc"), frozenset("d")}
    seen = session.records["proximity"]
    assert seen["matrix"][0].tolist() == [0, 3, 5, 11]  # Euclidean, of the head alone
    assert seen["clients"] == list("abcd")
    assert session.records["dendrogram"]["merges"][:, 2] == pytest.approx(HEIGHTS[linkage])
    last = HEIGHTS[linkage][-1]
    at, below = (Session(FedClust(linkage=linkage, threshold=t), on_a_line(LINE)) for t in (last, last - 0.01))  # type: ignore[arg-type]
    assert (len(at.go(0)), len(below.go(0))) == (1, 2)  # they merge at the threshold too


def test_the_sweep_goes_from_one_cluster_to_everybody_alone() -> None:
    session = Session(FedClust(n_clusters=1), on_a_line(LINE))
    session.go(0)
    cuts = sweep(Tree(session.records["dendrogram"]["merges"], "weighted"))
    assert [(cut.n_clusters, cut.threshold, cut.below) for cut in cuts] == [
        (1, 9, np.inf),
        (2, 4, 9),
        (3, 2, 4),
        (4, 0, 2),
    ]
    for cut in cuts:  # a run with that threshold, or that number, makes the same clusters
        for settings in ({"threshold": cut.threshold}, {"n_clusters": cut.n_clusters}):
            found = Session(FedClust(**settings), on_a_line(LINE)).go(0)  # type: ignore[arg-type]
            assert [found.cluster_of[client] for client in LINE] == cut.labels.tolist()


def test_the_automatic_number_can_also_be_one() -> None:
    near = np.random.default_rng(0).normal(size=(12, 2)) / 10
    groups = {f"c{k:02d}": two(near[k] + [5 * (k % 3), 5 * (k % 3 == 2)]) for k in range(12)}
    found = Session(FedClust(), Scripted(groups)).go(0)
    assert parts(found) == {frozenset(f"c{k:02d}" for k in range(g, 12, 3)) for g in range(3)}
    assert len(Session(FedClust(), Scripted({f"c{k:02d}": two(near[k]) for k in range(12)})).go(0)) == 1


def test_all_weights_and_directions_can_be_compared() -> None:
    whole = Session(FedClust(layers="all", n_clusters=2), on_a_line({"a": 0, "b": 0, "c": 50}))
    assert parts(whole.go(0)) == {frozenset("ab"), frozenset("c")}  # the bodies lie at 100, 200 and 400
    heads = {"a": two((1, 0)), "b": two((9, 0)), "c": two((0, 1)), "d": two((0, 9))}
    turned = Session(FedClust(metric="cosine", n_clusters=2), Scripted(heads)).go(0)
    assert parts(turned) == {frozenset("ab"), frozenset("cd")}


def test_messages_are_those_of_the_table() -> None:
    """Round 0: the model down to all, only last layers up. Then a tenth of the clients, at least one, both ways."""
    session = Session(FedClust(n_clusters=2), on_a_line({f"c{k:02d}": float(k > 12) for k in range(25)}))
    clusters = session.go(4)
    head = len(np.empty(TWO.size)[TWO.select("head")])
    assert session.floats("cluster", "down") == 25 * TWO.size
    assert session.floats("cluster", "up") == 25 * (head + 1)
    assert session.floats("train", "down") == 4 * 2 * TWO.size
    assert session.floats("train", "up") == 4 * 2 * (TWO.size + 1)
    few = Session(FedClust(n_clusters=1), on_a_line(LINE))
    few.go(3)
    assert few.floats("train", "down") == 3 * TWO.size
    assert sorted(map(len, clusters.members.values())) == [12, 13]


def test_clusters_start_from_the_initial_model_and_average_by_rows() -> None:
    engine = on_a_line({"a": 0, "b": 4, "c": 100}, rows={"b": 3})
    session = Session(FedClust(n_clusters=2), engine)
    assert all(np.array_equal(model, engine.initial) for model in session.go(0).models.values())
    assert {k: float(model[1]) for k, model in session.go(1).models.items()} == {0: 3, 1: 100}


def test_absent_clients_are_placed_when_they_come() -> None:
    late = on_a_line(LINE, absent=lambda client, round: client == "b" and round < 2)
    session = Session(FedClust(n_clusters=2), late)
    assert session.go(1).unassigned == ("b",)
    clusters = session.go(2)
    assert clusters.unassigned == ()
    assert clusters.cluster_of["b"] == clusters.cluster_of["a"]
    assert session.records["placements"]["b"]["distances"] == {0: pytest.approx(0.5), 1: pytest.approx(8)}
    nobody = on_a_line(LINE, absent=lambda client, round: True)
    with pytest.raises(FedcladeError, match="no client answered"):
        Session(FedClust(), nobody).go(0)


@pytest.mark.parametrize("settings", [{}, {"n_clusters": 1}, {"threshold": 0.0}])
def test_one_two_and_equal_clients(settings: dict[str, Any]) -> None:
    for places in ({"a": 1.0}, {"a": 1.0, "b": 1.0}, dict.fromkeys("abcdef", 1.0)):
        engine = Scripted({client: two((place, 0)) for client, place in places.items()})
        assert len(Session(FedClust(**settings), engine).go(1)) == 1


def test_a_thousand_clients() -> None:
    noise = np.random.default_rng(0).normal(size=(1000, 2)) / 10
    engine = Scripted({f"c{k:03d}": two(noise[k] + [5 * (k % 4), 5 * (k % 2)]) for k in range(1000)})
    found = Session(FedClust(), engine).go(1)
    assert parts(found) == {frozenset(f"c{k:03d}" for k in range(g, 1000, 4)) for g in range(4)}


def test_newcomers_are_personalised_for_five_epochs(tmp_path: Path) -> None:
    """Alone they could not learn so fast: they start from their cluster's model."""
    everyone = fedclade.data.federation_of("digits", "label-groups:4", 12, 1)
    late = replace(everyone, clients=everyone.clients[::3])  # one of each group
    early = replace(everyone, clients=tuple(c for c in everyone.clients if c.name not in late.names))
    method = {"name": "fedclust", "n_clusters": 4}
    result = fedclade.run(early, method=method, model="mlp", rounds=3, workers=1, out=tmp_path / "run")
    homes = {early[c].group: cluster for cluster, part in result.clusters.items() for c in part}
    placed = fedclade.place(result.path, late)
    assert [one.cluster for one in placed.values()] == [homes[client.group] for client in late.clients]
    name = late.names[0]
    five, none = placed[name], fedclade.place(result.path, late, personalise=0, save=False)[name]
    assert none.score_personalised is None
    assert np.array_equal(none.weights, result.state_of_clusters.models[none.cluster])
    longer = fedclade.place(result.path, late, personalise=6, save=False)[name]
    assert not np.array_equal(five.weights, none.weights)
    assert not np.array_equal(five.weights, longer.weights)
    assert five.score_personalised is not None
    assert five.score_personalised >= five.score  # type: ignore[operator]


def test_real_groups_newcomers_during_the_run_and_an_exact_resume(tmp_path: Path) -> None:
    method = {"name": "fedclust", "n_clusters": 4}
    whole = whole_and_resumed(method, tmp_path, rounds=4, stop=2, events=[{"round": 3, "join": 2}])
    assert whole.summary["clusters"] == {"found": 4, "ari": 1.0, "nmi": 1.0}


def test_planted_groups_are_found_whoever_comes_first(tmp_path: Path) -> None:
    engine = local(planted(n_clients=6, rows=60), tmp_path)
    found = Session(FedClust(n_clusters=2), engine).go(1)
    assert parts(found) == {frozenset({"c0", "c2", "c4"}), frozenset({"c1", "c3", "c5"})}
    engine.close()


def test_settings_that_cannot_be() -> None:
    for wrong in ({"linkage": "centroid"}, {"threshold": -1}, {"n_clusters": 0}, {"threshold": 1.0, "n_clusters": 2}):
        with pytest.raises(ValidationError):
            FedClust(**wrong)  # type: ignore[arg-type]
    with pytest.raises(FedcladeError, match="n_clusters is 5, but there are 4 clients"):
        fedclade.run(method={"name": "fedclust", "n_clusters": 5}, clients=4, rows=20, rounds=1, workers=1)
