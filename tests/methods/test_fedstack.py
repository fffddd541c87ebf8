"""Clustered FedStack: clients of different architectures, stacked models, and what travels for them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score
from torch import nn

import fedclade
from fedclade.ask import Ask
from fedclade.clients.messages import pack, unpack
from fedclade.clients.tasks import LOCAL, SERVER, Evaluate, Failure, Predict, Predicted, Train, Training
from fedclade.data.federation import Federation
from fedclade.engines.local import local_engine
from fedclade.errors import FedcladeError
from fedclade.methods import RoundContext
from fedclade.methods.fedstack import FedStack, Sent, scores
from fedclade.models.assigned import Networks
from harness import contents, travelled
from synthetic import planted

TRAINING = Training(local_epochs=1, batch_size=8, learning_rate=0.05, momentum=0.5)
HEAD = 64 * 4 + 4  # numbers in the last layer of each of the paper's networks, for four classes


def run(federation: Federation, rounds: int = 1, model: Any = "ann", **settings: Any) -> fedclade.Result:
    out = {"out": settings.pop("out")} if "out" in settings else {}
    workers = settings.pop("workers", 1)
    method = {"name": "fedstack", "epochs": 6, **settings}
    shared = {"training": TRAINING, "workers": workers, "evaluate_local_every": 1}
    return fedclade.run(federation, method=method, model=model, rounds=rounds, **shared, **out)


def windows(n_clients: int = 6, **settings: Any) -> Federation:
    """Short windows of three channels, as a phone in a pocket gives them."""
    return planted(n_clients=n_clients, shape=(3, 12), **settings)


def record(result: fedclade.Result, name: str, round: int = 0) -> Any:
    return result.records[round, name]


# --- groups -----------------------------------------------------------------------------------------------------------


def test_planted_groups_are_found_and_counted() -> None:
    result = run(planted(n_clients=10, rows=40))
    assert result.summary["clusters"] == {"found": 2, "ari": 1.0, "nmi": 1.0}
    bic = record(result, "bic")
    assert bic["chosen"] == 1 + np.argmin(bic["bic"]) == 2
    assert bic["k"] == list(range(1, 9))  # two clients are left to measure the variance with
    near = record(result, "proximity")
    assert near["matrix"].shape == (10, 10)
    assert near["matrix"][0, 2] < near["matrix"][0, 1]


def test_data_without_groups_stay_together_as_plain_fedstack() -> None:
    result = run(planted(n_clients=8, n_groups=1, rows=40), n_clusters=1)
    found = result.state_of_clusters
    assert list(result.clusters) == [0]
    assert np.array_equal(found.models[0], found.state.whole)


@pytest.mark.parametrize("algorithm", ["kmeans", "agglomerative", "gaussian-mixture"])
def test_all_algorithms_find_planted_groups(algorithm: str) -> None:
    result = run(planted(n_clients=8, rows=40), rounds=0, algorithm=algorithm, n_clusters=2)
    assert result.summary["clusters"]["ari"] == 1


def test_the_rule_that_all_methods_share_counts_too() -> None:
    result = run(planted(n_clients=10, rows=40), rounds=0, threshold="auto", bic="sklearn-full")
    assert result.summary["clusters"]["ari"] == 1
    assert record(result, "bic")["chosen"] == 2 != 1 + np.argmin(record(result, "bic")["bic"])


def test_random_groups_show_what_grouping_as_such_is_worth() -> None:
    result = run(planted(n_clients=10, rows=40), algorithm="random", n_clusters=3)
    assert result.summary["clusters"]["found"] == 3
    assert result.summary["clusters"]["ari"] < 0.5


def test_bic_by_hand() -> None:
    corners = np.array([[0.0, 0], [0, 1], [10, 0], [10, 1], [10, 0.5]])
    assert FedStack(most_clusters=3).bic_curve(corners[:4])[:2] == pytest.approx([47.4488, 21.4756], abs=5e-5)
    assert len(FedStack(bic="sklearn-spherical").bic_curve(corners)) == 3
    assert np.argmin(FedStack(bic="sklearn-diag").bic_curve(np.repeat(corners[:4:2], 5, axis=0) + 1e-3)) == 1


def test_a_last_layer_of_zeros_is_a_cluster_of_its_own() -> None:
    class Book:
        def record(self, name: str, **values: Any) -> None: ...

    heads = {f"c{k}": np.array([1.0, k % 2, 0]) for k in range(6)} | {"nobody": np.zeros(3)}
    labels = FedStack(n_clusters=2).grouped(heads, None, Book())  # type: ignore[arg-type]
    assert labels.tolist() == [0, 1, 0, 1, 0, 1, 2]
    assert FedStack().grouped({"a": np.zeros(2), "b": np.zeros(2)}, None, Book()).tolist() == [0, 1]  # type: ignore[arg-type]


# --- architectures ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> fedclade.Result:
    return run(windows(), rounds=2, model=None, n_clusters=2, out=tmp_path_factory.mktemp("fedstack") / "run")


def test_clients_take_the_papers_networks_by_turns(mixed: fedclade.Result) -> None:
    assert mixed.folder.settings["settings"]["model"] == "ann,cnn1d,bilstm"
    turns = ["ann", "cnn1d", "bilstm", "ann", "cnn1d", "bilstm"]
    assert mixed.summary["networks"] == dict(zip(windows().names, turns, strict=True))
    assert mixed.summary["training_paths"].keys() == {"ann", "cnn1d", "bilstm"}
    assert "plain" not in mixed.summary["training_paths"].values()
    table = record(mixed, "architectures")
    assert table["networks"] == ["ann", "bilstm", "cnn1d"]
    assert table["counts"].sum(0).tolist() == [2, 2, 2]


def test_results_do_not_depend_on_the_number_of_workers(mixed: fedclade.Result) -> None:
    other = run(windows(), rounds=2, model=None, n_clusters=2, workers=2)
    assert other.history.equals(mixed.history)
    assert other.ledger.equals(mixed.ledger)
    for client in windows().names:
        assert np.array_equal(other.weights_for(client), mixed.weights_for(client))


def test_a_resumed_run_equals_an_unbroken_one(mixed: fedclade.Result, tmp_path: Path) -> None:
    run(windows(), rounds=1, model=None, n_clusters=2, out=tmp_path / "run")
    resumed = fedclade.resume(tmp_path / "run", rounds=2, data=windows())
    assert resumed.history.equals(mixed.history)
    assert resumed.ledger.equals(mixed.ledger)
    assert contents(resumed.path) == contents(mixed.path)
    for kept in ("models", "records"):
        files = sorted(path.relative_to(mixed.path) for path in (mixed.path / kept).rglob("*") if path.is_file())
        assert files
        assert all((mixed.path / file).read_bytes() == (resumed.path / file).read_bytes() for file in files)


def test_the_model_for_a_client_is_what_it_was_measured_with(mixed: fedclade.Result) -> None:
    federation, history = windows(), mixed.history
    for result in (mixed, fedclade.load(mixed.path)):
        for client in ("c0", "c1", "c2"):
            test = federation[client].test
            served, own = result.model_for(client), result.local_model_of(client)
            right = [
                m(torch.from_numpy(federation.x[test])).argmax(1).numpy() == federation.y[test] for m in (served, own)
            ]
            last = history[(history["round"] == 2) & (history["client"] == client)]
            assert right[0].mean() == pytest.approx(last["accuracy"].item())
            assert right[1].mean() == pytest.approx(last["accuracy_local"].item())
            assert result.weights_for(client).shape == (sum(p.numel() for p in served.parameters()),)


def test_the_run_folder_holds_the_stacked_models(mixed: fedclade.Result) -> None:
    from safetensors.numpy import load_file

    tensors = load_file(mixed.path / "models" / "cluster-0.safetensors")
    assert {name: tensor.shape for name, tensor in tensors.items()}["fc.weight"] == (64, 4)  # it reads four classes
    assert mixed.summary["layout"]["names"] == ["fc.weight", "fc.bias", "head.weight", "head.bias"]


def test_networks_of_your_own_and_those_that_cannot_be_compared() -> None:
    def small(input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
        body = [nn.Flatten(), nn.Linear(int(np.prod(input_shape)), 64), nn.ReLU()]
        return nn.Sequential(*body, nn.Linear(64, n_classes))

    result = run(planted(), rounds=0, model=["ann", small])
    assert result.summary["networks"]["c1"] == "own-1"
    assert result.local_model_of("c1")[1].out_features == 64  # type: ignore[index]
    with pytest.raises(FedcladeError, match="last layers of unlike size"):
        run(planted(), model="ann,mlp")
    with pytest.raises(FedcladeError, match="name one model"):
        fedclade.run(planted(), method="fedavg", model="ann,mlp", rounds=1, workers=1)
    with pytest.raises(FedcladeError, match="takes windows"):
        run(planted(shape=(1, 8, 8)), model="bilstm")
    assert set(run(planted(shape=(1, 8, 8)), rounds=0, model=None).summary["networks"].values()) == {"ann"}


def test_the_server_trains_and_clients_are_evaluated_through_what_it_made(tmp_path: Path) -> None:
    federation = planted(n_clients=2)
    networks = Networks.stacked("ann", ["ann", "mlp"], federation.names, federation.input_shape, 4)
    engine = local_engine(federation, networks, seed=0, training=TRAINING, memory=tmp_path)
    engine.answer({name: Train(upload="nothing") for name in federation.names}, 0)
    told = engine.answer({name: Predict(start=LOCAL, on="train") for name in federation.names}, 0)
    mine = told["c1"]
    assert isinstance(mine, Predicted)
    lesson = Train(engine.initial, rows=mine.values, labels=mine.labels, save="")
    stack = engine.at_server([lesson], 0)[0]
    assert stack.n_samples == len(federation["c1"].train)  # type: ignore[union-attr]
    task = Evaluate(stack.weights, through=LOCAL)  # type: ignore[union-attr]
    there = unpack(pack(task, engine.layout_of("c1", LOCAL)))  # as on a Flower grid
    seen = [engine.answer({"c1": each}, 0)["c1"] for each in (task, there)]
    assert seen[0] == seen[1]
    below = engine.answer({"c1": Predict(start=LOCAL)}, 0)["c1"].values  # type: ignore[union-attr]
    above = engine.answer({SERVER: Predict(stack.weights, rows=below)}, 0)[SERVER].values  # type: ignore[union-attr]
    right = above.argmax(1) == federation.y[federation["c1"].test]
    assert seen[0].score == pytest.approx(right.mean())  # type: ignore[union-attr]
    wrong = engine.answer({"c1": Evaluate(stack.weights)}, 0)["c1"]  # type: ignore[union-attr]
    assert isinstance(wrong, Failure)  # the stacked model's weights are not those of the client's own network
    engine.close()


# --- traffic ----------------------------------------------------------------------------------------------------------


def test_predictions_labels_and_last_layers_travel_once(mixed: fedclade.Result) -> None:
    federation, ledger = windows(), mixed.ledger
    ledger = ledger[~ledger["phase"].isin(["measure", "server"])]
    assert set(ledger["round"]) == {0}
    down = ledger[ledger["direction"] == "down"]
    assert travelled(down["bytes"]) == 0  # what clients start from follows from the seed
    ledger = ledger[ledger["direction"] == "up"]
    for name in federation.names:
        rows = len(federation[name].train)
        sent = ledger[ledger["client"] == name].set_index("phase")["bytes"].to_dict()
        assert travelled([sent["train"]]) == HEAD
        assert travelled([sent["stack"]]) == rows * (4 + 0.5)


def test_with_refresh_predictions_travel_every_round() -> None:
    federation = planted(n_clients=4)
    result = run(federation, rounds=2, refresh=True, n_clusters=2)
    ledger = result.ledger[result.ledger["phase"] == "stack"]
    for _, round in ledger.groupby("round"):
        assert travelled(round["bytes"]) == sum(4.5 * len(c.train) for c in federation.clients)
    assert ledger["round"].nunique() == 3
    assert result.history.query("round == 2")["trained"].all()


def test_spared_rows_are_predicted_and_not_trained_on(tmp_path: Path) -> None:
    federation = planted(n_clients=4, rows=40)
    runtime = local_engine(
        federation, Networks({"": lambda: nn.Linear(8, 4)}), seed=0, training=TRAINING, memory=tmp_path
    ).runtime
    trained, told = (runtime._places("c0", task) for task in (Train(spare=0.25), Predict(on="train", spare=0.25)))
    assert sorted([*trained, *told]) == sorted(federation["c0"].train)
    assert len(told) == round(0.25 * len(federation["c0"].train))
    result = run(federation, rounds=0, n_clusters=2, spare=0.25)
    stack = result.state_of_clusters.state.stack
    assert {c: len(stack[c].labels) for c in stack} == {c.name: round(0.25 * len(c.train)) for c in federation.clients}
    one_row = replace(federation, clients=tuple(replace(c, train=c.train[:1]) for c in federation.clients))
    assert len(run(one_row, rounds=0, n_clusters=1, spare=0.25).clusters) == 1  # who has one row trains on it


def test_public_rows_in_place_of_private_ones(tmp_path: Path) -> None:
    """No label leaves a client, and networks with unlike last layers can be grouped by what they answer."""
    federation = planted(n_clients=6, rows=40)
    x, y = federation.x[:30], federation.y[:30]
    np.savez(tmp_path / "public.npz", x=x, y=y)
    settings = {"probe_file": str(tmp_path / "public.npz"), "signature": "predictions", "n_clusters": 2}
    result = run(federation, model="ann,mlp", **settings)
    assert result.summary["clusters"]["ari"] == 1  # the groups have other names for the same rows
    ledger = result.ledger[result.ledger["phase"] == "stack"]
    for direction, numbers in (("up", 30 * 4), ("down", x.nbytes / 4)):
        assert all(travelled([sent]) == numbers for sent in ledger[ledger["direction"] == direction]["bytes"])
    with pytest.raises(FedcladeError, match="give a probe_file"):
        run(federation, signature="predictions")
    np.savez(tmp_path / "bad.npz", x=x, y=y + 4)
    with pytest.raises(FedcladeError, match="need labels"):
        run(federation, probe_file=str(tmp_path / "bad.npz"))


# --- measures ---------------------------------------------------------------------------------------------------------


def test_measures_skip_classes_that_nobody_is_tested_on() -> None:
    labels, found = np.array([0, 0, 0, 2, 2]), np.array([0, 0, 1, 2, 0])
    seen = scores([Predicted(np.eye(4, dtype=np.float32)[found], labels)], 4)
    assert seen["balanced_accuracy"] == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert seen["balanced_accuracy"] == pytest.approx(
        balanced_accuracy_score(labels, np.where(found == 1, 0, found)) - 1 / 6
    )
    assert seen["precision"] == pytest.approx((2 / 3 + 1) / 2)
    assert seen["by_class"]["class"].tolist() == [0, 2]
    assert seen["by_class"]["rows"].tolist() == [3, 2]
    assert seen["confusion"].tolist() == [[2, 1, 0, 0], [0] * 4, [1, 0, 1, 0], [0] * 4]


def test_every_round_is_measured_for_clusters_and_all(mixed: fedclade.Result) -> None:
    history = mixed.history
    for number in (0, 1, 2):
        seen = record(mixed, "stacking", number)
        assert set(seen["all"]) == {"own", "global", "cluster"}
        assert [part["number"] for part in seen["clusters"]] == list(mixed.clusters)
        now = history[history["round"] == number].set_index("client")
        rows = np.array([len(windows()[client].test) for client in now.index])
        assert seen["all"]["cluster"]["accuracy"] == pytest.approx(np.average(now["accuracy"], weights=rows))


def test_a_clusters_model_knows_what_the_global_one_cannot(tmp_path: Path) -> None:
    """Two clients mean different things by the same answer."""
    kind = np.arange(200) % 4
    says = np.eye(4, dtype=np.float32)[kind] * 0.7 + 0.075
    stack = {name: Sent(says, (kind + k) % 4) for k, name in enumerate(("c0", "c1"))}
    federation = planted(n_clients=2)
    networks = Networks.stacked("ann", ["ann"], federation.names, federation.input_shape, 4)
    engine = local_engine(federation, networks, seed=0, training=TRAINING, memory=tmp_path)
    context, ask = RoundContext(federation.names, engine.initial, engine.layout, TRAINING, 0), Ask(engine)
    groups = {"all": ("c0", "c1"), 0: ("c0",), 1: ("c1",), 2: ("absent",)}
    models = FedStack(stack_epochs=50).taught(groups, dict.fromkeys(groups, engine.initial), stack, context, ask)
    tasks = {str(group): Predict(model, rows=says) for group, model in models.items()}
    found = {group: answer.values.argmax(1) for group, answer in ask.server(tasks).items()}
    engine.close()
    assert (found["0"] == kind).all()
    assert (found["1"] == (kind + 1) % 4).all()
    assert np.mean([(found["all"] == (kind + k) % 4).mean() for k in (0, 1)]) == pytest.approx(0.5)
    assert models[2] is engine.initial  # nobody there sent anything
    assert not ask.ledger  # the server works alone


# --- newcomers and failures -------------------------------------------------------------------------------------------


def test_newcomers_join_those_whose_last_layers_point_the_same_way(tmp_path: Path) -> None:
    everyone = planted(n_clients=8, rows=40)
    early = replace(everyone, clients=everyone.clients[:6])
    late = replace(everyone, clients=everyone.clients[6:])
    result = run(early, n_clusters=2, out=tmp_path / "run")
    placed = fedclade.place(result.path, late)
    assert [placed[name].cluster for name in late.names] == [result.cluster_of("c0"), result.cluster_of("c1")]
    for name in late.names:
        test = late[name].test
        right = placed[name].model(torch.from_numpy(late.x[test])).argmax(1).numpy() == late.y[test]
        assert right.mean() == pytest.approx(placed[name].score)


def test_clients_join_leave_and_change_during_a_run() -> None:
    events = [{"round": 1, "join": 2}, {"round": 2, "leave": 1, "drift": ("c1", "c2")}]
    method = {"name": "fedstack", "epochs": 6, "n_clusters": 2}
    shared = {"model": "ann", "rounds": 3, "training": TRAINING, "workers": 1, "events": events}
    result = fedclade.run(planted(n_clients=8, rows=40), method=method, **shared)
    assert sorted(map(sorted, result.clusters.values())) == [["c1", "c4", "c6"], ["c2", "c3", "c5", "c7"]]
    stack = result.state_of_clusters.state.stack
    assert len(stack["c1"].labels) == 40 + 7 * 2  # the rows that it holds now
    assert result.model_for("c6") is not None


def test_a_client_that_fails_waits_and_the_others_go_on() -> None:
    federation = planted(n_clients=6)
    federation.x[federation["c3"].train] *= np.float32(1e30)  # its training explodes
    result = run(federation, rounds=1, n_clusters=2)
    assert set(result.history[result.history["failure"] != ""]["client"]) == {"c3"}
    found = result.state_of_clusters
    assert found.unassigned == ("c3",)
    assert "c3" not in found.state.stack


def test_every_client_alone_has_a_calibrated_model_of_its_own() -> None:
    result = run(planted(n_clients=3), n_clusters=3)
    assert len(result.clusters) == 3
    models = result.state_of_clusters.models
    assert not np.array_equal(models[0], models[1])
    assert result.accuracy["mean"] >= result.accuracy_local["mean"]  # a stack of a few rows does no harm


# --- text -------------------------------------------------------------------------------------------------------------


def test_drug_reviews(tmp_path: Path) -> None:
    """Patients of two kinds of drugs, with the same words for unlike stars."""
    header = "\tdrugName\tcondition\treview\trating\tdate\tusefulCount"
    (tmp_path / "drug-reviews").mkdir()
    for file, count in (("drugsComTrain_raw.tsv", 60), ("drugsComTest_raw.tsv", 20)):
        lines = [header]
        for drug in range(6):
            for k in range(count):
                words, stars = ("works well", 10 if drug % 2 else 1) if k % 2 else ("no help", 1 if drug % 2 else 10)
                lines.append(f'{k}\tDrug{drug}\tPain\t"it {words} day {k}"\t{stars}.0\tMay 1, 2011\t3')
        (tmp_path / "drug-reviews" / file).write_text("\n".join(lines) + "\n")
    result = fedclade.run(
        "drug-reviews:hash-64",
        data_dir=tmp_path,
        method={"name": "fedstack", "n_clusters": 2},
        model="ann",
        rounds=1,
        workers=1,
    )
    assert sorted(map(sorted, result.clusters.values())) == [["Drug0", "Drug2", "Drug4"], ["Drug1", "Drug3", "Drug5"]]
    assert result.accuracy["mean"] == 1
    assert record(result, "stacking", 1)["all"]["cluster"]["by_class"]["class"].tolist() == [0, 9]
