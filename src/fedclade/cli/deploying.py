"""`fedclade deploy init | up | certificates | rotate`: real federations on Flower."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fedclade.cli import options
from fedclade.cli.commands import Commands
from fedclade.display import make_console
from fedclade.errors import FedcladeError

app = Commands(help="Real federations on Flower: make a project, and try it out on this machine.")

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
    from fedclade.deploy.local import NAME, Trial, dealt_nodes, ending_as_by_ctrl_c, run_here

    if not (folder / "pyproject.toml").is_file():
        raise FedcladeError(f"{folder} is no project: make one with `fedclade deploy init {folder}`")
    console = make_console()
    say = partial(console.print, soft_wrap=True)
    configs = dealt_nodes(data or "digits", split, nodes)
    if stay:
        with ending_as_by_ctrl_c(), Trial(folder / "runs" / "nodes", configs, insecure=insecure) as trial:
            say(trial.about)
            say(f"run on them: FLWR_HOME={trial.environment['FLWR_HOME']} flwr run {folder} {NAME} --stream")
            trial.stay(say)
        return
    place = out or folder / default_folder("deployed")
    with stopping_cleanly(place):
        run_here(place, configs, project=folder, insecure=insecure, assignments=" ".join(settings or ()), say=say)
    show(place)


@app.command()
def certificates(
    hosts: Annotated[
        list[str], typer.Argument(metavar="HOST...", help="Names and addresses by which nodes reach the server.")
    ],
    out: Annotated[Path, typer.Option("--out", help="The folder to write to.")] = Path("."),
) -> None:
    """Make certificates for a SuperLink: ca.crt for everyone, server.pem and server.key for the server alone."""
    from fedclade.deploy.keys import make_certificates
    from fedclade.errors import needs_flower

    needs_flower("deploy certificates")
    for path in make_certificates(out, hosts):
        print(path)


@app.command()
def rotate(
    run: options.RunFolderPath,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The client.")],
    key: Annotated[
        Path | None,
        typer.Argument(metavar="[KEY.pub]", help="Its new public key.  [the next one registered under the name]"),
    ] = None,
) -> None:
    """Let a client of a run go on with a new key: from then on its name belongs to that one."""
    from fedclade.deploy.rotation import rotate

    print(rotate(run, name, key))
