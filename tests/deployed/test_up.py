"""`fedclade deploy up` is killed, and the run goes on: with the same keys, and nothing of the old one about."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedclade import api
from fedclade.deploy.local import home_of
from fedclade.runs.folder import RunFolder

pytestmark = pytest.mark.deployed

PATIENCE = 300.0
SETTINGS = ["--set", "training.local_epochs=1", "--set", "evaluate_every=0", "--set", "method.name=ditto"]


def until(what: str, happened: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < end, what
        time.sleep(0.3)


def processes_of(folder: Path) -> list[str]:
    """Commands that speak of a folder, or whose environment does, as that of nodes' workers."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command, environment = (path / "cmdline").read_bytes(), (path / "environ").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in command + environment:
            found.append(command.decode().replace("\0", " "))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_killed_trial_leaves_nothing_and_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from fedclade.deploy.project import init

    init(tmp_path / "app")
    run = RunFolder(tmp_path / "run")
    command = [sys.executable, "-m", "fedclade", "deploy", "up", "--nodes", "2", *SETTINGS]
    with (tmp_path / "log").open("wb") as log:
        up = subprocess.Popen(
            [*command, "--set", "rounds=1000", "--out", str(run.path), str(tmp_path / "app")],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        until("two rounds have passed", lambda: up.poll() is not None or (run.last_round or 0) >= 2)
        running = processes_of(tmp_path)
        assert len(running) > 5, (tmp_path / "log").read_text()
        assert any("fedclade.deploy.worker" in command for command in running)
    finally:
        up.send_signal(signal.SIGKILL)
        up.wait()
    until("all processes are gone", lambda: not processes_of(tmp_path))
    last = run.last_round
    assert last is not None
    again = api.resume(run.path, rounds=last + 1)
    assert (again.history["failure"] == "").all()
    assert sorted(path.name for path in home_of(run.path).iterdir()) == [".lock", "keys", "memory", "trial.json"]
    settings = {"training": {"local_epochs": 1, "batch_size": 16, "learning_rate": 0.05, "momentum": 0.5}}
    whole = api.run("digits", method="ditto", clients=2, rounds=last + 1, evaluate_every=0, workers=1, **settings)
    one, two = whole.folder.last_checkpoint(), run.last_checkpoint()
    assert one is not None
    assert two is not None
    for cluster, model in one[1]["clusters"]["models"].items():
        np.testing.assert_array_equal(model, two[1]["clusters"]["models"][cluster])
    assert one[1]["last_seen"] == two[1]["last_seen"]
