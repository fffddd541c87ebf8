"""`fedclade place` on a run and a folder of newcomers; what newcomers must bring."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import fedclade
from fedclade.cli import app
from fedclade.errors import FedcladeError
from fedclade.methods.fedavg import FedAvg
from synthetic import planted

TRAINING = {"local_epochs": 3, "learning_rate": 0.1}
ONCE = {"warmup": 1, "n_clusters": 2}
METHODS: dict[str, dict[str, Any]] = {
    "agreement": {},
    "adacfl": {},
    "fedclust": {},
    "fedsccs": {**ONCE, "layer": "fc3"},
    "kcenter": ONCE,
    "wc": ONCE,
    "random": ONCE,
    "fedstack": {"n_clusters": 2},
}


def write_clients(folder: Path, federation: fedclade.Federation, names: list[str]) -> None:
    folder.mkdir()
    for name in names:
        client = federation[name]
        parts = {"x": client.train, "x_test": client.test}
        labels = {"y": np.array(federation.classes)[federation.y[client.train]]}
        labels["y_test"] = np.array(federation.classes)[federation.y[client.test]]
        np.savez(folder / f"{name}.npz", **{key: federation.x[rows] for key, rows in parts.items()}, **labels)


def test_newcomers_of_a_folder_find_their_cluster(tmp_path: Path) -> None:
    federation = planted(n_clients=8, rows=60)
    write_clients(tmp_path / "here", federation, [f"c{k}" for k in range(6)])
    write_clients(tmp_path / "new", federation, ["c6", "c7"])
    runner = CliRunner()
    run = ["run", "--data", f"folder:{tmp_path / 'here'}", "--method", "fedclust", "--model", "mlp", "--rounds", "3"]
    run += [
        "--set",
        "method.n_clusters=2",
        "--set",
        "participation=1.0",
        "--workers",
        "1",
        "--out",
        str(tmp_path / "run"),
    ]
    assert runner.invoke(app, run).exit_code == 0
    result = runner.invoke(app, ["place", str(tmp_path / "run"), "--data", f"folder:{tmp_path / 'new'}"])
    assert result.exit_code == 0, result.output
    clusters = fedclade.load(tmp_path / "run")
    lines = {line.split()[0]: line.split()[1] for line in result.output.splitlines() if line.startswith("c")}
    assert lines["c6"] == str(clusters.cluster_of("c0"))
    assert lines["c7"] == str(clusters.cluster_of("c1"))
    assert (tmp_path / "run" / "placements" / "c7.json").is_file()
    wrong = runner.invoke(app, ["place", str(tmp_path / "run"), "--data", "folder:nowhere"])
    assert wrong.exit_code == 2


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.filterwarnings("ignore:.*constant activations")
def test_every_method_places_newcomers_says_why_and_hands_out_the_model(name: str, tmp_path: Path) -> None:
    everyone = planted(n_clients=10, rows=60)
    early, late = (replace(everyone, clients=some) for some in (everyone.clients[:8], everyone.clients[8:]))
    settings: dict[str, Any] = {"model": "ann" if name == "fedstack" else "mlp", "training": TRAINING, "workers": 1}
    run = fedclade.run(early, method={"name": name, **METHODS[name]}, rounds=6, out=tmp_path / "run", **settings)
    write_clients(tmp_path / "new", everyone, list(late.names))
    result = CliRunner().invoke(app, ["place", str(run.path), "--data", f"folder:{tmp_path / 'new'}"])
    assert result.exit_code == 0, result.output
    placed = fedclade.place(run.path, late, save=False)
    for client, mate in (("c8", "c0"), ("c9", "c1")):
        told = json.loads((run.path / "placements" / f"{client}.json").read_text())
        assert told["cluster"] in run.clusters
        assert told["cluster"] == min(run.clusters, key=lambda k: told["distances"][str(k)])
        assert told["measure"] in result.output
        if name != "random":
            assert told["cluster"] == run.cluster_of(mate)
            assert told["score"] > 0.9
        # The file holds the very model that the call gives.
        one, test = placed[client], late[client].test
        one.model.load_state_dict(load_file(run.path / "placements" / f"{client}.safetensors"))
        right = one.model(torch.from_numpy(late.x[test])).argmax(1).numpy() == late.y[test]
        measured = told["score"] if name == "fedstack" else told["score_personalised"]
        assert right.mean() == pytest.approx(measured) == pytest.approx(one.score_personalised or one.score)
    # One row, or half of the classes, is enough to get a place.
    client = late["c9"]
    few = client.train[late.y[client.train] < 2]
    odd = tuple(replace(client, name=new, train=rows) for new, rows in (("row", client.train[:1]), ("half", few)))
    places = fedclade.place(run.path, replace(late, clients=odd), save=False)
    assert {one.cluster for one in places.values()} <= {None, *run.clusters}
    assert all(one.cluster is not None or one.limit is not None for one in places.values())
    assert all(np.isfinite(list(one.distances.values())).all() for one in places.values())


def test_one_who_is_far_from_all_founds_a_cluster_and_is_told_how_far_is_far(tmp_path: Path) -> None:
    everyone = planted(n_clients=9, n_groups=3, rows=60)
    known = tuple(client for client in everyone.clients if client.group != 2)
    method = {"name": "adacfl", "epsilon": 0.5}
    run = fedclade.run(
        replace(everyone, clients=known),
        method=method,
        model="mlp",
        rounds=3,
        training=TRAINING,
        workers=1,
        out=tmp_path / "run",
    )
    write_clients(tmp_path / "new", everyone, ["c2"])
    result = CliRunner().invoke(app, ["place", str(tmp_path / "run"), "--data", f"folder:{tmp_path / 'new'}"])
    assert "a new one" in result.output
    assert "whoever is beyond 0.5 from all founds a cluster" in result.output
    assert json.loads((run.path / "placements" / "c2.json").read_text())["limit"] == 0.5


def test_one_model_needs_no_distances(tmp_path: Path) -> None:
    fedclade.run(planted(), method="fedavg", model="mlp", rounds=1, workers=1, out=tmp_path / "run")
    write_clients(tmp_path / "new", planted(), ["c2"])
    result = CliRunner().invoke(app, ["place", str(tmp_path / "run"), "--data", f"folder:{tmp_path / 'new'}"])
    assert "There is one model." in result.output


def test_newcomers_may_bring_another_architecture_where_its_last_layer_fits(tmp_path: Path) -> None:
    federation = planted(shape=(3, 12), rows=40)
    method = {"name": "fedstack", "n_clusters": 2, "epochs": 6}
    fedclade.run(federation, method=method, model="ann", rounds=0, workers=1, out=tmp_path / "run")
    write_clients(tmp_path / "new", federation, ["c2", "c3"])
    place = ["place", str(tmp_path / "run"), "--data", f"folder:{tmp_path / 'new'}", "--model"]
    assert CliRunner().invoke(app, [*place, "cnn1d"]).exit_code == 0
    tensors = load_file(tmp_path / "run" / "placements" / "c2.safetensors")
    assert {"own.conv1.weight", "cluster.head.weight"} <= set(tensors)
    wrong = CliRunner().invoke(app, [*place, "mlp"])
    assert wrong.exit_code == 2
    assert "last layer of unlike size" in wrong.output


def test_another_model_than_the_clusters_is_refused(tmp_path: Path) -> None:
    fedclade.run(planted(), method="fedclust", model="mlp", rounds=1, workers=1, out=tmp_path / "run")
    with pytest.raises(fedclade.FedcladeError, match=r"models have \d+ weights, this one \d+"):
        fedclade.place(tmp_path / "run", planted(), model="ann")


def test_of_many_clusters_the_nearest_are_shown(tmp_path: Path) -> None:
    federation = planted(n_clients=10)
    method = {"name": "fedclust", "n_clusters": 10}
    run = fedclade.run(federation, method=method, model="mlp", rounds=1, workers=1, out=tmp_path / "run")
    write_clients(tmp_path / "new", federation, ["c9"])
    result = CliRunner().invoke(app, ["place", str(run.path), "--data", f"folder:{tmp_path / 'new'}"])
    words = next(line for line in result.output.splitlines() if line.startswith("c9")).split()
    assert words[1] == str(run.cluster_of("c9"))
    assert words[2:4] == [f"{words[1]}:", f"{fedclade.place(run.path, federation, save=False)['c9'].distances[9]:.4g}"]
    assert "the nearest three of 10 clusters" in result.output


def test_rows_of_other_classes_and_runs_that_have_not_ended_are_refused(tmp_path: Path) -> None:
    run = fedclade.run(planted(), method="fedclust", model="mlp", rounds=1, workers=1, out=tmp_path / "run")
    with pytest.raises(fedclade.FedcladeError, match=r"classes \(w, x, y, z\) are not the run's \(a, b, c, d\)"):
        fedclade.place(run.path, replace(planted(), classes=("w", "x", "y", "z")))
    (run.path / "result.json").unlink()
    with pytest.raises(fedclade.FedcladeError, match="has not ended"):
        fedclade.place(run.path, planted())


def test_tables_of_newcomers_are_read_in_the_order_of_the_run(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(30, 3)).round(3), columns=["b", "a", "c"]).assign(label=["x", "y"] * 15)
    for folder, columns in {"here": ["b", "a", "c"], "same": ["b", "a", "c"], "turned": ["c", "b", "a"]}.items():
        (tmp_path / folder).mkdir()
        table[[*columns, "label"]].to_csv(tmp_path / folder / "new.csv", index=False)
    run = fedclade.run(f"folder:{tmp_path / 'here'}", rounds=1, workers=1)
    same, turned = (fedclade.place(run.path, f"folder:{tmp_path / name}", save=False) for name in ("same", "turned"))
    np.testing.assert_array_equal(same["new"].weights, turned["new"].weights)
    table.rename(columns={"a": "d"}).to_csv(tmp_path / "turned" / "new.csv", index=False)
    with pytest.raises(FedcladeError, match="columns differ from those of the run in a, d"):
        fedclade.place(run.path, f"folder:{tmp_path / 'turned'}")


class Importable(FedAvg):
    """A method in a module."""


def test_a_method_given_in_python_is_found_again_where_it_can_be_imported(tmp_path: Path) -> None:
    write_clients(tmp_path / "here", planted(n_clients=2, rows=20), ["c0", "c1"])
    data, out = f"folder:{tmp_path / 'here'}", str(tmp_path / "run")
    run = fedclade.run(data, method=Importable(), participation=0.5, model="mlp", rounds=1, workers=1, out=out)
    assert run.folder.settings["settings"]["method"]["name"] == "test_cli_place:Importable"
    for words in (["resume", out, "--rounds", "2", "--workers", "1"], ["place", out, "--data", data]):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
    assert fedclade.load(out).summary["rounds"] == 2


def test_a_method_given_in_python_must_be_given_again(tmp_path: Path) -> None:
    class Own(FedAvg):
        pass

    run = fedclade.run(planted(n_clients=2, rows=20), method=Own(), model="mlp", rounds=1, workers=1)
    with pytest.raises(FedcladeError, match="its method Own in Python"):
        fedclade.place(run.path, planted(n_clients=2, rows=20))
    assert len(fedclade.place(run.path, planted(n_clients=2, rows=20), method=Own())) == 2


@pytest.mark.parametrize("method", ["fedclust", "clade", "ifca"])
def test_newcomers_that_fit_nowhere_are_warned_of(tmp_path: Path, method: str) -> None:
    federation = planted(n_clients=12, n_groups=2, rows=80)
    names = [client.name for client in federation.clients]
    write_clients(tmp_path / "here", federation, names[:10])
    write_clients(tmp_path / "new", federation, names[10:])
    random = np.random.default_rng(0)
    for k in range(2):  # rows that are like nobody's, with labels that mean nothing
        labels = np.array(federation.classes)[random.integers(0, 4, 80)]
        np.savez(tmp_path / "new" / f"noise-{k}.npz", x=random.normal(size=(80, 8)).astype(np.float32) * 4, y=labels)
    settings = {"name": method, **({} if method == "clade" else {"n_clusters": 2})}
    data, run = f"folder:{tmp_path / 'here'}", tmp_path / "run"
    fedclade.run(data, method=settings, model="mlp", rounds=6, training=TRAINING, workers=1, out=run)
    placed = fedclade.place(run, f"folder:{tmp_path / 'new'}")
    assert {name: bool(one.warning) for name, one in placed.items()} == {
        **dict.fromkeys(names[10:], False), "noise-0": True, "noise-1": True,
    }  # fmt: skip
    told = CliRunner().invoke(app, ["place", str(run), "--data", f"folder:{tmp_path / 'new'}"]).output
    assert "warning: noise-0: it " in told or "warning: noise-0: the next cluster" in told
    assert json.loads((run / "placements" / "noise-0.json").read_text())["warning"]


def test_names_too_long_for_a_file_are_shortened_and_stay_apart() -> None:
    from fedclade.files import safe_name

    names = ["東京都立病院" * 8, "東京都立病院" * 9, "x" * 300, "a/b", "c0"]
    files = [safe_name(name) for name in names]
    assert max(map(len, files)) <= 200
    assert len(set(files)) == len(names)
    assert files[3:] == ["a%2Fb", "c0"]


def test_a_newcomer_without_labels_has_one_file(tmp_path: Path) -> None:
    from fedclade.newcomers import unlabelled_rows

    np.save(tmp_path / "anna.npy", np.zeros((3, 2)))
    pd.DataFrame({"a": [1]}).to_csv(tmp_path / "anna.csv")
    with pytest.raises(FedcladeError, match="'anna' has more than one file"):
        unlabelled_rows(tmp_path)
