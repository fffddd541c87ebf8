"""AdaCFL: pre-clusters, partial weights, and newcomers that may found a cluster."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

import fedclade
from fedclade.clustering.hierarchy import LINKAGES, cut, linkage_tree
from fedclade.clustering.labels import in_order
from fedclade.errors import FedcladeError
from fedclade.methods.adacfl import AdaCFL, automatic_epsilon, automatic_threshold, merge_within
from fedclade.models import make
from fedclade.models.weights import Layout
from harness import TRAINING, TWO, Scripted, Session, local, parts, two, whole_and_resumed
from synthetic import planted


def spread(n_classes: float, entropy: float) -> dict[str, np.ndarray]:
    return {"n_classes": np.array([n_classes], np.float32), "entropy": np.array([entropy], np.float32)}


def scripted(places: dict[str, float], **options: object) -> Scripted:
    """Clients whose heads lie on a line, all with labels spread alike."""
    told = {client: spread(2, 1.0) for client in places}
    return Scripted({c: two((x, 0)) for c, x in places.items()}, **{"told": told, **options})  # type: ignore[arg-type]


GROUPS = {"a": 0.0, "b": 0.1, "c": 10.0, "d": 10.1}


def test_the_smallest_dense_layer_stands_for_the_model() -> None:
    lenet = Layout.of(make("lenet5", (3, 32, 32), 10))
    assert AdaCFL().chosen_layers(lenet) == (lenet.head,)
    assert len(np.empty(lenet.size)[lenet.select(AdaCFL().chosen_layers(lenet))]) == 850
    assert AdaCFL(layers="all").chosen_layers(lenet) == tuple(lenet.layers)
    wide = Layout(("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"), ((2, 3), (2,), (9, 2), (9,)), 35)
    assert AdaCFL().chosen_layers(wide) == ("fc1",)
    convolutions = Layout(("conv1.weight", "conv2.weight"), ((1, 1, 3, 3), (4, 1, 1, 1)), 13)
    assert AdaCFL().chosen_layers(convolutions) == ("conv2",)
    with pytest.raises(FedcladeError, match="unknown layer"):
        Session(AdaCFL(layers="fc9"), scripted(GROUPS)).go(0)


def test_a_threshold_merges_up_to_itself() -> None:
    places = {"a": 0.0, "b": 1.4, "c": 2.9}
    assert parts(Session(AdaCFL(threshold=1.4000001), scripted(places)).go(1)) == {frozenset("ab"), frozenset("c")}
    body = Scripted({c: two((0, 0), body=x) for c, x in places.items()}, {c: spread(2, 1) for c in places})
    assert len(Session(AdaCFL(threshold=1.0), body).go(1)) == 1  # all differ, but not in the layer that counts
    assert len(Session(AdaCFL(threshold=1.0, layers="all"), body).go(1)) == 3


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ["abc", "d"]),  # 1.11 is within a tenth of 1.09; d holds three classes
        ({"gap": 0.05}, ["a", "bc", "d"]),
        ({"rule": "anchor"}, ["ab", "c", "d"]),  # 1.09 is within a tenth of 1.00, 1.11 is not
        ({"premerge": "seed"}, ["abcd"]),
        ({"precluster": False}, ["abcd"]),
        ({"rule": "bits"}, ["ab", "c", "d"]),
        ({"rule": "share"}, ["ab", "c", "d"]),  # tenths of two bits, with four classes
        ({"rule": "anchor", "gap": 0.2}, ["abc", "d"]),
    ],
)
def test_preclusters_part_like_weights(settings: dict[str, object], expected: list[str]) -> None:
    third = 1.25 if settings.get("rule") == "share" else 1.11
    entropies = {"a": (2, 1.0), "b": (2, 1.09), "c": (2, third), "d": (3, 1.0)}
    engine = scripted(dict.fromkeys("abcd", 0.0), told={c: spread(*told) for c, told in entropies.items()})
    found = parts(Session(AdaCFL(threshold=5, **settings), engine).go(1))  # type: ignore[arg-type]
    assert found == {frozenset(part) for part in expected}


@pytest.mark.parametrize("linkage", LINKAGES)
def test_walls_leave_every_group_its_own_tree(linkage: str) -> None:
    random = np.random.default_rng(3)
    for threshold in (0.5, 1.0, 2.0, np.inf):
        x = random.normal(size=(12, 2))
        distances = np.sqrt(((x[:, None] - x) ** 2).sum(-1))
        groups = in_order(random.integers(0, 3, 12))
        labels, _ = merge_within(distances, groups, "inside", linkage, threshold)
        expected = np.zeros(12, int)
        for group in range(groups.max() + 1):
            inside = np.flatnonzero(groups == group)
            tree = linkage_tree(distances[np.ix_(inside, inside)], linkage)
            expected[inside] = 100 * group + cut(tree, threshold=threshold)
        assert np.array_equal(labels, in_order(expected))


def test_rounding_does_not_keep_equally_distant_clients_apart() -> None:
    for count in range(2, 12):
        distances = 0.1 * (1 - np.eye(count))
        for linkage in LINKAGES:
            labels, _ = merge_within(distances, np.zeros(count, int), "inside", linkage, np.inf)
            assert labels.max() == 0


def test_ward_cannot_start_from_groups() -> None:
    with pytest.raises(ValidationError, match="Ward"):
        AdaCFL(premerge="seed", linkage="ward")


def test_the_automatic_threshold_is_one_for_all_preclusters() -> None:
    x = np.array([0, 0.1, 0.2, 0.3, 0.4, 9, 9.1, 9.2, 9.3, 9.4])[:, None] * np.ones(3)
    distances = np.sqrt(((x[:, None] - x) ** 2).sum(-1))
    assert 1 < automatic_threshold(distances, "average") < 15
    assert automatic_threshold(np.zeros((5, 5)), "average") == np.inf
    # Pairs of the two groups would be too few to be told apart by themselves.
    groups = np.array([0, 0, 1, 1, 2, 0, 1, 1, 2, 2])
    labels, _ = merge_within(distances, groups, "inside", "average", automatic_threshold(distances, "average"))
    assert np.array_equal(labels, in_order(groups + 10 * (np.arange(10) >= 5)))


def test_clusters_start_from_what_their_members_have() -> None:
    places = {"a": 0.0, "b": 4.0, "c": 100.0}
    session = Session(AdaCFL(threshold=5, cluster_round=2), scripted(places, rows={"a": 1, "b": 3}))
    assert len(session.go(1)) == 1
    clusters = session.go(2)
    assert {k: model[1] for k, model in clusters.models.items()} == {0: 3, 1: 100}
    assert {k: centre[0] for k, centre in clusters.state.centres.items()} == {0: 3, 1: 100}
    assert np.array_equal(clusters.state.start[1:2], np.array([(4 * 3 + 100) / 5], np.float32))
    assert session.records["proximity"]["matrix"].shape == (3, 3)
    assert session.records["dendrogram"]["merges"].shape == (2, 4)


def test_messages_are_those_of_the_table() -> None:
    session = Session(AdaCFL(threshold=5), scripted(GROUPS))
    session.go(3)
    assert session.floats("train", "down") == 3 * 4 * TWO.size
    assert session.floats("train", "up") == 3 * 4 * (TWO.size + 1)  # and the number of rows
    assert session.floats("cluster", "up") == 4 * 2
    assert session.floats("cluster", "down") == 0


def test_clients_absent_when_clusters_are_made_are_placed_later() -> None:
    first = scripted(GROUPS, absent=lambda client, round: client == "d" and round < 3)
    session = Session(AdaCFL(threshold=1), first)
    assert session.go(2).unassigned == ("d",)
    clusters = session.go(3)
    assert parts(clusters) == {frozenset("ab"), frozenset("cd")}
    assert clusters.unassigned == ()
    nobody = scripted(GROUPS, absent=lambda client, round: round < 2)
    assert len(Session(AdaCFL(threshold=1), nobody).go(1)) == 1
    assert len(Session(AdaCFL(threshold=1), nobody).go(2)) == 2


@pytest.mark.parametrize("threshold", ["auto", 1.0])
def test_few_or_equal_clients(threshold: float | str) -> None:
    for places in ({"a": 1.0}, {"a": 1.0, "b": 1.0}, dict.fromkeys("abcdef", 1.0)):
        clusters = Session(AdaCFL(threshold=threshold), scripted(places)).go(2)  # type: ignore[arg-type]
        assert parts(clusters) == {frozenset(places)}
    apart = Session(AdaCFL(threshold=1.0), scripted({"a": 0.0, "b": 5.0})).go(2)
    assert len(apart) == 2


def test_newcomers_go_home_or_found_a_cluster() -> None:
    places = {**GROUPS, "home": 9.0, "stranger": 40.0, "friend": 40.5, "late": 41.0}
    session = Session(AdaCFL(threshold=1), scripted(places))
    clusters = session.go(2, without=["home", "stranger", "friend", "late"])
    placements = session.place(clusters, ["home", "stranger"], 3)
    assert placements["home"].cluster == 1
    assert placements["home"].distances == pytest.approx({0: 8.95, 1: 1.05}, rel=1e-5)
    assert placements["stranger"].cluster is None
    settled = session.admit(clusters, ["home", "stranger", "friend"], 3)
    assert parts(settled) == {frozenset("ab"), frozenset({"c", "d", "home"}), frozenset({"stranger", "friend"})}
    assert set(session.records["placements"]) == {"home", "stranger", "friend"}
    later = session.admit(settled.without(["stranger", "friend"]), ["late"], 9)
    assert later.cluster_of["late"] == settled.cluster_of["friend"]
    assert session.floats("place", "up", "home") == 3 + 1  # the layer that counts, and the number of rows
    strict = Session(AdaCFL(threshold=1, epsilon=0.5), scripted(places))
    assert strict.place(clusters, ["home"], 3)["home"].cluster is None


def test_a_stranger_founds_a_cluster_even_where_there_was_one_only() -> None:
    places = {"a": 0.0, "b": 1.0, "c": 2.0, "d": 3.0, "e": 4.0, "near": 4.4, "far": 5.0}
    session = Session(AdaCFL(), scripted(places))
    clusters = session.go(1, without=["near", "far"])
    assert len(clusters) == 1
    assert clusters.state.threshold == pytest.approx(2.5)  # from a and b to the others, on average
    found = session.place(clusters, ["near", "far"], 2)
    assert (found["near"].cluster, found["far"].cluster) == (0, None)
    alone = Session(AdaCFL(), scripted({"a": 0.0, "far": 9.0}))
    assert alone.place(alone.go(1, without=["far"]), ["far"], 2)["far"].cluster == 0  # one client says nothing of far


def test_what_newcomers_are_compared_with() -> None:
    session = Session(AdaCFL(threshold=1, newcomers="current"), scripted({**GROUPS, "e": 0.3}))
    clusters = session.go(1, without=["e"])
    moved = replace(clusters, models={0: two((7, 0)), 1: two((0, 0))})
    assert session.place(moved, ["e"], 2)["e"].cluster == 1
    assert Session(AdaCFL(threshold=1), session.engine).place(moved, ["e"], 2)["e"].cluster == 0
    assert automatic_epsilon({0: np.zeros(2), 1: np.ones(2), 3: 3 * np.ones(2)}, 1.4) == pytest.approx(18**0.5)
    assert automatic_epsilon({0: np.zeros(2)}, 1.4) == 1.4  # one cluster: as near as clients had to be to merge
    waiting = Session(AdaCFL(cluster_round=5), session.engine)
    assert waiting.place(waiting.go(1, without=["e"]), ["e"], 2)["e"].cluster == 0  # there are no clusters yet


def test_planted_groups_are_found_and_joined(tmp_path: Path) -> None:
    federation = planted(n_clients=8, rows=60)
    engine = local(federation, tmp_path)
    session = Session(AdaCFL(threshold=0.6), engine)
    clusters = session.go(2, without=["c6", "c7"])
    assert parts(clusters) == {frozenset({"c0", "c2", "c4"}), frozenset({"c1", "c3", "c5"})}
    joined = session.admit(clusters, ["c6", "c7"], 3).cluster_of
    assert (joined["c6"], joined["c7"]) == (joined["c0"], joined["c1"])
    engine.close()


def test_clusters_follow_those_who_come_go_and_change() -> None:
    """A third group comes later and founds its cluster, one client leaves, and two swap their rows."""
    federation = planted(n_clients=12, n_groups=3, rows=60)
    third = [name for name, group in federation.groups.items() if group == 2]
    events = [{"round": 3, "join": third}, {"round": 4, "leave": ["c0"]}, {"round": 5, "drift": ["c3", "c4"]}]
    method = {"name": "adacfl", "threshold": 0.7, "epsilon": 0.7}
    result = fedclade.run(
        federation, method=method, model="mlp", rounds=6, training=TRAINING, events=events, workers=1, seed=1
    )
    sizes = {round: len(set(rows["cluster"])) for round, rows in result.history.groupby("round")}
    assert [sizes[round] for round in range(1, 4)] == [2, 2, 3]
    assert result.summary["clusters"] == {"found": 3, "ari": 1.0, "nmi": 1.0}
    assert result.cluster_of("c3") == result.cluster_of("c1")
    assert "c0" not in [client for part in result.clusters.values() for client in part]


def test_label_groups_are_found_without_a_number_whoever_comes_or_changes(tmp_path: Path) -> None:
    events = [{"round": 3, "join": 1}, {"round": 4, "drift": 2}]  # the two swap their rows, and clusters with them
    whole = whole_and_resumed({"name": "adacfl", "cluster_round": 2}, tmp_path, rounds=4, stop=2, events=events)
    assert whole.summary["clusters"] == {"found": 4, "ari": 1.0, "nmi": 1.0}
