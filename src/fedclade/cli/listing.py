"""`fedclade runs` and `fedclade config`: which runs there are, and all settings that a run can have."""

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedclade.cli import options
from fedclade.cli.machine import facts_of, print_json
from fedclade.display import counted, make_console, make_table
from fedclade.errors import FedcladeError
from fedclade.meanings import meanings

if TYPE_CHECKING:
    from pydantic import BaseModel


def list_runs(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where to look, also in folders below.")] = Path(
        "runs"
    ),
    json: options.Json = False,
) -> None:
    """List the runs in a folder, the latest last, with what came of them."""
    from fedclade.result import Result

    if not folder.is_dir():
        raise FedcladeError(f"there is no folder {folder}: say where the runs are")
    found = sorted((path.parent for path in folder.rglob("settings.json")), key=lambda path: path.stat().st_mtime)
    listed, damaged = list[tuple[Path, Result]](), list[str]()
    for path in found:
        try:
            result = Result.open(path)
            facts_of(result)  # all that is shown below can be read
            listed.append((path, result))
        except FedcladeError as error:
            damaged.append(str(error))
    if json:
        print_json([facts_of(result) for _, result in listed])
        return
    console = make_console()
    table = make_table(
        "run", "method", "data", "round", "clusters", "metric", "cluster model", "local model", "state", "when"
    )
    for path, result in listed:
        means = (result.metric.written(seen["mean"]) for seen in (result.score, result.score_local))
        when = f"{datetime.fromtimestamp(path.stat().st_mtime):%Y-%m-%d %H:%M}"
        progress, number = f"{max(result.round, 0)}/{result.rounds}", str(len(result.clusters))
        table.add_row(
            str(path),
            result.method,
            str(result.settings["data"]),
            progress,
            number,
            result.metric.words,
            *means,
            result.state,
            when,
        )
    console.print(table if listed else f"no runs in {folder}")
    for line in damaged:
        console.print(f"cannot be read: {line}", soft_wrap=True)
    if listed:
        console.print(f"\n{counted(len(listed), 'run')}; more of one: fedclade show DIR, fedclade report DIR")


def config(
    method: Annotated[str | None, typer.Option("--method", help="With the settings of this method.")] = None,
) -> None:
    """Print a TOML file of all settings with their meanings and defaults, for `fedclade run --config`."""
    from fedclade.settings import Settings, settings_from

    settings = settings_from({"method": method} if method else {})
    used = settings.model_dump(mode="json")
    tables = dict(_tables(settings))
    print("# All settings of a run, as they are by default: take the # away from what you change.")
    print("# Use it with: fedclade run --config FILE\n")
    for setting in meanings(Settings):
        if setting.name not in tables and setting.name != "data_options":
            _print_setting(setting.name, used[setting.name], setting.meaning, setting.allowed)
    for name, kind in tables.items():
        print(f"\n[{name}]")
        if "name" in used[name]:
            print(f'name = "{used[name]["name"]}"')
        for setting in meanings(kind):
            _print_setting(setting.name, used[name][setting.name], setting.meaning, setting.allowed)


def _tables(settings: Any) -> "Iterator[tuple[str, type[BaseModel]]]":
    yield "method", type(settings.method)
    yield "training", type(settings.training)
    yield "aggregation", type(settings.aggregation)
    yield "server", type(settings.server)


def _print_setting(name: str, value: Any, meaning: str, allowed: str) -> None:
    """One line: the default after a `#`, so that the file changes nothing as it is."""
    words = f"  # {meaning or allowed}"
    shown = "..." if value is None else _toml(value)
    print(f"# {name} = {shown}{words}")


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items() if inner is not None) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(inner) for inner in value) + "]"
    return json.dumps(value)
