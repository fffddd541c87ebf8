"""`fedclade predict` and `fedclade export`: what to do with a run that has ended."""

from pathlib import Path
from typing import Annotated

import typer

from fedclade.cli import options
from fedclade.display import make_console
from fedclade.errors import FedcladeError


def predict(
    folder: options.RunFolderPath,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Rows as clients have them; labels are passed over.")],
    client: Annotated[str, typer.Option("--client", help="Whose model is asked.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="The CSV file to write.  [FILE with .predictions.csv]")
    ] = None,
) -> None:
    """Write what a client's model says of new rows, with probabilities."""
    from fedclade.data.own.files import stem_of
    from fedclade.files import write_atomically
    from fedclade.predicting import predict as predicted

    target = out or file.with_name(f"{stem_of(file)}.predictions.csv")
    if target.resolve() == file.resolve():
        raise FedcladeError(f"{target} holds the rows: choose another --out")
    found = predicted(folder, client, file)
    write_atomically(target, lambda part: found.to_csv(part, index=False))
    make_console().print(f"{len(found):,} predictions by the model of {client}: {target}", soft_wrap=True)


def export(
    folder: options.RunFolderPath,
    form: Annotated[str, typer.Option("--format", help="safetensors, torchscript or onnx.")] = "safetensors",
    out: Annotated[Path | None, typer.Option("--out", help="The folder to write to.  [exported, in DIR]")] = None,
) -> None:
    """Write the model of every cluster in a form that others read."""
    from fedclade.predicting import export as exported

    for path in exported(folder, form, out):
        make_console().print(str(path), soft_wrap=True)
