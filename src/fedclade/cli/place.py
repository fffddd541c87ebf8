"""`fedclade place`: where new clients belong in a run that has ended."""

from pathlib import Path
from typing import Annotated

import typer

from fedclade.cli import options
from fedclade.cli.machine import print_json
from fedclade.display import make_console, make_table

MOST_COLUMNS = 8  # a terminal is as wide as that; of more clusters only the nearest are shown


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
    unlabelled: Annotated[
        bool,
        typer.Option("--unlabelled", help="The newcomers have no labels: folder:PATH holds a file of rows for each."),
    ] = False,
    data_dir: options.DataDir = None,
    json: options.Json = False,
) -> None:
    """Say which cluster new clients join, and why, and give each that cluster's model."""
    from fedclade.newcomers import place as place_newcomers
    from fedclade.newcomers import place_unlabelled, unlabelled_rows

    if unlabelled:
        placed = place_unlabelled(folder, unlabelled_rows(Path(data.removeprefix("folder:"))))
    else:
        placed = place_newcomers(
            folder, data, split=split, clients=clients, personalise=personalise, data_dir=data_dir, model=model
        )
    if json:
        told = {name: {**vars(one), "metric": one.metric.name} for name, one in placed.items()}
        print_json({name: {k: v for k, v in one.items() if k not in ("weights", "make")} for name, one in told.items()})
        return
    console, first = make_console(), next(iter(placed.values()))
    clusters = sorted({cluster for one in placed.values() for cluster in one.distances})
    few = len(clusters) <= MOST_COLUMNS
    columns = [f"to {cluster}" for cluster in clusters] if few else ["nearest", "second", "third"]
    is_sure = any(one.confidence is not None for one in placed.values())
    table = make_table(
        "newcomer",
        "cluster",
        *(["confidence"] if is_sure else []),
        *columns,
        first.metric.words,
        "personalised",
        right=["cluster", *columns, first.metric.words, "personalised"],
    )
    for name, one in placed.items():
        far = {k: f"{one.distances[k]:.4g}" for k in sorted(one.distances, key=lambda k: (one.distances[k], k))}
        cells = [far.get(k, "-") for k in clusters] if few else [f"{k}: {distance}" for k, distance in far.items()][:3]
        home = "a new one" if one.cluster is None else str(one.cluster)
        sure = ["-" if one.confidence is None else f"{one.confidence:.3f}"] if is_sure else []
        table.add_row(name, home, *sure, *cells, *map(first.metric.written, (one.score, one.score_personalised)))
    console.print(table)
    where = "columns `to N`" if few else f"next columns (the nearest three of {len(clusters)} clusters)"
    why = f"The {where} hold the {first.measure}; the smallest decides" if clusters else first.measure.capitalize()
    if first.limit is not None:
        why += f", and whoever is beyond {first.limit:.4g} from all founds a cluster"
    console.print(f"{why}.", soft_wrap=True)
    for name, one in placed.items():
        if one.warning:
            console.print(f"warning: {name}: {one.warning}", soft_wrap=True)
    if not unlabelled:
        console.print(f"The models and this table lie in {folder / 'placements'}", soft_wrap=True)
