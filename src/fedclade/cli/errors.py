"""How a command ends: with one line for people, or with an honest traceback where it is a bug."""

import contextlib
import os
import sys
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from fedclade.errors import FedcladeError, unknown

WRONG_INPUT, STOPPED = 2, 130  # exit codes

# What Typer raises for wrong usage. It is not imported from click, of which newer versions of Typer carry a copy.
UsageError: Any = typer.BadParameter.__mro__[1]


class OneLineErrors(TyperGroup):
    """Commands whose errors are one line for people, and whose bugs are an honest traceback."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            raise unknown("command", args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)

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
            words = error.format_message().rstrip(".").replace("integer range", "whole number")
            _fail(f"{words}; see `{command} --help`")
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
