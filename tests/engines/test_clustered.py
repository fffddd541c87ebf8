"""`Clustered`: a method's clusters for ClientApps of other people, which know nothing of fedclade."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from engines.grids import FakeGrid
from fedclade.errors import FedcladeError
from fedclade.flower import PLAIN, Clustered, Form
from fedclade.methods import METHODS, FedAvg, FedClust, method_class
from fedclade.runs.folder import RunFolder

SHAPES = {"body.weight": (5, 4), "body.bias": (5,), "fc.weight": (2, 5), "fc.bias": (2,)}


def arrays(value: float = 0.0, shapes: dict[str, tuple[int, ...]] = SHAPES) -> ArrayRecord:
    random = np.random.default_rng(0)
    made = {k: (random.normal(size=shape) * 0.1 + value).astype(np.float32) for k, shape in shapes.items()}
    return ArrayRecord({k: Array(v) for k, v in made.items()})


def plain_client(goal: float, spoil: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]] | None = None) -> Any:
    """Somebody's ClientApp: half way to its goal at each training, without any learning framework."""
    seen: list[Any] = []

    def answer(message: Message) -> Message:
        seen.append(message)
        given = {key: array.numpy() for key, array in message.content.array_records["arrays"].items()}
        distance = float(np.mean([np.mean((value - goal) ** 2) for value in given.values()]))
        metrics = MetricRecord({"eval_loss": distance, "eval_acc": 1 / (1 + distance), "num-examples": 10})
        if message.metadata.message_type == "evaluate":
            return Message(RecordDict({"metrics": metrics}), reply_to=message)
        trained = {key: (value + (goal - value) / 2).astype(np.float32) for key, value in given.items()}
        record = ArrayRecord({key: Array(value) for key, value in (spoil or dict)(trained).items()})
        metrics = MetricRecord({"train_loss": distance, "num-examples": 10, "num-steps": 5})
        return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)

    answer.seen = seen  # type: ignore[attr-defined]
    return answer


def grid_of(goals: list[float]) -> FakeGrid:
    grid = FakeGrid()
    for number, goal in enumerate(goals):
        grid.add(100 + number, plain_client(goal + 0.01 * number))
    return grid


GOALS = [1.0, -1.0, 1.0, -1.0, 1.0, -1.0]
HALVES = [["node-100", "node-102", "node-104"], ["node-101", "node-103", "node-105"]]


def test_fedclust_finds_the_groups_of_plain_clients_and_tells_them() -> None:
    grid = grid_of(GOALS)
    found = Clustered(FedClust(n_clusters=2), fraction_train=1.0).start(grid, arrays(), num_rounds=4)
    assert sorted(found.clusters.values()) == HALVES
    model = found.arrays_for("node-101")["fc.bias"].numpy()
    np.testing.assert_allclose(model, -0.97, atol=0.1)
    assert list(found.arrays_for("node-101")) == list(SHAPES)
    assert found.history["accuracy"].notna().any()
    last = grid.nodes[101][1].seen[-1].content  # type: ignore[attr-defined]
    assert last.config_records["config"]["final"] is True
    assert last.config_records["config"]["cluster"] == found.cluster_of("node-101")
    np.testing.assert_array_equal(last.array_records["arrays"]["fc.bias"].numpy(), model)


def test_one_record_of_arrays_serves_a_whole_cluster() -> None:
    grid = grid_of(GOALS)
    Clustered(FedClust(n_clusters=2), fraction_train=1.0, evaluate_every=0).start(grid, arrays(), num_rounds=1)
    trainings = [m for m in grid.sent if m.metadata.message_type == "train"]
    records = {id(message.content.array_records["arrays"]) for message in trainings[6:]}
    assert len(trainings) == 12
    assert len(records) in (1, 2)  # clusters start from one model


@pytest.mark.parametrize("name", sorted(PLAIN))
def test_plain_methods_run_on_plain_clients(name: str) -> None:
    settings = {"n_clusters": 2} if "n_clusters" in method_class(name).model_fields else {}
    found = Clustered(method_class(name)(**settings)).start(grid_of(GOALS), arrays(), num_rounds=2)
    assert sorted(client for part in found.clusters.values() for client in part) == sorted(HALVES[0] + HALVES[1])


@pytest.mark.parametrize("name", sorted(set(METHODS) - PLAIN))
def test_other_methods_say_so_at_the_start(name: str) -> None:
    with pytest.raises(FedcladeError, match="more than a plain ClientApp"):
        Clustered(method_class(name)())


def renamed(trained: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {f"x{key}": value for key, value in trained.items()}


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda t: {**t, "fc.bias": np.full(2, np.nan, np.float32)}, "not finite"),
        (lambda t: {**t, "fc.bias": np.full(2, 1e30, np.float32)}, "absurd"),
        (lambda t: {**t, "fc.bias": np.zeros(3, np.float32)}, "bad shape"),
        (lambda t: {**t, "fc.bias": np.zeros(2, np.int64)}, "bad shape"),
        (lambda t: {key: value for key, value in t.items() if key != "fc.bias"}, "bad shape"),
        (renamed, "bad shape"),
    ],
    ids=["nan", "absurd", "shape", "dtype", "missing key", "other keys"],
)
def test_a_bad_reply_is_left_out_and_named(spoil: Any, why: str) -> None:
    grid = grid_of(GOALS)
    without = Clustered(FedAvg()).start(grid_of(GOALS[:-1]), arrays(), num_rounds=2)
    grid.add(105, plain_client(-1.0, spoil))
    found = Clustered(FedAvg()).start(grid, arrays(), num_rounds=2)
    history = found.history
    named = history.loc[(history["client"] == "node-105") & (history["round"] > 0), "failure"]
    assert named.str.contains(why).all()
    assert (history.loc[history["client"] != "node-105", "failure"] == "").all()
    for key in SHAPES:
        np.testing.assert_array_equal(found.arrays[key].numpy(), without.arrays[key].numpy())


@pytest.mark.parametrize("kind", [np.float16, np.float64])
def test_floats_of_another_size_are_taken(kind: Any) -> None:
    grid = grid_of(GOALS[:-1])
    grid.add(105, plain_client(-0.95, lambda t: {key: value.astype(kind) for key, value in t.items()}))
    found = Clustered(FedAvg()).start(grid, arrays(), num_rounds=2)
    assert (found.history["failure"] == "").all()
    exact = Clustered(FedAvg()).start(grid_of(GOALS), arrays(), num_rounds=2)
    for key in SHAPES:
        assert found.arrays[key].numpy().dtype == np.float32
        np.testing.assert_allclose(found.arrays[key].numpy(), exact.arrays[key].numpy(), atol=1e-3)


def flowers_own(grid: FakeGrid, **more: Any) -> Any:
    """The same by Flower's FedAvg, on a grid that waits for replies."""
    from flwr.serverapp.strategy import FedAvg as FlowersFedAvg

    def send_and_receive(messages: Any, timeout: float) -> list[Any]:
        return grid.pull_messages(grid.push_messages(messages))

    grid.send_and_receive = send_and_receive  # type: ignore[attr-defined]
    fractions = {name: more.pop(name) for name in ("fraction_evaluate", "weighted_by_key") if name in more}
    return FlowersFedAvg(**fractions).start(grid, arrays(), num_rounds=3, **more)  # type: ignore[arg-type]


def weighed(goal: float, weight: float) -> Any:
    """A client whose replies weigh so much by a key of its own."""
    inner = plain_client(goal)

    def answer(message: Message) -> Message:
        reply = inner(message)
        reply.content["metrics"]["importance"] = weight
        return reply

    return answer


def central(round: int, record: ArrayRecord) -> MetricRecord:
    return MetricRecord({"bias": float(record["fc.bias"].numpy().mean())})


def test_one_cluster_gives_what_flowers_own_strategy_gives() -> None:
    def grid() -> FakeGrid:
        made = FakeGrid()
        for number, (goal, weight) in enumerate([(1.0, 0.5), (-1.0, 2.25), (0.3, 1.0)]):
            made.add(100 + number, weighed(goal, weight))
        return made

    theirs = flowers_own(grid(), evaluate_fn=central, weighted_by_key="importance")
    ours = Clustered(FedAvg(), weighted_by_key="importance").start(grid(), arrays(), 3, evaluate_fn=central)
    for key in SHAPES:
        np.testing.assert_allclose(ours.arrays[key].numpy(), theirs.arrays[key].numpy(), atol=1e-6)
    for name in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"):
        one, two = getattr(ours, name), getattr(theirs, name)
        assert list(one) == list(two)
        for round, metrics in two.items():
            assert dict(one[round]) == pytest.approx(dict(metrics), abs=1e-5)
            assert dict(getattr(ours.cluster_results[0], name)[round]) == pytest.approx(dict(metrics), abs=1e-5)
    assert "Aggregated ClientApp-side Train Metrics" in repr(ours)


def test_metrics_come_over_all_clients_and_by_cluster() -> None:
    def greatest(records: list[RecordDict], weight: str) -> MetricRecord:
        return MetricRecord({"most": max(record["metrics"]["train_loss"] for record in records)})

    strategy = Clustered(FedClust(n_clusters=2), train_metrics_aggr_fn=greatest)
    found = strategy.start(grid_of(GOALS), arrays(), num_rounds=3, evaluate_fn=central)
    last = {cluster: result.evaluate_metrics_serverapp[3]["bias"] for cluster, result in found.cluster_results.items()}
    assert sorted(round(value) for value in last.values()) == [-1, 1]
    assert found.evaluate_metrics_serverapp[3]["bias"] == pytest.approx(np.mean(list(last.values())))
    mosts = [result.train_metrics_clientapp[2]["most"] for result in found.cluster_results.values()]
    assert found.train_metrics_clientapp[2]["most"] == max(mosts)
    assert set(found.train_metrics_clientapp) == set(found.evaluate_metrics_clientapp) == {1, 2, 3}


@pytest.mark.parametrize(("share", "asked"), [(0.5, 3), (0.0, 0), (0.01, 1)])
def test_a_share_of_the_nodes_evaluates(share: float, asked: int) -> None:
    grid = grid_of(GOALS)
    found = Clustered(FedAvg(), fraction_evaluate=share).start(grid, arrays(), num_rounds=2)
    evaluations = [m for m in grid.sent if m.metadata.message_type == "evaluate"]
    assert len([m for m in evaluations if "final" not in m.content["config"]]) == 3 * asked  # rounds 0, 1 and 2
    assert (found.history["failure"] == "").all()
    assert bool(found.evaluate_metrics_clientapp) == (asked > 0)


def test_flowers_wrappers_are_refused_in_one_line() -> None:
    from flwr.server import LegacyContext, ServerConfig
    from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
    from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping

    wrapped = DifferentialPrivacyServerSideFixedClipping(
        Clustered(FedAvg()),  # type: ignore[arg-type]
        noise_multiplier=0.1,
        clipping_norm=1.0,
        num_sampled_clients=6,
    )
    with pytest.raises(FedcladeError, match="call its own `start`"):
        wrapped.start(grid_of(GOALS), arrays(), num_rounds=1)  # type: ignore[arg-type]
    context: Any = LegacyContext(
        Context(1, 1, {}, RecordDict(), {}),
        ServerConfig(num_rounds=1),
        strategy=Clustered(FedAvg()),  # type: ignore[arg-type]
    )
    with pytest.raises(FedcladeError, match=r"SecAgg\+ cannot hide them"):
        DefaultWorkflow(fit_workflow=SecAggPlusWorkflow(3, 2))(FakeGrid(), context)  # type: ignore[arg-type]
    assert not hasattr(Clustered(FedAvg()), "nonsense")


def client_with(mod: Any, goal: float, number: int) -> Any:
    """A ClientApp whose training goes through one of Flower's mods."""
    app, inner = ClientApp(), plain_client(goal)
    app.train(mods=[mod])(lambda message, context: inner(message))
    app.evaluate()(lambda message, context: inner(message))
    context = Context(1, number, {}, RecordDict(), {})

    def answer(message: Message) -> Message:
        try:
            return app(message, context)
        except Exception as error:  # as Flower tells it
            return Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=message)

    return answer


def test_noise_that_clients_add_themselves_is_taken() -> None:
    from flwr.clientapp.mod import LocalDpMod

    grid = FakeGrid()
    for number in range(3):
        grid.add(100 + number, client_with(LocalDpMod(1.0, 0.1, 10.0, 1e-5), 1.0, 100 + number))
    found = Clustered(FedAvg()).start(grid, arrays(), num_rounds=2)
    assert (found.history["failure"] == "").all()


def test_clients_that_wait_for_secagg_do_not_pass_for_trained() -> None:
    from flwr.client.mod import secaggplus_mod

    grid = FakeGrid()
    for number in range(3):
        grid.add(100 + number, client_with(secaggplus_mod, 1.0, 100 + number))
    with pytest.raises(FedcladeError, match=r"no client has trained .*secaggplus"):
        Clustered(FedAvg()).start(grid, arrays(), num_rounds=1)


@pytest.mark.parametrize("method", [FedAvg(), FedClust(n_clusters=2)])
def test_replies_that_are_encrypted_do_not_pass_for_training(method: Any) -> None:
    grid = FakeGrid()
    for number in range(4):
        hidden = plain_client(1.0, lambda t: {key: value.view(np.uint8) for key, value in t.items()})
        grid.add(100 + number, hidden)
    with pytest.raises(FedcladeError, match=r"bad shape.*uint8"):
        Clustered(method).start(grid, arrays(), num_rounds=1)


def test_a_node_that_raises_or_goes_does_not_stop_the_others() -> None:
    grid = grid_of(GOALS)
    grid.add(104, lambda message: Message(Error(2, "boom"), reply_to=message))
    found = Clustered(FedAvg()).start(grid, arrays(), num_rounds=1)
    assert "boom" in "".join(found.history.query("client == 'node-104'")["failure"])


def test_too_few_answers_leave_the_model_as_it_was() -> None:
    grid = grid_of([1.0, 1.0])
    grid.add(102, lambda message: Message(Error(2, "boom"), reply_to=message))
    initial = arrays()
    with pytest.raises(FedcladeError, match=r"no client has trained.*only 2 of the 3"):
        Clustered(FedAvg(), quorum=0.9).start(grid, initial, num_rounds=1)
    moved = Clustered(FedAvg(), quorum=0.5).start(grid, initial, num_rounds=1)
    assert not np.array_equal(moved.arrays["fc.bias"].numpy(), initial["fc.bias"].numpy())


def test_a_run_goes_on_in_its_folder_and_newcomers_are_placed(tmp_path: Path) -> None:
    grid = grid_of(GOALS)
    strategy = Clustered(FedClust(n_clusters=2), fraction_train=1.0)
    whole = strategy.start(grid_of(GOALS), arrays(), num_rounds=4)
    strategy.start(grid, arrays(), num_rounds=2, out=tmp_path / "run")
    resumed = strategy.start(grid, arrays(), num_rounds=4, out=tmp_path / "run")
    for cluster, one in whole.cluster_results.items():
        two = resumed.cluster_results[cluster]
        np.testing.assert_array_equal(one.arrays["fc.weight"].numpy(), two.arrays["fc.weight"].numpy())
    grid.add(200, plain_client(-1.0))
    joined = strategy.start(grid, arrays(), num_rounds=6, out=tmp_path / "run")
    assert joined.cluster_of("node-200") == joined.cluster_of("node-101")
    assert RunFolder.open(tmp_path / "run").is_finished


def test_arrays_keep_their_order_types_and_names() -> None:
    values = {
        "0": np.ones((3, 4), np.float64),
        "1": np.zeros(4, np.float32),
        "2": np.array(7, np.int64),
    }
    form = Form.of(ArrayRecord({key: Array(value) for key, value in values.items()}))
    assert list(form.layout.layers) == ["0"]
    assert form.layout.head == "0"
    back = form.record(form.initial)
    assert [(k, a.numpy().dtype) for k, a in back.items()] == [(k, v.dtype) for k, v in values.items()]
    headed = Form.of(arrays(), head="body")
    assert headed.layout.head == "body"
    assert list(headed.record(headed.initial)) == list(SHAPES)
    with pytest.raises(FedcladeError, match="head is 'nose'"):
        Form.of(arrays(), head="nose")
