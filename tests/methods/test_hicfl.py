"""HiCFL: the paper's formulas through the method, planted groups, and what must not disturb it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedclade
from fedclade.data.federation import Federation
from fedclade.errors import FedcladeError
from fedclade.methods.agreement import Agreement, agreement
from fedclade.methods.base import Clusters
from fedclade.methods.hicfl import HiCFL
from fedclade.methods.hierarchical import Hierarchy, halves, reorganised
from fedclade.methods.splitting import PastUpdates, WatchedLayers
from fedclade.models.weights import Layout
from harness import Play, parts_of, pulling
from synthetic import planted

PAPER = {"xi": 0.0, "epsilon": 2.5, "tests": "block", "references": 3}  # tests every third round are easier to follow
TRAINING = {"learning_rate": 0.1, "batch_size": 8, "local_epochs": 1, "momentum": 0.0}


def run(
    federation: Federation, rounds: int = 7, events: Any = (), participation: float = 1.0, **settings: object
) -> fedclade.Result:
    method = {"name": "agreement", **settings}
    how = {
        "participation": participation,
        "model": "mlp",
        "rounds": rounds,
        "events": events,
        "seed": 1,
        "workers": 1,
        "training": TRAINING,
    }
    return fedclade.run(federation, method=method, **how)


def found(result: fedclade.Result) -> set[frozenset[str]]:
    return {frozenset(part) for part in result.clusters.values()}


def groups(federation: Federation) -> set[frozenset[str]]:
    assert federation.groups is not None
    return {
        frozenset(name for name in federation.names if federation.groups[name] == group)
        for group in set(federation.groups.values())
    }


def two_groups(clients: str) -> dict[str, np.ndarray]:
    """Places to pull to: every second client the same, up to a little."""
    random = np.random.default_rng(0)
    centres = random.normal(size=(2, 40)) * 3
    return {client: centres[place % 2] + random.normal(size=40) * 0.1 for place, client in enumerate(clients)}


# ---- the paper's rule, against numbers done by hand -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("updates", "expected"),
    [
        ([(1, 0), (1, 1), (0, 1)], 0.70710678),
        ([(1, 2), (1, 2), (1, 2)], 0),
        ([(1, 2), (3, 6), (0.5, 1)], 0),  # lengths do not matter
        ([(1, 0), (-1, 0), (1, 0)], 2),
        ([(np.cos(a), np.sin(a)) for a in np.radians([0, 30, 60])], 0.36602540),
    ],
)
def test_stability_is_that_of_the_paper(updates: list[tuple[float, float]], expected: float) -> None:
    play = Play(HiCFL(**PAPER), "ab", lambda client, round: updates[round - 1])
    play.go(3)
    record = play.ask.records["stability"]
    assert record["values"] == pytest.approx(np.full((2, 1), expected), abs=1e-6)
    assert record["clients"] == ["a", "b"]
    assert record["layers"] == ["layer"]


def test_sign_split_by_the_reference() -> None:
    """Positive cosines stay with the reference, right angles do not, and who does not move follows the majority."""
    at = {"a": (1, 0), "b": (1, 1), "c": (0, 1), "d": (-1, 0), "e": (0, 0), "f": (2, 1)}
    play = Play(HiCFL(**PAPER), "abcdef", lambda client, round: at[client])
    clusters = play.go(3)
    assert play.parts == parts_of("abfe", "cd")
    branch = clusters.tree[0]
    assert (branch["round"], branch["parent"], branch["layer"], branch["reference"]) == (3, 0, "layer", "a")
    record = play.ask.records["similarity"]["tests"][0]
    assert record["similarity"] == pytest.approx([1, np.sqrt(0.5), 0, -1, 0, 2 / np.sqrt(5)], abs=1e-6)


def test_no_split_when_all_pull_the_same_way_and_then_never_again() -> None:
    at = {"a": (1, 0), "b": (1, 1), "c": (1, -0.9)}
    play = Play(HiCFL(**PAPER, attempts=3), "abc", lambda client, round: at[client])
    play.go(8)
    assert play.clusters.state.logs[0].attempts == 2
    play.go(4)
    assert play.clusters.state.logs[0].finished == ("a", "b", "c")
    assert len(play.clusters) == 1


def test_an_unstable_member_holds_the_split_back_unless_a_share_is_enough() -> None:
    def script(client: str, round: int) -> tuple[float, float]:
        if client == "a":
            return ((-1) ** round, 0.0)  # turns round every time: stability 2
        return (0, 1) if client in "bc" else (0.1, -1)

    strict = Play(HiCFL(tests="block", xi=0.0, epsilon=0.1), "abcd", script)
    strict.go(6)
    assert len(strict.clusters) == 1
    lax = Play(HiCFL(tests="block", xi=0.0, epsilon=0.1, share=0.75), "abcd", script)
    lax.go(3)
    assert len(lax.clusters) == 2


def test_epsilon_follows_the_learning_rate() -> None:
    script = lambda client, round: (1, 0.1 * round * (1 if client == "a" else -1))  # noqa: E731
    for rate, splits in [(0.001, False), (1.0, True)]:
        method = HiCFL(tests="block", xi=0.0, split="centered-sign")
        play = Play(method, "ab", script, learning_rate=rate)
        play.go(3)
        assert (len(play.clusters) == 2) is splits
        assert play.ask.records["stability"]["epsilon"] == pytest.approx(0.5 * rate)


def test_weight_selection_leaves_still_weights_out() -> None:
    """The second weight never changes its update: with a mask, only the first one's flips count."""

    def script(client: str, round: int) -> tuple[float, float, float]:
        return ((-1) ** round * 0.1, (-1) ** round * 0.1, 5.0)

    values = {}
    for xi in (0.0, 0.05, 10.0):
        play = Play(HiCFL(tests="block", xi=xi), "ab", script)
        play.go(3)
        values[xi] = play.ask.records["stability"]["values"][0, 0]
        assert play.clusters.state.past["a"].mask.tolist() == [True, True, xi > 1]
    assert values[0.05] == pytest.approx(2)
    assert values[10.0] < 0.1  # nothing would be left, so everything counts


def test_consistent_clusters_are_finished() -> None:
    """Two equal clients, and one that differs a little: mean and longest update are nearly the same."""
    at = {"a": (1, 0), "b": (1, 0), "c": (1, 0.1)}
    play = Play(HiCFL(**PAPER, attempts=99), "abc", lambda client, round: at[client])
    play.go(8)
    assert play.clusters.state.logs[0].consistent == 2
    assert play.clusters.state.logs[0].finished is None
    play.go(1)
    assert play.clusters.state.logs[0].finished is not None


def test_a_finished_cluster_opens_again_when_its_updates_part() -> None:
    def script(client: str, round: int) -> tuple[float, float]:
        return (1, 0) if round <= 9 or client in "ab" else (-1, 0.1)

    play = Play(HiCFL(**PAPER), "abcd", script)
    play.go(9)
    assert play.clusters.state.logs[0].finished is not None
    play.go(3)
    assert play.parts == parts_of("ab", "cd")


def test_plateau_after_patience() -> None:
    script = lambda client, round: ((-1) ** round, 1 if client in "ab" else -3)  # noqa: E731
    never = Play(HiCFL(tests="block", xi=0.0), "abcd", script)
    never.go(30)
    assert len(never.clusters) == 1
    patient = Play(HiCFL(tests="block", xi=0.0, patience=10), "abcd", script)
    patient.go(9)
    assert len(patient.clusters) == 1
    patient.go(3)
    assert patient.parts == parts_of("ab", "cd")
    assert patient.clusters.tree[0]["rule"] == "plateau"


def test_other_stop_rules() -> None:
    """By norms, a cluster is split only while its mean update is short and some are long; by the window, while
    the two still change."""
    script = lambda client, round: (2, 0) if client in "ab" else (-2, 0.1)  # noqa: E731
    for settings, splits in [({}, True), ({"eps2": 2.5}, False), ({"eps1": 0.01}, False)]:
        play = Play(HiCFL(**PAPER, stop="norms", **settings), "abcd", script)
        play.go(3)
        assert (len(play.clusters) == 2) is splits
    growing = lambda client, round: (1.1**round, 0.1 * (client == "c"))  # noqa: E731
    for script, finished in [(growing, None), (lambda c, t: (1, 0.1 * (c == "c")), ("a", "b", "c"))]:
        play = Play(HiCFL(**PAPER, stop="window", attempts=99), "abc", script)
        play.go(6)
        assert play.clusters.state.logs[0].finished == finished


def test_every_stable_layer_is_tried_and_one_reference() -> None:
    """Four clients, alike in the first layer, two opposite pairs in the last: as the paper has it, by default."""
    layout = Layout(("conv.weight", "fc.weight"), ((1, 2), (1, 2)), 4)
    at = {"a": (1, 1, 1, 0), "b": (1, 1, 1, 0.1), "c": (1, 1, -1, 0), "d": (1, 1, -1, 0.1)}
    play = Play(HiCFL(xi=0.0, epsilon=2.5), "abcd", lambda client, round: at[client], layout=layout)
    play.go(4)
    assert len(play.clusters) == 1  # a window of three values needs five updates
    play.go(1)
    assert play.parts == parts_of("ab", "cd")
    assert play.clusters.tree[0]["layer"] == "fc"


@pytest.mark.parametrize("sizes", [(5, 3, 4), (2, 3, 4), (3, 4, 5)])
def test_merging_is_symmetric(sizes: tuple[int, int, int]) -> None:
    """Cosines .6 (1, 2), .5 (1, 3) and -.2 (2, 3): whoever is smallest, no two are merged over a third."""
    gram = np.array([[1, 0.6, 0.5], [0.6, 1, -0.2], [0.5, -0.2, 1]])
    moves = np.linalg.cholesky(gram).astype(np.float32)
    members = {k: tuple(f"c{k}{n}" for n in range(size)) for k, size in enumerate(sizes)}
    past = {c: PastUpdates(samples=10) for part in members.values() for c in part}
    clusters = Clusters(members, dict(enumerate(moves)), state=Hierarchy(past, {}))
    assert reorganised(clusters, {k: np.zeros(3) for k in members}).state.merged == {}


def test_all_that_move_alike_are_merged_those_most_alike_first() -> None:
    def merged(gram: np.ndarray, sizes: tuple[int, ...]) -> set[frozenset[int]]:
        moves = np.linalg.cholesky(gram).astype(np.float32)
        members = {k: tuple(f"c{k}{n}" for n in range(size)) for k, size in enumerate(sizes)}
        past = {c: PastUpdates(samples=10) for part in members.values() for c in part}
        clusters = Clusters(members, dict(enumerate(moves)), state=Hierarchy(past, {}))
        after = reorganised(clusters, {k: np.zeros(len(sizes)) for k in members})
        for k, part in after.members.items():  # the mean of the merged models, by rows
            rows = np.array([sum(c.startswith(f"c{old}") for c in part) for old in members])
            np.testing.assert_allclose(after.models[k], rows @ moves / rows.sum(), atol=1e-6)
        return {frozenset(int(c[1]) for c in part) for part in after.members.values()}

    every = {frozenset({0, 1, 2})}
    alike = np.full((3, 3), 0.5) + 0.5 * np.eye(3)
    for sizes in ((1, 2, 3), (3, 2, 1), (2, 2, 2), (2, 3, 1)):
        assert merged(alike, sizes) == every  # three of one kind are one cluster, whoever is largest
    # 0 and 1 are alike, 2 and 3 are; between the pairs there is nothing to say either way.
    pairs = np.kron(np.eye(2), np.array([[1, 0.9], [0.9, 1]])) + 1e-9 * np.eye(4)
    for sizes in ((1, 2, 3, 4), (4, 3, 2, 1)):
        assert merged(pairs, sizes) == {frozenset({0, 1}), frozenset({2, 3})}


def test_a_stable_cluster_in_one_piece_is_tried_for_as_long_as_it_takes() -> None:
    """Stable and in one piece for nine rounds, opposed from then on: the paper knows no number of tests."""
    side = {"a": 0.6, "b": 0.6, "c": -0.6, "d": -0.6}

    def script(client: str, round: int) -> tuple[float, float]:
        return (1, side[client]) if round <= 9 else (0.58, side[client])  # cosines .47, then -.03

    for method, parts in ((HiCFL(**PAPER), parts_of("ab", "cd")), (HiCFL(**PAPER, attempts=3), parts_of("abcd"))):
        play = Play(method, "abcd", script)
        play.go(9)
        assert play.parts == parts_of("abcd")
        play.go(6)
        assert play.parts == parts


def test_sliding_tests_look_in_every_round_once_the_window_is_full() -> None:
    at = {"a": (1, 0), "b": (-1, 0)}
    play = Play(HiCFL(xi=0.0, epsilon=2.5), "ab", lambda client, round: at[client] if round > 1 else (1, 0))
    play.go(4)
    assert len(play.clusters) == 1
    play.go(1)
    assert play.parts == parts_of("a", "b")


def test_order_of_aggregation_and_split() -> None:
    at = {"a": (1, 0), "b": (-1, 0)}
    for order, expected in [("aggregate-first", {"a": 0, "b": 0}), ("split-first", {"a": 1, "b": -1})]:
        play = Play(HiCFL(**PAPER, order=order), "ab", lambda client, round: at[client])
        clusters = play.go(3)
        assert {client: clusters.model_of(client)[0] for client in "ab"} == expected


def test_random_references_differ_from_the_most_stable() -> None:
    at = {client: (1.0, 0.01 * place) for place, client in enumerate("abcdefgh")} | {"z": (-1.0, 0.0)}
    drawn = Play(HiCFL(**PAPER, reference="random"), [*"abcdefgh", "z"], lambda client, round: at[client])
    drawn.go(3)
    assert drawn.parts == parts_of("abcdefgh", "z")
    assert drawn.clusters.tree[0]["reference"] != "a"


# ---- our rule -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n_clients", "n_groups"), [(8, 2), (12, 3)])
def test_planted_groups_are_found_at_once(n_clients: int, n_groups: int) -> None:
    federation = planted(n_clients=n_clients, n_groups=n_groups, rows=40)
    result = run(federation)
    assert found(result) == groups(federation)
    assert [branch["round"] for branch in result.tree] == [3] * (n_groups - 1)
    assert all(branch["rule"] == "agreement" for branch in result.tree)
    assert result.accuracy["mean"] > 0.95


def test_clients_of_one_kind_stay_together() -> None:
    assert len(run(planted(n_clients=10, n_groups=1, rows=40), rounds=12).clusters) == 1


def test_new_names_and_another_order_change_nothing_else() -> None:
    federation = planted(n_clients=8, rows=40)
    turned = replace(federation, clients=tuple(reversed(federation.clients)))
    assert found(run(federation)) == found(run(turned))


def test_the_length_of_updates_does_not_matter() -> None:
    random = np.random.default_rng(0)
    towards = {
        client: random.normal(size=30) + 4 * (np.arange(30) % 2 == place % 2) for place, client in enumerate("abcdefgh")
    }
    noise = {(client, round): random.normal(size=30) for client in "abcdefgh" for round in range(1, 4)}
    results = []
    for scale in (1.0, 1e-3, 1e4):
        play = Play(Agreement(), "abcdefgh", lambda c, t, scale=scale: scale * (towards[c] + 0.3 * noise[c, t]))
        play.go(3)
        results.append(play.parts)
    assert results == [parts_of("aceg", "bdfh")] * 3


def test_agreement_tells_groups_from_noise() -> None:
    random = np.random.default_rng(1)
    noise = random.normal(size=(4, 12, 200))
    groups = np.zeros((12, 200))
    groups[:6, :20] = 3
    assert agreement(noise + groups) > 0.7
    assert abs(agreement(noise)) < 0.4
    assert agreement(np.ones((3, 4, 5))) == 0  # all alike


def test_halves_follow_the_tree() -> None:
    vectors = np.array([[0.0, 0], [0, 1], [9, 0], [9, 1], [5, 0], [5, 1]])
    sides = halves(vectors, np.array([0, 0, 1, 1, 2, 2]))
    assert [side.tolist() for side in sides] == [[0, 1], [2, 3, 4, 5]]


def test_one_client_two_clients_and_equal_clients() -> None:
    for clients in ("a", "ab", "abcdef"):
        for method in (Agreement(), HiCFL(), Agreement(variant="personalised", attempts=1)):
            play = Play(method, clients, lambda client, round: (1.0, 2.0, 3.0))
            play.go(7)
            assert len(play.clusters) == 1
            assert play.clusters.models[0] == pytest.approx([7, 14, 21])


# ---- who is absent, late, new or in the wrong place -----------------------------------------------------------------


def test_absent_members_follow_when_they_are_seen() -> None:
    at = {"a": (1, 0), "b": (1, 0.1), "c": (-1, 0), "d": (-1, 0.1), "e": (-1, 0.2)}

    def script(client: str, round: int) -> tuple[float, float] | None:
        return None if client == "e" and round < 5 else at[client]

    play = Play(HiCFL(**PAPER, quorum=0.8), "abcde", script)
    clusters = play.go(3)
    assert clusters.unassigned == ("e",)  # it has sent nothing yet: it waits on one of the sides
    play.go(2)
    assert play.parts == parts_of("ab", "cde")
    assert play.clusters.unassigned == ()


def test_members_with_few_updates_join_the_side_they_resemble() -> None:
    at = {"a": (1, 0), "b": (1, 0.1), "c": (-1, 0), "d": (-1, 0.1), "e": (-1, 0.2)}
    play = Play(HiCFL(**PAPER), "abcde", lambda c, t: None if c == "e" and t < 3 else at[c])
    play.go(3)
    assert play.parts == parts_of("ab", "cde")
    assert play.clusters.unassigned == ()


def test_no_split_without_a_quorum() -> None:
    at = {"a": (1, 0), "b": (1, 0.1), "c": (-1, 0), "d": (-1, 0.1)}
    play = Play(HiCFL(**PAPER), "abcd", lambda c, t: None if c in "bd" and t < 8 else at[c])
    play.go(7)
    assert len(play.clusters) == 1
    play.go(5)
    assert play.parts == parts_of("ab", "cd")


def test_old_updates_do_not_count() -> None:
    at = {"a": (1, 0), "b": (1, 0.1), "c": (-1, 0), "d": (-1, 0.1)}
    play = Play(HiCFL(**PAPER, stale=3), "abcd", lambda c, t: None if c == "d" and t == 3 else at[c])
    play.go(5)
    assert len(play.clusters) == 1  # at round 3 one of four had too few, and a quorum is four
    play.go(1)
    assert len(play.clusters) == 2


def test_partial_participation_finds_groups_too() -> None:
    federation = planted(n_clients=12, n_groups=2, rows=40)
    result = run(federation, rounds=12, participation=0.6)
    assert found(result) == groups(federation)


def test_a_client_that_fails_does_not_disturb_the_others() -> None:
    federation = planted(n_clients=9, rows=40)
    federation.x[federation["c3"].train] *= np.float32(1e30)  # its loss is no number
    result = run(federation)
    rest = {part - {"c3"} for part in groups(federation)}
    assert {part - {"c3"} for part in found(result)} == rest


def test_newcomers_walk_down_the_tree(tmp_path: Path) -> None:
    whole = planted(n_clients=12, n_groups=3, rows=40)
    old, new = whole.clients[:9], whole.clients[9:]
    arguments = {"method": "agreement", "model": "mlp", "rounds": 4, "seed": 1, "workers": 1, "training": TRAINING}
    result = fedclade.run(replace(whole, clients=old), **arguments, out=tmp_path / "run")
    assert len(result.clusters) == 3
    placed = fedclade.place(tmp_path / "run", replace(whole, clients=new), personalise=0)
    for client in new:
        fellows = [one.name for one in old if one.group == client.group]
        assert placed[client.name].cluster == result.cluster_of(fellows[0])
        assert min(placed[client.name].distances.values()) == 0
        assert set(placed[client.name].distances) == set(result.clusters)


def test_clusters_follow_those_who_come_go_and_change() -> None:
    federation = planted(n_clients=12, rows=60)
    events = [{"round": 5, "join": 2}, {"round": 6, "leave": ["c0"]}, {"round": 7, "drift": ["c2", "c3"]}]
    for rule in ({}, {"name": "hicfl", "epsilon": 2.5, "tests": "block"}):
        result = run(federation, rounds=8, events=events, **rule)
        assert result.summary["clusters"] == {"found": 2, "ari": 1.0, "nmi": 1.0}
        assert [branch["round"] for branch in result.tree] == [3]
        assert result.cluster_of("c2") == result.cluster_of("c1")  # it has c3's rows now
        assert result.cluster_of("c10") == result.cluster_of("c4")


def test_resumed_runs_equal_unbroken_ones(tmp_path: Path) -> None:
    federation = planted(n_clients=9, n_groups=3, rows=30)
    for rule, more in (("agreement", {}), ("hicfl", {"epsilon": 1.0})):
        method = {"name": rule, **more}
        arguments = {
            "method": method,
            "model": "mlp",
            "seed": 1,
            "workers": 1,
            "training": TRAINING,
            "participation": 0.9,
        }
        unbroken = fedclade.run(federation, **arguments, rounds=8, out=tmp_path / rule / "unbroken")
        fedclade.run(federation, **arguments, rounds=4, out=tmp_path / rule / "broken")
        broken = fedclade.resume(tmp_path / rule / "broken", data=federation, rounds=8)
        assert broken.clusters == unbroken.clusters
        assert broken.tree == unbroken.tree
        assert len(broken.tree) > 0
        for name in federation.names:
            assert np.array_equal(broken.weights_for(name), unbroken.weights_for(name))
        same = ["round", "client", "cluster", "accuracy", "loss", "train_loss"]
        assert broken.history[same].equals(unbroken.history[same])


# ---- variants -------------------------------------------------------------------------------------------------------


def test_fine_grained_and_personalised_go_further() -> None:
    places = two_groups("abcdefgh")
    fine = Play(Agreement(variant="fine-grained", attempts=1), "abcdefgh", pulling(places))
    clusters = fine.go(30)
    assert [branch["rule"] for branch in clusters.tree] == ["agreement", "fine-grained", "fine-grained"]
    assert len(clusters) == 4
    assert all(part <= set("aceg") or part <= set("bdfh") for part in fine.parts)
    alone = Play(Agreement(variant="personalised", attempts=1), "abcdefgh", pulling(places))
    assert len(alone.go(36)) == 8


def test_a_variant_does_not_wait_for_clusters_that_never_show_anything() -> None:
    noise = {(c, t): np.random.default_rng([ord(c), t]).normal(size=40) for c in "abcdef" for t in range(1, 10)}
    for unclear, rounds in [(1, 6), (2, 9)]:
        play = Play(Agreement(variant="fine-grained", unclear=unclear), "abcdef", lambda c, t: noise[c, t])
        play.go(rounds - 1)
        assert len(play.clusters) == 1
        assert play.go(1).tree[0]["rule"] == "fine-grained"


def test_each_cluster_is_refined_once_however_late_enough_is_known_of_it() -> None:
    at = {c: (1, 0.1 * place) for place, c in enumerate("abcd")} | {c: (-1, 0.1 * k) for k, c in enumerate("efgh")}
    script = lambda c, t: None if c in "ef" and 6 < t < 16 else at[c]  # noqa: E731
    play = Play(HiCFL(**PAPER, variant="fine-grained", attempts=1, stale=3), "abcdefgh", script)
    play.go(15)
    assert play.parts == parts_of("ab", "cd", "efgh")
    play.go(9)
    assert play.parts == parts_of("ab", "cd", "ef", "gh")


def test_who_does_not_move_is_no_reference_of_a_forced_split() -> None:
    """The steadiest client of the window sends zeros in the round of the test."""

    def script(client: str, round: int) -> tuple[float, float]:
        if client == "a":
            return (1.0, 0.0) if round < 6 else (0.0, 0.0)
        return (1.0, 0.2 * "abcd".index(client) + 0.05 * np.sin(round * ord(client)))

    play = Play(HiCFL(**PAPER, variant="fine-grained", attempts=1), "abcd", script)
    clusters = play.go(6)
    assert clusters.tree[0]["rule"] == "fine-grained"
    assert clusters.tree[0]["reference"] != "a"


def test_clusters_are_reorganised_once_they_have_moved_and_stay_so() -> None:
    apart = {"a": (1, 0), "b": (-1, 0)}
    play = Play(HiCFL(**PAPER, variant="re-organised"), "ab", lambda client, round: apart[client])
    play.go(3)
    assert play.clusters.state.merged is None  # two singletons, both just made
    play.go(1)
    assert play.clusters.state.merged == {}
    common = np.random.default_rng(9).normal(size=40) * 10
    places = {client: place + common for client, place in two_groups("abcdefgh").items()}
    play = Play(Agreement(variant="re-organised", attempts=1, unclear=1), "abcdefgh", pulling(places))
    play.go(3)
    assert play.parts == parts_of("aceg", "bdfh")
    play.go(3)
    assert play.clusters.state.merged == {1: 2}
    assert play.go(6).members == {2: tuple("bdfhaceg")}


def test_reorganising_merges_like_clusters_unless_a_third_objects() -> None:
    def clusters(moves: dict[int, tuple[float, float]], sizes: dict[int, int]) -> Clusters:
        members = {k: tuple(f"c{k}{n}" for n in range(sizes[k])) for k in moves}
        past = {c: PastUpdates(samples=10) for part in members.values() for c in part}
        models = {k: np.float32(move) for k, move in moves.items()}
        return reorganised(Clusters(members, models, state=Hierarchy(past, {})), {k: np.zeros(2) for k in moves})

    merged = clusters({1: (1, 0), 2: (1, 0.5), 3: (-1, 0)}, {1: 1, 2: 3, 3: 2})
    assert merged.state.merged == {1: 2}
    assert len(merged.members[2]) == 4
    assert merged.models[2] == pytest.approx([1, 0.375])  # three times as many rows
    conflict = clusters({1: (1, 0), 2: (1, 5), 3: (1, -5)}, {1: 1, 2: 3, 3: 3})
    assert conflict.state.merged == {}  # 2 and 3 move against each other, and 1 with both


def test_misplaced_clients_find_back() -> None:
    clients = "abcdefghijkl"
    settings = {"misplace": 0.2, "misplace_round": 4}
    mended = Play(Agreement(**settings), clients, pulling(two_groups(clients)))
    mended.go(3)
    assert mended.parts == parts_of("acegik", "bdfhjl")
    mended.go(1)
    wrong = mended.clusters.state.misplaced
    assert len(wrong) == 2
    assert mended.parts != parts_of("acegik", "bdfhjl")
    mended.go(5)
    assert mended.parts == parts_of("acegik", "bdfhjl")
    left = Play(Agreement(**settings, correct=False), clients, pulling(two_groups(clients)))
    left.go(9)
    assert left.parts != parts_of("acegik", "bdfhjl")


# ---- settings -------------------------------------------------------------------------------------------------------


def test_settings_are_checked(federation: Federation) -> None:
    for wrong in ({"agreement": "half"}, {"rule": "mine"}, {"window": 0}, {"layers": "fc99"}):
        with pytest.raises(FedcladeError):
            run(federation, rounds=1, **wrong)


def test_fewer_layers_are_kept(federation: Federation) -> None:
    layout = Layout(("a.weight", "a.bias", "b.weight", "b.bias"), ((3, 2), (3,), (2, 3), (2,)), 17)
    everything = WatchedLayers.of(layout, None, False)
    assert everything.places == {"a": slice(0, 9), "b": slice(9, 17)}
    head = WatchedLayers.of(layout, "head", True)
    assert head.index.tolist() == list(range(9, 15))
    units = everything.seen(np.arange(17.0), "b", "units")
    assert np.linalg.norm(units) == pytest.approx(1)
    assert np.linalg.norm(units.reshape(2, 4), axis=1) == pytest.approx([np.sqrt(0.5)] * 2)  # each unit's own
    assert found(run(federation, layers="head")) == groups(federation)
