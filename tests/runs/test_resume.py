"""A run that is killed and resumed ends as if nothing had happened, bit for bit."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import fedclade
from fedclade.errors import FedcladeError
from fedclade.runs import packing
from fedclade.runs.folder import RunFolder
from harness import contents

ARGUMENTS = dict(
    data="digits", split="label-groups:2", clients=8, model="mlp", rounds=30, seed=3, evaluate_local_every=4
)


def start(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", f"import fedclade\n{code}"], start_new_session=True)


def kill_after(process: subprocess.Popen[bytes], run: Path, round: int, pause: float) -> bool:
    """SIGKILL the process and all it started some time after a round has ended; False if it was too late."""
    while process.poll() is None:
        done = [int(path.stem) for path in (run / "checkpoints").glob("[0-9]*.safetensors")]
        if done and max(done) >= round:
            time.sleep(pause)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return True
        time.sleep(0.002)
    return False


def files_of(run: Path) -> dict[str, bytes]:
    """Every file that must come out the same."""
    kept = ("models", "records")
    paths = [path for folder in kept for path in sorted((run / folder).rglob("*")) if path.is_file()]
    return {str(path.relative_to(run)): path.read_bytes() for path in paths}


@pytest.mark.parametrize(("method", "workers"), [("clade", 1), ("local", 2)])
def test_killed_runs_end_like_unbroken_ones(tmp_path: Path, method: str, workers: int) -> None:
    unbroken = fedclade.run(**ARGUMENTS, method=method, workers=1, out=tmp_path / "unbroken")
    broken = tmp_path / "broken"
    dice = random.Random(7)
    process = start(f"fedclade.run(**{ARGUMENTS!r}, method={method!r}, workers={workers}, out={str(broken)!r})")
    kills = 0
    for round in (0, dice.randrange(3, 12), dice.randrange(14, 25)):
        kills += kill_after(process, broken, round, dice.uniform(0, 0.1))
        process = start(f"fedclade.resume({str(broken)!r}, workers={workers})")
    assert process.wait() == 0
    assert kills >= 2
    result = fedclade.load(broken)
    assert files_of(broken) == files_of(unbroken.path)
    assert contents(broken) == contents(unbroken.path)
    assert result.history.equals(unbroken.history)
    assert result.ledger.equals(unbroken.ledger)
    same = {key for key in unbroken.summary if not key.endswith("seconds")}
    assert {key: result.summary[key] for key in same} == {key: unbroken.summary[key] for key in same}


def test_more_rounds_can_be_added_to_a_finished_run(tmp_path: Path) -> None:
    short = {**ARGUMENTS, "rounds": 3, "workers": 1, "method": "fedavg"}  # clade judges models before the last rounds
    long = fedclade.run(**{**short, "rounds": 6}, out=tmp_path / "long")
    fedclade.run(**short, out=tmp_path / "short")
    result = fedclade.resume(tmp_path / "short", rounds=6)
    name = result.clusters[0][0]
    assert np.array_equal(result.weights_for(name), long.weights_for(name))
    assert list(result.history["round"].unique()) == list(range(7))
    with pytest.raises(FedcladeError, match="past round 6"):
        fedclade.resume(tmp_path / "short", rounds=2)


def test_locally_trained_models_are_kept_where_they_are_wanted(tmp_path: Path) -> None:
    short = {**ARGUMENTS, "rounds": 1, "workers": 1}
    kept = fedclade.run(**short, out=tmp_path / "kept")
    without = fedclade.run(**short, keep_local=False, out=tmp_path / "without")
    name = kept.clusters[0][0]
    assert np.array_equal(kept.weights_for(name), without.weights_for(name))
    assert "accuracy_local" in kept.history
    assert kept.local_model_of(name)
    with pytest.raises(FedcladeError):
        without.local_model_of(name)
    alone = fedclade.run(**{**short, "method": "local"}, keep_local=False)  # goes on from them, so they are kept
    assert alone.local_model_of(name)


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path) -> None:
    fedclade.run(**{**ARGUMENTS, "rounds": 3}, workers=1, out=tmp_path / "run")
    newest = sorted((tmp_path / "run" / "checkpoints").iterdir())[-1]
    newest.write_bytes(newest.read_bytes()[:-100])
    assert RunFolder.open(tmp_path / "run").last_checkpoint()[0] == 2  # type: ignore[index]


def test_resuming_needs_the_same_data_and_a_run(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    data = {"a": (rows, np.arange(40) % 2), "b": (rows + 1, np.arange(40) % 2)}
    fedclade.run(data, rounds=1, workers=1, out=tmp_path / "run")
    with pytest.raises(FedcladeError, match="given its data in Python"):
        fedclade.resume(tmp_path / "run")
    with pytest.raises(FedcladeError, match="data differ"):
        fedclade.resume(tmp_path / "run", data={**data, "b": (rows + 2, np.arange(40) % 2)}, rounds=2)
    assert fedclade.resume(tmp_path / "run", data=data, rounds=2).summary["rounds"] == 2
    with pytest.raises(FedcladeError, match="no run folder"):
        fedclade.resume(tmp_path)
    with pytest.raises(FedcladeError, match="holds a run already"):
        fedclade.run(data, rounds=1, workers=1, out=tmp_path / "run")


def test_two_processes_cannot_write_to_one_run(tmp_path: Path) -> None:
    fedclade.run(**{**ARGUMENTS, "rounds": 1}, workers=1, out=tmp_path / "run")
    with RunFolder.open(tmp_path / "run"), pytest.raises(FedcladeError, match="another process"):
        fedclade.resume(tmp_path / "run", rounds=2)


def test_any_plain_state_survives_packing(tmp_path: Path) -> None:
    shared = np.arange(3, dtype=np.float32)
    state = {"a": shared, "b": [shared, {"x": None, "y": True}], 3: {4: "five"}, "inf": float("inf"), "none": []}
    packing.save(tmp_path / "state", state)
    loaded = packing.load(tmp_path / "state")
    assert np.array_equal(loaded["a"], shared)
    assert np.array_equal(loaded["b"][0], shared)
    assert loaded["b"][1] == {"x": None, "y": True}
    assert loaded[3] == {4: "five"}
    assert loaded["inf"] == float("inf")
    with pytest.raises(TypeError):
        packing.save(tmp_path / "bad", {"x": object()})
    (tmp_path / "bad").write_bytes(b"rubbish")
    with pytest.raises(FedcladeError, match="damaged"):
        packing.load(tmp_path / "bad")


def test_to_go_on_with_other_software_is_said(tmp_path: Path) -> None:
    """A run on another kernel or version goes on, with other bits than it would have had, and not without a word."""
    fedclade.run(
        "digits", split="label-groups:2", clients=4, method="fedavg", rounds=1, workers=1, out=tmp_path / "run"
    )
    folder = RunFolder.open(tmp_path / "run")
    record = folder.settings
    with folder:
        folder.update_settings({**record, "machine": {**record["machine"], "kernel": "3 lanes"}})
    with pytest.warns(UserWarning, match=r"kernel \(3 lanes, now .*\) changed"):
        fedclade.resume(tmp_path / "run", rounds=2)
