"""`fedclade place` on a run and a folder of newcomers; what newcomers must bring."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import fedclade
from fedclade.cli import app
from fedclade.errors import FedcladeError
from fedclade.methods.fedavg import FedAvg
from planting import planted


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
        "method.fraction=1.0",
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


def test_a_method_given_in_python_must_be_given_again(tmp_path: Path) -> None:
    class Own(FedAvg):
        pass

    run = fedclade.run(planted(n_clients=2, rows=20), method=Own(), model="mlp", rounds=1, workers=1)
    with pytest.raises(FedcladeError, match="its method Own in Python"):
        fedclade.place(run.path, planted(n_clients=2, rows=20))
    assert len(fedclade.place(run.path, planted(n_clients=2, rows=20), method=Own())) == 2
