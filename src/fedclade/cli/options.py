"""Options that several commands share, so that each reads the same everywhere."""

from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[
    str | None,
    typer.Option("--data", help="A data set (`fedclade data list`), folder:PATH, or my_module:make_data.  [digits]"),
]
Split = Annotated[
    str | None,
    typer.Option("--split", help="How rows are dealt out (`fedclade splits`).  [natural if rows have owners, or iid]"),
]
Clients = Annotated[int | None, typer.Option("--clients", min=1, help="How many clients.  [all owners of rows, or 20]")]
TestView = Annotated[
    str | None, typer.Option("--test-view", help="What tests a client: label-support, proportional or holdout.")
]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="All chance in a run comes from it.  [0]")]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", exists=True, file_okay=False, help="Where data files lie.  [$FEDCLADE_DATA, or the user's cache]"
    ),
]
NewDataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Where to put the files.  [$FEDCLADE_DATA, or the user's cache]")
]
Device = Annotated[
    str | None,
    typer.Option("--device", help="Where networks run: cpu, cuda, mps, or auto (a GPU if there is one).  [cpu]"),
]
Workers = Annotated[int | None, typer.Option("--workers", min=1, help="Worker processes.  [one for each core]")]
Track = Annotated[
    list[str] | None,
    typer.Option("--track", help="Also tell every round to tensorboard, mlflow, wandb or csv. May be given often."),
]
RunFolderPath = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for other programs, and nothing else, to stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no summary: only what goes wrong.")]
