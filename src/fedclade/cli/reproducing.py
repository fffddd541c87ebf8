"""`fedclade reproduce`: the tables and figures of the papers, with our numbers beside theirs."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedclade.cli import options
from fedclade.cli.commands import STOPPED
from fedclade.display import make_console, make_table

OUT = Path("runs/reproduce")


def reproduce(
    item: Annotated[str, typer.Argument(metavar="ITEM|list", help="A table or figure, as fedclust/table1; or `list`.")],
    scale: Annotated[
        str, typer.Option("--scale", help="smoke: seconds; small: minutes on two cores; full: the paper's own setting.")
    ] = "small",
    out: Annotated[Path, typer.Option("--out", help="Where runs and tables go; what is there is not run again.")] = OUT,
    rows: Annotated[list[str] | None, typer.Option("--row", help="One of its rows. May be given often.  [all]")] = None,
    columns: Annotated[
        list[str] | None, typer.Option("--column", help="One of its columns. May be given often.  [all]")
    ] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="How many of the scale's seeds.  [all]")] = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=1, help="At most so many rounds; the page says what it cuts.")
    ] = None,
    known: Annotated[
        Path | None, typer.Option("--known", help="The runs.csv of a page made before: what it has is not run again.")
    ] = None,
    only_finished: Annotated[
        bool, typer.Option("--only-finished", help="Run nothing; show what has been run so far.")
    ] = False,
    page: Annotated[
        Path | None,
        typer.Option("--page", help="Another place for the Markdown page, its figure and the CSV table of its runs."),
    ] = None,
    data_dir: options.DataDir = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Runs at a time.  [one for each core]")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="With `list`: as a Markdown page.")] = False,
) -> None:
    """Make a table or figure of a paper again, and set our numbers beside the paper's."""
    if item == "list":
        _list(markdown)
        return
    from fedclade.compare.study import PlannedRun
    from fedclade.reproduce.making import Listener, page_folder
    from fedclade.reproduce.making import reproduce as make
    from fedclade.reproduce.scale import Cut

    console = make_console()
    count = {"done": 0, "all": 0}

    def planned(runs: int, done: int) -> None:
        count.update(done=done, all=runs)
        console.print(f"{runs} runs, {done} of them done already; they lie in {out / 'runs'}", soft_wrap=True)

    def ended(run: PlannedRun, failure: str | None) -> None:
        count["done"] += 1
        words = f"{count['done']}/{count['all']}  {run.label}, seed {run.seed}: {failure or 'done'}"
        console.print(words, soft_wrap=True)

    try:
        made = make(
            item,
            scale,
            out,
            cut=Cut(tuple(rows or ()), tuple(columns or ()), seeds, rounds),
            known=known,
            only_finished=only_finished,
            publish=page,
            data_dir=data_dir,
            workers=workers,
            listener=Listener(planned, ended),
        )
    except KeyboardInterrupt:
        console.print("stopped; the same command goes on", soft_wrap=True)
        raise typer.Exit(STOPPED) from None
    console.print(f"\n{made.title}\n", soft_wrap=True)
    console.print(made.terminal())
    for note in made.notes:
        console.print(f"- {note}", soft_wrap=True)
    console.print(f"\nwritten to {page_folder(out, item, scale)}", soft_wrap=True)
    if made.failures:
        raise typer.Exit(1)


def _list(markdown: bool) -> None:
    from fedclade.reproduce.catalogue import as_markdown, items, verdict

    if markdown:
        print(as_markdown(), end="")
        return
    table: Any = make_table("name", "what it shows", "paper", "can it be made")
    for name, (paper, item) in items().items():
        table.add_row(name, item.title, paper.citation, verdict(item))
    console = make_console()
    console.print(table)
    console.print("\nMake one: fedclade reproduce NAME --scale smoke|small|full")
