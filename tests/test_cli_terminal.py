"""What other programs and people at a terminal get: JSON, silence, plain help, a list of runs, a file of settings."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

from fedclade.aggregation import AGGREGATIONS
from fedclade.cli import app
from fedclade.clients.tasks import Training
from fedclade.data import DataOptions
from fedclade.meanings import meanings
from fedclade.methods import METHODS
from fedclade.optimizers import SERVER_OPTIMIZERS
from fedclade.serving import SERVINGS
from fedclade.settings import Settings, settings_from
from fedclade.updates import UPDATE_STEPS

SMALL = ["--rounds", "1", "--clients", "3", "--set", "rows=20", "--set", "workers=1"]
COMMANDS = [command.name or command.callback.__name__ for command in app.registered_commands if command.callback]


def called(*words: str) -> Any:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_plain(command: str) -> None:
    text = called(command, "-h").output
    assert "Show this message and exit." in text
    assert "\\[" not in text


def test_summaries_of_commands_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    text = called("--help").output
    assert "..." not in text.partition("Commands:")[2]
    assert all(f"  {command} " in text for command in COMMANDS)


def test_json_is_all_that_goes_to_stdout() -> None:
    ran = called("run", *SMALL, "--out", "a run", "--json")
    facts = json.loads(ran.stdout)
    assert facts == json.loads(called("show", "a run", "--json").stdout)
    assert facts["state"] == "ended"
    assert 0 <= facts["accuracy"]["mean"] <= 1
    assert sum(map(len, facts["clusters"].values())) == 3
    assert "round 1/1" in ran.stderr  # progress
    assert json.loads(called("runs", ".", "--json").stdout) == [facts]
    placed = json.loads(called("place", "a run", "--data", "digits", "--clients", "2", "--json").stdout)
    assert {one["cluster"] for one in placed.values()} == {0}


def test_lists_as_json() -> None:
    assert [method["name"] for method in json.loads(called("methods", "--json").stdout)] == list(METHODS)
    assert {"name", "default", "meaning"} <= set(json.loads(called("methods", "fedclust", "--json").stdout)[0])
    assert "mnist" in {source["name"] for source in json.loads(called("data", "list", "--json").stdout)}


def test_a_comparison_as_json() -> None:
    told = called("compare", "--method", "fedavg", "--method", "local", "--seeds", "1", *SMALL, "--json")
    assert [row["label"] for row in json.loads(told.stdout)] == ["fedavg", "local"]


def test_quiet_is_quiet() -> None:
    for words in (("run", *SMALL, "--out", "a"), ("resume", "a", "--rounds", "2")):
        result = called(*words, "--quiet")
        assert result.stdout == result.stderr == ""
    assert "2/2" in called("runs", ".").stdout


def test_a_dry_run_leaves_nothing(tmp_path: Path) -> None:
    text = called("run", *SMALL, "--method", "ifca", "--dry-run").output
    assert "ifca on digits" in text
    assert "bytes down  about" in text
    assert not list(tmp_path.iterdir())
    refused = CliRunner().invoke(app, ["run", "--dry-run", "--engine", "flower"])
    assert refused.exit_code == 2
    assert "leave --engine flower out" in refused.stderr


def test_damaged_runs_are_named_in_the_list() -> None:
    called("run", *SMALL, "--out", "good", "--quiet")
    called("run", *SMALL, "--out", "bad", "--quiet")
    Path("bad/settings.json").write_text("{")
    text = called("runs", ".").output
    assert "good" in text
    assert "cannot be read" in text
    assert "bad" in text.partition("cannot be read")[2]


@pytest.mark.parametrize("method", [None, *METHODS])
def test_a_file_of_all_settings_can_be_used_as_it_is_and_with_its_lines_in_use(method: str | None) -> None:
    text = called("config", *(["--method", method] if method else [])).stdout
    told = {"method": method} if method else {}
    plain = settings_from(told).model_dump()
    assert settings_from(tomllib.loads(text)).model_dump() == plain
    lines = [line for line in text.splitlines() if not line.startswith("#") or " = " not in line or " = ..." in line]
    in_use = [line.removeprefix("# ") for line in text.splitlines() if line not in lines]
    assert len(in_use) > 20
    whole = "\n".join(
        line.removeprefix("# ") if line in set(text.splitlines()) - set(lines) else line for line in text.splitlines()
    )
    assert settings_from(tomllib.loads(whole)).model_dump() == plain


@pytest.mark.parametrize(
    "kind",
    [
        Settings,
        Training,
        DataOptions,
        *AGGREGATIONS.values(),
        *UPDATE_STEPS.values(),
        *SERVER_OPTIMIZERS.values(),
        *SERVINGS.values(),
        *METHODS.values(),
    ],
    ids=lambda kind: kind.__name__,
)
def test_every_setting_has_a_meaning(kind: type[BaseModel]) -> None:
    assert [setting.name for setting in meanings(kind) if not setting.meaning] == []
