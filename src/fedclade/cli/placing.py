"""`fedclade place`: where new clients belong in a run that has ended."""

from typing import Annotated

import typer

from fedclade.cli import options
from fedclade.display import make_console, make_table, share


def place(
    folder: options.RunFolderPath,
    data: Annotated[
        str, typer.Option("--data", help="The newcomers: folder:PATH with a file for each, or any other data.")
    ],
    split: options.Split = None,
    clients: options.Clients = None,
    personalise: Annotated[
        int, typer.Option("--personalise", min=0, help="Epochs that a newcomer trains its cluster's model. 0: none.")
    ] = 5,
    model: Annotated[
        str | None,
        typer.Option("--model", help="What newcomers train, where they may choose (fedstack).  [the run's, by turns]"),
    ] = None,
    data_dir: options.DataDir = None,
) -> None:
    """Say which cluster new clients join, and why, and give each that cluster's model."""
    from fedclade.placing import place as place_newcomers

    placed = place_newcomers(
        folder, data, split=split, clients=clients, personalise=personalise, data_dir=data_dir, model=model
    )
    console, first = make_console(), next(iter(placed.values()))
    clusters = sorted({cluster for one in placed.values() for cluster in one.distances})
    table = make_table(
        "newcomer",
        "cluster",
        *(f"to {cluster}" for cluster in clusters[:12]),
        "accuracy",
        "personalised",
        right=["cluster", *(f"to {cluster}" for cluster in clusters), "accuracy", "personalised"],
    )
    for name, one in placed.items():
        far = [f"{one.distances[k]:.4g}" if k in one.distances else "-" for k in clusters[:12]]
        home = "a new one" if one.cluster is None else str(one.cluster)
        table.add_row(name, home, *far, share(one.accuracy), share(one.accuracy_personalised))
    console.print(table)
    why = (
        f"The columns `to N` hold the {first.measure}; the smallest decides" if clusters else first.measure.capitalize()
    )
    if first.limit is not None:
        why += f", and whoever is beyond {first.limit:.4g} from all founds a cluster"
    console.print(f"{why}.", soft_wrap=True)
    console.print(f"The models and this table lie in {folder / 'placements'}", soft_wrap=True)
