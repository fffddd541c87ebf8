"""FedRC: against numpy, step by step; what always holds; and that it parts clients by what they mean by labels."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from plain import PlainClients
from torch import nn

import fedclade
from fedclade.clients.memory import Memory
from fedclade.clients.tasks import LOCAL, Training
from fedclade.data.federation import Client, Federation
from fedclade.engines.engine import TransportEngine
from fedclade.engines.local import local_engine
from fedclade.methods.fedrc import FedRC
from fedclade.models.weights import Layout
from harness import Session, Travelled

TRAINING = Training(local_epochs=2, batch_size=8, learning_rate=0.1)
MLP = 8 * 128 + 128 + 128 * 64 + 64 + 64 * 32 + 32 + 32 * 4 + 4  # numbers of a component
KINDS = 4


def disagreeing(seed: int = 0, n_clients: int = 12, rows: int = 60, agree: bool = False) -> Federation:
    """Two groups disagree on what to call a kind of rows, and every client lacks some kind; it is tested on all.

    Or they agree, but one has half of the kinds and the other one the other half.
    """
    random = np.random.default_rng(seed)
    centres = random.normal(size=(KINDS, 8)).astype(np.float32) * 2
    x, y, clients = [], [], []
    for number in range(n_clients):
        group = number % 2
        held = np.arange(2) + 2 * group if agree else random.choice(KINDS, KINDS - 1, replace=False)
        kinds = np.concatenate([random.choice(held, rows), random.integers(0, KINDS, 40)])
        x.append(centres[kinds] + random.normal(size=(len(kinds), 8)).astype(np.float32) * 0.5)
        y.append(kinds if agree else (kinds + group * KINDS // 2) % KINDS)
        places = number * len(kinds) + np.arange(len(kinds), dtype=np.int32)
        clients.append(Client(f"c{number}", places[:rows], places[rows:], group))
    labels = np.concatenate(y).astype(np.int64)
    return Federation(np.concatenate(x), labels, tuple(clients), tuple("abcd"), "made", "made").checked()


def engine_for(method: FedRC, federation: Federation, folder: Path, training: Training) -> TransportEngine:
    networks = method.networks(["mlp"], federation.names, federation.input_shape, federation.n_classes)
    return local_engine(federation, networks, seed=0, training=training, memory=folder)


# --- The paper, once more in numpy ------------------------------------------------------------------------------------


class Dense:
    """An MLP with its gradients by hand."""

    def __init__(self, tensors: list[np.ndarray]) -> None:
        self.weights, self.biases = ([np.array(t, np.float64) for t in tensors[k::2]] for k in (0, 1))

    def forward(self, x: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        """Probabilities, and what entered each layer."""
        entered = [x.astype(np.float64)]
        for place, (w, b) in enumerate(zip(self.weights, self.biases, strict=True)):
            out = entered[-1] @ w.T + b
            entered.append(np.maximum(out, 0) if place + 1 < len(self.weights) else out)
        raised = np.exp(entered[-1] - entered[-1].max(axis=1, keepdims=True))
        return raised / raised.sum(axis=1, keepdims=True), entered

    def step(self, x: np.ndarray, y: np.ndarray, counts: np.ndarray, rate: float) -> None:
        """Down the sum over rows of count times loss, by the number of rows."""
        likely, entered = self.forward(x)
        slope = (likely - np.eye(likely.shape[1])[y]) * counts[:, None] / len(y)
        for place in reversed(range(len(self.weights))):
            of_weight, of_bias = slope.T @ entered[place], slope.sum(axis=0)
            slope = (slope @ self.weights[place]) * (entered[place] > 0)
            self.weights[place] -= rate * of_weight
            self.biases[place] -= rate * of_bias

    @property
    def flat(self) -> np.ndarray:
        pairs = zip(self.weights, self.biases, strict=True)
        return np.concatenate([part.ravel() for pair in pairs for part in pair])


def by_hand(
    clients: PlainClients, layout: Layout, initial: np.ndarray, rounds: int, with_shares: bool
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Components, shares C of labels and mixing weights after some rounds."""
    tensors = layout.tensors(initial)
    components = [[v for name, v in tensors.items() if name.startswith(f"components.{k}.")] for k in (0, 1)]
    names, rate = clients.federation.names, clients.training.learning_rate
    omega, sizes = {client: np.full(2, 0.5) for client in names}, {}
    shares = np.full((2, KINDS), 1 / KINDS)
    for round in range(1, rounds + 1):
        sent: dict[str, list[np.ndarray]] = {}
        sums = np.zeros((2, KINDS))
        for client in names:
            x, y = (part.numpy() for part in clients.rows(client))
            models, sizes[client] = [Dense(tensors) for tensors in components], len(y)
            likely = np.stack([model.forward(x)[0][np.arange(len(y)), y] for model in models])
            joint = omega[client][:, None] * likely / (shares[:, y] if with_shares else 1)
            gamma = joint / joint.sum(axis=0)
            omega[client] = gamma.mean(axis=1)
            for component, label in np.ndindex(2, KINDS):
                sums[component, label] += gamma[component, y == label].sum()
            answers = {row.tobytes(): one for row, one in zip(x, gamma.T, strict=True)}
            for some, labels in clients.batches(client, round):
                counts = np.stack([answers[row.tobytes()] for row in some.numpy()])
                for model, count in zip(models, counts.T, strict=True):
                    model.step(some.numpy(), labels.numpy(), count, rate)
            sent[client] = [model.flat for model in models]
        shares = sums / sums.sum(axis=1, keepdims=True)
        means = [clients.mean({client: of[k] for client, of in sent.items()}) for k in (0, 1)]
        components = [split(mean, tensors) for mean, tensors in zip(means, components, strict=True)]
    return np.stack([np.concatenate([part.ravel() for part in of]) for of in components]), shares, omega


def split(flat: np.ndarray, like: list[np.ndarray]) -> list[np.ndarray]:
    ends = np.cumsum([part.size for part in like])[:-1]
    return [part.reshape(of.shape) for part, of in zip(np.split(flat, ends), like, strict=True)]


def test_it_is_that_of_the_paper_and_label_shares_matter(tmp_path: Path) -> None:
    training, rounds = TRAINING.model_copy(update={"momentum": 0.0}), 3
    method, federation = FedRC(n_components=2), disagreeing(n_clients=4, rows=30)
    engine = engine_for(method, federation, tmp_path, training)
    clusters = Session(method, engine, training).go(rounds)
    engine.close()
    found, memory = next(iter(clusters.models.values())), Memory(tmp_path)
    clients = PlainClients(federation, training)
    components, shares, omega = by_hand(clients, engine.layout, engine.initial, rounds, with_shares=True)
    np.testing.assert_allclose(found[: 2 * MLP].reshape(2, MLP), components, atol=2e-5)
    told = engine.layout.tensors(found)["labels.weight"]
    np.testing.assert_allclose(told / told.sum(axis=1, keepdims=True), shares, atol=1e-5)
    for client, of_client in omega.items():
        kept = memory.read(client, LOCAL)
        assert kept is not None
        np.testing.assert_allclose(np.exp(kept[-2:]), of_client, atol=1e-5)
    memory.close()

    without, _, others = by_hand(clients, engine.layout, engine.initial, rounds, with_shares=False)
    assert np.abs(without - components).max() > 1e-3
    assert max(np.abs(others[client] - omega[client]).max() for client in omega) > 0.01


# --- What always holds ------------------------------------------------------------------------------------------------


def test_one_component_is_fedavg() -> None:
    settings: dict[str, Any] = dict(model="mlp", training=TRAINING, rounds=3, workers=1, evaluate_every=0)
    federation = disagreeing(n_clients=5)
    one, plain = (
        fedclade.run(federation, method=method, **settings).weights_for("c0")
        for method in ({"name": "fedrc", "n_components": 1}, "fedavg")
    )
    np.testing.assert_allclose(one[:MLP], plain, atol=1e-5)
    assert one[-1] == pytest.approx(0, abs=1e-6)  # the logarithm of all


def test_shares_are_shares_and_all_rows_are_answered_for(tmp_path: Path) -> None:
    """Half of the clients take part: those who do not count as they told last."""
    method, federation = FedRC(), disagreeing(n_clients=6)
    engine = engine_for(method, federation, tmp_path, TRAINING)
    session = Session(method, engine, TRAINING, participation=0.5)
    clusters = session.go(4)
    memory, rows = Memory(tmp_path), clusters.state.rows
    for client, of_client in rows.items():
        labels = federation.y[federation[client].train]
        np.testing.assert_allclose(of_client.sum(axis=0), np.bincount(labels, minlength=KINDS), atol=1e-3)
        kept = memory.read(client, LOCAL)
        assert kept is not None
        np.testing.assert_allclose(len(labels) * np.exp(kept[-3:]), of_client.sum(axis=1), atol=1e-3)
        assert clusters.cluster_of[client] == of_client.sum(axis=1).argmax()
    memory.close()
    for model in clusters.models.values():
        told = engine.layout.tensors(model)["labels.weight"]
        np.testing.assert_allclose(told, sum(rows.values()) / sum(map(np.sum, rows.values())), atol=1e-6)
        assert np.array_equal(model[:-3], next(iter(clusters.models.values()))[:-3])
    engine.close()


def test_it_sends_components_and_label_shares_once_a_round() -> None:
    method = {"name": "fedrc", "n_components": 2}
    result = fedclade.run(disagreeing(), method=method, model="mlp", rounds=2, workers=1, participation=0.5)
    for sent in result.summary["bytes"].values():
        # The names of many layers make headers longer than usual.
        assert Travelled(sent, 2 * 2 * 6) == 2 * 6 * (2 * MLP + 2 * KINDS)


def test_what_a_liar_tells_of_labels_spoils_no_share(tmp_path: Path) -> None:
    method, federation = FedRC(n_components=2), disagreeing(n_clients=4)
    engine = engine_for(method, federation, tmp_path, TRAINING)
    answer = engine.answer

    def lying(tasks: Any, round: int) -> Any:
        answers = dict(answer(tasks, round))
        answers["c3"].weights[-2 * KINDS :] = [-1e6, 0, 1e6, 1, -5, 0, 0, 0]
        return answers

    engine.answer = lying  # type: ignore[method-assign]
    clusters = Session(method, engine, TRAINING).go(3)
    engine.close()
    assert all(np.isfinite(model).all() for model in clusters.models.values())
    assert clusters.state.rows["c3"].sum() == pytest.approx(len(federation["c3"].train))


def test_stopped_and_resumed_is_the_same(tmp_path: Path) -> None:
    events = [{"round": 2, "join": ["c5"]}, {"round": 4, "leave": ["c1"]}]
    settings: dict[str, Any] = dict(method="fedrc", model="mlp", training=TRAINING, participation=0.5, workers=1)
    federation = disagreeing(n_clients=6)
    whole = fedclade.run(federation, rounds=5, events=events, **settings)
    fedclade.run(federation, rounds=3, events=events, out=tmp_path / "run", **settings)
    resumed = fedclade.resume(tmp_path / "run", rounds=5, data=federation)
    assert resumed.clusters == whole.clusters
    here = [client for client in federation.names if client != "c1"]
    assert all(np.array_equal(resumed.weights_for(c), whole.weights_for(c)) for c in here)


def test_workers_give_the_same_bits() -> None:
    settings: dict[str, Any] = dict(method="fedrc", model="mlp", training=TRAINING, rounds=2)
    federation = disagreeing(n_clients=4)
    one, two = (fedclade.run(federation, **settings, workers=workers) for workers in (1, 2))
    assert all(np.array_equal(one.weights_for(c), two.weights_for(c)) for c in federation.names)


def narrow(input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    layers = nn.Linear(*input_shape, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, n_classes)
    return nn.Sequential(*layers)


@pytest.mark.parametrize("more", [{"serving": "fine-tune"}, {"serving": "pick"}, {"server": "adam"}])
def test_with_a_network_of_ones_own_class_weights_and_other_ways_to_serve(more: dict[str, str]) -> None:
    federation = disagreeing(n_clients=4)
    task = {"name": "classification", "class_weights": "balanced"}
    how = TRAINING.model_copy(update={"optimizer": "adamw", "learning_rate": 0.01, "weight_decay": 0.01})
    settings: dict[str, Any] = dict(model=narrow, task=task, training=how, rounds=3, workers=1)
    result = fedclade.run(federation, method="fedrc", **settings, **more)
    assert (result.history["failure"] == "").all()
    rows = torch.from_numpy(federation.x[federation["c0"].test])
    likely = result.model_for("c0")(rows).exp()
    np.testing.assert_allclose(likely.sum(1).detach(), 1, atol=1e-5)


# --- What it is for ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_it_parts_clients_that_disagree_about_labels(seed: int) -> None:
    settings: dict[str, Any] = dict(model="mlp", training=TRAINING, workers=1, evaluate_every=0, seed=seed)
    settings |= {"data": disagreeing(seed), "rounds": 12}
    result = fedclade.run(**settings, method={"name": "fedrc", "n_components": 2})
    one = fedclade.run(**settings, method="fedavg")
    assert one.accuracy["mean"] < 0.65
    assert result.accuracy["mean"] > 0.85
    assert result.summary["clusters"]["ari"] == 1.0


@pytest.mark.parametrize("seed", range(4))
def test_it_does_not_part_clients_that_hold_other_labels_but_agree(seed: int) -> None:
    """Without label shares each half of the labels gets a component, which does not know the others."""
    settings: dict[str, Any] = dict(model="mlp", rounds=20, workers=1, evaluate_every=0, seed=seed)
    settings["training"] = TRAINING.model_copy(update={"local_epochs": 1, "batch_size": 16})
    federation = disagreeing(seed, n_clients=8, agree=True)
    result = fedclade.run(federation, method={"name": "fedrc", "n_components": 2}, **settings)
    assert result.accuracy["mean"] > 0.85
    assert result.summary["clusters"]["ari"] == 0.0


def test_newcomers_join_those_who_mean_the_same(tmp_path: Path) -> None:
    method, federation = FedRC(n_components=2), disagreeing()
    engine = engine_for(method, federation, tmp_path, TRAINING)
    session = Session(method, engine, TRAINING)
    clusters = session.go(12, without=["c10", "c11"])
    joined = session.admit(clusters, ["c10", "c11"], 13).cluster_of
    engine.close()
    assert joined["c10"] == joined["c0"] != joined["c11"] == joined["c1"]
