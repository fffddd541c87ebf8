"""Methods that give each client something of its own: against plain torch, and what they send and resume."""

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
from fedclade.methods import METHODS
from fedclade.methods.apfl import APFL
from fedclade.methods.pfedme import PFedMe
from fedclade.methods.shared_layers import FedBABU, FedRep
from fedclade.models import make
from fedclade.models.mixture import MixtureNetwork
from fedclade.models.weights import Layout
from harness import Session, Travelled, local
from synthetic import planted

TRAINING = Training(local_epochs=3, batch_size=8, learning_rate=0.1)
GENTLE = Training(local_epochs=2, batch_size=8, learning_rate=0.05, momentum=0.5)
SIZES = {"fc1": 8 * 128 + 128, "fc2": 128 * 64 + 64, "fc3": 64 * 32 + 32, "fc4": 32 * 4 + 4}
PERSONAL: dict[str, dict[str, Any]] = {
    "fedrep": {},
    "fedbabu": {},
    "apfl": {"adaptive": True},
    "pfedme": {},
    "fedem": {"n_components": 2},
}


@pytest.mark.parametrize("name", PERSONAL)
def test_it_serves_groups_that_one_model_cannot(name: str) -> None:
    federation = planted(n_clients=8, rows=80)
    method = {"name": name, **PERSONAL[name]}
    settings: dict[str, Any] = dict(model="mlp", training=TRAINING, rounds=10, workers=1, evaluate_every=0)
    result = fedclade.run(federation, method=method, **settings)
    one = fedclade.run(federation, method="fedavg", **settings)
    assert one.accuracy["mean"] < 0.7
    assert result.accuracy["mean"] > 0.85
    assert result.accuracy["worst"] > 0.7


@pytest.mark.parametrize("name", PERSONAL)
def test_stopped_and_resumed_is_the_same(name: str, tmp_path: Path) -> None:
    method = {"name": name, **PERSONAL[name]}
    events = [{"round": 2, "join": ["c5"]}, {"round": 4, "leave": ["c1"]}]
    settings: dict[str, Any] = dict(method=method, model="mlp", training=TRAINING, serving="model", participation=0.5)
    settings |= {"events": events, "workers": 1}
    whole = fedclade.run(planted(), rounds=5, **settings)
    fedclade.run(planted(), rounds=3, out=tmp_path / "run", **settings)
    resumed = fedclade.resume(tmp_path / "run", rounds=5, data=planted())
    here = [client for client in planted().names if client != "c1"]
    assert all(np.array_equal(resumed.weights_for(c), whole.weights_for(c)) for c in here)


@pytest.mark.parametrize("name", ["apfl", "fedem"])
def test_workers_give_the_same_bits(name: str) -> None:
    settings: dict[str, Any] = dict(method={"name": name, **PERSONAL[name]}, model="mlp", training=TRAINING, rounds=2)
    one, two = (fedclade.run(planted(), **settings, workers=workers) for workers in (1, 2))
    assert all(np.array_equal(one.weights_for(c), two.weights_for(c)) for c in planted().names)


@pytest.mark.parametrize("name", PERSONAL)
def test_half_of_the_clients_a_round_and_one_that_never_answers(name: str, tmp_path: Path) -> None:
    engine = local(planted(n_clients=8, rows=40), tmp_path, TRAINING)
    answer = engine.answer
    engine.answer = lambda tasks, round: {  # type: ignore[method-assign]
        client: reply for client, reply in answer(tasks, round).items() if client != "c3"
    }
    session = Session(METHODS[name](**PERSONAL[name]), engine, TRAINING, participation=0.5)
    clusters = session.go(3)  # it checks that they are a partition
    assert all(np.isfinite(model).all() for model in clusters.models.values())
    assert not np.array_equal(clusters.models[0], engine.initial)
    engine.close()


# --- FedRep and FedBABU -----------------------------------------------------------------------------------------------


def a_round(method: Any, folder: Path, training: Training) -> tuple[PlainClients, np.ndarray, np.ndarray, Memory]:
    """The clients, the model before and after a round, and what the clients remember then."""
    federation = planted(n_clients=3)
    engine = local(federation, folder, training)
    model = Session(method, engine, training).go(1).models[0]
    engine.close()
    return PlainClients(federation, training), engine.initial, model, Memory(folder)


def test_fedrep_trains_the_head_first_and_then_the_body(tmp_path: Path) -> None:
    clients, initial, model, memory = a_round(FedRep(head_epochs=4), tmp_path, GENTLE)
    made = {}
    for client in clients.federation.names:
        head = clients.sgd(initial, clients.batches(client, 1, local_epochs=4), lambda name: name.startswith("fc4"))
        made[client] = clients.sgd(head, clients.batches(client, 1), lambda name: not name.startswith("fc4"))
        np.testing.assert_allclose(memory.read(client, LOCAL), made[client], atol=1e-5)
    body = slice(0, len(initial) - SIZES["fc4"])
    np.testing.assert_allclose(model[body], clients.mean(made)[body], atol=1e-5)
    memory.close()


def test_fedbabu_never_trains_the_head(tmp_path: Path) -> None:
    clients, initial, model, memory = a_round(FedBABU(), tmp_path, GENTLE)
    made = {
        c: clients.sgd(initial, clients.batches(c, 1), lambda name: not name.startswith("fc4"))
        for c in clients.federation.names
    }
    np.testing.assert_allclose(model, clients.mean(made), atol=1e-5)
    head = Layout.of(make("mlp", (8,), 4)).select("head")
    assert np.array_equal(model[head], initial[head])
    memory.close()


@pytest.mark.parametrize("name", ["fedrep", "fedbabu"])
def test_only_the_body_travels(name: str) -> None:
    result = fedclade.run(planted(), method=name, model="mlp", rounds=2, workers=1, serving="model")
    messages = 2 * 6 * (2 if name == "fedrep" else 1)
    for sent in result.summary["bytes"].values():
        assert Travelled(sent, messages) == 2 * 6 * (sum(SIZES.values()) - SIZES["fc4"])


# --- APFL and pFedMe --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adaptive", [False, True])
def test_apfl_is_that_of_the_paper(adaptive: bool, tmp_path: Path) -> None:
    """Two rounds of w -= eta g(w), v -= eta share g(mixed), share -= eta <v - w, g(mixed)>, step by step."""
    training = GENTLE.model_copy(update={"momentum": 0.0})
    federation, eta = planted(n_clients=3), training.learning_rate
    engine = local(federation, tmp_path, training)
    clusters = Session(APFL(share=0.3, adaptive=adaptive), engine, training).go(2)
    engine.close()
    clients, memory = PlainClients(federation, training), Memory(tmp_path)
    shared, own, share = (
        engine.initial,
        dict.fromkeys(federation.names, engine.initial),
        dict.fromkeys(federation.names, 0.3),
    )
    for round in (1, 2):
        sent = {}
        for client in federation.names:
            w, v, a = shared.astype(float), own[client].astype(float), share[client]
            for x, y in clients.batches(client, round):
                slope = clients.gradient(a * v + (1 - a) * w, x, y)
                step = clients.gradient(w, x, y)
                climb = float((v - w) @ slope)
                w, v = w - eta * step, v - eta * a * slope
                a = min(max(a - eta * climb, 0.0), 1.0) if adaptive else a
            sent[client], own[client], share[client] = w, v, a
            served = a * v + (1 - a) * w
        shared = clients.mean(sent)
    np.testing.assert_allclose(clusters.models[0], shared, atol=1e-4)
    np.testing.assert_allclose(memory.read(client, "personal"), served, atol=1e-4)
    kept = memory.read(client, "share")
    assert (kept is None) if not adaptive else abs(kept[0] - share[client]) < 1e-4
    assert share[client] != 0.3 if adaptive else True
    memory.close()


def test_pfedme_is_that_of_the_paper(tmp_path: Path) -> None:
    federation, strength, rate, personal_rate, steps, beta = planted(n_clients=3), 10.0, 0.02, 0.05, 3, 1.5
    method = PFedMe(strength=strength, rate=rate, personal_rate=personal_rate, steps=steps, beta=beta)
    engine = local(federation, tmp_path, GENTLE)
    clusters = Session(method, engine, GENTLE).go(2)
    engine.close()
    clients, memory, shared = PlainClients(federation, GENTLE), Memory(tmp_path), engine.initial.astype(float)
    for round in (1, 2):
        sent, own = {}, {}
        for client in federation.names:
            w, theta = shared, shared
            for x, y in clients.batches(client, round):
                for _ in range(steps):
                    theta = theta - personal_rate * (clients.gradient(theta, x, y) + strength * (theta - w))
                w = w - rate * strength * (w - theta)
            sent[client], own[client] = w, theta
        shared = (1 - beta) * shared + beta * clients.mean(sent)
    np.testing.assert_allclose(clusters.models[0], shared, atol=1e-4)
    for client, theta in own.items():
        np.testing.assert_allclose(memory.read(client, "personal"), theta, atol=1e-4)
    memory.close()


@pytest.mark.parametrize("name", ["apfl", "pfedme"])
def test_a_model_of_ones_own_is_not_sent(name: str) -> None:
    result = fedclade.run(planted(), method=name, model="mlp", rounds=2, workers=1)
    for sent in result.summary["bytes"].values():
        assert Travelled(sent, 2 * 6) == 2 * 6 * sum(SIZES.values())


# --- FedEM ------------------------------------------------------------------------------------------------------------


def test_the_mixture_and_its_gradients_are_those_of_the_paper() -> None:
    """Outputs mix probabilities; components learn by responsibilities, mixing weights go to their mean."""
    torch.manual_seed(3)
    network = MixtureNetwork("mlp", 3, (8,), 4)
    with torch.no_grad():
        network.mixing.weight.copy_(torch.tensor([0.3, -0.2, 0.1]))
    x, y = torch.randn(20, 8), torch.randint(0, 4, (20,))
    nn.functional.cross_entropy(network(x), y).backward()

    raw = network.mixing.weight.detach().numpy()
    shares = np.exp(raw) / np.exp(raw).sum()
    outputs = [component(x) for component in network.components]
    likely = np.stack([out.softmax(1).detach().numpy() for out in outputs])  # (components, rows, classes)
    np.testing.assert_allclose(network(x).exp().detach(), np.tensordot(shares, likely, 1), atol=1e-5)
    joint = shares[:, None] * likely[:, np.arange(20), y.numpy()]
    responsible = joint / joint.sum(axis=0)  # the E-step
    np.testing.assert_allclose(network.mixing.weight.grad, shares - responsible.mean(axis=1), atol=1e-5)
    for place, component in enumerate(network.components):
        losses = nn.functional.cross_entropy(component(x), y, reduction="none")
        weighted = (torch.from_numpy(responsible[place]).float() * losses).mean()  # the M-step
        expected = torch.autograd.grad(weighted, list(component.parameters()))
        for parameter, gradient in zip(component.parameters(), expected, strict=True):
            np.testing.assert_allclose(parameter.grad, gradient, atol=1e-5)


def test_fedem_shares_the_components_and_keeps_the_mixing_weights() -> None:
    federation = planted(n_clients=8, rows=80)
    method = {"name": "fedem", "n_components": 2}
    result = fedclade.run(federation, method=method, model="mlp", training=TRAINING, rounds=10, workers=1)
    for sent in result.summary["bytes"].values():
        # The names of many layers make headers longer than usual.
        assert Travelled(sent, 2 * 10 * 8) == 10 * 8 * 2 * sum(SIZES.values())
    one, other = result.weights_for("c0"), result.weights_for("c1")
    assert np.array_equal(one[:-2], other[:-2])
    assert (one[-2] > one[-1]) != (other[-2] > other[-1])  # the two groups have found a component each
    module = result.model_for("c0")
    rows = torch.from_numpy(federation.x[federation["c0"].test])
    right = module(rows).argmax(1).numpy() == federation.y[federation["c0"].test]
    assert right.mean() > 0.85
