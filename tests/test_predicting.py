"""Predictions for new rows and exported models say what the run's own models say."""

import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import fedclade
from expect import refused
from fedclade.cli import app
from fedclade.files import write_atomically
from synthetic import planted
from test_tasks import a_run


@pytest.fixture(scope="module")
def prices(tmp_path_factory: pytest.TempPathFactory) -> fedclade.Result:
    folder = tmp_path_factory.mktemp("prices")
    return a_run("regression", folder, out=folder / "run", rounds=6)


def test_amounts_are_predicted_in_their_unit(prices: fedclade.Result, tmp_path: Path) -> None:
    file = prices.path.parent / "towns" / "town-1.csv"
    told = CliRunner().invoke(app, ["predict", str(prices.path), str(file), "--client", "town-1", "--out", "p.csv"])
    Path("p.csv").rename(tmp_path / "p.csv")
    assert "45 predictions by the model of town-1" in told.output
    found, table = pd.read_csv(tmp_path / "p.csv"), pd.read_csv(file)
    held_out = pd.read_parquet(prices.path / "held_out.parquet").query("client == 'town-1'")["row"]
    errors = (found["price"] - table["price"])[held_out]
    assert np.sqrt((errors**2).mean()) == pytest.approx(prices.last("rmse")["town-1"], rel=1e-3)
    without_labels = fedclade.predict(prices.path, "town-1", table.drop(columns="price"))
    np.testing.assert_allclose(without_labels["price"], found["price"], rtol=1e-5)
    refused(lambda: fedclade.predict(prices.path, "town-1", table.drop(columns="size")), "column 'size'")
    refused(lambda: fedclade.predict(prices.path, "town-9", table), "no client 'town-9'")
    refused(lambda: fedclade.predict(prices.path, "town-1", tmp_path / "none.csv"), "none.csv")
    refused(lambda: fedclade.predict(prices.path, "town-1", np.ones((2, 2))), "2 features")


def test_classes_and_sets_come_with_probabilities(tmp_path: Path) -> None:
    federation = planted()
    result = fedclade.run(federation, rounds=3, workers=1, out=tmp_path / "run", model="mlp")
    rows = federation.x[federation["c1"].test]
    found = fedclade.predict(result.path, "c1", rows)
    right = np.array(federation.classes)[federation.y[federation["c1"].test]]
    assert (found["prediction"] == right).mean() == pytest.approx(result.last("accuracy")["c1"])
    np.testing.assert_allclose(found.drop(columns="prediction").sum(axis=1), 1, rtol=1e-5)
    sets = a_run("multilabel", tmp_path, out=tmp_path / "sets", rounds=6)
    told = fedclade.predict(sets.path, "town-0", tmp_path / "towns" / "town-0.csv")
    named = [
        ";".join(name for name in ("garden", "garage") if row[f"probability of {name}"] > 0.5)
        for _, row in told.iterrows()
    ]
    assert list(told["prediction"]) == named


def outputs_of(path: Path, rows: np.ndarray) -> Any:
    if path.suffix == ".pt":
        return torch.jit.load(str(path))(torch.from_numpy(rows)).detach().numpy()
    reference = pytest.importorskip("onnx.reference")
    return reference.ReferenceEvaluator(str(path)).run(None, {"rows": rows})[0]


@pytest.mark.parametrize("form", ["torchscript", "onnx"])
def test_exported_models_say_the_same(form: str, prices: fedclade.Result, tmp_path: Path) -> None:
    if form == "onnx":
        pytest.importorskip("onnx")
    written = fedclade.export(prices.path, form, tmp_path / form)
    about = json.loads(written[-1].read_text())
    made = {each["name"]: each for each in about["preprocessing"]["numbers"]}
    table = pd.read_csv(prices.path.parent / "towns" / "town-1.csv")
    features = np.stack([(table[name] - made[name]["mean"]) / made[name]["std"] for name in made], 1).astype(np.float32)
    path = next(p for p in written if p.stem == f"cluster-{prices.cluster_of('town-1')}")
    expected = fedclade.predict(prices.path, "town-1", table)["price"]
    np.testing.assert_allclose(outputs_of(path, features)[:, 0], expected, rtol=1e-4)


def test_formats(prices: fedclade.Result, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    written = fedclade.export(prices.path, "safetensors", tmp_path / "plain")
    assert load_file(written[0])
    refused(lambda: fedclade.export(prices.path, "pickle"), "format 'pickle'", "torchscript")


def test_models_given_in_python_must_be_given_again(tmp_path: Path) -> None:
    def net(n_classes: int) -> nn.Module:
        return nn.Sequential(nn.Linear(8, n_classes))

    federation = planted()
    fedclade.run(federation, rounds=1, workers=1, model=net, out=tmp_path / "run")
    refused(lambda: fedclade.predict(tmp_path / "run", "c0", federation.x[:3]), "model was given in Python")
    assert len(fedclade.predict(tmp_path / "run", "c0", federation.x[:3], model=net)) == 3
    assert fedclade.export(tmp_path / "run", "torchscript", tmp_path / "out", model=net)


@pytest.fixture(scope="module")
def wards(tmp_path_factory: pytest.TempPathFactory) -> fedclade.Result:
    """A run on tables with texts, whose classes are words."""
    clients = {f"ward-{k}": ward(k) for k in range(3)}
    out = tmp_path_factory.mktemp("wards") / "run"
    options = {"label": "state", "scaling": "federated"}
    return fedclade.run(clients, method="fedclust", rounds=1, workers=1, out=out, data_options=options)


def ward(seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"dose": rng.normal(size=40), "sex": rng.choice(["F", "M"], 40)})
    return table.assign(state=np.where(table["dose"] > 0, "ill", "well"))


def test_what_is_odd_about_new_rows_is_said(wards: fedclade.Result, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="column 'sex' holds f, m in no training row"):
        fedclade.predict(wards.path, "ward-0", ward(9).assign(sex=ward(9)["sex"].str.lower()))
    for factor, how in ((1e-6, "less spread"), (1e6, "larger or smaller")):
        with pytest.warns(UserWarning, match=f"'dose' is far {how} than in the run's rows"):
            fedclade.predict(wards.path, "ward-0", ward(9).assign(dose=factor * (1 + ward(9)["dose"].abs())))
    with pytest.warns(UserWarning, match="0 is ill, 1 is well"):
        fedclade.place(wards.path, {"new": ward(9).assign(state=1 * (ward(9)["state"] == "ill"))}, personalise=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fedclade.predict(wards.path, "ward-0", ward(9))
    refused(lambda: fedclade.predict(wards.path, "ward-0", ward(9)[:0]), "no rows")
    refused(lambda: fedclade.predict(wards.path, "ward-0", np.ones((5, 1))), "1 features", "dose, sex")
    table, file = tmp_path / "new.csv", str(tmp_path / "new.csv")
    ward(9).assign(sex="x").to_csv(table, index=False)
    found = subprocess.run(
        [sys.executable, "-m", "fedclade", "predict", str(wards.path), file, "--client", "ward-0"],
        capture_output=True,
        text=True,
    )
    assert found.stderr == f"warning: {file}: column 'sex' holds x in no training row: taken for none of its texts\n"


def test_nothing_is_exported_from_a_damaged_file_or_to_a_wrong_place(wards: fedclade.Result, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for form in ("safetensors", "torchscript"):
        refused(lambda form=form: fedclade.export(wards.path, form, tmp_path / "file"), "cannot write")  # type: ignore[misc]
    os.mkfifo(tmp_path / "pipe")
    refused(lambda: write_atomically(tmp_path / "pipe", Path.touch), "pipe: it is no regular file")
    assert (tmp_path / "pipe").is_fifo()
    run = shutil.copytree(wards.path, tmp_path / "run")
    model = run / "models" / "cluster-0.safetensors"
    damaged = bytearray(model.read_bytes())
    damaged[-3] ^= 0x40
    model.write_bytes(damaged)
    refused(lambda: fedclade.export(run, "safetensors"), "cluster-0.safetensors is damaged", "fedclade resume")
    model.unlink()
    refused(lambda: fedclade.export(run, "safetensors"), "damaged or gone")
    assert len(fedclade.export(run, "torchscript")) == 1 + len(wards.clusters)


def test_predictions_do_not_replace_the_rows(prices: fedclade.Result, tmp_path: Path) -> None:
    file = tmp_path / "new.csv"
    shutil.copyfile(prices.path.parent / "towns" / "town-1.csv", file)
    before = file.read_bytes()
    told = CliRunner().invoke(app, ["predict", str(prices.path), str(file), "--client", "town-1", "--out", str(file)])
    assert told.exit_code != 0
    assert file.read_bytes() == before


def test_rows_of_other_clients_are_said(tmp_path: Path) -> None:
    table = pd.concat([ward(k).assign(ward=10 + k) for k in range(3)])
    options = {"label": "state", "client": "ward", "scaling": "federated"}
    run = fedclade.run(table, method="fedclust", rounds=1, workers=1, out=tmp_path / "run", data_options=options)
    with pytest.warns(UserWarning, match=r"80 of 120 rows are of other clients by column 'ward', as '11'"):
        assert len(fedclade.predict(run.path, "10", table)) == 120
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fedclade.predict(run.path, "10", table[table["ward"] == 10])
        fedclade.predict(run.path, "10", table.drop(columns="ward"))
