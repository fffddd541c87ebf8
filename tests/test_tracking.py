"""Rounds are told to CSV, TensorBoard and MLflow, once each, also when a run stops and goes on."""

import csv
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fedclade
from fedclade import tracking
from fedclade.cli import app
from fedclade.errors import FedcladeError
from fedclade.rounds import Progress

SETTINGS: dict[str, Any] = {"split": "label-groups:2", "clients": 4, "model": "mlp", "rows": 20, "workers": 1}


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "rounds.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def stop_after(round: int) -> Any:
    def hear(progress: Progress) -> None:
        if progress.round == round:
            raise KeyboardInterrupt

    return hear


def test_csv_has_every_round_once_after_a_stop(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        fedclade.run("digits", **SETTINGS, rounds=4, out=out, track="csv", on_round=stop_after(2))
    result = fedclade.resume(out, track=["csv"])
    rows = rows_of(out)
    assert [row["round"] for row in rows] == ["0", "1", "2", "3", "4"]
    assert float(rows[-1]["accuracy/mean"]) == pytest.approx(result.accuracy["mean"])
    assert float(rows[-1]["accuracy/worst"]) == pytest.approx(result.accuracy["worst"])
    assert float(rows[-1]["accuracy_local/mean"]) == pytest.approx(result.accuracy_local["mean"])
    assert rows[1]["accuracy_local/mean"] == ""  # not measured then
    assert int(rows[-1]["bytes/up"]) == result.summary["bytes"]["up"]
    assert float(rows[-1]["seconds"]) > 0


def test_a_run_that_was_not_tracked_is_told_from_its_history(tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = fedclade.run("digits", **SETTINGS, rounds=2, out=out)
    accuracy, sent = first.accuracy["mean"], first.summary["bytes"]
    fedclade.resume(out, rounds=3, track="csv")
    rows = rows_of(out)
    assert [row["round"] for row in rows] == ["0", "1", "2", "3"]
    assert float(rows[2]["accuracy/mean"]) == pytest.approx(accuracy)
    assert int(rows[2]["bytes/down"]) == sent["down"]
    assert rows[2]["seconds"] == ""  # nobody knows any more


def test_rounds_beyond_what_counts_are_dropped_from_the_file(tmp_path: Path) -> None:
    tracker = tracking.CSV(tmp_path, {}, -1, tracking.names_of("accuracy"))
    for round in range(4):
        tracker.log(round, dict.fromkeys(tracking.names_of("accuracy"), 0.5))
    tracking.CSV(tmp_path, {}, 1, tracking.names_of("accuracy"))
    assert [row["round"] for row in rows_of(tmp_path)] == ["0", "1"]


def test_tensorboard_has_every_round_once_and_the_settings(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        fedclade.run("digits", **SETTINGS, rounds=3, out=out, track="tensorboard", on_round=stop_after(1))
    fedclade.resume(out, track="tensorboard")
    events = EventAccumulator(str(out / "tensorboard"))
    events.Reload()
    assert {"accuracy/mean", "accuracy/worst", "accuracy_local/mean", "clusters", "bytes/up"} <= set(
        events.Tags()["scalars"]
    )
    assert [event.step for event in events.Scalars("accuracy/mean")] == [0, 1, 2, 3]
    hparams = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    assert b"training.learning_rate" in hparams


def test_mlflow_has_every_round_once_and_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    address = (tmp_path / "mlruns").as_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        fedclade.run("digits", **SETTINGS, rounds=2, out=out, track="mlflow", on_round=stop_after(1))
    client = MlflowClient(tracking_uri=address)
    experiment = client.get_experiment_by_name("fedclade").experiment_id
    assert [run.info.status for run in client.search_runs([experiment])] == ["KILLED"]
    fedclade.resume(out, track="mlflow")
    (run,) = client.search_runs([experiment])
    assert run.data.params["training.learning_rate"] == "0.05"
    assert run.info.status == "FINISHED"
    steps = [metric.step for metric in client.get_metric_history(run.info.run_id, "accuracy/mean")]
    assert steps == [0, 1, 2]


def test_mlflow_prints_no_news(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    logging.getLogger("mlflow").setLevel(logging.INFO)  # as it is after an import

    def hear(progress: Progress) -> None:  # the small edition of MLflow has no database to tell of
        logging.getLogger("mlflow.store.db.utils").info("updating database tables")

    fedclade.run("digits", **SETTINGS, rounds=1, out="run", track="mlflow", on_round=hear)
    told = capsys.readouterr()
    assert "INFO" not in told.out + told.err


def test_wandb_has_every_round_once_and_needs_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    from fedclade.tracking import WandB

    heard, log = [], WandB.log

    def hear(self: WandB, round: int, metrics: Any) -> None:
        heard.append(round)
        log(self, round, metrics)

    monkeypatch.setattr(WandB, "log", hear)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        fedclade.run("digits", **SETTINGS, rounds=2, out=out, track="wandb", on_round=stop_after(1))
    fedclade.resume(out, track="wandb")
    assert heard == [0, 1, 2]
    name = json.loads((out / "wandb.json").read_text())["run"]
    written = list(out.glob(f"wandb/offline-run-*-{name}/run-{name}.wandb"))  # also in the second part
    assert written
    assert all(file.stat().st_size > 500 for file in written)


def test_what_cannot_be_tracked_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FedcladeError, match="did you mean 'tensorboard'"):
        fedclade.run("digits", track="tensorbord")
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    with pytest.raises(FedcladeError, match=r"pip install 'fedclade\[mlflow\]'"):
        fedclade.run("digits", track="mlflow", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_command_line_tracks_too(tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["run", "--clients", "4", "--rounds", "1", "--model", "mlp", "--workers", "1", "--out", str(out)]
    assert CliRunner().invoke(app, [*words, "--track", "csv"]).exit_code == 0
    assert CliRunner().invoke(app, ["resume", str(out), "--rounds", "2", "--track", "csv"]).exit_code == 0
    assert [row["round"] for row in rows_of(out)] == ["0", "1", "2"]
