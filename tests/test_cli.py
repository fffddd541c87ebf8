"""The command line: what people type, what they see, and what they are told when it is wrong."""

import io
import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from rich.console import Console
from typer.testing import CliRunner

import fedclade
from fedclade.cli import app
from fedclade.cli.runs import default_folder
from fedclade.display import RoundsDisplay, size_in_words, time_in_words
from fedclade.rounds import Progress
from fedclade.runs.folder import RunFolder
from fedclade.settings import gathered

SMALL = ["--split", "label-groups:2", "--clients", "6", "--model", "mlp", "--workers", "1"]

OWN_PARTS = """
from torch import nn

from fedclade import Method


def make_net(input_shape, n_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, n_classes))


def wrong_net(input_shape, n_classes):
    return nn.Linear(3, n_classes)


def no_data():
    raise ValueError("no data today")


class Idle(Method):
    pace: float = 1.0  # how slowly nothing happens

    def round(self, clusters, context, ask):
        return clusters


class Buggy(Method):
    def round(self, clusters, context, ask):
        raise ZeroDivisionError("a bug of mine")


class Forgetful(Method):
    def round(self, clusters, context, ask):
        clusters.remembering(None)


class Startless(Idle):
    def start(self, context, ask):
        return {0: context.clients}
"""

Invoke = Callable[..., Result]


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Call `fedclade` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDCLADE_DATA", raising=False)
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two rounds that found its two groups."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    words = ["run", *SMALL, "--method", "fedclust", "--rounds", "2", "--out", str(folder)]
    assert CliRunner().invoke(app, words).exit_code == 0
    return folder


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copy"))


@pytest.fixture
def unfinished(copy: Path) -> Path:
    """The same run with two more rounds to go."""
    folder = RunFolder(copy)
    folder.rewind(2)
    record = folder.settings
    folder.update_settings({**record, "settings": {**record["settings"], "rounds": 4}})
    return copy


def error_of(result: Result) -> str:
    """The one line of an error for people, after the progress of rounds if there was any."""
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 2
    *progress, line = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert all(earlier.startswith("round ") for earlier in progress)
    return line


# --- starting up ------------------------------------------------------------------------------------------------------


def test_help_needs_no_heavy_package() -> None:
    code = "import sys, fedclade.cli; print([m for m in ('torch', 'pandas', 'numpy', 'sklearn') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_version_and_help(invoke: Invoke) -> None:
    assert invoke("--version").stdout == f"fedclade {fedclade.__version__}\n"
    for words in ([], ["--help"], ["data"], ["run", "--help"]):
        result = invoke(*words)
        assert result.exit_code == 0
        assert "Usage: " in result.stdout


def test_it_is_a_module_too_and_bears_a_reader_that_leaves() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "fedclade", "splits"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.close()
    assert b"Traceback" not in process.communicate()[1]


# --- running ----------------------------------------------------------------------------------------------------------


def test_run_shows_rounds_and_a_table_and_keeps_a_folder(invoke: Invoke, finished: Path) -> None:
    result = invoke("run", *SMALL, "--method", "fedavg", "--rounds", 1)
    assert result.exit_code == 0
    assert re.search(r"^round 1/1  accuracy 0\.\d{3}  clusters 1  up [\d.]+ kB  down [\d.]+ kB$", result.stderr, re.M)
    (folder,) = Path("runs").iterdir()
    assert re.fullmatch(r"digits-fedavg-0-\d{8}-\d{6}", folder.name)
    assert str(folder) in result.stdout
    shown = invoke("show", finished).stdout
    assert "fedclust on digits (label-groups:2): 6 clients, model mlp, seed 0" in shown
    assert "2 found, 2 hidden groups: ARI 1.000, NMI 1.000" in shown
    assert re.search(r"cluster model +0\.\d{3} +0\.\d{3} +0\.\d{3} +client-00\d", shown)
    assert re.search(r"locally trained model +0\.\d{3}", shown)
    assert re.search(r"cluster 1 +\. +3", shown)
    summary = json.loads((finished / "result.json").read_text())
    assert f"{summary['accuracy']['mean']:.3f}" in shown


def test_what_is_typed_beats_the_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('data-dir = "here"\nrounds = 5\nseed = 1\n[method]\nname = "fedavg"\n')
    values = gathered(file, {"rounds": 7, "seed": None, "method": "fedprox"}, ["method.mu=0.1", "seed=2"])
    method = {"name": "fedprox", "mu": 0.1}
    assert values == {"data_dir": "here", "rounds": 7, "seed": 2, "method": method}


def test_settings_from_a_file_reach_the_run(invoke: Invoke) -> None:
    Path("own_parts.py").write_text(OWN_PARTS)
    Path("run.toml").write_text(
        '\ufeffout = "kept"\nrounds = 9\nclients = 4\nmodel = "own_parts:make_net"\nworkers = 1\n'
    )
    words = ["--method", "own_parts:Idle", "--set", "method.pace=2", "--rounds", 1]
    assert invoke("run", "--config", "run.toml", *words).exit_code == 0
    settings = json.loads(Path("kept/settings.json").read_text())["settings"]
    assert (settings["rounds"], settings["clients"], settings["model"]) == (1, 4, "own_parts:make_net")
    assert settings["method"]["pace"] == 2


def test_default_folders_have_safe_names_and_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = default_folder("folder:/a b/../c", "my.module:Method", "0")
    assert re.fullmatch(r"runs/folder-a-b-..-c-my\.module-Method-0-\d{8}-\d{6}", first.as_posix())
    first.mkdir(parents=True)
    assert default_folder("folder:/a b/../c", "my.module:Method", "0") != first


def test_ctrl_c_says_how_to_go_on_and_nothing_is_lost(invoke: Invoke) -> None:
    words = ["run", *SMALL, "--workers", "2", "--method", "fedclust", "--rounds", "12", "--out"]
    process = subprocess.Popen(
        [sys.executable, "-m", "fedclade", *words, "broken"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell may have let us ignore it
    )
    assert process.stderr is not None
    while "round 3/" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "stopped; go on with: fedclade resume broken"

    state = invoke("show", "broken").stdout
    assert re.search(r"([3-9]|1\d) of 12 have ended; go on with: fedclade resume broken", state)
    assert invoke("resume", "broken", "--workers", 1).exit_code == 0
    assert invoke("run", *SMALL, "--method", "fedclust", "--rounds", 12, "--out", "unbroken").exit_code == 0
    broken, unbroken = fedclade.load("broken"), fedclade.load("unbroken")
    assert broken.clusters == unbroken.clusters
    assert broken.history.equals(unbroken.history)
    for client in unbroken.history["client"].unique():
        assert np.array_equal(broken.weights_for(client), unbroken.weights_for(client))


def test_resume_goes_on_and_adds_rounds(invoke: Invoke, unfinished: Path) -> None:
    assert "2 of 4 have ended; go on with: fedclade resume" in invoke("show", unfinished).stdout
    result = invoke("resume", unfinished, "--rounds", 5)
    assert [line[:9] for line in result.stderr.splitlines()] == ["round 3/5", "round 4/5", "round 5/5"]
    assert "past round 5 already" in error_of(invoke("resume", unfinished, "--rounds", 1))


def test_a_run_that_has_not_begun_is_shown_as_such(invoke: Invoke, unfinished: Path) -> None:
    for name in ("checkpoints", "parts"):
        shutil.rmtree(unfinished / name)
    assert "not one of 4 rounds has ended yet; go on with" in invoke("show", unfinished).stdout


def test_the_demo_finds_the_groups(invoke: Invoke) -> None:
    result = invoke("demo")
    assert result.exit_code == 0
    assert "found 4 groups: exactly the hidden ones" in result.stdout
    clustered, shared = re.findall(r"right (\d+)% .* (\d+)% by", result.stdout)[0]
    assert int(clustered) >= 98 > int(shared)
    (folder,) = Path("runs").glob("demo-*")
    assert sorted(path.name for path in folder.iterdir()) == ["fedavg", "fedclust"]


# --- showing ----------------------------------------------------------------------------------------------------------


def test_words() -> None:
    assert [size_in_words(n) for n in (0, 999, 1000, 1.25e6, 3e9, 4e15)] == [
        "0 B", "999 B", "1.0 kB", "1.2 MB", "3.0 GB", "4,000.0 TB"
    ]  # fmt: skip
    assert [time_in_words(n) for n in (0.04, 59.9, 192, 7500)] == ["0.0 s", "59.9 s", "3 min 12 s", "2 h 5 min"]


def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere() -> None:
    rounds = [Progress(1, 3, 0.5, 2, 1000, 2000, 0), Progress(2, 3, None, 2, 2000, 4000, 1)]
    screen, file = io.StringIO(), io.StringIO()
    consoles = Console(file=screen, force_terminal=True, force_interactive=True, width=120), Console(file=file)
    for console in consoles:
        with RoundsDisplay(console) as display:
            for progress in rounds:
                display(progress)
    assert file.getvalue().splitlines() == [
        "round 1/3  accuracy 0.500  clusters 2  up 1.0 kB  down 2.0 kB",
        "round 2/3  accuracy -  clusters 2  up 2.0 kB  down 4.0 kB  failures 1",
    ]
    assert "round 2/3  accuracy 0.500  clusters 2  up 2.0 kB  down 4.0 kB  failures 1" in screen.getvalue()
    assert "\x1b[" in screen.getvalue()


def test_catalogues(invoke: Invoke) -> None:
    assert re.search(r"fedclust .* the number too .* one shot", invoke("methods").stdout)
    settings = invoke("methods", "fedclust").stdout
    assert re.search(r"method\.threshold +number >= 0 or auto or none +auto", settings)
    assert re.search(r"method\.n_clusters +whole number >= 1 or none +none +\w+", settings)
    assert "training.learning_rate" in settings
    Path("own_parts.py").write_text(OWN_PARTS)
    assert re.search(r"method\.pace +number +1\.0 +how slowly", invoke("methods", "own_parts:Idle").stdout)
    assert "lenet5" in invoke("models").stdout
    assert all(words in invoke("splits").stdout for words in ("label-skew:FRACTION", "label-support"))


def test_data_commands(invoke: Invoke) -> None:
    assert re.search(r"mnist .* missing", invoke("data", "list", "--data-dir", ".").stdout)
    assert "digits lies in" in invoke("data", "get", "digits").stdout
    checked = invoke("data", "check", "digits")
    assert checked.exit_code == 0
    assert re.search(r"all +1,4\d\d +3\d\d", checked.stdout)
    assert "missing train-images" in error_of(invoke("data", "check", "mnist", "--data-dir", "."))


def test_who_holds_what_is_shown_and_drawn(invoke: Invoke) -> None:
    result = invoke("data", "show", "--split", "label-groups:2", "--clients", 4, "--picture", "held.png")
    assert re.search(r"client-000 +0 +\d+ +\d+( +\d+){5}( +\.){5}\n", result.stdout)
    assert re.search(r"client-003 +[░▒▓█]{10}\n", result.stdout)
    assert Path("held.png").read_bytes().startswith(b"\x89PNG")
    many = invoke("data", "show", "--clients", 200).stdout
    assert "... 170 more" in many
    assert "40 of 200 clients" in many
    assert len(many.splitlines()) < 90


def test_who_holds_what_fits_a_narrow_plain_screen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner(charset="ascii", env={"COLUMNS": "60"}).invoke(app, ["data", "show", "--clients", "3"])
    assert result.exit_code == 0
    assert "frequent" in result.stdout
    assert re.search(r"client-000 +[.:*#]{20}\n", result.stdout)
    assert max(map(len, result.stdout.splitlines())) <= 60


def test_a_drawing_needs_matplotlib(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "matplotlib.backends", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)
    assert "pip install 'fedclade[pictures]'" in error_of(invoke("data", "show", "--picture", "held.png"))


# --- wrong input ------------------------------------------------------------------------------------------------------

WRONG = {
    "rn": "unknown command 'rn': did you mean 'run'?",
    "data lst": "did you mean 'list'?",
    "run --roundz 3": "--rounds",
    "run extra": "unexpected extra argument",
    "run --clients -3": "-3 is not in the range",
    "run --clients abc": "'abc' is not a valid whole number",
    "run --clients 5000": "give at most 1442",
    "run --data nmist": "did you mean 'mnist'?",
    "run --data mnist --data-dir full": "fedclade data get mnist",
    "run --data-dir nowhere": "'nowhere' does not exist",
    "run --data own_parts:no_data": "no data today",
    "run --data folder:nowhere": "no such folder",
    "run --data folder:": "names no folder: write folder:PATH",
    "run --split=": "unknown split ''",
    "run --split label-skw:0.2": "did you mean 'label-skew'?",
    "run --split dirichlet:x": "ALPHA is 'x'",
    "run --test-view hold": "holdout",
    "run --engine flowr": "flower-sim",
    "run --model lenet5": "choose one of",
    "run --model own_parts:wrong_net": "does not take 1x8x8 images",
    "run --model raises:net": "boom",
    "run --method fedclst": "did you mean 'fedclust'?",
    "run --method raises:Method": "boom",
    "run --method own_parts:make_net": "no subclass of fedclade.Method",
    "run --method fedclust --set method.treshold=1": "did you mean 'threshold'?",
    "run --method fedclust --set method.threshold=x": "threshold = 'x'",
    "run --set training.learning_rat=1": "did you mean 'learning_rate'?",
    "run --set rounds": "name=value",
    "run --set events=[{rund=1}]": "did you mean 'round'?",
    "run --set participation=2": "settings: participation = 2 is wrong",
    "run --config nowhere.toml": "there is no file nowhere.toml",
    "run --config broken.toml": "no proper TOML",
    "run --config unknown.toml": "did you mean 'rounds'?",
    "run --out own_parts.py": "is a file",
    "run --out own_parts.py/run": "cannot make the run folder",
    "run --out full": "not empty",
    "resume nowhere": "no run folder",
    "show own_parts.py": "no run folder",
    "methods fedclst": "did you mean 'fedclust'?",
    "data get nmist": "did you mean 'mnist'?",
    "data show --picture held.doc": ".png, .svg or .pdf",
}


@pytest.mark.parametrize("words", WRONG)
def test_wrong_input_is_one_line_and_leaves_nothing_behind(invoke: Invoke, words: str) -> None:
    Path("own_parts.py").write_text(OWN_PARTS)
    Path("raises.py").write_text("raise RuntimeError('boom\\nand more')")
    Path("broken.toml").write_text("rounds = = 3")
    Path("unknown.toml").write_text("roundz = 3")
    Path("full").mkdir()
    Path("full/note").touch()
    before = sorted(Path().rglob("*"))
    assert WRONG[words] in error_of(invoke(*words.split()))
    assert [path for path in sorted(Path().rglob("*")) if "__pycache__" not in path.parts] == before


def test_a_folder_that_holds_a_run_is_left_alone(invoke: Invoke, copy: Path) -> None:
    assert "fedclade resume" in error_of(invoke("run", "--out", copy))
    assert (copy / "result.json").is_file()


@pytest.mark.parametrize("name", ["settings.json", "result.json", "clusters.json", "history.parquet"])
def test_damaged_runs_are_named(invoke: Invoke, copy: Path, name: str) -> None:
    (copy / name).write_bytes((copy / name).read_bytes()[:40])
    assert str(copy) in error_of(invoke("show", copy))


@pytest.mark.parametrize("record", ["[]", "{}", '{"settings": {}}'])
def test_a_run_whose_settings_make_no_sense_is_not_resumed(invoke: Invoke, unfinished: Path, record: str) -> None:
    (unfinished / "settings.json").write_text(record)
    assert "settings.json" in error_of(invoke("resume", unfinished))


def test_a_method_must_return_clusters(invoke: Invoke) -> None:
    Path("own_parts.py").write_text(OWN_PARTS)
    for name, what in (("Forgetful", "`round` returned NoneType"), ("Startless", "`start` returned dict")):
        line = error_of(invoke("run", *SMALL, "--method", f"own_parts:{name}", "--out", name))
        assert f"method {name}: its {what}: it must return Clusters" in line
    assert not Path("Startless").exists()  # it had not begun


def test_a_run_in_which_nobody_trained_ends_with_why(invoke: Invoke, finished: Path) -> None:
    line = error_of(invoke("run", *SMALL, "--rounds", "1", "--set", "training.learning_rate=1e30", "--out", "run"))
    assert "no client has trained (not finite" in line
    assert "lower training.learning_rate" in line
    assert "nobody trained" in invoke("show", "run").stdout
    assert "nobody trained" not in invoke("show", finished).stdout


def test_bugs_are_not_hidden(invoke: Invoke) -> None:
    Path("own_parts.py").write_text(OWN_PARTS)
    result = invoke("run", *SMALL, "--method", "own_parts:Buggy")
    assert isinstance(result.exception, ZeroDivisionError)
