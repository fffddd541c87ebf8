"""ClusterFL: the optimisation against its own Lagrangian, and what comes of it on planted groups."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedclade
from fedclade.clients.tasks import Training
from fedclade.clustering.similarity import relation_weights
from fedclade.data.federation import Federation
from fedclade.errors import FedcladeError
from fedclade.methods.base import RoundContext
from fedclade.methods.clusterfl import ClusterFL, Relations
from fedclade.models.weights import Layout
from harness import Session, local, whole_and_resumed
from synthetic import planted

TRAINING = Training(local_epochs=3, batch_size=8, learning_rate=0.1)
ALPHA, BETA, RHO = 1e-3, 0.3, 0.9


def some_state(n_clients: int = 4, size: int = 3) -> Relations:
    """Any point of the optimisation, away from where things cancel."""
    random = np.random.default_rng(0)
    weights, mixtures, dual = (random.normal(size=(n_clients, size)).astype(np.float32) for _ in range(3))
    relation = relation_weights(np.abs(random.normal(size=(n_clients, n_clients))))
    return Relations(tuple("abcd"[:n_clients]), weights, relation, mixtures, dual, {}, np.empty((0, 3), np.float32))


def lagrangian(state: Relations, weights: np.ndarray) -> float:
    """The coupling terms and the weight decay as the paper's objective has them; the losses are left out."""
    mixed = state.relation.T @ weights
    gap = state.mixtures - mixed
    decay, gain = ALPHA * (weights**2).sum(), BETA * (state.mixtures**2).sum()
    return float(decay - gain + (state.dual * gap).sum() + RHO / 2 * (gap**2).sum())


def slope(state: Relations, client: int, weights: np.ndarray) -> np.ndarray:
    """The Lagrangian's gradient by one client's weights, by differences."""
    result = np.zeros(weights.shape[1])
    for k in range(weights.shape[1]):
        for sign in (1, -1):
            moved = weights.astype(np.float64).copy()
            moved[client, k] += sign * 1e-4
            result[k] += sign * lagrangian(state, moved) / 2e-4
    return result


def task_of(state: Relations, client: int):  # type: ignore[no-untyped-def]
    layout = Layout(("layer.weight",), ((1, 3),), 3)
    context = RoundContext(state.clients, np.zeros(3, np.float32), layout, TRAINING, seed=0)
    method = ClusterFL(alpha=ALPHA, beta=BETA, rho=RHO)
    return method.tasks(state, list(state.clients), context)[state.clients[client]]


def test_what_a_client_is_told_is_the_gradient_of_the_lagrangian() -> None:
    """Wherever its weights go while it trains, not only where they start."""
    state = some_state()
    for client in range(4):
        task = task_of(state, client)
        for away in (np.zeros(3), np.array([0.5, -2.0, 1.0])):
            weights = state.weights.astype(np.float64).copy()
            weights[client] += away
            told = task.linear + task.proximal * away + task.training.weight_decay * weights[client]
            assert told == pytest.approx(slope(state, client, weights), abs=1e-5)


def test_the_multipliers_pull_the_other_way_than_in_the_published_code() -> None:
    """With + <U_j + rho Omega_j, w_i> a client would climb the Lagrangian that it is to descend."""
    state = some_state()
    for client in range(4):
        task, truth = task_of(state, client), slope(state, client, state.weights)
        wrong = state.relation[client] @ (state.dual + RHO * state.mixtures)  # sign flipped, cross terms left out
        wrong = wrong + task.training.weight_decay * state.weights[client]
        assert np.linalg.norm(wrong - truth) > 0.5 * np.linalg.norm(truth)
        step = state.weights.astype(np.float64).copy()
        step[client] -= 0.05 * (task.linear + task.training.weight_decay * state.weights[client])
        assert lagrangian(state, step) < lagrangian(state, state.weights)


def test_mixtures_are_where_the_lagrangian_is_least_and_multipliers_follow() -> None:
    state = some_state()
    after = state.stepped(BETA, RHO)
    best = replace(state, mixtures=after.mixtures)
    for nudge in np.random.default_rng(1).normal(size=(5, 4, 3)) * 0.1:
        other = replace(state, mixtures=after.mixtures + nudge.astype(np.float32))
        assert lagrangian(best, state.weights) < lagrangian(other, state.weights)
    assert after.dual == pytest.approx(state.dual + RHO * (after.mixtures - state.mixed), abs=1e-6)
    assert after.dual == pytest.approx(2 * BETA * after.mixtures, abs=1e-5)  # follows from the two


def test_multipliers_settle_where_the_constraint_holds() -> None:
    state = some_state()
    for _ in range(200):
        state = state.stepped(0.1, 0.9)
    assert state.mixtures == pytest.approx(state.mixed, abs=1e-4)


def test_rho_must_exceed_two_beta() -> None:
    with pytest.raises(FedcladeError, match=r"rho.*larger than 2 \* beta"):
        fedclade.run(planted(), method={"name": "clusterfl", "beta": 1e-3, "rho": 2e-3}, rounds=1, workers=1)


def shifted() -> Federation:
    return planted(n_clients=8, rows=80)


def test_planted_groups_are_found_and_everybody_has_a_model() -> None:
    result = fedclade.run(shifted(), method="clusterfl", model="mlp", training=TRAINING, rounds=6, workers=1)
    assert result.summary["clusters"]["ari"] == 1.0
    assert result.accuracy["worst"] > 0.8
    assert result.accuracy == result.accuracy_local
    assert not np.array_equal(result.weights_for("c0"), result.weights_for("c2"))


def test_clients_of_one_kind_are_one_cluster() -> None:
    federation = planted(n_clients=8, n_groups=1, rows=80)
    result = fedclade.run(federation, method="clusterfl", model="mlp", training=TRAINING, rounds=6, workers=1)
    assert result.summary["clusters"]["found"] == 1


def test_two_models_travel_down_and_one_up(tmp_path: Path) -> None:
    engine = local(planted(), tmp_path)
    session = Session(ClusterFL(probe_rows=10), engine, participation=0.5)
    session.go(2)
    size = engine.layout.size
    assert session.floats("train", "down") == 2 * 3 * (2 * size + 1)  # its model, the sum of all terms, how stiff it is
    assert session.floats("train", "up") == 2 * 3 * (size + 1)
    assert session.floats("probe", "up") == 6 * 10 * 8
    engine.close()


def test_those_who_do_not_report_keep_their_model_and_newcomers_get_one(tmp_path: Path) -> None:
    engine = local(shifted(), tmp_path)
    answer = engine.answer
    engine.answer = lambda tasks, round: {  # type: ignore[method-assign]
        client: reply for client, reply in answer(tasks, round).items() if not (client == "c1" and round == 5)
    }
    session = Session(ClusterFL(relation_every=1), engine)
    one, two = session.go(4, without=["c7"]), session.go(5, without=["c7"])
    place = one.state.clients.index("c1")
    assert np.array_equal(one.state.weights[place], two.state.weights[place])
    joined = session.admit(two, ["c7"], 6)
    assert joined.cluster_of["c7"] == joined.cluster_of["c5"] != joined.cluster_of["c0"]
    now = replace(session.context, round=6)
    after = session.method.round(joined, now, session.ask).check(now.clients)
    assert after.state.clients == now.clients
    left = session.method.round(after.without(["c0"]), now.only(set(now.clients) - {"c0"}), session.ask)
    assert "c0" not in left.state.clients
    assert left.state.relation.sum(0) == pytest.approx(np.ones(7))
    engine.close()


def test_it_stops_when_losses_rest(tmp_path: Path) -> None:
    engine = local(planted(), tmp_path)
    session = Session(ClusterFL(tolerance=100.0), engine)
    clusters = session.go(4)
    assert clusters.state.is_stopped
    assert session.floats("train", "up") == 2 * 6 * (engine.layout.size + 1)
    engine.close()


def test_an_exact_resume(tmp_path: Path) -> None:
    events = [{"round": 3, "join": 1}, {"round": 4, "drift": 2}]
    whole_and_resumed({"name": "clusterfl"}, tmp_path, rounds=5, stop=3, events=events, participation=0.7)
