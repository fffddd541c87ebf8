"""How all commands look and end: plain help, one line for people, or an honest traceback where it is a bug."""

import contextlib
import os
import sys
import warnings
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from fedclade.errors import FedcladeError, unknown

WRONG_INPUT, STOPPED = 2, 130  # exit codes

# What Typer raises for wrong usage. It is not imported from click, of which newer versions of Typer carry a copy.
UsageError: Any = typer.BadParameter.__mro__[1]


class Command(TyperCommand):
    def get_help(self, ctx: Any) -> str:
        return super().get_help(ctx).replace("\\[", "[")  # Typer escapes brackets for a markup that is not used here


class OneLineErrors(TyperGroup):
    """Commands whose errors are one line for people, and whose bugs are an honest traceback."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            raise unknown("command", args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Each with the whole first sentence of what it does, however narrow the terminal."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, (command.help or "").split("\n\n")[0].strip()) for name, command in commands if command]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        for stream in (sys.stdout, sys.stderr):  # a name that the terminal cannot show must not end a run
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")
        warnings.formatwarning = lambda message, *_, **__: f"warning: {' '.join(str(message).split())}\n"
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


class Commands(typer.Typer):
    """A group of commands in the house's style."""

    def __init__(self, **told: Any) -> None:
        names = {"help_option_names": ["-h", "--help"]}
        super().__init__(cls=OneLineErrors, rich_markup_mode=None, context_settings=names, **told)

    def command(self, name: str | None = None, **told: Any) -> Any:
        return super().command(name, **{"cls": Command, "context_settings": self.info.context_settings, **told})


def _fail(message: str) -> NoReturn:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(WRONG_INPUT)


def _reader_is_gone() -> NoReturn:
    """`fedclade methods | head -1`: leave quietly, also when Python flushes stdout at the end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(1)
