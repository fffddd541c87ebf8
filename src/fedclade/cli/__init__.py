"""The commands, thin: each turns what was typed into a call of the library and shows what comes back.

Heavy packages (torch, pandas) are imported inside the commands that need them, so that `fedclade --help` is instant.
"""

import contextlib
import os
import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from fedclade import __version__
from fedclade.cli import catalogues, data, demo, runs
from fedclade.errors import FedcladeError

WRONG_INPUT, STOPPED = 2, 130  # exit codes

# What Typer raises for wrong usage. It is not imported from click, of which newer versions of Typer carry a copy.
UsageError: Any = typer.BadParameter.__mro__[1]


class OneLineErrors(TyperGroup):
    """Commands whose errors are one line for people, and whose bugs are an honest traceback."""

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        for stream in (sys.stdout, sys.stderr):  # a name that the terminal cannot show must not end a run
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")
        try:
            code = super().main(*args, **{**kwargs, "standalone_mode": False})
        except FedcladeError as error:
            _fail(str(error))
        except UsageError as error:
            command = error.ctx.command_path if error.ctx else "fedclade"
            _fail(f"{error.format_message().rstrip('.')}; see `{command} --help`")
        except (KeyboardInterrupt, typer.Abort):
            sys.exit(STOPPED)
        except BrokenPipeError:
            _reader_is_gone()
        sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str) -> NoReturn:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(WRONG_INPUT)


def _reader_is_gone() -> NoReturn:
    """`fedclade methods | head -1`: leave quietly, also when Python flushes stdout at the end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(1)


app = typer.Typer(
    name="fedclade",
    cls=OneLineErrors,
    help="Finds the groups hidden in a federation of clients with unlike data and trains one model for each group.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
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
app.command()(catalogues.methods)
app.command()(catalogues.models)
app.command()(catalogues.splits)
app.add_typer(data.app, name="data")


def main() -> None:
    app(prog_name="fedclade")


__all__ = ["app", "main"]
