"""`fedclade place` on a run and a folder of newcomers."""

from pathlib import Path

import numpy as np
from typer.testing import CliRunner

import fedclade
from fedclade.cli import app
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
