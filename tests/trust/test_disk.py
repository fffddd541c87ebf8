"""A run on a bad disk: what is damaged or lost is said in one line, and nothing ever comes out silently different.

tools/reliability.py tries all of what is tried here in samples.
"""

import errno
import json
import logging
import os
import random
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import fedclade
from expect import refused
from fedclade.cli import app
from fedclade.clients.memory import NAME, Memory
from fedclade.errors import FedcladeError
from fedclade.files import write_json
from fedclade.runs import packing
from fedclade.runs.folder import RunFolder
from trust.faults import (
    BAD,
    KILLED,
    READERS,
    REFUSED,
    ROUNDS,
    begin,
    copied,
    failing_from,
    files_in,
    flip,
    go_on,
    in_child,
    judged,
    judged_resume,
    killed_at,
    left_by,
    models,
    operations,
    resumed,
    settings_of,
    shown,
    stopped_run,
)

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="faults are tried in forked processes")


@pytest.fixture(scope="module")
def ditto(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has ended."""
    run = tmp_path_factory.mktemp("ditto") / "run"
    begin("ditto", run)
    return run


@pytest.fixture
def run(ditto: Path, tmp_path: Path) -> Path:
    """A copy of it to be damaged."""
    return copied(ditto, tmp_path / "run")


@pytest.fixture
def longer(ditto: Path, tmp_path: Path) -> dict[str, str]:
    """What it gives with two more rounds."""
    copy = copied(ditto, tmp_path / "longer")
    fedclade.resume(copy, rounds=ROUNDS + 2)
    return left_by(copy)


def newest(run: Path, back: int = 1) -> Path:
    return sorted((run / "checkpoints").iterdir())[-back]


def spoil(path: Path, where: float = 0.5) -> None:
    """Change one byte."""
    data = bytearray(path.read_bytes())
    data[int(where * (len(data) - 1))] ^= 4
    path.write_bytes(data)


def command(*words: object) -> tuple[int, str]:
    """The exit code of `fedclade ...`, and what it says on stderr."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stderr


# --- checkpoints ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [0.0, 0.001, 0.01, 0.3, 0.7, 1.0])
def test_a_damaged_checkpoint_is_passed_over_and_that_is_said(
    run: Path, longer: dict[str, str], where: float, caplog: pytest.LogCaptureFixture
) -> None:
    spoil(newest(run), where)
    with caplog.at_level(logging.WARNING, "fedclade"):
        result = fedclade.resume(run, rounds=ROUNDS + 2)
    (remark,) = result.remarks
    assert f"{ROUNDS:06d}.safetensors" in remark
    assert f"round {ROUNDS - 1}" in remark
    assert remark in caplog.text
    assert json.loads((run / "result.json").read_text())["remarks"] == [remark]
    assert remark in " ".join(shown(run).split())
    assert left_by(run) == longer


def test_a_remark_is_heard_on_the_command_line_and_stays(run: Path) -> None:
    spoil(newest(run))
    words = [sys.executable, "-m", "fedclade", "resume", str(run)]  # logging goes elsewhere in a test's own process
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    (said,) = (line for line in done.stderr.splitlines() if not line.startswith("round "))
    assert "went on from the checkpoint of round" in said
    assert fedclade.resume(run, rounds=ROUNDS + 1).remarks == fedclade.load(run).remarks != []


def test_two_damaged_checkpoints_are_one_line(run: Path) -> None:
    for back in (1, 2):
        spoil(newest(run, back))
    before = (run / "history.parquet").read_bytes()
    refused(lambda: fedclade.resume(run), "damaged", "begin a new run")
    assert (run / "history.parquet").read_bytes() == before
    code, said = command("resume", run)
    assert (code, said.count("\n")) == (2, 1)


def test_models_are_read_from_the_checkpoint_of_the_last_round_or_not_at_all(run: Path) -> None:
    spoil(newest(run), 0.9)
    refused(lambda: fedclade.load(run).model_for(fedclade.load(run).clients[0]), f"round {ROUNDS}")


def test_what_is_shown_of_a_run_under_way_is_checked_too(run: Path) -> None:
    (run / "result.json").unlink()
    path = newest(run)
    data = path.read_bytes()
    place = data.index(b'cpu_seconds\\":') + len(b'cpu_seconds\\":')
    other = b"3" if data[place : place + 1] != b"3" else b"4"
    path.write_bytes(data[:place] + other + data[place + 1 :])
    assert RunFolder(run).last_checkpoint(arrays=False)[0] == ROUNDS - 1  # type: ignore[index]


def test_lost_checkpoints_do_not_empty_a_run(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    before = fedclade.load(run).history
    refused(lambda: fedclade.resume(run), "checkpoints", "gone")
    assert fedclade.load(run).history.equals(before)
    (run / "result.json").unlink()
    for act in (lambda: fedclade.resume(run), lambda: shown(run)):
        refused(act, "checkpoints", "gone")
    assert len(packing.load_table(run / "history.parquet")) == len(before)


def test_lost_checkpoints_of_a_run_under_way_are_missed_too(run: Path) -> None:
    RunFolder(run).rewind(ROUNDS)
    shutil.rmtree(run / "checkpoints")
    for act in (lambda: fedclade.resume(run), lambda: shown(run)):
        refused(act, "checkpoints", "gone")
    assert len(list((run / "parts").iterdir())) == 2 * (ROUNDS + 1)


# --- memory -----------------------------------------------------------------------------------------------------------


def test_lost_memory_names_the_clients_and_can_be_forgotten(run: Path) -> None:
    clients = fedclade.load(run).clients
    shutil.rmtree(run / "clients")
    code, said = command("resume", run, "--rounds", ROUNDS + 1)
    assert (code, said.count("\n")) == (2, 1)
    assert all(client in said for client in clients)
    assert "--forget-memory" in said
    refused(lambda: fedclade.load(run).model_for(clients[0]), clients[0], "lost")
    assert command("resume", run, "--rounds", ROUNDS + 1, "--forget-memory")[0] == 0
    result = fedclade.load(run)
    assert result.round == ROUNDS + 1
    assert "from the cluster models" in result.remarks[0]


def test_one_client_that_has_lost_its_memory_is_told_from_the_others(run: Path) -> None:
    lost, *others = fedclade.load(run).clients
    before = {client: fedclade.load(run).weights_for(client) for client in others}
    with sqlite3.connect(run / "clients" / NAME) as database:
        database.execute("delete from slots where client = ?", [lost])
    line = refused(lambda: fedclade.resume(run), lost)
    assert not any(client in line for client in others)
    result = fedclade.resume(run, forget_memory=True)
    cluster_model = result.state_of_clusters.model_of(lost)
    assert np.array_equal(result.weights_for(lost), cluster_model)
    assert all(np.array_equal(result.weights_for(client), before[client]) for client in others)


def edited(change: str, *values: object) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        database = sqlite3.connect(path)
        database.execute(change, values)
        database.commit()
        database.close()

    return edit


@pytest.mark.parametrize(
    "damage",
    [
        edited("update slots set vector = zeroblob(length(vector)) where round = ?", ROUNDS),
        edited("update slots set vector = null where round = ?", ROUNDS),
        edited("update slots set client = client || 'x'"),
        edited("update slots set round = ? where round = ?", ROUNDS - 2, ROUNDS),  # the older one looks newest
        edited("drop table slots"),
        lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
        lambda path: path.write_bytes(b""),
        lambda path: spoil(path, 0.6),
        lambda path: spoil(path, 0.0),
        lambda path: path.unlink(),
    ],
)
def test_damaged_memory_is_one_line_and_can_be_forgotten(run: Path, damage: Callable[[Path], None]) -> None:
    client, before = fedclade.load(run).clients[0], models(run)
    damage(run / "clients" / NAME)
    code, said = command("resume", run, "--rounds", ROUNDS + 1)
    assert (code, said.count("\n")) == (2, 1)
    assert "--forget-memory" in said
    assert judged(in_child(lambda: models(run)), before) in ("same result", "refused in one line")
    assert fedclade.resume(run, rounds=ROUNDS + 1, forget_memory=True).remarks
    assert fedclade.load(run).model_for(client) is not None


def test_memory_is_read_without_being_written_to(run: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in (run / "clients").iterdir()}
    result = fedclade.load(run)
    result.weights_for(result.clients[0])
    assert {path.name: path.stat().st_mtime_ns for path in (run / "clients").iterdir()} == before
    with pytest.raises(FedcladeError):
        Memory(run / "clients", read_only=True).write("a", "b", np.zeros(2), 1)


# --- files that are gone, cut or damaged ------------------------------------------------------------------------------


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def gone(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


@needs_fork
@pytest.mark.parametrize("damage", [cut, gone])
@pytest.mark.parametrize("name", ["history.parquet", "ledger.parquet", "settings.json", "clusters.json", "result.json"])
def test_what_a_run_has_lost_is_written_anew_or_named(
    run: Path, longer: dict[str, str], damage: Callable[[Path], None], name: str
) -> None:
    expected = {what: read(run) for what, read in READERS.items()}
    damage(run / name)
    for what, read in READERS.items():
        looked = judged(in_child(lambda read=read: read(run)), expected[what])  # type: ignore[misc]
        assert looked in ("same result", "refused in one line", "shown as stopped"), (what, name)
    if name in ("clusters.json", "result.json"):
        fedclade.resume(run, rounds=ROUNDS + 2)
        assert left_by(run) == longer
    else:
        rows = len(packing.load_table(run / "history.parquet")) if name == "ledger.parquet" else 0
        refused(lambda: fedclade.resume(run, rounds=ROUNDS + 2))
        assert name != "ledger.parquet" or len(packing.load_table(run / "history.parquet")) == rows


@pytest.mark.parametrize("table", ["history", "ledger"])
@pytest.mark.parametrize("damage", [cut, gone])
def test_a_round_that_is_missing_is_named(run: Path, table: str, damage: Callable[[Path], None]) -> None:
    RunFolder(run).rewind(ROUNDS)
    part = run / "parts" / f"000001.{table}.parquet"
    damage(part)
    for act in (lambda: fedclade.resume(run), lambda: shown(run)):
        refused(act, table, "round 1" if damage is gone else "damaged")
    assert (run / "checkpoints" / f"{ROUNDS:06d}.safetensors").is_file()


def test_a_round_without_traffic_is_no_gap(tmp_path: Path) -> None:
    class Idle(fedclade.Method):
        def round(self, clusters, context, ask):  # type: ignore[no-untyped-def]
            return clusters

    given = {**settings_of("fedavg"), "method": Idle(), "evaluate_every": 0, "evaluate_local_every": 0}
    fedclade.run(**given, rounds=2, out=tmp_path / "run")
    result = fedclade.resume(tmp_path / "run", rounds=4, method=Idle())
    assert sorted(set(result.history["round"])) == [0, 1, 2, 3, 4]
    assert list(result.traffic["up"]) == [0] * 5


def test_lost_and_damaged_records_are_named(tmp_path: Path) -> None:
    begin("fedclust", tmp_path / "run")
    first, *_ = sorted((tmp_path / "run" / "records").iterdir())
    whole = first.read_bytes()
    spoil(first)
    refused(lambda: fedclade.load(tmp_path / "run").records, first.name, "damaged")
    first.unlink()
    refused(lambda: fedclade.load(tmp_path / "run").records, "lacks 1 of 1")
    first.write_bytes(whole)
    assert fedclade.load(tmp_path / "run").records


@pytest.mark.parametrize("name", ["settings.json", "result.json", "clusters.json"])
def test_a_number_that_has_changed_in_a_json_file_is_noticed(run: Path, name: str) -> None:
    text = (run / name).read_text()
    digit = next(place for place, letter in enumerate(text) if letter in "123")
    (run / name).write_text(text[:digit] + "7" + text[digit + 1 :])
    refused(lambda: shown(run), name, "checksum")


def test_a_number_that_has_changed_in_a_table_is_noticed(run: Path) -> None:
    rows = packing.load_table(run / "history.parquet").to_pylist()
    told = packing._table_checksum(packing.table_of(rows))
    rows[3]["accuracy"] = np.nextafter(rows[3]["accuracy"], 2)
    assert packing._table_checksum(packing.table_of(rows)) != told
    renamed = [{"lost" if name == "loss" else name: value for name, value in row.items()} for row in rows]
    assert packing._table_checksum(packing.table_of(renamed)) != packing._table_checksum(packing.table_of(rows))


@needs_fork
@pytest.mark.parametrize("state", ["ended", "killed"])
def test_no_flipped_bit_changes_anything_silently(ditto: Path, tmp_path: Path, state: str) -> None:
    source = ditto if state == "ended" else stopped_run("ditto", tmp_path / "killed")
    expected = {"resume": resumed(copied(source, tmp_path / "copy"))}
    copied(source, tmp_path / "copy")
    expected["show"] = shown(tmp_path / "copy")
    dice = random.Random(1)
    for name in files_in(source):
        copy = copied(source, tmp_path / "copy")
        bit = flip(copy / name, dice)
        looked = judged(in_child(lambda copy=copy: shown(copy)), expected["show"])  # type: ignore[misc]
        assert looked not in BAD, (name, bit)
        ended = in_child(lambda copy=copy: resumed(copy))  # type: ignore[misc]
        outcome = judged_resume(ended, expected["resume"])
        assert outcome not in BAD, (name, bit, ended.words[-2000:])


# --- killed, full and read-only ---------------------------------------------------------------------------------------


@needs_fork
@pytest.mark.parametrize("method", ["ditto", "fedclust"])
def test_killed_at_any_file_operation_a_run_ends_the_same(method: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    begin(method, tmp_path / "whole", 1)
    expected = left_by(tmp_path / "whole")
    total = operations(lambda: begin(method, run, 1))
    for number in random.Random(method).sample(range(1, total + 1), 12):
        shutil.rmtree(run, ignore_errors=True)
        assert killed_at(number, lambda: begin(method, run, 1)).code == KILLED
        ended = in_child(lambda: (go_on(method, run, 1), left_by(run))[1])
        assert ended.words == str(expected), (number, ended.words)


@needs_fork
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_fails_is_one_line_and_then_nothing_is_lost(code: int, tmp_path: Path) -> None:
    run = tmp_path / "run"
    begin("ditto", tmp_path / "whole", 1)
    expected = left_by(tmp_path / "whole")
    total = operations(lambda: begin("ditto", run, 1))
    for number in random.Random(code).sample(range(1, total - 10), 8):
        shutil.rmtree(run, ignore_errors=True)
        ended = failing_from(number, lambda: begin("ditto", run, 1), code)
        assert ended.code == REFUSED, (number, ended.words)
        assert os.strerror(code) in ended.words
        again = in_child(lambda: (go_on("ditto", run, 1), left_by(run))[1])
        assert again.words == str(expected), (number, again.words)


@needs_fork
def test_a_file_that_may_not_grow_is_one_line(tmp_path: Path) -> None:
    import resource
    import signal

    for size in (0, 3_000, 60_000):

        def limited(size: int = size) -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
            begin("ditto", tmp_path / "run")

        ended = in_child(limited)
        assert ended.code == REFUSED, ended.words
        assert "cannot" in ended.words


def test_files_have_the_modes_that_the_user_wants(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_json(tmp_path / "a.json", {})
        packing.save(tmp_path / "b", {"x": np.ones(2)})
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a.json", "b")] == [0o640, 0o640]


def test_a_run_that_was_killed_before_it_began_may_be_begun_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for name in (".lock", ".abc.part"):
        (run / name).touch()
    refused(lambda: fedclade.resume(run), "before it began")
    begin("fedavg", run, 1)
    assert not list(run.glob("*.part"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").touch()
    refused(lambda: begin("fedavg", tmp_path / "other", 1), "not empty")
    assert (tmp_path / "other" / "letter.txt").is_file()


# --- from another directory -------------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with rows of three clients, and public rows."""
    (tmp_path / "here" / "rows").mkdir(parents=True)
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    random = np.random.default_rng(0)
    lines = []
    for client in "abc":
        x, y = random.normal(size=(40, 5)).round(3), np.arange(40) % 2
        np.savez(Path("rows") / f"{client}.npz", x=x.astype(np.float32), y=y)
        lines += [",".join(map(str, [client, *row, label])) for row, label in zip(x, y, strict=True)]
    Path("all.csv").write_text("\n".join(["client,a,b,c,d,e,label", *lines]) + "\n")
    np.savez("public.npz", x=random.normal(size=(30, 5)).astype(np.float32), y=np.arange(30) % 2)
    return tmp_path


@pytest.mark.parametrize("data", ["folder:rows", "table:all.csv"])
def test_a_run_resumes_from_another_directory(here: Path, monkeypatch: pytest.MonkeyPatch, data: str) -> None:
    whole = ["--model", "mlp", "--workers", "1", "--data", data, "--set", "evaluate_local_every=1"]
    whole += ["--set", "data.client=client"] if data.startswith("table") else []
    assert command("run", *whole, "--rounds", 2, "--out", here / "whole")[0] == 0
    assert command("run", *whole, "--rounds", 1, "--out", here / "run")[0] == 0
    monkeypatch.chdir(here / "there")
    assert command("resume", here / "run", "--rounds", 2, "--quiet") == (0, "")
    assert left_by(here / "run") == left_by(here / "whole")


def test_a_probe_file_is_found_from_another_directory(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("run.toml").write_text(
        'data = "folder:rows"\nmodel = "mlp"\nworkers = 1\nrounds = 1\ndata_dir = "kept"\n'
        '[method]\nname = "fedstack"\nrefresh = true\nprobe_file = "public.npz"\n'
    )
    assert command("run", "--config", "run.toml", "--out", here / "run")[0] == 0
    monkeypatch.chdir(here / "there")
    assert command("resume", here / "run", "--rounds", 2, "--quiet") == (0, "")
    kept = fedclade.load(here / "run").settings
    assert kept["method"]["probe_file"] == str(here / "here" / "public.npz")
    assert kept["data_dir"] == str(here / "here" / "kept")
