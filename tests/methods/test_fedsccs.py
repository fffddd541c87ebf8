"""FedSCCS and its rivals: one loop, four ways to group, four ways to select."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from fedclade.clients.tasks import Evaluate, Evaluated, Failure, Predict, Task
from fedclade.clustering.selection import worst_half_count
from fedclade.errors import FedcladeError
from fedclade.methods import METHODS
from fedclade.methods.fedsccs import FedSCCS, KCenter, RandomClusters, SelectingClusters, WeightsCosine
from harness import TWO, Scripted, Session, local, parts, two, whole_and_resumed
from synthetic import planted

PLACES = {"a": (0, 0), "b": (1, 0), "c": (10, 0), "d": (10, 1), "e": (0, 9)}
ROWS = {"rows": np.ones((3, 2), np.float32)}


class Judged(Scripted):
    """Clients that also say how well a model does: the later their name, the better."""

    def one(self, client, task: Task, round: int):  # type: ignore[no-untyped-def]
        if isinstance(task, Evaluate):
            assert task.on == "train"
            return Evaluated(0.0, {"accuracy": self.clients.index(client) / 100}, 1)
        return super().one(client, task, round)


def scripted(places: dict[str, tuple[float, float]], kind: type[Scripted] = Scripted, **options: object) -> Scripted:
    weights = {client: two(head) for client, head in places.items()}
    told = dict.fromkeys(places, ROWS)
    return kind(weights, **{"told": told, "output": answers, **options})  # type: ignore[arg-type]


def answers(weights: np.ndarray) -> np.ndarray:
    """Outputs on three rows: the first by the sign of the second head weight, the others noise of a hundredth."""
    column = [1.0, 0.0, 0.0] if weights[2] > 5 else [0.0, 1.0, 0.0]
    return np.array([column, weights[1] * np.array([0.0, 1e-3, 2e-3])]).T.astype(np.float32)


def named(name: str, **settings: object) -> SelectingClusters:
    method = METHODS[name](**settings)  # type: ignore[arg-type]
    assert isinstance(method, SelectingClusters)
    return method


def test_alignment_of_outputs_is_what_is_compared() -> None:
    x, y = np.array([[1, 0], [0, 1], [0, 0]], np.float32), np.array([[1], [0], [0]], np.float32)
    outputs = {1.0: x, 2.0: y, 3.0: 3 * x @ np.array([[0.6, 0.8], [-0.8, 0.6]], np.float32)}
    engine = scripted({"a": (1, 0), "b": (2, 0), "c": (3, 0)}, output=lambda w: outputs.get(float(w[1]), x))
    session = Session(FedSCCS(warmup=1, n_clusters=2), engine)
    clusters = session.go(1)
    similarity = session.records["proximity"]["matrix"]
    assert similarity[0, 1] == pytest.approx(0.79056942)
    assert similarity[0, 2] == pytest.approx(1)
    assert parts(clusters) == {frozenset("ac"), frozenset("b")}
    assert session.records["dendrogram"]["merges"].shape == (2, 4)


def test_k_center_takes_the_farthest_first() -> None:
    session = Session(KCenter(warmup=1, n_clusters=3), scripted({**PLACES, "new": (8, 2)}))
    clusters = session.go(1, without=["new"])
    assert parts(clusters) == {frozenset("ab"), frozenset("cd"), frozenset("e")}
    assert {k: tuple(centre) for k, centre in clusters.state.known.items()} == {0: (0, 0), 1: (10, 1), 2: (0, 9)}
    assert session.place(clusters, ["new"], 2)["new"].cluster == 1


def test_weights_cosine_looks_at_directions_without_the_bias() -> None:
    heads = {"a": (1.0, 0.0), "b": (5.0, 0.1), "c": (0.0, 1.0), "d": (0.2, 7.0)}
    weights = {
        client: two(head, body=9 * place, bias=-50 * place) for place, (client, head) in enumerate(heads.items())
    }
    session = Session(WeightsCosine(warmup=1, n_clusters=2), Scripted({**weights, "new": two((0, 3), bias=80)}))
    clusters = session.go(1, without=["new"])
    assert parts(clusters) == {frozenset("ab"), frozenset("cd")}
    assert session.records["proximity"]["matrix"][0, 2] == pytest.approx(0)
    assert session.place(clusters, ["new"], 2)["new"].cluster == 1


def test_random_clusters_are_all_used_and_the_seed_decides() -> None:
    engine = scripted({f"c{k}": (k, 0) for k in range(24)})
    one, other = (Session(RandomClusters(warmup=2), engine).go(2) for _ in range(2))
    assert len(one) == 10
    assert dict(one.members) == dict(other.members)
    session = Session(RandomClusters(warmup=2), engine)
    late = session.go(2, without=["c23"])
    assert session.place(late, ["c23"], 3)["c23"].cluster in late.members
    assert not session.ask.ledger  # dice need no message


def test_the_warm_up_is_averaged_and_its_last_round_by_the_new_clusters() -> None:
    engine = scripted({"a": (0, 0), "b": (4, 0), "c": (100, 9)}, rows={"b": 3})
    session = Session(FedSCCS(warmup=2, n_clusters=2), engine)
    assert {k: float(model[1]) for k, model in session.go(1).models.items()} == {0: pytest.approx(112 / 5)}
    clusters = session.go(2)
    assert {k: float(model[1]) for k, model in clusters.models.items()} == {0: 3, 1: 100}
    assert float(clusters.state.start[1]) == pytest.approx(112 / 5)
    assert len(session.go(5)) == 2  # once


@pytest.mark.parametrize(
    ("selection", "expected"),
    [("all", "abcde"), ("power-of-choice", "ace"), ("random", None), ("least-selected", None)],
)
def test_who_is_selected(selection: str, expected: str | None) -> None:
    session = Session(named("kcenter", warmup=1, n_clusters=3, selection=selection), scripted(PLACES, Judged))
    clusters = session.go(9)
    times = session.records["selection"]["times"]
    assert clusters.state.selected == times
    trained = Counter(e["client"] for e in session.ledger if e["phase"] == "train" and e["direction"] == "up")
    assert {c: trained[c] - 1 for c in trained if trained[c] > 1} == times  # the first round was everybody's
    if expected is not None:
        assert times == dict.fromkeys(expected, 8)
    else:
        assert times["e"] == 8
        assert times["a"] + times["b"] == times["c"] + times["d"] == 8
    if selection == "least-selected":
        assert set(times.values()) == {4, 8}
    judged = session.floats("select", "down").messages
    assert judged == (5 * 8 if selection == "power-of-choice" else 0)


def test_one_who_does_not_say_how_it_does_is_not_selected() -> None:
    engine = scripted(PLACES, Judged, absent=lambda client, round: round > 1 and client == "a")
    session = Session(KCenter(warmup=1, n_clusters=3, selection="power-of-choice"), engine)
    session.go(2)
    assert session.records["selection"]["chosen"] == ["b", "c", "e"]


def test_messages_are_those_of_the_table() -> None:
    clients, rounds, p, k = 24, 20, 2, 10
    engine = scripted({f"c{n}": (n % 10, n) for n in range(clients)})
    for name in ("fedsccs", "random", "kcenter", "wc"):
        session = Session(named(name, warmup=p, n_clusters=k, selection="random"), engine)
        found = len(session.go(rounds))
        reports = p * clients + (rounds - p) * found
        assert session.floats("train", "down") == reports * TWO.size
        assert session.floats("train", "up") == reports * (TWO.size + 1)
        assert session.floats("probe", "up") == (clients * 3 * 2 if name == "fedsccs" else 0)  # rows, no labels
        assert session.floats("probe", "down") == 0
        if name == "random":
            assert reports / (rounds * clients) == pytest.approx(0.475)


def test_uplink_of_the_paper() -> None:
    """24 clients, 10 of 100 rounds with all: 10 or 14 clients in each of the others."""
    assert [worst_half_count(size) for size in (1, 2, 3, 5)] == [1, 1, 1, 2]
    engine = scripted({f"c{n}": (n, 0) for n in range(24)})
    session = Session(RandomClusters(selection="random"), engine)
    session.go(100)
    assert session.floats("train", "up").messages / (100 * 24) == pytest.approx(0.475)
    sizes = [1, 1, 1, 1, 2, 2, 4, 4, 4, 4]  # the worst half of each, at least one: 14
    places = [(100 * group, member) for group, size in enumerate(sizes) for member in range(size)]
    engine = scripted({f"c{n}": place for n, place in enumerate(places)}, Judged)
    session = Session(KCenter(selection="power-of-choice"), engine)
    session.go(100)
    assert session.floats("train", "up").messages / (100 * 24) == pytest.approx(0.625)


@pytest.mark.parametrize("name", ["fedsccs", "kcenter", "wc", "random"])
@pytest.mark.filterwarnings("ignore:.*(clusters asked for|constant activations)")
def test_few_equal_and_absent_clients(name: str) -> None:
    for places in ({"a": (1, 1)}, {"a": (1, 1), "b": (1, 1)}, dict.fromkeys("abcdef", (1, 1))):
        found = Session(named(name, warmup=1, n_clusters=2), scripted(places)).go(2)  # type: ignore[arg-type]
        assert len(found) == (1 if name != "random" else min(2, len(places)))
    assert 4 <= len(Session(named(name, warmup=1), scripted(PLACES)).go(2)) <= 5  # ten clusters of five clients
    gone = scripted(PLACES, absent=lambda client, round: client == "d" and round < 4)
    clusters = Session(named(name, warmup=2, n_clusters=3), gone).go(4)
    assert clusters.unassigned == ()
    if name == "kcenter":
        assert clusters.cluster_of["d"] == clusters.cluster_of["c"]
    nobody = scripted(PLACES, absent=lambda client, round: round < 3)
    assert len(Session(named(name, warmup=1, n_clusters=2), nobody).go(2)) == 1
    assert len(Session(named(name, warmup=1, n_clusters=2), nobody).go(3)) == 2


@pytest.mark.parametrize("name", ["fedsccs", "kcenter", "wc", "random"])
def test_a_thousand_clients(name: str) -> None:
    noise = np.random.default_rng(0).normal(size=(1000, 2)) / 10
    heads = {f"c{k:03d}": (3 * (k % 2) + noise[k, 0], 10 * (k % 2 == 0) + noise[k, 1]) for k in range(1000)}
    engine = replace(scripted(heads), told={c: {"rows": ROWS["rows"][:1]} for c in heads})  # they are asked for one
    wanted = {"n_clusters": 2} if name == "random" else {"threshold": "auto"}
    session = Session(named(name, warmup=1, selection="random", **wanted), engine)
    found = session.go(3)
    assert len(session.records["selection"]["chosen"]) == len(found) == 2
    if name != "random":
        assert parts(found) == {frozenset(list(heads)[0::2]), frozenset(list(heads)[1::2])}


@pytest.mark.parametrize("clients", [24, 300, 1000, 3000])
def test_the_probe_does_not_outgrow_the_memory(clients: int) -> None:
    """100 rows of each client, as in the paper, until all models' outputs together would be too many."""
    engine = scripted({f"c{k}": (k, 0) for k in range(clients)})
    session = Session(FedSCCS(probe="synthetic"), engine)
    rows = len(session.method.probe_set(session.context, session.ask))  # type: ignore[attr-defined]
    assert rows == {24: 2400, 300: 3300, 1000: 1000, 3000: 3000}[clients]


@pytest.mark.parametrize(("name", "settings"), [("fedsccs", {"layer": "fc3"}), ("kcenter", {}), ("wc", {})])
def test_planted_groups_are_found_and_joined(name: str, settings: dict[str, str], tmp_path: Path) -> None:
    """These groups call the same things by other names. CKA does not see names, but how features turn with them."""
    engine = local(planted(n_clients=8, rows=60), tmp_path)
    session = Session(named(name, warmup=2, n_clusters=2, **settings), engine)
    clusters = session.go(3, without=["c6", "c7"])
    assert parts(clusters) == {frozenset({"c0", "c2", "c4"}), frozenset({"c1", "c3", "c5"})}
    joined = session.admit(clusters, ["c6", "c7"], 5).cluster_of
    assert (joined["c6"], joined["c7"]) == (joined["c0"], joined["c1"])
    engine.close()


@pytest.mark.parametrize(
    "settings", [{"probe": "synthetic"}, {"probe": "synthetic", "synthetic": "uniform"}, {"probe": "public"}]
)
def test_a_probe_that_costs_no_client_its_rows(settings: dict[str, str], tmp_path: Path) -> None:
    federation = planted(n_clients=6, rows=60)
    if settings["probe"] == "public":
        np.savez(tmp_path / "public.npz", x=federation.x[::3].astype(np.float64))
        settings = {**settings, "probe_file": str(tmp_path / "public.npz")}
    engine = local(federation, tmp_path / "memory")
    session = Session(FedSCCS(warmup=2, n_clusters=2, layer="fc3", **settings), engine)  # type: ignore[arg-type]
    assert parts(session.go(2)) == {frozenset({"c0", "c2", "c4"}), frozenset({"c1", "c3", "c5"})}
    assert session.floats("probe", "up") == 0
    engine.close()


def test_a_wrong_probe_is_known_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="give both or none"):
        FedSCCS(probe="public")
    with pytest.raises(ValidationError, match="give both or none"):
        FedSCCS(probe_file="rows.npy")
    np.save(tmp_path / "rows.npy", np.zeros((5, 3)))
    engine = local(planted(), tmp_path / "memory")
    for path, message in (("rows.npy", r"shape \(5, 3\)"), ("nothing.npy", "cannot read probe rows")):
        with pytest.raises(FedcladeError, match=message):
            Session(FedSCCS(probe="public", probe_file=str(tmp_path / path)), engine).go(0)
    with pytest.raises(FedcladeError, match="layer 'fc9' cannot be compared"):
        Session(FedSCCS(layer="fc9"), engine).go(0)
    engine.close()


def test_the_server_answers_like_a_client_whatever_its_workers(tmp_path: Path) -> None:
    federation = planted(n_clients=3)
    engines = [local(federation, tmp_path / str(workers), workers=workers) for workers in (1, 2)]
    rows, initial = federation.x[:300], engines[0].initial
    tasks = [Predict(initial * np.float32(scale), rows=rows) for scale in (1, 0.5, 2)]
    asked = [engines[0].answer({"c0": task}, 1)["c0"].values for task in tasks]  # type: ignore[union-attr]
    for engine in engines:
        told = [answer.values for answer in engine.at_server(tasks, 1)]  # type: ignore[union-attr]
        assert all(np.array_equal(*pair) for pair in zip(told, asked, strict=True))
        assert isinstance(engine.at_server([Predict(initial[:3], rows=rows)], 1)[0], Failure)
        engine.close()


def test_label_groups_newcomers_and_an_exact_resume(tmp_path: Path) -> None:
    method = {"name": "fedsccs", "warmup": 2, "n_clusters": 4, "selection": "least-selected"}
    whole = whole_and_resumed(method, tmp_path, rounds=5, stop=3, events=[{"round": 3, "join": 1}])
    assert whole.summary["clusters"] == {"found": 4, "ari": 1.0, "nmi": 1.0}
