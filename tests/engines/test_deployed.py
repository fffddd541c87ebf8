"""Fedclade's server and node apps on a grid of this process: every method, and who may speak for whom."""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict

from engines.grids import FakeGrid
from fedclade import api
from fedclade.codec import Packet
from fedclade.deploy import node as node_module
from fedclade.deploy import worker
from fedclade.deploy.node import client_app, held_by, own_rows, report_of
from fedclade.deploy.server import serve, settings_of
from fedclade.engines.exchange import Exchange
from fedclade.engines.records import from_records, to_records
from fedclade.engines.registry import NodeRegistry
from fedclade.errors import FedcladeError
from fedclade.methods import METHODS
from fedclade.methods.fedclust import FedClust
from fedclade.newcomers import place
from fedclade.runs.folder import RunFolder
from synthetic import planted

CONFIG = {"clients": 4, "wait": 0.5, "rounds": 2, "training.local-epochs": 1, "keys": True}


@pytest.fixture(autouse=True)
def _on_the_spot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes work in this process."""
    monkeypatch.setattr(worker, "hand_over", worker.perform)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    federation = planted(n_clients=5)
    for client in federation.clients:
        x, y = federation.x, federation.y
        arrays = {"x": x[client.train], "y": y[client.train], "x_test": x[client.test], "y_test": y[client.test]}
        folder = tmp_path / ("all" if client.name != "c4" else "late")
        folder.mkdir(exist_ok=True)
        np.savez(folder / f"{client.name}.npz", **arrays)
    return tmp_path


def a_node(number: int, name: str, folder: Path, memory: Path, **more: Any) -> Callable[[Any], Any]:
    """Our client app, as a node runs it."""
    app = client_app()
    config: Any = {"name": name, "data": f"folder:{folder}", "memory": str(memory), **more}

    def answer(message: Any) -> Any:
        try:
            return app(message, Context(1, number, config, RecordDict(), {}))
        except FedcladeError as error:  # as Flower tells it
            return Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=message)

    return answer


def grid_of(rows: Path, names: tuple[str, ...] = ("c0", "c1", "c2", "c3")) -> FakeGrid:
    grid = FakeGrid()
    for number, name in enumerate(names):
        grid.add(10 + number, a_node(10 + number, name, rows / "all", rows / "memory"), f"key {name}", name)
    return grid


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"centralized"}))
def test_every_method_gives_the_same_weights_as_in_one_process(name: str, rows: Path, tmp_path: Path) -> None:
    folder = serve(grid_of(rows), {**CONFIG, "method.name": name, "out": str(tmp_path / "run")})
    settings = {"rounds": 2, "training": {"local_epochs": 1}, "workers": 1}
    local = api.run(f"folder:{rows / 'all'}", method=name, out=tmp_path / "local", **settings)
    ours, theirs = folder.last_checkpoint(), local.folder.last_checkpoint()
    assert ours is not None
    assert theirs is not None
    assert ours[1]["clusters"]["members"] == theirs[1]["clusters"]["members"]
    for cluster, model in theirs[1]["clusters"]["models"].items():
        np.testing.assert_array_equal(ours[1]["clusters"]["models"][cluster], model)
    assert (api.load(tmp_path / "run").history["failure"] == "").all()
    ledger, expected = folder.table("ledger"), local.folder.table("ledger")
    assert ledger["bytes"].sum() == expected["bytes"].sum()
    for client in local.record["clients"]:  # a node keeps what serves it, its own model where it has one
        if not local.served(client).through:
            kept = load_file(rows / "memory" / folder.settings["fingerprint"] / client / "model.safetensors")
            for tensor, values in local.layout.tensors(local.weights_for(client)).items():
                np.testing.assert_array_equal(kept[tensor], values)


def test_few_rows_are_gone_through_as_often_as_in_one_process(rows: Path, tmp_path: Path, capsys: Any) -> None:
    config = {name: value for name, value in CONFIG.items() if name not in ("rounds", "training.local-epochs")}
    config |= {"method.name": "fedavg", "out": str(tmp_path / "run"), "set": "evaluate_every=0 rows=30"}
    folder = serve(grid_of(rows), config)
    said = "few rows (30, the median): clients go through them 10 times a round, not 2"
    assert said in capsys.readouterr().out
    folder = serve(grid_of(rows), config)  # it goes on as it began
    assert said in folder.settings["remarks"][0]
    local = api.run(f"folder:{rows / 'all'}", method="fedavg", workers=1, evaluate_every=0, rows=30)
    ours, theirs = folder.last_checkpoint(), local.folder.last_checkpoint()
    assert ours is not None
    assert theirs is not None
    np.testing.assert_array_equal(ours[1]["clusters"]["models"][0], theirs[1]["clusters"]["models"][0])


ALIGNED = {"method.name": "fedstack", "set": "method.layout=aligned method.n_clusters=2 method.seats=3"}


def test_networks_side_by_side_serve_nodes_as_they_do_in_one_process(rows: Path, tmp_path: Path) -> None:
    config = {**CONFIG, **ALIGNED, "out": str(tmp_path / "run")}
    serve(grid_of(rows), {**config, "rounds": 1})
    folder = serve(grid_of(rows), config)
    method = {"name": "fedstack", "layout": "aligned", "n_clusters": 2, "seats": 3}
    settings = {"rounds": 2, "training": {"local_epochs": 1}, "workers": 1}
    local = api.run(f"folder:{rows / 'all'}", method=method, out=tmp_path / "local", **settings)
    result = api.load(folder.path)
    assert result.clusters == local.clusters
    assert (result.history["failure"] == "").all()
    assert result.summary["bytes"] == local.summary["bytes"]
    for client in local.record["clients"]:
        np.testing.assert_array_equal(result.weights_for(client), local.weights_for(client))  # all of it has travelled
        kept = load_file(rows / "memory" / folder.settings["fingerprint"] / client / "model.safetensors")
        assert set(kept) == set(local.model_for(client).state_dict())


def test_a_node_that_goes_leaves_its_network_and_one_that_comes_is_served(rows: Path, tmp_path: Path) -> None:
    grid = grid_of(rows)
    late, leaving = a_node(30, "c4", rows / "late", rows / "memory"), grid.nodes[13][1]

    def goes(message: Any) -> Any:
        if message.metadata.message_type == "query" and b"below" in str(message.content).encode():
            grid.nodes.pop(13, None)
            grid.add(30, late, "key c4", "c4")
            return Message(Error(2, "gone"), reply_to=message)
        return leaving(message)

    grid.add(13, goes, "key c3", "c3")
    folder = serve(grid, {**CONFIG, **ALIGNED, "rounds": 3, "out": str(tmp_path / "run")})
    result = api.load(folder.path)
    failures = result.history[result.history["failure"] != ""]
    assert set(failures["client"]) == {"c3"}
    found = result.state_of_clusters
    assert "c3" in found.state.seated[found.cluster_of["c3"]]
    assert "c3" not in found.state.stack
    assert "c4" in found.state.stack
    assert "c4" not in {client for seats in found.state.seated.values() for client in seats}
    assert (rows / "memory" / folder.settings["fingerprint"] / "c4" / "model.safetensors").is_file()


def test_a_stopped_run_goes_on_to_the_same_bits(rows: Path, tmp_path: Path) -> None:
    config = {**CONFIG, "method.name": "ditto", "seed": 3}
    whole = serve(grid_of(rows), {**config, "out": str(tmp_path / "whole"), "rounds": 4})
    serve(grid_of(rows), {**config, "out": str(tmp_path / "parts"), "rounds": 2})
    parts = serve(grid_of(rows), {**config, "out": str(tmp_path / "parts"), "rounds": 4})
    one, two = whole.last_checkpoint(), parts.last_checkpoint()
    assert one is not None
    assert two is not None
    for cluster, model in one[1]["clusters"]["models"].items():
        np.testing.assert_array_equal(two[1]["clusters"]["models"][cluster], model)
    assert one[1]["last_seen"] == two[1]["last_seen"]
    with pytest.raises(FedcladeError, match="another seed"):
        serve(grid_of(rows), {**config, "seed": 4, "out": str(tmp_path / "parts")})
    with pytest.raises(FedcladeError, match="past round 4"):
        serve(grid_of(rows), {**config, "rounds": 1, "out": str(tmp_path / "parts")})


@pytest.mark.parametrize("name", ["ditto", "fedper"])
def test_a_node_that_lost_its_memory_says_so(name: str, rows: Path, tmp_path: Path) -> None:
    config = {**CONFIG, "method.name": name, "out": str(tmp_path / "run")}
    folder = serve(grid_of(rows), config)
    shutil.rmtree(rows / "memory" / folder.settings["fingerprint"] / "c1")
    history = serve(grid_of(rows), {**config, "rounds": 3}).table("history")
    failures = history[history["failure"] != ""]
    assert set(failures["client"]) == {"c1"}
    assert failures["failure"].str.contains("remembered of the run is lost").all()
    grid = grid_of(rows)
    grid.add(11, a_node(11, "c1", rows / "all", rows / "memory", forget=True), "key c1", "c1")
    history = serve(grid, {**config, "rounds": 4}).table("history").query("round == 4")
    assert (history["failure"] == "").all()
    assert history["trained"].all()


def test_methods_that_need_no_memory_go_on_without_it(rows: Path, tmp_path: Path) -> None:
    config = {**CONFIG, "method.name": "fedavg", "out": str(tmp_path / "run")}
    folder = serve(grid_of(rows), config)
    shutil.rmtree(rows / "memory" / folder.settings["fingerprint"] / "c1")
    assert (serve(grid_of(rows), {**config, "rounds": 3}).table("history")["failure"] == "").all()


def test_a_bad_answer_is_left_out_and_named(rows: Path, tmp_path: Path) -> None:
    config = {**CONFIG, "method.name": "fedavg", "set": "data_options.scaling=none"}  # the liar's rows touch nothing
    honest = grid_of(rows, ("c0", "c1", "c2"))
    without = serve(honest, {**config, "clients": 3, "out": str(tmp_path / "without")})
    liar = a_node(13, "c3", rows / "all", rows / "memory")

    def lies(message: Any) -> Any:
        reply = liar(message)
        if message.metadata.message_type != "train":
            return reply
        header, arrays = from_records(reply.content)
        round = json.loads(message.content.config_records["message"]["json"])["round"]
        spoilt = [
            [np.full_like(arrays[0], np.nan)],
            [arrays[0].astype(np.float64)],
        ][round % 2]
        return Message(to_records(header, spoilt), reply_to=message)

    grid = grid_of(rows, ("c0", "c1", "c2"))
    grid.add(13, lies, "key c3", "c3")
    folder = serve(grid, {**config, "out": str(tmp_path / "run")})
    history = folder.table("history")
    why = history.loc[(history["client"] == "c3") & (history["round"] > 0), "failure"].tolist()
    assert "float64" in why[0]
    assert "NaN" in why[1]
    one, two = without.last_checkpoint(), folder.last_checkpoint()
    assert one is not None
    assert two is not None
    np.testing.assert_array_equal(one[1]["clusters"]["models"][0], two[1]["clusters"]["models"][0])


def test_a_name_belongs_to_its_key(rows: Path) -> None:
    grid = grid_of(rows, ("c0", "c1"))
    grid.add(50, a_node(50, "c0", rows / "all", rows / "memory"), "another key", "mallory")
    grid.add(51, a_node(51, "c1", rows / "all", rows / "memory"), "a third key")
    registry = NodeRegistry(Exchange(grid), keys=True)
    registry.look()
    assert {name: report.node for name, report in registry.known.items()} == {"c0": 10, "c1": 11}
    assert registry.refused == {50: "c0", 51: "c1"}
    del grid.nodes[11]  # also when the owner is away
    again = NodeRegistry(Exchange(grid), keys=True, bound=dict(registry.bound))
    again.look()
    assert set(again.known) == {"c0"}


def test_a_new_key_is_let_in_once_it_is_rotated(rows: Path, tmp_path: Path) -> None:
    from fedclade.deploy.keys import binding_of, make_node_key
    from fedclade.deploy.rotation import rotate

    grid, config = grid_of(rows, ("c0", "c1")), {**CONFIG, "clients": 2, "out": str(tmp_path / "run"), "wait": 0.1}
    serve(grid, config)
    public = make_node_key(tmp_path / "new")
    pem = bytes.fromhex(binding_of(public)).decode()
    grid = FakeGrid()
    for number, name in enumerate(("c0", "c1")):
        grid.add(20 + number, a_node(20 + number, name, rows / "all", rows / "memory"), pem if name == "c0" else "new")
    with pytest.raises(FedcladeError, match=r"all 2 nodes that came were refused: .*'c0'.*`fedclade deploy rotate`"):
        serve(grid, {**config, "rounds": 3})
    rotate(tmp_path / "run", "c0", public)
    rotate(tmp_path / "run", "c1")
    folder = serve(grid, {**config, "rounds": 3})
    assert folder.settings["nodes"] == {"c0": pem.encode().hex(), "c1": b"new".hex()}
    assert (folder.table("history")["failure"] == "").all()
    with pytest.raises(FedcladeError, match="knows no key of 'zoe'"):
        rotate(tmp_path / "run", "zoe")


def test_without_keys_a_name_passes_on_when_its_node_is_gone(rows: Path) -> None:
    grid = grid_of(rows, ("c0",))
    registry = NodeRegistry(Exchange(grid), keys=False)
    registry.look()
    del grid.nodes[10]
    grid.add(60, a_node(60, "c0", rows / "all", rows / "memory"))
    registry.look()
    assert registry.node_of("c0") == 60
    grid.add(61, a_node(61, "c0", rows / "all", rows / "memory"))
    registry.look()
    assert registry.node_of("c0") == 60
    assert registry.refused == {61: "c0"}


def test_nodes_must_agree_and_the_line_names_them(rows: Path, tmp_path: Path) -> None:
    (tmp_path / "odd").mkdir()
    np.savez(tmp_path / "odd" / "odd.npz", x=np.ones((9, 3), np.float32), y=np.arange(9) % 2)
    grid = grid_of(rows, ("c0",))
    grid.add(20, a_node(20, "odd", tmp_path / "odd", rows / "memory"), "k", "odd")
    with pytest.raises(FedcladeError, match=r"rows of 'odd' have shape \(3,\), those of 'c0' \(8,\)"):
        serve(grid, {**CONFIG, "clients": 2, "out": str(tmp_path / "run")})
    assert not (tmp_path / "run").exists()


def test_one_odd_node_keeps_no_run_from_beginning(rows: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "odd").mkdir()
    np.savez(tmp_path / "odd" / "odd.npz", x=np.ones((9, 3), np.float32), y=np.arange(9) % 2)
    grid = grid_of(rows, ("c0", "c1"))
    grid.add(20, a_node(20, "odd", tmp_path / "odd", rows / "memory"), "k", "odd")
    folder = serve(grid, {**CONFIG, "clients": 3, "out": str(tmp_path / "run")})
    assert folder.settings["clients"] == ["c0", "c1"]
    assert "'odd' is left out: its rows (shape (3,)) or columns are unlike most nodes'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"count": [1e15] * 8}, "more values than rows can hold"),
        ({"mean": [1e300] * 8}, "values above 1e+30"),
        ({"deviations": [-1.0] * 8}, "deviations below 0"),
        ({"mean": [1.0] * 7}, "mean of shape (7,)"),
        ({"median": ["a"] * 8}, "could not convert"),
        ({"count": None}, "count of shape ()"),
        ([], "list indices"),
    ],
    ids=str,
)
def test_statistics_without_sense_cost_their_node(told: Any, why: str, rows: Path, tmp_path: Path, capsys: Any) -> None:
    honest = a_node(13, "c3", rows / "all", rows / "memory")

    def lies(message: Any) -> Any:
        reply = honest(message)
        if message.metadata.message_type != f"query.{node_module.STATISTICS}":
            return reply
        said = json.loads(reply.content["told"]["json"])
        said = told if isinstance(told, list) else {**said, "features": {**said["features"], **told}}
        return Message(RecordDict({"told": ConfigRecord({"json": json.dumps(said)})}), reply_to=message)

    config = {**CONFIG, "method.name": "fedavg", "rounds": 1}
    without = serve(grid_of(rows, ("c0", "c1", "c2")), {**config, "clients": 3, "out": str(tmp_path / "without")})
    grid = grid_of(rows, ("c0", "c1", "c2"))
    grid.add(13, lies, "key c3", "c3")
    folder = serve(grid, {**config, "out": str(tmp_path / "run")})
    assert folder.settings["clients"] == ["c0", "c1", "c2"]
    assert folder.settings["preprocessing"] == without.settings["preprocessing"]
    said = capsys.readouterr().out
    assert "'c3' is left out: the statistics of its rows make no sense" in said
    assert why in said


def test_a_greeting_without_sense_is_passed_over(rows: Path) -> None:
    grid = grid_of(rows, ("c0",))
    nonsense = RecordDict({"told": ConfigRecord({"json": "[]"})})
    grid.add(20, lambda message: Message(nonsense, reply_to=message), "k", "x")
    grid.add(21, lambda message: Message(RecordDict(), reply_to=message), "k", "y")
    registry = NodeRegistry(Exchange(grid))
    registry.look()
    assert set(registry.known) == {"c0"}


def test_what_a_node_tells_and_what_it_holds(rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = report_of(held_by({"data": f"folder:{rows / 'late'}"}), {"data": f"folder:{rows / 'late'}"})
    assert told["client"] == "c4"
    nothing_of_a_row = {"client", "input_shape", "dtype", "classes", "columns", "scaling", "group", "rows"}
    assert set(told) == nothing_of_a_row
    part = own_rows({"data": "digits", "split": "label-groups:2", "clients": 3, "partition-id": 1})
    assert part.names == ("client-001",)
    assert len(part.x) == len(part.clients[0].train) + len(part.clients[0].test)
    (tmp_path / "mine.py").write_text("def load():\n    return [[1.0], [2.0], [3.0]], ['a', 'b', 'a']\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert own_rows({"name": "me", "data": "mine:load"}).classes == ("a", "b")
    for config, why in (
        ({}, "has no data"),
        ({"data": "digits"}, "is no folder"),
        ({"data": f"folder:{rows / 'all'}"}, "say which with name"),
        ({"data": f"folder:{rows / 'all'}", "name": "zoe"}, "'zoe' is none of them"),
        ({"data": "digits", "clients": 3, "partition-id": 7}, "partition-id is 7"),
    ):
        with pytest.raises(FedcladeError, match=why):
            own_rows(config)


def test_labels_are_numbered_alike_everywhere(tmp_path: Path) -> None:
    for name, labels in (("a", [1, 1, 5]), ("b", [10, 5, 10])):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / f"{name}.npz", x=np.eye(3, dtype=np.float32), y=np.array(labels))
    grid = FakeGrid()
    for number, name in enumerate("ab"):
        grid.add(number + 1, a_node(number + 1, name, tmp_path / name, tmp_path / "memory"), name, name)
    folder = serve(grid, {**CONFIG, "clients": 2, "out": str(tmp_path / "run")})
    assert folder.settings["classes"] == ["1", "5", "10"]


def tables_of(rows: Path, *orders: tuple[str, ...]) -> FakeGrid:
    """Nodes t0, t1, ... with the planted rows of c0, c1, ... as tables, each with its columns in its own order."""
    grid = FakeGrid()
    for number, order in enumerate(orders):
        with np.load(rows / "all" / f"c{number}.npz") as held:
            table = pd.DataFrame(held["x"], columns=[f"f{k}" for k in range(8)]).assign(label=held["y"])
        folder = rows / f"t{number}"
        folder.mkdir(exist_ok=True)
        table[[*order, "label"]].to_parquet(folder / f"t{number}.parquet")
        grid.add(number + 1, a_node(number + 1, folder.name, folder, rows / "memory"), folder.name, folder.name)
    return grid


FEATURES = tuple(f"f{k}" for k in range(8))


def test_columns_are_in_one_order_everywhere(rows: Path, tmp_path: Path) -> None:
    config = {**CONFIG, "clients": 2, "method.name": "fedavg"}
    alike = serve(tables_of(rows, FEATURES, FEATURES), {**config, "out": str(tmp_path / "alike")})
    grid = tables_of(rows, FEATURES, FEATURES[::-1])
    mixed = serve(grid, {**config, "out": str(tmp_path / "mixed")})
    assert mixed.settings["columns"] == list(FEATURES)
    one, two = alike.last_checkpoint(), mixed.last_checkpoint()
    assert one is not None
    assert two is not None
    np.testing.assert_array_equal(one[1]["clusters"]["models"][0], two[1]["clusters"]["models"][0])


@pytest.mark.parametrize(
    "options",
    [{}, {"missing": "mean"}, {"missing": "median", "scaling": "client"}, {"missing": "mean", "scaling": "none"}],
    ids=str,
)
def test_features_of_tables_are_those_of_one_process(options: dict[str, str], rows: Path, tmp_path: Path) -> None:
    (rows / "tables").mkdir()
    random = np.random.default_rng(0)
    for number in range(4):
        with np.load(rows / "all" / f"c{number}.npz") as held:
            x, y = np.concatenate([held["x"], held["x_test"]]), np.concatenate([held["y"], held["y_test"]])
        x = x if options.get("scaling") == "none" else x * 100 + number
        if "missing" in options:
            x[random.random(x.shape) < 0.05] = np.nan
        table = pd.DataFrame(x, columns=FEATURES).assign(
            colour=random.choice(["red", "green", f"own {number}"], len(x)), label=[f"class {k}" for k in y]
        )
        order = random.permutation(table.columns.drop("label")) if number else table.columns.drop("label")
        table[[*order, "label"]].to_csv(rows / "tables" / f"c{number}.csv", index=False)
    settings = {"rounds": 2, "training": {"local_epochs": 1}, "workers": 1, "data_options": options}
    local = api.run(f"folder:{rows / 'tables'}", method="fedavg", out=tmp_path / "local", **settings)
    grid = FakeGrid()
    for number in range(4):
        name = f"c{number}"
        grid.add(number + 1, a_node(number + 1, name, rows / "tables", rows / "memory"), name, name)
    said = " ".join(f"data_options.{name}={value}" for name, value in options.items())
    folder = serve(grid, {**CONFIG, "method.name": "fedavg", "set": said, "out": str(tmp_path / "run")})
    for what in ("preprocessing", "columns", "input_shape", "classes"):
        assert folder.settings[what] == local.folder.settings[what]
    one, two = local.folder.last_checkpoint(), folder.last_checkpoint()
    assert one is not None
    assert two is not None
    np.testing.assert_array_equal(one[1]["clusters"]["models"][0], two[1]["clusters"]["models"][0])
    assert folder.settings["statistics"]["bytes"] > 0
    newcomer = place(folder.path, f"folder:{rows / 'tables'}", personalise=0, save=False)
    assert set(newcomer) == {"c0", "c1", "c2", "c3"}


def test_other_columns_are_refused(rows: Path, tmp_path: Path) -> None:
    config = {**CONFIG, "clients": 2, "method.name": "fedavg", "out": str(tmp_path / "run")}
    grid = tables_of(rows, FEATURES, FEATURES)
    other = pd.read_parquet(rows / "t1" / "t1.parquet").rename(columns={"f7": "age"})
    node = grid.nodes[2][1]

    def changes(message: Any) -> Any:
        if message.metadata.message_type == "train":  # its owner puts another table in place while the run goes on
            other.to_parquet(rows / "t1" / "t1.parquet")
        return node(message)

    grid.add(2, changes, "t1", "t1")
    history = serve(grid, config).table("history")
    why = history.loc[(history["client"] == "t1") & (history["round"] == 1), "failure"].item()
    assert "t1.parquet: its columns differ from those of the run in age, f7: make them alike" in why
    with pytest.raises(FedcladeError, match="the table of 't1': its columns differ from those of 't0' in age, f7"):
        serve(grid, {**config, "out": str(tmp_path / "new")})


def test_a_late_node_with_other_columns_cannot_join(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = tables_of(rows, FEATURES, FEATURES, (*FEATURES[1:], "f0"))
    table = pd.read_parquet(rows / "t2" / "t2.parquet")
    table.rename(columns={"f7": "age"}).to_parquet(rows / "t2" / "t2.parquet")
    late, first = grid.nodes.pop(3), grid.nodes[1][1]

    def opens_the_door(message: Any) -> Any:
        if message.metadata.message_type == "train":
            grid.nodes[3] = late
        return first(message)

    grid.add(1, opens_the_door, "t0", "t0")
    folder = serve(grid, {**CONFIG, "clients": 2, "method.name": "fedavg", "out": str(tmp_path / "run"), "rounds": 3})
    assert set(folder.table("history")["client"]) == {"t0", "t1"}
    assert "'t2' cannot join: its rows, columns or labels are unlike" in capsys.readouterr().out


def test_a_late_node_joins_as_a_newcomer(rows: Path, tmp_path: Path) -> None:
    grid = grid_of(rows)
    late = a_node(30, "c4", rows / "late", rows / "memory")
    first = grid.nodes[10][1]

    def opens_the_door(message: Any) -> Any:
        if message.metadata.message_type == "train" and 30 not in grid.nodes:
            grid.add(30, late, "key c4", "c4")
        return first(message)

    grid.add(10, opens_the_door, "key c0", "c0")
    config = {**CONFIG, "method.name": "fedclust", "set": "method.n_clusters=2", "out": str(tmp_path / "run")}
    folder = serve(grid, {**config, "rounds": 3})
    result = api.load(folder.path)
    assert result.cluster_of("c4") == result.cluster_of("c0")
    assert (rows / "memory" / folder.settings["fingerprint"] / "c4" / "model.safetensors").is_file()
    assert RunFolder.open(folder.path).is_finished


def test_settings_from_a_run_config() -> None:
    settings = settings_of(
        {"method.name": "fedclust", "training.local-epochs": 3, "rows": "", "set": "method.n_clusters=2"}
    )
    assert settings.method == FedClust(n_clusters=2)
    assert settings.training.local_epochs == 3
    with pytest.raises(FedcladeError, match="no meaning for real nodes"):
        settings_of({"data": "mnist"})
    with pytest.raises(FedcladeError, match="there is no setting 'roundz'"):
        settings_of({"roundz": 3})


def test_workers_hand_arrays_over_whole() -> None:
    sent = Packet({"a": [1, "ü"]}, [np.arange(3, dtype=np.float32), np.ones((2, 2)), np.empty((0, 4))])
    came = Packet.from_bytes(sent.to_bytes())
    assert came.header == {"a": [1, "ü"]}
    assert [array.tolist() for array in came.arrays] == [[0, 1, 2], [[1, 1], [1, 1]], []]
    assert node_module.HELLO == "fedclade_hello"


def test_a_worker_stays_for_the_next_task_and_a_killed_one_is_replaced(tmp_path: Path) -> None:
    address = str(worker.private_folder() / f"test-{tmp_path.name[-20:]}.sock")
    first = worker._connected(address)
    assert first is not None
    with first:
        first.send_bytes(Packet({"config": {}, "task": {}}, []).to_bytes())
        assert "error" in Packet.from_bytes(first.recv_bytes()).header
    (pid,) = [int(path.name) for path in Path("/proc").glob("[0-9]*") if address.encode() in _command(path)]
    os.kill(pid, signal.SIGKILL)
    time.sleep(0.5)
    second = worker._connected(address)
    assert second is not None
    second.close()
    (other,) = [int(path.name) for path in Path("/proc").glob("[0-9]*") if address.encode() in _command(path)]
    os.kill(other, signal.SIGKILL)
    assert pid != other


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""
