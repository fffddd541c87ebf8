"""`fedclade run`, `resume` and `show`."""

import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from fedclade.cli import options
from fedclade.cli.commands import STOPPED
from fedclade.cli.machine import facts_of, print_json
from fedclade.display import RoundsDisplay, make_console, size_in_words, time_in_words
from fedclade.errors import FedcladeError


def run(
    data: options.Data = None,
    split: options.Split = None,
    clients: options.Clients = None,
    test_view: options.TestView = None,
    model: Annotated[
        str | None, typer.Option("--model", help="A network (`fedclade models`) or my_module:make_net.  [a small one]")
    ] = None,
    method: Annotated[
        str | None, typer.Option("--method", help="A method (`fedclade methods`) or my_module:MyMethod.  [clade]")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option("--task", help="What to predict: classification, regression, multilabel or tokens.  [the first]"),
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
    baselines: Annotated[
        bool, typer.Option("--baselines", help="Also run fedavg and clients alone, to see whether the method pays.")
    ] = False,
    track: options.Track = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only try one round, and say what the run would be, take and send.")
    ] = False,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Run a method on a federation, and keep all that comes of it in a folder."""
    from fedclade import api
    from fedclade.methods import name_of
    from fedclade.settings import gathered, settings_from

    given = {
        "data": data, "split": split, "clients": clients, "test_view": test_view, "model": model, "method": method,
        "task": task, "rounds": rounds, "seed": seed, "workers": workers, "device": device, "engine": engine,
        "data_dir": data_dir, "out": out, "baselines": baselines or None,
    }  # fmt: skip
    values = gathered(config, given, assignments or ())
    chosen = values.pop("out", None)
    settings = settings_from(values)
    if dry_run:
        if settings.engine == "flower":
            raise FedcladeError("a dry run tries one round in this process: leave --engine flower out for it")
        _foretell(values, settings.rounds)
        return
    folder = (
        Path(str(chosen)) if chosen else default_folder(settings.data, name_of(settings.method), str(settings.seed))
    )
    with stopping_cleanly(folder), progress(quiet) as display:
        api.run(**values, out=folder, on_round=display, track=track)
    if json or not quiet:
        show(folder, json)


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
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Go on with a run where it stopped, or add rounds to one that has ended."""
    from fedclade import api

    with stopping_cleanly(folder), progress(quiet) as display:
        api.resume(
            folder,
            rounds=rounds,
            workers=workers,
            data_dir=data_dir,
            forget_memory=forget_memory,
            on_round=display,
            track=track,
        )
    if json or not quiet:
        show(folder, json)


def show(folder: options.RunFolderPath, json: options.Json = False) -> None:
    """Show what a run found, or how far it has come."""
    from fedclade.display import outcome
    from fedclade.result import Result

    if json:
        print_json(facts_of(Result.open(folder)))
    else:
        make_console().print(outcome(Result.open(folder)))


def progress(quiet: bool) -> AbstractContextManager[Any]:
    """What hears of every round: on stderr, so that only what was found goes into a pipe."""
    return nullcontext() if quiet else RoundsDisplay(make_console(stderr=True))


def _foretell(values: Mapping[str, Any], rounds: int) -> None:
    """Say what a run would be, from its first round."""
    from fedclade import api
    from fedclade.result import DIRECTIONS

    with TemporaryDirectory() as folder:
        first = api.run(**{**values, "rounds": min(rounds, 1), "events": ()}, out=Path(folder) / "run")
        history, sent = first.history, first.sent.T.groupby(level=0).sum().T
        seconds = first.seconds * max(rounds, 1)
        rows = history["n_samples"][history["trained"]]
        facts = {
            "what": f"{first.method} on {first.settings['data']} ({first.record['split']})",
            "clients": f"{len(first.record['clients'])}, of {rows.min()} to {rows.max()} training rows",
            "model": f"{first.settings['model']}, {first.summary['layout']['n_parameters']:,} weights",
            "trained": f"{int(history[history['round'] > 0]['trained'].sum())} clients in a round",
        }
        for way in DIRECTIONS:
            before, each = (int(sent[way].get(number, 0)) for number in (0, 1))
            facts[f"bytes {way}"] = f"about {size_in_words(before + each * rounds)} in {rounds} rounds"
        facts["time"] = f"about {time_in_words(seconds)} on this machine, as the first round went"
    width = max(map(len, facts))
    for name, words in facts.items():
        make_console().print(f"{name:{width}}  {words}", soft_wrap=True)


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
