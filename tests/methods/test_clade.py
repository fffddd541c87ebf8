"""clade: planted groups are found and served; who is alike shares one model; newcomers are placed with a confidence."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedclade
from fedclade.clients.runtime import ClientRuntime
from fedclade.clients.tasks import Describe, Described
from fedclade.clustering.views import overlap_of_classes
from fedclade.data.federation import Client, Federation
from fedclade.methods.clade import Clade, placement
from fedclade.report.groups import groups
from synthetic import planted

TRAINING = {"local_epochs": 1, "batch_size": 8, "learning_rate": 0.05, "momentum": 0.5}


def run(federation: Federation | str, out: Path, rounds: int = 5, **settings: object) -> fedclade.Result:
    given = {"method": "clade", "model": "mlp", "training": TRAINING, "workers": 1, "seed": 1} | settings
    return fedclade.run(federation, rounds=rounds, out=out, **given)


def test_planted_groups_are_found_recorded_and_served(tmp_path: Path) -> None:
    federation = planted(n_clients=12, n_groups=3, rows=60)
    result = run(federation, tmp_path / "run")
    assert result.summary["clusters"] == {"found": 3, "ari": 1.0, "nmi": 1.0}
    told = result.last_kept("groups")
    assert told["why"] == "groups"
    assert told["views"] == ["features"]
    assert told["p"] < 0.02
    assert [look["view"] for look in told["looks"]] == ["labels", "features"]
    assert (np.asarray(told["margins"]) > 0.3).all()
    served = result.last_kept("serving")
    assert served["losses"].shape == (12, len(served["candidates"]))
    alone = run(federation, tmp_path / "one", method="fedavg")
    assert result.summary["accuracy"]["mean"] > alone.summary["accuracy"]["mean"] + 0.2
    ledger = result.ledger
    assert set(ledger["phase"]) >= {"cluster", "train", "serve"}
    model = 4 * len(result.weights_for("c0"))
    up = ledger[(ledger["direction"] == "up") & (ledger["phase"] == "cluster")]
    assert up["bytes"].max() < model  # what a client tells of itself is less than one model


def test_clients_that_are_alike_share_one_model(tmp_path: Path) -> None:
    result = run(planted(n_clients=10, n_groups=1, rows=60), tmp_path)
    assert result.summary["clusters"]["found"] == 1
    assert result.last_kept("groups")["why"] == "alike"


@pytest.mark.parametrize(
    ("split", "participation", "shared"),
    [("label-groups:2", 1.0, False), ("label-groups:2", 0.17, True), ("adacfl-alpha:0.6:2", 1.0, True)],
)
def test_clusters_of_the_same_classes_or_with_one_sender_share_all_layers_but_the_last(
    tmp_path: Path, split: str, participation: float, shared: bool
) -> None:
    for seed in (0, 1, 2):
        how = {"clients": 12, "rows": 100, "seed": seed, "participation": participation, "serving": "model"}
        result = run("digits", tmp_path / str(seed), 3, split=split, **how)
        assert len(result.clusters) == 2
        assert result.last_kept("groups")["shares_body"] is shared
        told = groups(result)
        assert told is not None
        assert ("share all layers but the last" in told.words) is shared
        one, other = (result.model_for(members[0]).state_dict() for members in result.clusters.values())
        first, *_, last = (name for name in one if name.endswith("weight"))
        assert np.array_equal(one[first], other[first]) is shared
        assert not np.array_equal(one[last], other[last])


def test_the_overlap_of_classes_by_hand() -> None:
    halves = np.array([[[10, 10, 0, 0]] * 2, [[0, 0, 10, 10]] * 2, [[0, 10, 10, 0]] * 2], float)
    assert overlap_of_classes(halves, np.zeros(3, int)) == 1
    # Half of the rows of a cluster: 0.5 / (0.5 + 0.125) = 0.8, so that two clusters share 0 or 0.8 of 2.4.
    assert overlap_of_classes(halves[:2], np.array([0, 1])) == 0
    assert overlap_of_classes(halves, np.array([0, 1, 2])) == pytest.approx((0 + 1 / 3 + 1 / 3) / 3)


def test_half_of_the_senders_send_half_as_much(tmp_path: Path) -> None:
    federation = planted(n_clients=12, n_groups=3, rows=60)
    whole, half = (run(federation, tmp_path / str(s), method={"name": "clade", "senders": s}) for s in (1.0, 0.5))
    sent = [r.ledger.query("phase == 'train' and direction == 'up'")["bytes"].sum() for r in (whole, half)]
    assert sent[1] == pytest.approx(sent[0] / 2, rel=0.01)
    trained = half.history.query("round > 0 and trained").groupby(["round", "cluster"]).size()
    assert (trained >= 1).all()


def test_newcomers_are_placed_with_a_confidence_or_told_that_they_fit_nowhere(tmp_path: Path) -> None:
    everybody = planted(n_clients=16, n_groups=2, rows=60)
    members = everybody.clients[:12]
    result = run(
        Federation(everybody.x, everybody.y, members, everybody.classes, "own", "own"), tmp_path / "run", rounds=2
    )
    old, new = everybody.clients[12:14], everybody.clients[14:]
    strange = everybody.x.copy()
    for client in new:
        strange[client.train] = 3 - 4 * strange[client.train]
    newcomers = Federation(strange, everybody.y, (*old, *new), everybody.classes, "own", "own")
    placed = fedclade.place(result.path, newcomers, personalise=0, save=False)
    homes = {client: cluster for cluster, part in result.clusters.items() for client in part}
    for client in old:
        assert placed[client.name].cluster == homes[f"c{client.group}"]
        assert 0.3 < placed[client.name].confidence <= 1
    assert [placed[client.name].cluster for client in new] == [None, None]


def test_clients_that_join_change_or_were_absent_are_looked_at_again(tmp_path: Path) -> None:
    """Six clients of one group begin, six of another join: one model is not enough any more."""
    everybody = planted(n_clients=12, n_groups=2, rows=80)
    joining = [client.name for client in everybody.clients if client.group == 1]
    events = [{"round": 2, "join": joining}]
    result = run(everybody, tmp_path, rounds=9, events=events, method={"name": "clade", "patience": 3})
    looks = result.kept("groups")
    assert [record["clusters"] for record in looks.values()] == [1, 2]
    assert list(looks) == [0, 3] or list(looks)[1] >= 3
    assert result.summary["clusters"]["ari"] == 1.0


def test_who_has_one_row_waits_in_the_largest_cluster(tmp_path: Path) -> None:
    from dataclasses import replace

    federation = planted(n_clients=8, n_groups=2, rows=60)
    small = tuple(replace(c, train=c.train[:1]) if c.name == "c7" else c for c in federation.clients)
    result = run(replace(federation, clients=small), tmp_path, rounds=2)
    assert sum(len(part) for part in result.clusters.values()) == 8


def lying(
    monkeypatch: pytest.MonkeyPatch, lies: dict[str, Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]]
) -> None:
    """Some clients tell other statistics than those of their rows."""
    honest = ClientRuntime._describe

    def told(self: ClientRuntime, client: str, task: Describe, round: int) -> Described:
        answer = honest(self, client, task, round)
        return Described(lies[client](dict(answer.values))) if client in lies else answer

    monkeypatch.setattr(ClientRuntime, "_describe", told)


@pytest.mark.parametrize("size", [1e3, 1e6, 1e30])
def test_a_lie_about_rows_does_not_move_the_others(
    size: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def huge(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        there = values["counts"][..., None] > 0
        return {n: a if n == "counts" else np.where(there, size, 0 * a).astype(np.float32) for n, a in values.items()}

    lying(monkeypatch, {"c3": huge})
    result = run(planted(n_clients=12, n_groups=2, rows=60), tmp_path, rounds=1, serving="model")
    homes = {client: cluster for cluster, part in result.clusters.items() for client in part}
    honest = [f"c{number}" for number in range(12) if number != 3]
    assert len({(homes[client], int(client[1:]) % 2) for client in honest}) == 2  # the two groups, and nothing else
    assert list(result.clusters[homes["c3"]]) == ["c3"]


def test_statistics_of_another_form_are_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a newcomer, whose answer would be kept and looked at again with the others'."""

    def narrow(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return values | {"features": values["features"][..., :-1]}

    everybody = planted(n_clients=14, n_groups=2, rows=60)
    events = [{"round": 1, "join": ["c12", "c13"]}]
    method = {"name": "clade", "patience": 1, "look_again": 0.05}
    lying(monkeypatch, {"c3": narrow, "c12": narrow})
    result = run(everybody, tmp_path, rounds=4, events=events, method=method, serving="model")
    assert set(result.kept("groups")) == {0, 1}  # looked at again, with those who came
    assert sum(len(part) for part in result.clusters.values()) == 14
    failed = result.failures[result.failures["failure"].str.contains("of another form")]
    assert set(failed["client"]) == {"c3", "c12"}


@pytest.mark.parametrize(
    "events", [[{"round": 2, "drift": 12}], [{"round": 2, "leave": 6, "join": 6}, {"round": 3, "drift": 6}]]
)
def test_everybody_may_change_at_once(events: list[dict[str, int]], tmp_path: Path) -> None:
    result = run(planted(n_clients=12, n_groups=2, rows=40), tmp_path, rounds=3, events=events, serving="model")
    assert sum(len(part) for part in result.clusters.values()) == (12 if len(events) == 1 else 6)


def test_how_sure_a_newcomer_can_be_is_not_free_of_chance() -> None:
    """Squares free of chance may be below 0, of several clusters: then one is nearest, and nobody is sure."""
    near = placement({0: -0.5, 1: -1.0, 2: 4.0}, "distance", 2.0, chance=3.0)
    assert near.cluster == 1
    assert near.confidence == pytest.approx(1 - np.sqrt(2.0 / 2.5))
    assert near.distances == {0: 0.0, 1: 0.0, 2: 2.0}
    assert placement({0: 25.0, 1: 36.0}, "distance", 2.0, chance=3.0).cluster is None


def test_settings_say_what_they_are() -> None:
    assert Clade().senders == 1.0
    assert Clade.serving == "pick"


def test_newcomers_without_labels_are_placed_by_their_rows(tmp_path: Path) -> None:
    """The rows of two groups lie elsewhere; the newcomers' labels are never seen."""
    from fedclade.newcomers import place_unlabelled

    everybody = planted(n_clients=14, n_groups=2, rows=60)
    x = everybody.x.copy()
    for client in everybody.clients:
        rows = np.concatenate([client.train, client.test])
        x[rows] += 3.0 * (client.group == 1)
    members = Federation(x, everybody.y, everybody.clients[:12], everybody.classes, "own", "own")
    result = run(members, tmp_path, rounds=2)
    assert result.summary["clusters"]["ari"] == 1.0
    strange = x[everybody.clients[12].train] * 5 - 20
    placed = place_unlabelled(result.path, {c.name: x[c.train] for c in everybody.clients[24:]} | {"strange": strange})
    homes = {client: cluster for cluster, part in result.clusters.items() for client in part}
    for client in everybody.clients[24:]:
        assert placed[client.name].cluster == homes[f"c{client.group}"]
        assert placed[client.name].confidence > 0.3
        assert not placed[client.name].warning
    assert placed["strange"].cluster is None


def test_rows_that_do_not_tell_the_clusters_apart_place_nobody_surely(tmp_path: Path) -> None:
    """Groups that disagree about labels have the same rows: without labels, where a newcomer belongs is a guess."""
    import fedclade
    from fedclade.newcomers import place_unlabelled

    random = np.random.default_rng(1)
    x = {f"c{k}": random.normal(size=(60, 6)).astype(np.float32) for k in range(16)}
    swapped = {name: k % 2 for k, name in enumerate(x)}
    clients = {name: (rows, (rows[:, 0] > rows[:, 1]).astype(int) ^ swapped[name]) for name, rows in x.items()}
    result = fedclade.run(clients, out=tmp_path / "run", rounds=2, workers=1)
    assert len(result.clusters) == 2
    new = {f"n{k}": random.normal(size=(40, 6)).astype(np.float32) for k in range(4)}
    placed = place_unlabelled(result.path, new)
    assert all("hardly tells the clusters apart" in one.warning for one in placed.values())


def test_newcomers_without_labels_are_scaled_as_the_clients_were(tmp_path: Path) -> None:
    """Files in an odd unit: the run scales them, and so are the rows of newcomers."""
    import fedclade
    from fedclade.newcomers import place_unlabelled, unlabelled_rows

    everybody, late = planted(n_clients=14, n_groups=2, rows=60), tmp_path / "late"
    for folder in (tmp_path / "early", late):
        folder.mkdir()
    for number, client in enumerate(everybody.clients):
        x = 5e6 + 1e6 * (everybody.x[client.train] + 3.0 * (client.group == 1))
        if number < 12:
            np.savez(tmp_path / "early" / f"{client.name}.npz", x=x, y=everybody.y[client.train])
        else:
            np.savez(late / f"{client.name}.npz", x=x)
            np.save(late / f"{client.name}-too.npy", x)
    result = fedclade.run(f"folder:{tmp_path / 'early'}", out=tmp_path / "run", rounds=2, workers=1)
    placed = place_unlabelled(result.path, unlabelled_rows(late))
    for client in everybody.clients[24:]:
        for name in (client.name, f"{client.name}-too"):
            assert placed[name].cluster == result.cluster_of(f"c{client.group}")


def test_unlabelled_newcomers_of_few_rows_are_no_strangers(tmp_path: Path) -> None:
    from fedclade.newcomers import place_unlabelled

    ways = np.array([[1, -1, 1, -1, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1, -1, -1], [-1, -1, 0, 0, 1, 0, 0, 1]], np.float32)
    lost = {60: 0, 15: 0}
    for seed in range(3):
        everybody = planted(n_clients=45, n_groups=1, rows=60, seed=seed)
        clients = [replace(client, group=place % 3) for place, client in enumerate(everybody.clients)]
        x = everybody.x.copy()
        for client in clients:
            x[np.concatenate([client.train, client.test])] += ways[client.group]
        here = [client for client in clients if client.group < 2]
        data = replace(everybody, x=x, clients=tuple(here[:20]))
        result = run(data, tmp_path / f"{seed}", 1, serving="model")
        assert result.agreement["ari"] == 1
        for rows in lost:
            new = [client for client in clients if client not in here[:20]]
            placed = place_unlabelled(result.path, {client.name: x[client.train[:rows]] for client in new})
            for client in new:
                cluster = placed[client.name].cluster
                if client.group < 2:
                    assert cluster in (None, result.cluster_of(f"c{client.group}"))
                    lost[rows] += cluster is None
                elif rows == 60:
                    assert cluster is None
    assert max(lost.values()) <= 5  # of 30


@pytest.mark.parametrize("case", ["regression", "multilabel", "tokens"])
def test_tasks_without_classes_of_rows_are_looked_at_too(case: str, tmp_path: Path) -> None:
    from test_tasks import a_run

    result = a_run(case, tmp_path, method="clade", rounds=2, workers=1)
    assert result.summary["failures"] == 0
    assert [look["view"] for look in result.last_kept("groups")["looks"]] == ["features"]
    assert result.last_kept("serving")["candidates"][0] == "as it is"


def amounts(n_clients: int, groups: int, seed: int, rows: int = 80) -> Federation:
    """Clients whose rows look alike; the groups disagree on how an amount (of a large unit) follows from them."""
    random = np.random.default_rng(seed)
    ways = np.linalg.qr(random.normal(size=(6, 6)))[0][:groups]
    x = random.normal(size=(n_clients, rows + 20, 6)).astype(np.float32)
    y = np.stack([x[k] @ ways[k % groups] for k in range(n_clients)]) + 0.3 * random.normal(size=x.shape[:2])
    clients = []
    for number in range(n_clients):
        held = np.arange(number * (rows + 20), (number + 1) * (rows + 20), dtype=np.int32)
        clients.append(Client(f"c{number}", held[:rows], held[rows:], number % groups))
    y = (5e4 + 1e3 * y).reshape(-1, 1).astype(np.float32)
    return Federation(x.reshape(-1, 6), y, tuple(clients), ("euro",), "amounts", "amounts", labels="numbers").checked()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_clients_may_disagree_on_amounts(groups: int, seed: int, tmp_path: Path) -> None:
    everybody = amounts(28, groups, seed)
    data = replace(everybody, clients=everybody.clients[:24])
    training = {**TRAINING, "local_epochs": 2}
    result = run(data, tmp_path / "run", 2, task="regression", training=training, serving="model")
    assert len(result.clusters) == groups
    assert result.agreement["ari"] == 1
    if groups > 1:
        new = everybody.clients[24:]
        placed = fedclade.place(result.path, replace(everybody, clients=new))
        home = {c.name: result.cluster_of(f"c{c.group}") for c in new}
        assert all(placed[name].cluster in (cluster, None) for name, cluster in home.items())
        assert sum(one.cluster is None for one in placed.values()) <= 1


@pytest.mark.parametrize("rows", [60, 30])
def test_newcomers_of_few_rows_are_no_strangers(rows: int, tmp_path: Path) -> None:
    """Chance carries them farther from their cluster than its members are; of another group's clients it is told."""
    lost = wrong = strangers = 0
    for seed in range(3):
        everybody = planted(n_clients=45, n_groups=3, rows=60, seed=seed)
        here = [client for client in everybody.clients if client.group < 2]
        result = run(replace(everybody, clients=tuple(here[:20])), tmp_path / f"{seed}", 1, serving="model")
        assert result.agreement["ari"] == 1
        new = tuple(replace(c, train=c.train[:rows]) for c in everybody.clients if c not in here[:20])
        placed = fedclade.place(result.path, replace(everybody, clients=new), save=False)
        for client in new:
            cluster = placed[client.name].cluster
            if client.group == 2:
                strangers += cluster is not None
            else:
                lost += cluster is None
                wrong += cluster not in (None, result.cluster_of(f"c{client.group}"))
    assert wrong == 0
    assert lost <= 5  # of 30
    assert strangers <= 9  # of 45
