"""halves = true: the number of clusters by what repeats in both halves of clients' rows."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

import fedclade
from fedclade.clients.memory import Memory
from fedclade.clients.runtime import ClientRuntime
from fedclade.clients.tasks import Answer, Failure, Predict, Task, Train
from fedclade.data import federation_of
from fedclade.data.federation import Federation
from fedclade.methods.adacfl import AdaCFL, found_within
from fedclade.methods.fedclust import FedClust
from fedclade.methods.fedsccs import KCenter, WeightsCosine
from fedclade.methods.fl_hc import FLHC
from fedclade.models.assigned import Networks
from fedclade.report.groups import groups
from harness import TRAINING, TWO, Scripted, Session, parts, two
from synthetic import planted

LEARNING = {"local_epochs": 3, "batch_size": 10, "learning_rate": 0.02, "momentum": 0.5}
ONCE: dict[str, Any] = {"name": "fedclust", "halves": True}
LATER: dict[str, Any] = {"name": "fl-hc", "halves": True, "warmup": 1}
ADACFL: dict[str, Any] = {"name": "adacfl", "halves": True}
ADACFL_ALL: dict[str, Any] = {**ADACFL, "layers": "all", "precluster": False}
COSINE: dict[str, Any] = {"name": "wc", "halves": True, "warmup": 1}
CENTRES: dict[str, Any] = {"name": "kcenter", "halves": True, "warmup": 1}


def run(data: Federation | str, method: dict[str, Any], rounds: int, **settings: Any) -> fedclade.Result:
    given = {"model": "mlp", "training": LEARNING, "workers": 1, "evaluate_every": 0} | settings
    return fedclade.run(data, method=method, rounds=rounds, **given)


@pytest.mark.parametrize(
    ("method", "rounds"),
    [
        (ONCE, 0),
        ({**ONCE, "layers": "all"}, 0),
        (LATER, 2),
        ({**ADACFL, "precluster": False}, 1),
        (ADACFL_ALL, 1),
        (COSINE, 1),
        (CENTRES, 1),
    ],
)
def test_groups_of_labels_are_found_and_recorded(method: dict[str, Any], rounds: int) -> None:
    for seed in range(4):
        result = run("digits", method, rounds, split="label-groups:3", clients=12, rows=100, seed=seed)
        assert result.summary["clusters"] == {"found": 3, "ari": 1.0, "nmi": 1.0}
        told = result.last_kept("groups")
        assert (told["why"], told["views"]) == ("groups", ["updates"])
        assert told["p"] < 0.02
        layers = result.layout.layers if method is LATER or "layers" in method else ["head"]
        assert len(told["looks"][0]["weights"]) == len(layers)
        assert (np.asarray(told["margins"]) > 0).all()
        assert result.last_kept("dendrogram")["linkage"] == "ward"
        assert result.last_kept("proximity")["matrix"].shape == (12, 12)
    section = groups(result)
    assert section is not None
    assert "3 groups that differ in what training changes" in section.words


def of_unlike_sizes(seed: int) -> Federation:
    """Clients that are alike, of which every other has a quarter of the rows."""
    whole = federation_of("digits", split="iid", clients=12, seed=seed)
    clients = [replace(c, train=c.train[: (1 if k % 2 else 4) * 24]) for k, c in enumerate(whole.clients)]
    return replace(whole, clients=tuple(clients))


@pytest.mark.parametrize(
    ("method", "rounds"),
    [(ONCE, 0), ({**ONCE, "layers": "all"}, 0), ({**ADACFL, "precluster": False}, 1), (ADACFL_ALL, 1), (COSINE, 1)],
)
def test_clients_that_are_alike_are_not_split_even_if_some_train_longer(method: dict[str, Any], rounds: int) -> None:
    for seed in range(8):
        found = run(of_unlike_sizes(seed), method, rounds, seed=seed)
        assert len(found.clusters) == 1, seed
        assert found.last_kept("groups")["why"] in ("alike", "no clear groups")


def test_turned_images_show_by_halves_only() -> None:
    alone = {**ADACFL_ALL, "halves": False}
    for seed in range(4):
        data = federation_of("digits", split="rotation:4", clients=16, seed=seed)
        assert len(run(data, alone, 1, seed=seed).clusters) == 1
        found = run(data, ADACFL_ALL, 1, seed=seed).summary["clusters"]
        assert found["found"] == 4, seed
        assert found["ari"] > 0.8


def test_newcomers_join_clusters_that_are_nearer_to_each_other_than_members() -> None:
    for seed in range(3):
        data = federation_of("digits", split="rotation:4", clients=16, seed=seed)
        events = [{"round": 2, "join": list(data.names[::4])}]  # one of each group
        placements = run(data, ADACFL_ALL, 2, seed=seed, events=events).last_kept("placements")
        assert set(placements) == set(data.names[::4])
        assert all(told["cluster"] is not None for told in placements.values())


def test_one_and_two_processes_give_the_same_bits(tmp_path: Path) -> None:
    data = federation_of("digits", split="label-groups:2", clients=8, seed=0).limited(60, 0)
    one, other = (run(data, LATER, 2, workers=workers, out=tmp_path / str(workers)) for workers in (1, 2))
    assert one.clusters == other.clusters
    assert np.array_equal(one.last_kept("groups")["margins"], other.last_kept("groups")["margins"])
    assert all(np.array_equal(one.weights_for(c), other.weights_for(c)) for c in data.names)


@dataclass
class Halved(Scripted):
    """Groups at 0 and 9; both halves are near, and some clients cannot train on a half."""

    failing: tuple[tuple[str, int], ...] = ()

    def one(self, client: str, task: Task, round: int) -> Answer | Failure:
        if not isinstance(task, Train):
            return super().one(client, task, round)
        half = task.half
        if (client, half) in self.failing:
            return Failure("timed out")
        self.asked.append((client, half, task.length))
        answer: Any = super().one(client, task, round)
        noise = np.random.default_rng([int(client[1:]), half]).normal(size=answer.weights.shape) / 10
        return replace(answer, weights=(answer.weights + noise).astype(np.float32))

    def __post_init__(self) -> None:
        self.asked: list[tuple[str, int, int]] = []


def two_groups(**options: Any) -> Halved:
    return Halved({f"c{k}": two((9.0 * (k % 2), 0)) for k in range(10)}, **options)


TWO_GROUPS = {frozenset(f"c{k}" for k in range(g, 10, 2)) for g in range(2)}


def test_each_half_is_asked_once_for_the_layers_that_are_compared() -> None:
    engine = two_groups(rows={"c0": 40, **{f"c{k}": 20 for k in range(1, 10)}})
    session = Session(FedClust(halves=True), engine)
    assert parts(session.go(0)) == TWO_GROUPS
    assert [ask for ask in engine.asked if ask[0] == "c0"] == [("c0", 0, 0), ("c0", 1, 20), ("c0", 2, 20)]
    head = len(np.empty(TWO.size)[TWO.select("head")])
    assert session.floats("cluster", "up") == 3 * 10 * (head + 1)  # last layers, once more for each half
    assert session.floats("cluster", "down") == 3 * 10 * TWO.size
    later = Session(FLHC(halves=True, warmup=0), two_groups())
    assert parts(later.go(1)) == TWO_GROUPS
    assert later.floats("train", "up") == 10 * (TWO.size + 1)
    assert later.floats("cluster", "up") == 2 * 10 * (TWO.size + 1)
    assert {row.n_samples for row in later.ask.trained.values()} == {1}  # the books are of the training that counts


def test_who_fails_a_half_joins_the_nearest_cluster() -> None:
    engine = two_groups(failing=(("c0", 1), ("c1", 2)))
    session = Session(FedClust(halves=True), engine)
    clusters = session.go(0)
    assert parts(clusters) == TWO_GROUPS
    assert clusters.unassigned == ()
    assert set(session.records["groups"]["clients"]) == {f"c{k}" for k in range(2, 10)}
    assert ("c0", 2) not in [ask[:2] for ask in engine.asked]  # one half alone is of no use
    nobody = two_groups(failing=tuple((f"c{k}", 1) for k in range(10)))
    assert len(Session(FedClust(halves=True), nobody).go(0)) == 1
    few = two_groups(failing=tuple((f"c{k}", 1) for k in range(3, 10)))
    assert len(Session(FedClust(halves=True), few).go(0)) == 1


def test_newcomers_and_clients_of_one_row_are_placed_as_ever() -> None:
    session = Session(FedClust(halves=True), two_groups())
    clusters = session.go(0, without=["c0", "c1"])
    clusters = session.admit(clusters, ["c0", "c1"], 1)
    assert parts(clusters) == TWO_GROUPS
    data = planted(n_clients=8, n_groups=2, rows=40)
    short = replace(data.clients[0], train=data.clients[0].train[:1])
    found = run(replace(data, clients=(short, *data.clients[1:])), ONCE, 0)
    assert sum(map(len, found.clusters.values())) == 8
    assert short.name not in found.last_kept("groups")["clients"]
    assert found.failures["failure"].str.contains("one row has no halves").all()


def placed(**settings: Any) -> tuple[Session, AdaCFL]:
    """AdaCFL on two groups, of whose clients the first six hold two classes and the others three."""
    engine = two_groups(told={f"c{k}": spread(2 if k < 6 else 3) for k in range(10)})
    method = AdaCFL(halves=True, **settings)
    return Session(method, engine), method


def spread(n_classes: int) -> dict[str, np.ndarray]:
    return {"n_classes": np.array([n_classes], np.float32), "entropy": np.ones(1, np.float32)}


def test_preclusters_divide_what_halves_find_or_join_it() -> None:
    inside = {frozenset(c for c in part if (int(c[1:]) < 6) is few) for part in TWO_GROUPS for few in (True, False)}
    session, _ = placed()
    assert parts(session.go(1)) == inside
    assert session.records["groups"]["clusters"] == 2
    assert session.floats("cluster", "up") == 10 * 2 + 2 * 10 * (3 + 1)  # label entropies; the head, for each half
    assert parts(placed(precluster=False)[0].go(1)) == TWO_GROUPS
    assert len(placed(premerge="seed")[0].go(1)) == 1  # most of both pre-clusters, by equal votes, belong to the first
    found, groups = np.array([0, 0, 1, 1, 1, 2]), np.array([0, 0, 0, 1, 1, 2])
    assert found_within(found, groups, "inside").tolist() == [0, 0, 1, 2, 2, 3]
    assert found_within(found, groups, "seed").tolist() == [0, 0, 0, 1, 1, 2]


def test_adacfl_places_newcomers_by_a_finite_bound() -> None:
    session, method = placed(precluster=False)
    clusters = session.go(1, without=["c0", "c1"])
    assert 0 < clusters.state.threshold < 2  # two of one group: noise of a tenth
    assert session.place(clusters, ["c0"], 2)["c0"].limit == pytest.approx(9, abs=0.5)
    assert parts(session.admit(clusters, ["c0", "c1"], 2)) == TWO_GROUPS
    far = Session(method, Halved({**session.engine.weights, "c10": two((30, 0))}))
    assert far.place(clusters, ["c10"], 2)["c10"].cluster is None
    alike = Session(method, Halved({f"c{k}": two((9.0 * (k == 9), 0)) for k in range(10)}))
    one = alike.go(1, without=["c8", "c9"])
    assert len(one) == 1
    assert np.isfinite(one.state.threshold)
    assert [alike.place(one, [c], 2)[c].cluster for c in ("c8", "c9")] == [0, None]
    nobody = Session(method, two_groups(failing=tuple((f"c{k}", 1) for k in range(10))))
    assert len(nobody.go(1)) == 1


def test_last_layers_alone_are_sent_and_newcomers_placed() -> None:
    for kind in (WeightsCosine, KCenter):
        session = Session(kind(halves=True, warmup=1), turned_away())
        clusters = session.go(1, without=["c0", "c1"])
        assert parts(session.admit(clusters, ["c0", "c1"], 2)) == TWO_GROUPS
        assert session.floats("cluster", "up") == 2 * 8 * (3 + 1)
        alike = Session(kind(halves=True, warmup=1), Halved({f"c{k}": two((9, 0)) for k in range(10)}))
        assert len(alike.go(1)) == 1


def turned_away() -> Halved:
    """Groups that a cosine tells apart as well."""
    return Halved({f"c{k}": two((9, 0) if k % 2 else (0, 9)) for k in range(10)})


def test_halves_share_no_row_whatever_is_spared(tmp_path: Path) -> None:
    data = planted(n_clients=1, rows=31)
    runtime = ClientRuntime(data, Networks.shared("mlp", (8,), 4), Memory(tmp_path), 0, TRAINING)
    for spare in (0.0, 0.2):
        tasks = [Train(half=half, spare=spare, refill=True, length=length) for half in (1, 2) for length in (0, 50, 5)]
        first, longer, shorter, second, *_ = (runtime._places("c0", task) for task in tasks)
        left = set(data["c0"].train.tolist()) - ({*runtime._spared("c0", spare).tolist()} if spare else set())
        assert set(first.tolist()) | set(second.tolist()) == left
        assert not set(first.tolist()) & set(second.tolist())
        assert abs(len(set(first.tolist())) - len(set(second.tolist()))) <= 1
        assert set(longer.tolist()) == set(first.tolist()) > set(shorter.tolist())
        assert (len(first), len(longer), len(shorter)) == (len(left), 50, 5)
    assert runtime._places("c0", Predict(on="train")).tolist() == data["c0"].train.tolist()


@pytest.mark.parametrize("kind", [FedClust, FLHC, AdaCFL, WeightsCosine, KCenter])
def test_a_number_of_ones_own_excludes_halves(kind: type[Any]) -> None:
    for given in ({"n_clusters": 3}, {"threshold": 1.0}):
        with pytest.raises(ValidationError, match="leave threshold and n_clusters out"):
            kind(halves=True, **given)
    method = kind(halves=True)
    assert method.threshold == "auto"
    assert kind(**method.model_dump()) == kind(halves=True, threshold="auto") == method
