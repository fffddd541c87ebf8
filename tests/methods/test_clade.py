"""clade: planted groups are found and served; who is alike shares one model; newcomers are placed with a confidence."""

from pathlib import Path

import numpy as np
import pytest

import fedclade
from fedclade.clustering.views import overlap_of_classes
from fedclade.data.federation import Federation
from fedclade.methods.clade import Clade
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
    placed = place_unlabelled(result.path, {c.name: x[c.train] for c in everybody.clients[12:]} | {"strange": strange})
    homes = {client: cluster for cluster, part in result.clusters.items() for client in part}
    for client in everybody.clients[12:]:
        assert placed[client.name].cluster == homes[f"c{client.group}"]
        assert placed[client.name].confidence > 0.3
    assert placed["strange"].cluster is None


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
    for client in everybody.clients[12:]:
        for name in (client.name, f"{client.name}-too"):
            assert placed[name].cluster == result.cluster_of(f"c{client.group}")


@pytest.mark.parametrize("case", ["regression", "multilabel", "tokens"])
def test_tasks_without_classes_of_rows_are_looked_at_too(case: str, tmp_path: Path) -> None:
    from test_tasks import a_run

    result = a_run(case, tmp_path, method="clade", rounds=2, workers=1)
    assert result.summary["failures"] == 0
    assert [look["view"] for look in result.last_kept("groups")["looks"]] == ["features"]
    assert result.last_kept("serving")["candidates"][0] == "as it is"
