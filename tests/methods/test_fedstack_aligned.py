"""Clustered FedStack, aligned: all networks of a cluster predict the same rows, and their mistakes can be combined."""

import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedclade
from expect import refused
from fedclade.clients.messages import pack, unpack
from fedclade.clients.tasks import LOCAL, Evaluate, Failure, Predict, Train, Training
from fedclade.codec import Packet
from fedclade.data.federation import Client, Federation
from fedclade.engines.local import local_engine
from fedclade.methods.fedstack import STACK_TRAINING, FedStack
from fedclade.models import make
from fedclade.models.assigned import Networks
from fedclade.models.weights import Layout
from fedclade.models.weights import load as load_weights
from harness import contents, travelled
from synthetic import planted

TRAINING = Training(local_epochs=1, batch_size=8, learning_rate=0.05, momentum=0.5)
SIZES = {"ann": 8 * 128 + 128 + 128 * 64 + 64 + 64 * 4 + 4}  # numbers of a network for eight features, four classes


def run(federation: Federation, rounds: int = 1, model: Any = "ann", workers: int = 1, **settings: Any) -> Any:
    out = {name: settings.pop(name) for name in ("out", "seed", "events") if name in settings}
    method = {"name": "fedstack", "layout": "aligned", "epochs": 6, **settings}
    shared = {"training": TRAINING, "workers": workers, "evaluate_local_every": 1}
    return fedclade.run(federation, method=method, model=model, rounds=rounds, **shared, **out)


def windows(n_clients: int = 6, **settings: Any) -> Federation:
    return planted(n_clients=n_clients, shape=(3, 12), **settings)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> fedclade.Result:
    """Three architectures by turns in two clusters."""
    return run(windows(), 2, None, n_clusters=2, seats=4, out=tmp_path_factory.mktemp("aligned") / "run")


def relu(values: np.ndarray) -> np.ndarray:
    return np.maximum(values, 0)


def softmax(values: np.ndarray) -> np.ndarray:
    powers = np.exp(values - values.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def said_by(name: str, weights: np.ndarray, x: np.ndarray, n_classes: int = 4) -> np.ndarray:
    """The class probabilities of a network, by hand where it is a chain of dense layers."""
    network = make(name, x.shape[1:], n_classes)
    if name != "ann":
        with torch.no_grad():
            return load_weights(network, weights).eval()(torch.from_numpy(x)).softmax(1).numpy()
    at, values = 0, x.reshape(len(x), -1).astype(np.float64)
    widths = (values.shape[1], 128, 64, n_classes)
    for number, (before, after) in enumerate(pairwise(widths)):
        matrix = weights[at : at + before * after].reshape(after, before)
        bias = weights[at + before * after : at + before * after + after]
        at += before * after + after
        values = values @ matrix.T + bias
        values = relu(values) if number < 2 else values
    assert at == len(weights)
    return softmax(values)


def stacked_by_hand(model: np.ndarray, said: list[np.ndarray], seats: int) -> np.ndarray:
    """What a cluster's stacked model makes of networks' probabilities: their mean vote, and a correction."""
    n_classes, width = said[0].shape[1], seats * said[0].shape[1]
    w1, b1 = model[: 64 * width].reshape(64, width), model[64 * width : 64 * width + 64]
    w2 = model[64 * width + 64 : 64 * width + 64 + 64 * n_classes].reshape(n_classes, 64)
    b2 = model[-n_classes:]
    logs = np.zeros((len(said[0]), width))
    for place, one in enumerate(said):
        logs[:, place * n_classes : (place + 1) * n_classes] = np.log(np.maximum(one, 1e-6))
    vote = np.log(np.maximum(np.mean(said, axis=0), 1e-6))
    return softmax(vote + relu(logs / 4 / np.sqrt(len(said)) @ w1.T + b1) @ w2.T + b2)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_stack_and_what_serves_a_client_by_hand(seed: int, tmp_path: Path) -> None:
    federation = windows(seed=seed)
    result = run(federation, 2, None, n_clusters=2, seats=5, seed=seed, out=tmp_path / "run")
    found = result.state_of_clusters
    assert sum(len(seats) for seats in found.state.seated.values()) == 6
    for cluster, members in found.members.items():
        seats = found.state.seated[cluster]
        assert tuple(seats) == members
        for client, (_, weights) in seats.items():  # what each has trained is what the others were given
            own = result.local_model_of(client)
            flat = np.concatenate([p.detach().numpy().ravel() for p in own.parameters()])
            np.testing.assert_array_equal(flat, weights)
        for client in members:
            train, test = (federation.x[rows] for rows in (federation[client].train, federation[client].test))
            sent = found.state.stack[client]
            by_hand = np.hstack([said_by(name, weights, train) for name, weights in seats.values()])
            np.testing.assert_allclose(sent.values, by_hand, atol=1e-5)
            np.testing.assert_array_equal(sent.labels, federation.y[federation[client].train])
            said = [said_by(name, weights, test) for name, weights in seats.values()]
            served = stacked_by_hand(found.models[cluster], said, 5)
            with torch.no_grad():
                told = result.model_for(client)(torch.from_numpy(test)).softmax(1).numpy()
            np.testing.assert_allclose(told, served, atol=1e-4)
            predicted = fedclade.predict(result.path, client, test).drop(columns="prediction").to_numpy()
            np.testing.assert_allclose(predicted, served, atol=1e-4)
            right = (served.argmax(1) == federation.y[federation[client].test]).mean()
            assert right == pytest.approx(result.last("accuracy")[client], abs=0.051)  # a row on the border at most


def test_before_it_has_learned_a_stacked_model_is_the_mean_vote(mixed: fedclade.Result) -> None:
    federation, found = windows(), mixed.state_of_clusters
    right, rows = 0, 0
    for cluster, members in found.members.items():
        for client in members:
            test = federation[client].test
            seats = found.state.seated[cluster].values()
            said = [said_by(name, weights, federation.x[test]) for name, weights in seats]
            right += int((np.mean(said, axis=0).argmax(1) == federation.y[test]).sum())
            rows += len(test)
    seen = mixed.records[2, "stacking"]["all"]
    assert set(seen) == {"own", "vote", "cluster"}
    assert seen["vote"]["accuracy"] == pytest.approx(right / rows, abs=1.5 / rows)


def specialists(seed: int) -> Federation:
    """Three clients who have only seen two of six classes each, and are tested on all of them."""
    random = np.random.default_rng(seed)
    centres = random.normal(size=(6, 8)) * 2
    x, y, clients, place = [], [], [], 0
    for number in range(3):
        kinds = np.concatenate([random.integers(2 * number, 2 * number + 2, 80), random.integers(0, 6, 60)])
        x.append(centres[kinds] + random.normal(size=(140, 8)) * 0.5)
        y.append(kinds)
        held = np.arange(place, place + 140, dtype=np.int32)
        clients.append(Client(f"c{number}", held[:80], held[80:], None))
        place += 140
    rows = np.concatenate(x).astype(np.float32)
    return Federation(rows, np.concatenate(y).astype(np.int64), tuple(clients), tuple("abcdef"), "made", "made")


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_networks_that_know_different_things_are_combined(seed: int) -> None:
    """Each knows two classes, so that no model behind a single one of them can tell all six apart."""
    shared = {"n_clusters": 1, "stack_epochs": 20, "seed": seed}
    aligned, pooled = (run(specialists(seed), 4, layout=layout, **shared) for layout in ("aligned", "pooled"))
    assert aligned.accuracy["mean"] > 0.8
    assert pooled.accuracy["mean"] < 0.6
    assert aligned.accuracy["mean"] > pooled.accuracy["mean"] + 0.25
    assert aligned.accuracy["mean"] > aligned.records[4, "stacking"]["all"]["vote"]["accuracy"]


# --- the same everywhere ----------------------------------------------------------------------------------------------


def test_results_do_not_depend_on_the_number_of_workers(mixed: fedclade.Result) -> None:
    other = run(windows(), 2, None, n_clusters=2, seats=4, workers=2)
    assert other.history.equals(mixed.history)
    assert other.ledger.equals(mixed.ledger)
    for client in windows().names:
        np.testing.assert_array_equal(other.weights_for(client), mixed.weights_for(client))


@pytest.mark.parametrize("refresh", [False, True])
def test_a_resumed_run_equals_an_unbroken_one(refresh: bool, tmp_path: Path) -> None:
    shared = {"n_clusters": 2, "seats": 4, "refresh": refresh, "spare": 0.2}
    whole = run(windows(), 3, None, **shared, out=tmp_path / "whole")
    run(windows(), 1, None, **shared, out=tmp_path / "parts")
    resumed = fedclade.resume(tmp_path / "parts", rounds=3, data=windows())
    assert resumed.history.equals(whole.history)
    assert resumed.ledger.equals(whole.ledger)
    assert contents(resumed.path) == contents(whole.path)
    for client in windows().names:
        np.testing.assert_array_equal(resumed.weights_for(client), whole.weights_for(client))


def test_networks_side_by_side_travel_with_a_task(tmp_path: Path) -> None:
    federation = planted(n_clients=2)
    networks = Networks.stacked("ann", ["ann", "mlp"], federation.names, federation.input_shape, 4, seats=3)
    engine = local_engine(federation, networks, seed=0, training=TRAINING, memory=tmp_path)
    came = engine.answer({name: Train() for name in federation.names}, 0)
    one, two = ((kind, came[name].weights) for kind, name in (("ann", "c0"), ("mlp", "c1")))  # type: ignore[union-attr]
    tasks = [Evaluate(engine.initial, through=(one, two, None)), Predict(through=(one, two), output="below")]
    for task in tasks:
        there = unpack(Packet.from_bytes(pack(task, engine.layout).to_bytes()))
        here, after = (engine.answer({"c0": each}, 0)["c0"] for each in (task, there))
        assert not isinstance(here, Failure)
        assert all(np.array_equal(value, getattr(after, name)) for name, value in vars(here).items())
    values = engine.answer({"c0": tasks[1]}, 0)["c0"].values  # type: ignore[union-attr]
    own = engine.answer({"c0": Predict(start=LOCAL)}, 0)["c0"].values  # type: ignore[union-attr]
    np.testing.assert_array_equal(values[:, :4], own)  # the first seat is its own network
    bad = {
        "there is no network 'cnn1d'": Evaluate(engine.initial, through=(("cnn1d", one[1]), None, None)),
        "do not fit a model": Evaluate(engine.initial, through=(("mlp", one[1]), None, None)),
        "nothing below": Predict(output="below"),  # or a client's rows would leave it
    }
    for words, task in bad.items():
        wrong = engine.answer({"c0": task}, 0)["c0"]
        assert isinstance(wrong, Failure)
        assert words in wrong.detail
    engine.close()


# --- traffic ----------------------------------------------------------------------------------------------------------


def test_networks_go_up_once_and_those_of_the_cluster_come_down() -> None:
    federation = planted()
    result = run(federation, 2, n_clusters=2)
    ledger = result.ledger[~result.ledger["phase"].isin(["measure", "server"])]
    assert set(ledger["round"]) == {0}
    for name in federation.names:
        mine = ledger[ledger["client"] == name].set_index(["phase", "direction"])["bytes"]
        rows, members = len(federation[name].train), len(result.clusters[result.cluster_of(name)])
        assert travelled([mine["train", "up"]]) == SIZES["ann"]
        assert travelled([mine["stack", "down"]]) == members * SIZES["ann"]
        assert travelled([mine["stack", "up"]]) == rows * (4 * members + 0.5)
    for way, size in result.summary["bytes"].items():
        assert size == ledger[ledger["direction"] == way]["bytes"].sum()


def test_of_a_large_cluster_those_with_the_most_rows_have_a_seat() -> None:
    federation = planted(n_groups=1)  # the later a client, the more rows it has
    result = run(federation, n_clusters=1, seats=2, spare=0.25)
    found = result.state_of_clusters
    assert list(found.state.seated[0]) == ["c4", "c5"]
    assert {c: sent.values.shape for c, sent in found.state.stack.items()} == {
        c.name: (round(0.25 * len(c.train)), 8) for c in federation.clients
    }
    assert len(found.models[0]) == 64 * 8 + 64 + 64 * 4 + 4
    assert np.array_equal(result.weights_for("c0"), result.weights_for("c5"))


def result_of_training(values: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The initial stacked model after round 0 of its training on these rows."""
    federation = planted(rows=40)
    networks = FedStack(layout="aligned", signature="predictions", probe_file="p").networks(
        ["ann", "mlp"], federation.names, federation.input_shape, 4
    )
    with tempfile.TemporaryDirectory() as memory:
        engine = local_engine(federation, networks, seed=0, training=TRAINING, memory=Path(memory))
        training = STACK_TRAINING.model_copy(update={"local_epochs": 5, "learning_rate": 0.1})
        answer = engine.at_server([Train(engine.initial, rows=values, labels=labels, training=training, save="")], 0)[0]
        engine.close()
    return answer.weights  # type: ignore[union-attr]


def test_public_rows_are_predicted_by_all_and_no_label_leaves(tmp_path: Path) -> None:
    federation = planted(rows=40)
    x, y = federation.x[federation["c0"].test], federation.y[federation["c0"].test]
    np.savez(tmp_path / "public.npz", x=x, y=y)
    public = {"probe_file": str(tmp_path / "public.npz"), "signature": "predictions"}
    result = run(federation, 0, "ann,mlp", n_clusters=2, **public)
    found = result.state_of_clusters
    assert not found.state.stack
    for cluster, seats in found.state.seated.items():  # trained again by hand: what the server learned from
        said = np.hstack([said_by(name, weights, x) for name, weights in seats.values()]).astype(np.float32)
        values = np.pad(said, ((0, 0), (0, 32 * 4 - said.shape[1])))
        model = result_of_training(values, y)
        np.testing.assert_allclose(found.models[cluster], model, atol=1e-4)
    ledger = result.ledger[result.ledger["phase"] == "stack"].query("direction == 'down'")
    ledger = ledger.groupby("client")["bytes"].max()
    for client, seats in ((c, found.state.seated[found.cluster_of[c]]) for c in federation.names):
        numbers = sum(len(weights) for _, weights in seats.values()) + len(found.models[0])
        assert travelled([ledger[client]]) == numbers  # whoever is served by networks was sent them


def test_with_refresh_networks_are_exchanged_every_round() -> None:
    federation = planted(n_clients=4)
    result = run(federation, 2, refresh=True, n_clusters=2)
    ledger = result.ledger[result.ledger["phase"] == "stack"].query("direction == 'down'")
    for _, round in ledger.groupby("round"):
        assert travelled(round["bytes"]) == 4 * 2 * SIZES["ann"]
    assert ledger["round"].nunique() == 3
    for seats in result.state_of_clusters.state.seated.values():
        for client, (_, weights) in seats.items():
            own = result.local_model_of(client)
            flat = np.concatenate([p.detach().numpy().ravel() for p in own.parameters()])
            np.testing.assert_array_equal(flat, weights)


# --- newcomers and failures -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("brings", [None, "cnn1d"])
def test_newcomers_are_served_by_the_networks_of_their_cluster(brings: str | None, tmp_path: Path) -> None:
    everyone = windows(n_clients=8, rows=40)
    early, late = (replace(everyone, clients=part) for part in (everyone.clients[:6], everyone.clients[6:]))
    result = run(early, 2, n_clusters=2, out=tmp_path / "run")
    if brings is None:  # a last layer of another architecture points elsewhere
        placed = fedclade.place(result.path, late)
        assert [placed[name].cluster for name in late.names] == [result.cluster_of("c0"), result.cluster_of("c1")]
    else:
        placed = fedclade.place(result.path, late, model=brings)
    for name in late.names:
        test, mate = late[name].test, result.clusters[placed[name].cluster][0]
        np.testing.assert_array_equal(placed[name].weights, result.weights_for(mate))
        right = placed[name].model(torch.from_numpy(late.x[test])).argmax(1).numpy() == late.y[test]
        assert right.mean() == pytest.approx(placed[name].score)


def test_who_comes_later_brings_rows_but_has_no_seat() -> None:
    events = [{"round": 1, "join": 2}, {"round": 2, "leave": 1, "drift": ("c1", "c2")}]
    result = run(planted(n_clients=8, rows=40), 3, n_clusters=2, events=events)
    assert sorted(map(sorted, result.clusters.values())) == [["c1", "c4", "c6"], ["c2", "c3", "c5", "c7"]]
    found = result.state_of_clusters
    assert sorted(c for seats in found.state.seated.values() for c in seats) == [f"c{k}" for k in range(6)]
    assert found.state.stack["c6"].values.shape == (40 + 7 * 6, 3 * 4)
    home = found.cluster_of["c6"]
    assert sum(len(w) for _, w in found.state.seated[home].values()) + len(found.models[home]) == len(
        result.weights_for("c6")
    )


def test_with_public_rows_and_refresh_clients_come_go_and_change(tmp_path: Path) -> None:
    federation = planted(n_clients=8, rows=40)
    np.savez(tmp_path / "public.npz", x=federation.x[:30], y=federation.y[:30])
    events = [{"round": 1, "join": 2}, {"round": 2, "leave": 1, "drift": ("c1", "c2")}]
    public = {"probe_file": str(tmp_path / "public.npz"), "refresh": True}
    result = run(federation, 3, n_clusters=2, events=events, **public)
    assert sorted(map(sorted, result.clusters.values())) == [["c1", "c4", "c6"], ["c2", "c3", "c5", "c7"]]
    assert (result.history["failure"] == "").all()
    down = result.ledger.query("phase == 'stack' and direction == 'down' and client == 'c6'")
    assert len(down) == 4  # when it came, and in each round


def test_a_client_that_fails_has_no_seat_and_the_others_go_on() -> None:
    federation = planted()
    federation.x[federation["c3"].train] *= np.float32(1e30)  # its training explodes
    result = run(federation, n_clusters=2)
    assert set(result.history[result.history["failure"] != ""]["client"]) == {"c3"}
    found = result.state_of_clusters
    assert found.unassigned == ("c3",)
    assert "c3" not in found.state.stack
    assert "c3" not in {client for seats in found.state.seated.values() for client in seats}
    assert Layout.of(result.model_for("c3")).size == len(result.weights_for("c3"))  # while it waits, it is served


def test_who_founds_a_cluster_is_served_by_its_own_network(mixed: fedclade.Result) -> None:
    alone = mixed.state_of_clusters.joined("new", None, mixed.state_of_clusters.models[0])
    assert mixed.served("c0").through
    assert FedStack(layout="aligned", seats=4).served(alone, "new") == Evaluate(start=LOCAL)


def test_models_are_exported_with_their_networks(mixed: fedclade.Result, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    rows = torch.from_numpy(windows().x[windows()["c0"].test])
    fedclade.export(mixed.path, "torchscript", tmp_path / "script")
    fedclade.export(mixed.path, "safetensors", tmp_path / "plain")
    for cluster, members in mixed.clusters.items():
        module = mixed.model_for(members[0])
        with torch.no_grad():
            told = torch.jit.load(str(tmp_path / "script" / f"cluster-{cluster}.pt"))(rows)  # type: ignore[no-untyped-call]
            np.testing.assert_allclose(told, module(rows).softmax(1), atol=1e-5)
        tensors = load_file(tmp_path / "plain" / f"cluster-{cluster}.safetensors")
        assert set(tensors) == set(module.state_dict())
    pooled = run(windows(), 0, None, n_clusters=2, layout="pooled", out=tmp_path / "pooled")
    refused(lambda: fedclade.export(pooled.path, "torchscript", tmp_path / "no"), "networks of their own")
