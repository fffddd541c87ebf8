"""CFL against numbers done by hand: when it splits, how, and what absent clients have to do with it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedclade
from fedclade.methods.cfl import CFL
from harness import Play, parts_of
from synthetic import planted

BLOCKS = [[1, 0.9, 0.1, -0.2], [0.9, 1, 0, -0.1], [0.1, 0, 1, 0.8], [-0.2, -0.1, 0.8, 1]]
CHAIN = [[1, 0.6, 0.1, -0.3], [0.6, 1, 0.5, 0], [0.1, 0.5, 1, 0.4], [-0.3, 0, 0.4, 1]]
ALWAYS = {"eps1": 1e3, "eps2": 0.0, "min_round": 0}
NORMS = {"name": "cfl", "eps1": 0.6, "eps2": 0.4, "min_round": 3, "gamma": 0.0}
TRAINING = {"learning_rate": 0.1, "batch_size": 8, "local_epochs": 1, "momentum": 0.0}


def with_cosines(matrix: list[list[float]]) -> np.ndarray:
    """Unit vectors that have these cosines."""
    values, vectors = np.linalg.eigh(np.array(matrix))
    assert values.min() > 0
    return vectors * np.sqrt(values)


@pytest.mark.parametrize(
    ("matrix", "linkage", "expected", "across"),
    [
        (BLOCKS, "complete", ("ab", "cd"), 0.1),
        (BLOCKS, "single", ("ab", "cd"), 0.1),
        (CHAIN, "single", ("abc", "d"), 0.4),
        (CHAIN, "complete", ("ab", "cd"), 0.5),
    ],
)
def test_bipartition(matrix: list[list[float]], linkage: str, expected: tuple[str, str], across: float) -> None:
    updates = dict(zip("abcd", with_cosines(matrix), strict=True))
    play = Play(CFL(**ALWAYS, linkage=linkage), "abcd", lambda client, round: updates[client])
    clusters = play.go(1)
    assert play.parts == parts_of(*expected)
    assert clusters.tree[0]["across"] == pytest.approx(across, abs=1e-6)
    assert play.ask.records["similarity"]["tests"][0]["matrix"] == pytest.approx(np.array(matrix), abs=1e-6)


def test_it_splits_when_the_mean_rests_and_clients_do_not() -> None:
    at = {"a": (2, 0), "b": (2, 0.1), "c": (-2, 0), "d": (-2, -0.1)}
    script = lambda client, round: at[client]  # noqa: E731
    for settings, splits in [
        ({}, True),
        ({"eps2": 2.1}, False),  # nobody pulls hard enough
        ({"min_round": 1}, False),
        ({"min_size": 5}, False),
        ({"gamma": 0.99}, True),  # the sides are opposite: below any gate
    ]:
        play = Play(CFL(**{"eps1": 0.4, "eps2": 1.6, "min_round": 0} | settings), "abcd", script)
        clusters = play.go(1)
        assert (len(clusters) == 2) is splits
        assert play.ask.records["norms"]["mean"][0] == pytest.approx(0, abs=1e-6)
        assert play.ask.records["norms"]["max"][0] == pytest.approx(np.hypot(2, 0.1))
    uneven = Play(CFL(eps1=0.4, eps2=1.6, min_round=0), "abcd", script, samples={"a": 7})
    assert len(uneven.go(1)) == 1  # a's rows move the mean by 1.2
    same_say = Play(CFL(eps1=0.4, eps2=1.6, min_round=0, weighting="uniform"), "abcd", script, samples={"a": 7})
    assert len(same_say.go(1)) == 2


def test_each_side_goes_on_with_its_own_updates_of_the_round() -> None:
    at = {"a": (2, 0), "b": (2, 0), "c": (-2, 0), "d": (-4, 0)}
    play = Play(CFL(**ALWAYS), "abcd", lambda client, round: at[client])
    clusters = play.go(1)
    assert clusters.model_of("a") == pytest.approx([2, 0])
    assert clusters.model_of("d") == pytest.approx([-3, 0])


def test_the_gate_keeps_similar_sides_together() -> None:
    updates = dict(zip("abcd", with_cosines(CHAIN), strict=True))
    for gamma, splits in [(0.0, True), (0.49, True), (0.51, False), (0.9, False)]:  # sqrt((1 - 0.5) / 2) = 0.5
        play = Play(CFL(**ALWAYS, gamma=gamma), "abcd", lambda client, round: updates[client])
        assert (len(play.go(1)) == 2) is splits


def test_nested_splits_keep_to_their_own_clients() -> None:
    """First a-d from e-h, then the second four again: its parts must be made of e-h."""
    corner = {"ab": (1, 0.2, 0), "cd": (1, -0.2, 0), "ef": (-1, 0, 1), "gh": (-1, 0, -1)}
    at = {client: np.array(place, float) for pair, place in corner.items() for client in pair}
    settings = CFL(**ALWAYS, gamma=0.2)
    play = Play(settings, "abcdefgh", lambda c, t: at[c])
    clusters = play.go(1)
    assert play.parts == parts_of("abcd", "efgh")
    clusters = play.go(1)
    assert play.parts == parts_of("abcd", "ef", "gh")
    assert [(branch["parent"], branch["children"]) for branch in clusters.tree] == [(0, [1, 2]), (2, [3, 4])]


def test_old_updates_neither_move_the_model_nor_hide_that_it_moves() -> None:
    at = {"a": (2, 0), "b": (2, 0.1), "c": (-2, 0), "d": (-2, -0.1)}
    present = lambda client, round: at[client] if round == 1 or client != "d" else None  # noqa: E731
    play = Play(CFL(eps1=0.4, eps2=1.6, min_round=1), "abcd", present)
    play.go(1)
    clusters = play.go(1)
    assert clusters.models[0] == pytest.approx([2 / 3, 0.1 / 3], abs=1e-6)  # not d's update of round 1 again
    assert play.ask.records["norms"]["mean"][0] > 0.4
    assert len(clusters) == 1


def test_a_split_waits_until_all_members_were_seen_lately() -> None:
    at = {"a": (2, 0), "b": (2, 0.1), "c": (-2, 0), "d": (-2, -0.1)}
    missing = lambda client, round: None if client == "d" and round in (2, 3, 4, 5, 6) else at[client]  # noqa: E731
    for stale, expected in [(10, 3), (2, 7)]:
        play = Play(CFL(eps1=1e3, eps2=0.0, min_round=2, stale=stale), "abcd", missing)
        while len(play.clusters) == 1:
            play.go(1)
        assert play.round == expected
        assert play.parts == parts_of("ab", "cd")


def test_zero_updates_and_few_clients() -> None:
    for clients in ("a", "ab", "abcd"):
        still = Play(CFL(**ALWAYS), clients, lambda client, round: (0.0, 0.0))
        still.go(3)
        assert len(still.clusters) == 1
    at = {"a": (1, 0), "b": (1, 0.1), "c": (-1, 0), "d": (0, 0)}
    play = Play(CFL(**ALWAYS), "abcd", lambda client, round: at[client])
    play.go(1)
    assert play.parts == parts_of("abd", "c")  # who does not move goes with the larger side


def test_newcomers_walk_down_the_tree() -> None:
    at = {"a": (2, 0), "b": (2, 0.1), "c": (-2, 0), "d": (-2, -0.1), "new": (-1, 0.3)}
    play = Play(CFL(**ALWAYS), "abcd", lambda client, round: at[client])
    clusters = play.go(1)
    context = replace(play.context, clients=("new",), round=2)
    placement = play.method.place(clusters, context, play.ask)["new"]
    assert placement.cluster == clusters.cluster_of["c"]
    assert placement.distances[placement.cluster] == 0
    assert placement.distances[clusters.cluster_of["a"]] > 1


def test_stability_as_trigger_finds_planted_groups() -> None:
    federation = planted(n_clients=12, n_groups=3, rows=40)
    method = {"name": "cfl-stability", "epsilon": 0.2}
    result = fedclade.run(federation, method=method, model="mlp", rounds=10, seed=1, workers=1, training=TRAINING)
    assert result.summary["clusters"] == {"found": 3, "ari": 1.0, "nmi": 1.0}
    assert {branch["rule"] for branch in result.tree} == {"stability"}


def test_norms_find_planted_groups_and_a_resumed_run_too(tmp_path: Path) -> None:
    federation = planted(n_clients=8, rows=40)
    arguments = {"method": NORMS, "model": "mlp", "seed": 1, "workers": 1, "training": TRAINING}
    unbroken = fedclade.run(federation, **arguments, rounds=10, out=tmp_path / "unbroken")
    assert unbroken.summary["clusters"]["ari"] == 1.0
    fedclade.run(federation, **arguments, rounds=4, out=tmp_path / "broken")
    broken = fedclade.resume(tmp_path / "broken", data=federation, rounds=10)
    assert broken.tree == unbroken.tree
    for name in federation.names:
        assert np.array_equal(broken.weights_for(name), unbroken.weights_for(name))


def test_clients_of_one_kind_stay_together() -> None:
    federation = planted(n_clients=8, n_groups=1, rows=40)
    result = fedclade.run(federation, method=NORMS, model="mlp", rounds=10, seed=1, workers=1, training=TRAINING)
    assert len(result.clusters) == 1
