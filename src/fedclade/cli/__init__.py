"""The commands, thin: each turns what was typed into a call of the library and shows what comes back.

Heavy packages (torch, pandas) are imported inside the commands that need them, so that `fedclade --help` is instant.
"""

from typing import Annotated

import typer

from fedclade import __version__
from fedclade.cli import (
    benchmarking,
    catalogues,
    comparing,
    data,
    demo,
    deploying,
    listing,
    place,
    predicting,
    reporting,
    reproducing,
    runs,
)
from fedclade.cli.commands import Commands

app = Commands(
    name="fedclade",
    help="Finds the groups hidden in a federation of clients with unlike data and trains one model for each group.",
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"fedclade {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _start(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


app.command()(demo.demo)
app.command()(runs.run)
app.command()(runs.resume)
app.command()(runs.show)
app.command("runs")(listing.list_runs)
app.command()(listing.config)
app.command()(place.place)
app.command()(predicting.predict)
app.command()(predicting.export)
app.command()(reporting.report)
app.command()(reporting.watch)
app.command()(comparing.compare)
app.command()(benchmarking.benchmark)
app.command()(reproducing.reproduce)
app.command()(catalogues.methods)
app.command()(catalogues.models)
app.command()(catalogues.splits)
app.add_typer(data.app, name="data")
app.add_typer(deploying.app, name="deploy")


def main() -> None:
    app(prog_name="fedclade")


__all__ = ["app", "main"]
