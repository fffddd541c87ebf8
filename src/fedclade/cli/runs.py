"""`fedclade run`, `resume` and `show`."""

import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from fedclade.cli import options
from fedclade.cli.errors import STOPPED
from fedclade.display import RoundsDisplay, make_console


def run(
    data: options.Data = None,
    split: options.Split = None,
    clients: options.Clients = None,
    test_view: options.TestView = None,
    model: Annotated[
        str | None, typer.Option("--model", help="A network (`fedclade models`) or my_module:make_net.  [a small one]")
    ] = None,
    method: Annotated[
        str | None, typer.Option("--method", help="A method (`fedclade methods`) or my_module:MyMethod.  [fedavg]")
    ] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", min=0, help="How many rounds.  [10]")] = None,
    seed: options.Seed = None,
    workers: options.Workers = None,
    device: options.Device = None,
    engine: Annotated[
        str | None,
        typer.Option("--engine", help="Where clients run: local, flower-sim (Ray) or flower (processes).  [local]"),
    ] = None,
    data_dir: options.DataDir = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The run folder to make.  [runs/<data>-<method>-<seed>-<time>]")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="A TOML file with the same names. The command line beats it.")
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Any other setting, as participation=0.1 or training.learning_rate=0.1. May be given often.",
        ),
    ] = None,
    track: options.Track = None,
) -> None:
    """Run a method on a federation, and keep all that comes of it in a folder."""
    from fedclade import api
    from fedclade.methods import name_of
    from fedclade.settings import gathered, settings_from

    given = {
        "data": data, "split": split, "clients": clients, "test_view": test_view, "model": model, "method": method,
        "rounds": rounds, "seed": seed, "workers": workers, "device": device, "engine": engine,
        "data_dir": data_dir, "out": out,
    }  # fmt: skip
    values = gathered(config, given, assignments or ())
    chosen = values.pop("out", None)
    settings = settings_from(values)
    folder = (
        Path(str(chosen)) if chosen else default_folder(settings.data, name_of(settings.method), str(settings.seed))
    )
    with stopping_cleanly(folder), RoundsDisplay(make_console()) as display:
        api.run(**values, out=folder, on_round=display, track=track)
    show(folder)


def resume(
    folder: options.RunFolderPath,
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=0, help="The last round; more than before adds rounds.")
    ] = None,
    workers: options.Workers = None,
    data_dir: options.DataDir = None,
    forget_memory: Annotated[
        bool,
        typer.Option("--forget-memory", help="Go on from the cluster models where clients lost what they remembered."),
    ] = False,
    track: options.Track = None,
) -> None:
    """Go on with a run where it stopped, or add rounds to one that has ended."""
    from fedclade import api

    with stopping_cleanly(folder), RoundsDisplay(make_console()) as display:
        api.resume(
            folder,
            rounds=rounds,
            workers=workers,
            data_dir=data_dir,
            forget_memory=forget_memory,
            on_round=display,
            track=track,
        )
    show(folder)


def show(folder: options.RunFolderPath) -> None:
    """Show what a run found, or how far it has come."""
    from fedclade.display import outcome
    from fedclade.result import Result

    make_console().print(outcome(Result.open(folder)))


def default_folder(*words: str) -> Path:
    """A new folder under `runs/`, named by what runs in it and by the time."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join([*words, f"{datetime.now():%Y%m%d-%H%M%S}"])).strip("-.")
    candidates = (Path("runs") / f"{name}{suffix}" for suffix in ("", *(f"-{n}" for n in range(2, 1000))))
    return next(path for path in candidates if not path.exists())


@contextmanager
def stopping_cleanly(folder: Path, command: str = "fedclade resume") -> Iterator[None]:
    """Ctrl-C ends the command with one line on how to go on: by this command, given the folder."""
    try:
        yield
    except KeyboardInterrupt:
        begun = (folder / "settings.json").is_file()
        how = f"go on with: {command} {shlex.quote(str(folder))}" if begun else "the run had not begun"
        print(f"stopped; {how}", file=sys.stderr)
        raise typer.Exit(STOPPED) from None
