"""A federation of real processes, with TLS and keys, through everything that can go wrong.

One run, one SuperLink: starting them takes longer than the work. At the end the run is played again in one process,
without the clients that were missing: clusters and models must be the same, bit for bit.
"""

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedclade import api
from fedclade.clients.memory import Memory
from fedclade.clients.runtime import ClientRuntime
from fedclade.clients.tasks import Failure, Task, Train
from fedclade.data import Preprocessing, federation_of
from fedclade.engines.engine import TransportEngine
from fedclade.engines.local import LocalTransport
from fedclade.models.assigned import Networks
from fedclade.newcomers import place
from fedclade.rounds import Loop
from fedclade.runs.folder import RunFolder
from fedclade.runs.record import recorded_settings
from synthetic import planted

pytestmark = pytest.mark.deployed

PATIENCE = 400.0  # seconds that one step of the story may take on a slow day
SETTINGS = "method.n_clusters=2 evaluate_every=0 training.local_epochs=1"


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder a client, and one with all of them."""
    folder, federation = tmp_path_factory.mktemp("rows"), planted(n_clients=5)
    for client in federation.clients:
        x, y = federation.x, federation.y
        arrays = {"x": x[client.train], "y": y[client.train], "x_test": x[client.test], "y_test": y[client.test]}
        for where in (folder / client.name, folder / ("all" if client.name != "c4" else "newcomer")):
            where.mkdir(exist_ok=True)
            np.savez(where / f"{client.name}.npz", **arrays)
    return folder


class Story:
    """A trial, its run, and what can be done to them."""

    def __init__(self, trial: Any, project: Path, out: Path) -> None:
        self.trial, self.project, self.out = trial, project, out
        self.run = RunFolder(out)
        self.flwr: subprocess.Popen[str] | None = None
        self.log: list[str] = []
        self.began = time.monotonic()

    def go(self, rounds: int) -> None:
        config = {"out": str(self.out), "rounds": rounds, "model": "mlp", "method.name": "fedclust", "set": SETTINGS}
        self.flwr = self.trial.run(self.project, config)

    def until(self, what: str, happened: Callable[[], Any]) -> Any:
        until = time.monotonic() + PATIENCE
        while not (found := happened()):
            if time.monotonic() > until:
                logs = {path.name: path.read_text()[-1500:] for path in self.trial.folder.glob("*.log")}
                pytest.fail(f"{what}: not in {PATIENCE:g} s; {logs}")
            time.sleep(0.3)
        self.log.append(f"{time.monotonic() - self.began:6.1f} s  {what}")
        return found

    @property
    def round(self) -> int:
        saved = self.run.last_checkpoint()
        return -1 if saved is None else saved[0]

    def failures(self, client: str, since: int = -1) -> str:
        history = self.run.table("history")
        if not len(history):
            return ""
        return "".join(history.loc[(history["client"] == client) & (history["round"] > since), "failure"])

    def trained_since(self, client: str, round: int) -> bool:
        history = self.run.table("history")
        return bool(history.loc[(history["client"] == client) & (history["round"] > round), "trained"].any())


@pytest.fixture(scope="module")
def story(rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    pytest.importorskip("flwr")
    from fedclade.deploy.local import Trial
    from fedclade.deploy.project import init

    folder = tmp_path_factory.mktemp("story")
    init(folder / "app")
    nodes = [{"name": name, "data": f"folder:{rows / name}"} for name in ("c0", "c1", "c2")]
    with Trial(folder / "trial", nodes, patience=PATIENCE) as trial:
        yield Story(trial, folder / "app", folder / "run")


def test_a_run_survives_what_can_happen(story: Story, rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trial = story.trial
    trial.add_node({"name": "c0", "data": f"folder:{rows / 'c0'}"}, registered_as="mallory")
    unknown = trial.add_node({"name": "c9", "data": f"folder:{rows / 'c0'}"}, registered_as=None)
    copied = trial.add_node({"name": "c8", "data": f"folder:{rows / 'c0'}"}, registered_as="c0")
    for number, why in ((unknown, "its key is not registered"), (copied, "its key is in use")):
        process = trial.processes[trial.process_of(number)]
        story.until(f"turned away: {why}", lambda process=process: process.poll() is not None)  # type: ignore[misc]
        assert why in trial.why_ended(number)
    story.go(rounds=1000)
    story.until("clusters are found", lambda: story.round >= 0)

    (rows / "c1").rename(rows / "gone")
    late = trial.add_node({"name": "c3", "data": f"folder:{rows / 'c3'}"})
    story.until("c1 raised", lambda: "raised" in story.failures("c1"))
    (rows / "gone").rename(rows / "c1")
    story.until("c3, late, trained in a cluster", lambda: story.trained_since("c3", 0))
    assert trial.processes[trial.process_of(late)].poll() is None

    killed = story.round
    trial.kill(trial.process_of(2))
    story.until("c2 was missing after its node was killed", lambda: "absent" in story.failures("c2", killed))
    story.until("it was known to be gone before a round", lambda: "not online" in story.failures("c2", killed))
    trial.start_node(2)
    back = story.round
    story.until("c2 came back with its key", lambda: (trial.mend(2), story.trained_since("c2", back))[1])

    trial.kill("superlink")
    restarted = story.round
    time.sleep(1)
    trial.start_superlink()
    story.until("the run outlived its SuperLink", lambda: (trial.mend(2), story.round > restarted)[1])

    trial.kill("superexec")  # and the server app with it
    story.flwr.kill()
    stopped = story.round
    assert not story.run.is_finished
    trial.start_superexec()
    story.go(rounds=stopped + 1)
    story.until("the run was resumed from its checkpoint and ended", lambda: story.run.is_finished)
    story.flwr.wait(PATIENCE)
    with capsys.disabled():
        print("\n" + "\n".join(story.log))


def test_the_outcome_is_that_of_one_process_without_the_missing(story: Story, rows: Path, tmp_path: Path) -> None:
    record = story.run.settings
    saved = story.run.last_checkpoint()
    assert saved is not None
    made = Preprocessing.model_validate(record["preprocessing"])  # by those who began
    expected = replayed(story.run, federation_of(f"folder:{rows / 'all'}", preprocessing=made), tmp_path)
    found = saved[1]["clusters"]
    assert expected["members"] == found["members"]
    for cluster, model in found["models"].items():
        np.testing.assert_array_equal(model, expected["models"][cluster])
    assert record["clients"] == ["c0", "c1", "c2"]
    assert {frozenset(part) for part in api.load(story.out).clusters.values()} == {
        frozenset({"c0", "c2"}),
        frozenset({"c1", "c3"}),
    }


def test_strangers_get_nothing_and_members_get_their_model(story: Story) -> None:
    about = story.run.read_json("nodes.json")
    assert list(about["refused"].values()) == ["c0"]  # mallory, who said it was c0
    assert "c9" not in about["nodes"]
    assert about["missed"] == []
    kept = story.trial.folder / "memory" / story.run.settings["fingerprint"] / "c3"
    assert (kept / "model.safetensors").is_file()
    assert '"cluster": 1' in (kept / "cluster.json").read_text()


def test_a_newcomer_finds_its_place_afterwards(story: Story, rows: Path) -> None:
    shutil.rmtree(story.out / "placements", ignore_errors=True)
    placed = place(story.out, f"folder:{rows / 'newcomer'}", personalise=1)
    assert placed["c4"].cluster == api.load(story.out).cluster_of("c0")


def replayed(run: RunFolder, federation: Any, folder: Path) -> Mapping[str, Any]:
    """The same run in one process: whoever failed in a round of the original fails again."""
    settings, saved = recorded_settings(run.settings, run.path), run.last_checkpoint()
    assert saved is not None
    history = run.table("history")
    failed = {(row.round, row.client): row.failure for row in history.itertuples() if row.failure}
    arrivals = {int(number): tuple(names) for number, names in saved[1]["arrivals"].items()}

    class Missing(TransportEngine):
        rounds_begun = 0

        def answer(self, tasks: Mapping[str, Task], round: int) -> dict[str, Any]:
            answers: dict[str, Any] = dict(super().answer(tasks, round))
            for client, task in tasks.items():
                phase = ("cluster:", "place:") if getattr(task, "upload", None) == "head" else ("train:",)
                if isinstance(task, Train) and any(word in failed.get((round, client), "") for word in phase):
                    answers[client] = Failure("absent")
            return answers

        def arrivals(self) -> tuple[str, ...]:
            self.rounds_begun += 1
            return arrivals.get(self.rounds_begun, ())

    networks = Networks.shared(settings.model, federation.input_shape, federation.n_classes)
    runtime = ClientRuntime(federation, networks, Memory(folder / "memory"), settings.seed, settings.training)
    engine = Missing(runtime, LocalTransport(runtime))
    try:
        clients = tuple(run.settings["clients"])
        again = RunFolder.create(folder / "again", run.settings)
        Loop(settings.model_copy(update={"rounds": saved[0]}), engine, again, clients).go()
    finally:
        engine.close()
    state = again.last_checkpoint()
    assert state is not None
    return state[1]["clusters"]
