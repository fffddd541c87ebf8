"""`fedclade compare`: methods and settings against each other, over several seeds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedclade.cli import options
from fedclade.cli.commands import STOPPED
from fedclade.cli.machine import print_json
from fedclade.cli.runs import default_folder
from fedclade.display import StudyDisplay, counted, make_console, make_table

# What a narrow terminal does not show, in this order.
DISPENSABLE = (
    "local worst", "local std", "std", "p", "CPU seconds", "final", "down MB", "MB to target", "rounds to target",
    "up MB",
)  # fmt: skip


def compare(
    study: Annotated[
        Path | None, typer.Argument(metavar="[STUDY.toml]", help="What to compare: settings, seeds, cells.")
    ] = None,
    methods: Annotated[
        list[str] | None, typer.Option("--method", help="Without a file: a method to compare. Give it often.")
    ] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="How many seeds, from 0.  [3]")] = None,
    target: Annotated[
        float | None,
        typer.Option(
            "--target",
            help="Of the main metric: after how many rounds and bytes is it reached?",
        ),
    ] = None,
    data: options.Data = None,
    split: options.Split = None,
    clients: options.Clients = None,
    model: Annotated[str | None, typer.Option("--model", help="A network.")] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", min=0, help="How many rounds.")] = None,
    data_dir: options.DataDir = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Runs at a time.  [one for each core]")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The folder of the study; an old one is gone on with.")
    ] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any other setting.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Compare methods over several seeds. What has been run already is not run again."""
    from fedclade.compare import Study
    from fedclade.compare import compare as run_study
    from fedclade.errors import FedcladeError
    from fedclade.settings import gathered, merged, read_toml

    console = make_console(stderr=json)
    values: dict[str, Any] = read_toml(study) if study is not None else {}
    given = {"data": data, "split": split, "clients": clients, "model": model, "rounds": rounds, "data_dir": data_dir}
    if data_dir is not None:
        given["data_dir"] = str(data_dir)
    shared = values.get("settings", {})
    if isinstance(shared, dict):  # else the study says what is wrong
        values["settings"] = merged(shared, gathered(None, given, assignments or ()))
    if methods:
        values["cells"] = [{"label": name, "method": name} for name in methods]
    if study is None and not methods:
        raise FedcladeError("nothing to compare: give a study file, or --method at least twice")
    if seeds is not None:
        values["seeds"] = tuple(range(seeds))
    if target is not None:
        values["target"] = target
    plan = Study.of(values)
    folder = out or (default_folder("compare", study.stem) if study is not None else default_folder("compare"))
    display = StudyDisplay(console, plan.runs(folder))
    done = f"{display.done} of them done already"
    console.print(f"{counted(len(display.runs), 'run')}, {done}; they lie in {folder}", soft_wrap=True)
    try:
        with display:
            comparison = run_study(plan, folder, workers=workers, on_run=display)
    except KeyboardInterrupt:
        console.print(f"stopped; the same command with --out {folder} goes on", soft_wrap=True)
        raise typer.Exit(STOPPED) from None
    comparison.write()
    if json:
        print_json(comparison.table().to_dict("records"))
        raise typer.Exit(1 if comparison.failures else 0)
    rows = comparison.words()
    header, *body = fitting(rows, console.width)
    stacked = [name.replace(" ", "\n") for name in header]
    table = make_table(*stacked, right=stacked[1:])
    for row in body:
        table.add_row(*row)
    console.print(table)
    if warning := comparison.warning():
        console.print(warning, soft_wrap=True)
    whole = "all columns" if len(header) < len(rows[0]) else "also"
    console.print(f"{whole} as Markdown, LaTeX, CSV and HTML in {folder}", soft_wrap=True)
    if comparison.failures:
        raise typer.Exit(1)


def fitting(rows: list[list[str]], width: int) -> list[list[str]]:
    """The table without its least telling columns, as many as it takes to fit a narrow terminal."""
    columns = list(zip(*rows, strict=True))
    for name in DISPENSABLE:
        if sum(_width(column) + 3 for column in columns) <= width:
            break
        columns = [column for column in columns if column[0] != name]
    return [list(row) for row in zip(*columns, strict=True)]


def _width(column: Sequence[str]) -> int:
    """Of the widest cell; the words of a heading stand one below the other."""
    return max(len(word) for word in (*column[0].split(), *column[1:]))
