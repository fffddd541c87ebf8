"""What a lying client can send: every field of every answer is looked at, no run dies, no outcome is absurd."""

import os
import random
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedclade.ask import MAX_SAMPLES, Ask
from fedclade.clients.objective import ACCURACY, LOSS
from fedclade.clients.tasks import (
    Describe,
    Described,
    Evaluate,
    Evaluated,
    Failure,
    Predict,
    Predicted,
    Train,
    Trained,
    Training,
)
from fedclade.clients.validation import Expected, fault
from fedclade.methods import METHODS
from fedclade.models.weights import Layout

LAYOUT = Layout(("a.weight", "b.weight"), ((2, 2), (1, 4)), 8)
TRAINING = Training(local_epochs=1, batch_size=4)
EXPECTED = Expected(LAYOUT, np.ones(8, np.float32), (3,), 4, TRAINING, MAX_SAMPLES, True, (ACCURACY, LOSS))
W = np.ones(8, np.float32)
GOOD: list[tuple[Any, Any]] = [
    (Train(W), Trained(W, 10, 3, 0.5)),
    (Train(W, upload="head"), Trained(W[4:], 10, 3, 0.5)),
    (Train((W, W)), Trained(W, 10, 3, 0.5, 1)),
    (Evaluate(W), Evaluated(0.3, {"accuracy": 0.5}, 10)),
    (Predict(W), Predicted(np.full((2, 4), 0.25, np.float32), np.array([0, 3]))),
    (
        Predict(W, rows=np.zeros((3, 3), np.float32)),
        Predicted(np.full((3, 4), 0.25, np.float32), np.empty(0, np.int64)),
    ),
    (Describe("class-entropy"), Described({"n_classes": np.float32([2]), "entropy": np.float32([1])})),
    (Describe("rows", {"n": 2, "labels": False}), Described({"rows": np.zeros((2, 3), np.float32)})),
    (Describe("subspaces", {"n_vectors": 2}), Described({"basis": np.eye(3, dtype=np.float32)[:, :2]})),
    (
        Describe("mean-code", {"n_codes": 2}),
        Described(dict.fromkeys(("code", "mean", "square"), np.float32([0.5, 0.5]))),
    ),
]
RUBBISH = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**40), 10**40),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.just([]),
    st.just({}),
    st.just({"x": np.ones(3)}),
    st.builds(lambda shape, kind: np.ones(shape, kind), st.lists(st.integers(0, 9), max_size=3),
              st.sampled_from(["f4", "f8", "i8", "U3", "O", "c8", "?"])),
    st.just(np.full(8, np.nan, np.float32)),
    st.just(np.full(8, 1e30, np.float32)),
    st.just(np.full((2, 4), np.inf, np.float32)),
)  # fmt: skip


@pytest.mark.parametrize(("task", "answer"), GOOD, ids=lambda value: type(value).__name__)
def test_honest_answers_pass(task: Any, answer: Any) -> None:
    assert fault(task, answer, EXPECTED) is None


@settings(
    max_examples=int(os.environ.get("FUZZED", "3000")), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
@given(st.sampled_from(range(len(GOOD))), st.integers(0, 9), RUBBISH)
def test_rubbish_in_any_field_is_a_failure_or_harmless(number: int, place: int, rubbish: Any) -> None:
    task, good = GOOD[number]
    field = fields(good)[place % len(fields(good))].name
    wrong = fault(task, replace(good, **{field: rubbish}), EXPECTED)
    assert wrong is None or isinstance(wrong, Failure)
    if wrong is None:  # what passes is what an honest client could have sent
        value = getattr(replace(good, **{field: rubbish}), field)
        if field == "metrics":
            assert 0 <= value["accuracy"] <= 1
        elif field in ("loss",):
            assert np.isfinite(value)
        elif field == "n_samples":
            assert isinstance(value, int)
            assert 1 <= value <= MAX_SAMPLES
        elif field == "chosen":
            assert value in (0, 1) if isinstance(task.weights, tuple) else value is None
        elif field in ("weights", "values", "labels") and isinstance(value, np.ndarray):
            assert np.isfinite(value).all()


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(range(len(GOOD))), st.sampled_from(range(len(GOOD))))
def test_an_answer_to_another_question_is_a_failure(one: int, other: int) -> None:
    task, answer = GOOD[one][0], GOOD[other][1]
    if type(answer) is not type(GOOD[one][1]):
        assert isinstance(fault(task, answer, EXPECTED), Failure)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Trained(W, 10**12, 3, 0.5), "samples"),
        (Trained(W, 10, 10**9, 0.5), "steps"),
        (Trained(W * np.float32(1e6), 10, 3, 0.5), "absurd"),
        (Trained(W, 10, 3, float("nan")), "not a number"),
        (Trained(W, True, 1, 0.5), "samples"),
        (Trained(W, 10, 3, 0.5, 1), "no choice"),
    ],
)
def test_what_is_wrong_is_said(answer: Trained, why: str) -> None:
    wrong = fault(Train(W), answer, EXPECTED)
    assert wrong is not None
    assert why in str(wrong)


# --- whole runs on a grid ---------------------------------------------------------------------------------------------


def lying(seed: int) -> Callable[[Any], Any]:
    """Replaces something in the answer of a node by something else."""
    dice = random.Random(seed)
    values: list[Any] = [
        None, "x", -1, 99, 1e308, float("nan"), [], {}, True, 10**30, "a" * 1000, [[1]], {"@array": 77},
        {"@kind": "Train"}, {"@pairs": [[1, 2]]},
    ]  # fmt: skip

    def spoilt(value: Any, depth: int = 0) -> Any:
        if isinstance(value, dict) and value and (depth == 0 or dice.random() < 0.7):
            key = dice.choice([*value])
            return {**value, key: spoilt(value[key], depth + 1)}
        return dice.choice(values)

    def lie(header: dict[str, Any], arrays: list[np.ndarray]) -> tuple[dict[str, Any], list[np.ndarray]]:
        arrays = list(arrays)
        if arrays and dice.random() < 0.5:
            place = dice.randrange(len(arrays))
            array = arrays[place]
            arrays[place] = dice.choice([
                array * np.float32(-10), array[:0], array.astype(np.float64), np.full(array.shape, np.nan, np.float32),
                np.zeros((3, 1, 2), np.float32), np.full(array.shape, 7, np.int64), array.ravel()[:1],
            ])  # fmt: skip
            return header, arrays
        return {**header, "answer": spoilt(header["answer"])}, arrays if dice.random() < 0.8 else []

    return lie


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"centralized"}))
def test_no_run_dies_of_a_liar(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr")
    from flwr.app import Message

    from engines.test_deployed import a_node, grid_of
    from fedclade import api
    from fedclade.deploy import worker
    from fedclade.deploy.server import serve
    from fedclade.engines.records import from_records, to_records
    from synthetic import planted

    monkeypatch.setattr(worker, "hand_over", worker.perform)
    federation = planted(n_clients=5)
    (tmp_path / "all").mkdir()
    for client in federation.clients:
        x, y = federation.x, federation.y
        arrays = {"x": x[client.train], "y": y[client.train], "x_test": x[client.test], "y_test": y[client.test]}
        np.savez(tmp_path / "all" / f"{client.name}.npz", **arrays)
    lie = lying(sum(map(ord, name)))
    liar = a_node(30, "c4", tmp_path / "all", tmp_path / "memory")

    def answer(message: Any) -> Any:
        reply = liar(message)
        if "hello" in message.metadata.message_type or reply.has_error() or not reply.content.config_records:
            return reply
        try:
            return Message(to_records(*lie(*from_records(reply.content))), reply_to=message)
        except (KeyError, TypeError, ValueError):  # no answer to a task, or Flower itself does not carry it
            return reply

    grid = grid_of(tmp_path, ("c0", "c1", "c2", "c3"))
    grid.add(30, answer, "key c4", "c4")
    config = {"clients": 5, "wait": 0.5, "rounds": 4, "training.local-epochs": 1, "keys": True, "method.name": name}
    serve(grid, {**config, "out": str(tmp_path / "run")})
    result = api.load(tmp_path / "run")
    assert result.history["accuracy"].dropna().between(0, 1).all()
    assert 0 <= result.accuracy["mean"] <= 1
    honest = result.history[result.history["client"] != "c4"]
    assert (honest["failure"] == "").all(), set(honest["failure"])


def test_an_answer_that_breaks_a_method_costs_that_client_its_round() -> None:
    from fedclade.methods import Clusters, Method, RoundContext
    from fedclade.rounds import Recorded
    from harness import Scripted

    class Fragile(Method):
        def round(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
            trained = ask(Train(clusters.models[0]), to=context.clients)
            if any(answer.loss > 1 for answer in trained.values()):
                raise ZeroDivisionError
            return clusters.averaged(trained)

    engine = Scripted({c: np.full(4, k, np.float32) for k, c in enumerate("abc")}, has_strangers=True)
    one = engine.one
    engine.one = lambda c, task, round: replace(one(c, task, round), loss=9.0 if c == "b" else 0.0)  # type: ignore[method-assign]
    recorded = Recorded(engine)  # type: ignore[arg-type]
    ask = Ask(recorded)  # type: ignore[arg-type]
    context = RoundContext(engine.clients, engine.initial, engine.layout, TRAINING, 0)
    clusters = Clusters.single(engine.clients, engine.initial)
    with pytest.raises(ZeroDivisionError) as error:
        Fragile().round(clusters, context, ask)
    ask.engine = recorded.without("b", error.value)  # type: ignore[assignment]
    ask.clear()
    after = Fragile().round(clusters, context, ask)
    assert after.models[0].tolist() == [1.0] * 4  # the mean of a and c
    assert "broke the method" in ask.failures[0]["failure"]
