"""`fedclade deploy init | up`: real federations on Flower."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from fedclade.cli import options
from fedclade.cli.errors import OneLineErrors
from fedclade.display import make_console
from fedclade.errors import FedcladeError

app = typer.Typer(
    cls=OneLineErrors,
    help="Real federations on Flower: make a project, and try it out on this machine.",
    rich_markup_mode=None,
)

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the project.")]


@app.callback(invoke_without_command=True)
def _start(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def init(folder: Folder) -> None:
    """Write a small Flower project that `flwr run` takes."""
    from fedclade.deploy import project

    for path in project.init(folder):
        print(path)
    print(f"\nTry it out: fedclade deploy up --nodes 3 {folder}")


@app.command()
def up(
    folder: Folder,
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=50, help="How many SuperNodes.")] = 3,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            help="What nodes hold: a data set that is dealt out, or folder:PATH with a file for each node.  [digits]",
        ),
    ] = None,
    split: options.Split = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The run folder. One that holds a run goes on with it.  [DIR/runs/...]")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of the run, as rounds=10 or method.name=hicfl."),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Without TLS and keys. Only this machine can be reached, as always.")
    ] = False,
    stay: Annotated[
        bool, typer.Option("--stay", help="Run nothing; stay up until Ctrl-C, and say how to `flwr run` here.")
    ] = False,
) -> None:
    """Start a SuperLink and SuperNodes on this machine, run the project on them, and take all down again."""
    from fedclade.cli.runs import default_folder, show, stopping_cleanly
    from fedclade.deploy.local import NAME, Trial, dealt_nodes, ending_as_by_ctrl_c

    if not (folder / "pyproject.toml").is_file():
        raise FedcladeError(f"{folder} is no project: make one with `fedclade deploy init {folder}`")
    console = make_console()
    configs = dealt_nodes(data or "digits", split, nodes)
    place = out or folder / default_folder("deployed")
    with (
        stopping_cleanly(place, "the same command and --out"),
        ending_as_by_ctrl_c(),
        tempfile.TemporaryDirectory(prefix="fedclade-up-") as work,
        Trial(Path(work), configs, insecure=insecure) as trial,
    ):
        trust = "plain text, no keys" if insecure else "TLS and node keys"
        console.print(f"a SuperLink and {nodes} SuperNodes are up on {trial.address} ({trust})", soft_wrap=True)
        if stay:
            home = trial.environment["FLWR_HOME"]
            console.print(f"run on them: FLWR_HOME={home} flwr run {folder} {NAME} --stream", soft_wrap=True)
            trial.stay()
            return
        config = {"out": str(place.absolute()), "clients": nodes, "set": " ".join(settings or ())}
        code = trial.run(folder, config, show=True).wait()
        if code or not (place / "result.json").is_file():
            raise FedcladeError(f"the run did not end: look above; go on with the same --out {place}")
    show(place)
