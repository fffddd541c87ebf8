"""`fedclade data list | get | check | show`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedclade.cli import options
from fedclade.cli.commands import Commands
from fedclade.cli.machine import print_json
from fedclade.display import make_console, make_table, size_in_words
from fedclade.errors import FedcladeError, listed

if TYPE_CHECKING:
    from fedclade.data import DataOptions

app = Commands(help="Data sets: which there are, getting and checking them, and who holds what.")

CARRIED_BY = {"sklearn": "comes with scikit-learn", "fedclade": "made when asked for"}

Name = Annotated[str, typer.Argument(help="A name of `fedclade data list`.")]


@app.callback(invoke_without_command=True)
def _start(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command("list")
def list_all(data_dir: options.DataDir = None, json: options.Json = False) -> None:
    """List the data sets, and where on this machine they lie."""
    from fedclade.data.sources import find, sources

    table = make_table("name", "what it is", "licence", "found in")
    listed = []
    for name, source in sources().items():
        try:
            place = CARRIED_BY.get(source.package) or str(find(name, data_dir))
        except FedcladeError:
            place = "missing"
        listed.append({"name": name, "description": source.description, "licence": source.licence, "found": place})
        forms = "".join(f"; also {name}:{form}" for form in source.forms)
        table.add_row(name, source.description + forms, source.licence, place)
    if json:
        print_json(listed)
        return
    console = make_console()
    console.print(table)
    console.print(
        "\nA missing one: fedclade data get NAME. Your own: --data folder:PATH with a file or folder of each client"
    )


@app.command()
def get(name: Name, data_dir: options.NewDataDir = None) -> None:
    """Download a data set from its official address and check it."""
    from fedclade.data import sources

    console = make_console()
    folder = sources.get(name, data_dir, progress=console.is_interactive)
    console.print(f"{name} lies in {folder}", soft_wrap=True)


@app.command()
def check(name: Name, data_dir: options.DataDir = None) -> None:
    """Check that the files of a data set are here and are the official ones."""
    from fedclade.data import sources

    report = sources.check(name, data_dir)
    console = make_console()
    if report.files:
        files = make_table("hash", "files", "size", "such as", right=("files", "size"))
        for hash in ("right", "unknown", "wrong", "missing"):
            if states := [state for state in report.files if state.hash == hash]:
                size = size_in_words(sum(state.size for state in states)) if hash != "missing" else "-"
                files.add_row(hash, f"{len(states):,}", size, listed((state.name for state in states), 3))
        console.print(files)
        console.print()
    if report.rows:
        rows = make_table("label", "training rows", "test rows", right=("training rows", "test rows"))
        for label, (train, test) in report.rows.items():
            rows.add_row(label, f"{train:,}", f"{test:,}")
        rows.add_section()
        rows.add_row("all", *(f"{sum(column):,}" for column in zip(*report.rows.values(), strict=True)))
        console.print(rows)
        console.print()
    if not report.ok:
        wrong = [state.name for state in report.files if state.hash == "wrong"]
        raise FedcladeError(
            report.problem
            or f"{name}: {listed(wrong, 6)} in {report.folder} is not the official file: run `fedclade data get {name}`"
        )
    console.print(f"{name} in {report.folder} is complete", soft_wrap=True)


@app.command()
def show(
    data: options.Data = None,
    split: options.Split = None,
    clients: options.Clients = None,
    test_view: options.TestView = None,
    seed: options.Seed = None,
    data_dir: options.DataDir = None,
    set: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="How own data are read: data.label=... or task=regression."),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option("--picture", metavar="FILE.png", help="Also draw it: png, svg or pdf.")
    ] = None,
) -> None:
    """Show how many rows of which label each client holds, as a table and as a picture."""
    from fedclade.cli import label_counts
    from fedclade.data import federation_of

    if picture is not None:
        label_counts.check_picture(picture)
    chosen = _reading(set or [])
    federation = federation_of(data or "digits", split, clients, seed or 0, test_view, data_dir, options=chosen)
    console = make_console()
    for remark in federation.remarks:
        console.print(f"note: {remark}", soft_wrap=True)
    console.print(label_counts.headline(federation), end="\n\n")
    console.print(label_counts.table(federation, console.width))
    if federation.labels == "numbers":
        return
    console.print()
    console.print(label_counts.heat_map(federation, console), end="")
    console.print(label_counts.legend(federation))
    if picture is not None:
        label_counts.draw(federation, picture)
        console.print(f"drawn in {picture}", soft_wrap=True)


def _reading(assignments: list[str]) -> "DataOptions":
    """How own data are read for a task."""
    from fedclade.settings import settings_from, with_assignments

    values = with_assignments({"data": {}}, assignments)
    if not set(values) <= {"data", "task"}:
        raise FedcladeError("--set: only data.NAME=VALUE and task=NAME have a meaning here, e.g. data.label=diagnosis")
    return settings_from(values).reading
