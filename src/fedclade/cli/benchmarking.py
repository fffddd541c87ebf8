"""`fedclade benchmark`: every method on every setting."""

from pathlib import Path
from typing import Annotated

import typer

from fedclade.cli import options
from fedclade.cli.commands import STOPPED
from fedclade.display import StudyDisplay, counted, make_console


def benchmark(
    only: Annotated[
        list[str] | None, typer.Option("--only", help="A setting (`benchmark.toml`). May be given often.  [all]")
    ] = None,
    methods: Annotated[list[str] | None, typer.Option("--method", help="A method. Give it often.  [all]")] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="How many seeds, from 0.  [3]")] = None,
    data_dir: options.DataDir = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Runs at a time.  [one for each core]")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="The folder; an old one is gone on with.")] = Path(
        "runs/benchmark"
    ),
    known: Annotated[
        Path | None, typer.Option("--known", help="The CSV table of a page made before: what it has is not run again.")
    ] = None,
    page: Annotated[Path | None, typer.Option("--page", help="Where the page goes.  [OUT/benchmark.md]")] = None,
) -> None:
    """Run every method on every setting, rank them, and write a page. What has been run already is not run again."""
    from fedclade.benchmark import Benchmark, is_there, read_known, studies
    from fedclade.benchmark.page import document, draw, html_document, overall

    console, where = make_console(), None if data_dir is None else str(data_dir)
    planned = studies(only or (), methods or (), seeds, where)
    missing = [name for name, study in planned.items() if not is_there(study, where)]
    if missing:
        console.print(f"left out, for their data are not here: {', '.join(missing)}", soft_wrap=True)
    told = {} if known is None else read_known(known)
    bench = Benchmark({name: study for name, study in planned.items() if name not in missing}, out, told)
    display = StudyDisplay(console, bench.runs())
    console.print(f"{counted(len(display.runs), 'run')}, {display.done} of them done already; they lie in {out}")
    try:
        with display:
            done = bench.go(workers, display)
    except KeyboardInterrupt:
        console.print("stopped; the same command goes on", soft_wrap=True)
        raise typer.Exit(STOPPED) from None
    table, target = bench.table(), page or out / "benchmark.md"
    target.parent.mkdir(parents=True, exist_ok=True)
    drawn = target.with_suffix(".svg")
    try:
        draw(table, drawn)
    except ImportError:  # the page does without
        drawn = Path()
    target.write_text(document(table, drawn.name), encoding="utf-8")
    bench.everything().to_csv(target.with_suffix(".csv"), index=False, float_format="%.5g")
    (out / "benchmark.html").write_text(html_document(table), encoding="utf-8")
    console.print(overall(table), soft_wrap=True)
    console.print(f"the page is {target}, and with figures {out / 'benchmark.html'}", soft_wrap=True)
    failed = [f"{name}/{label} (seed {seed})" for name, one in done.items() for label, seed in one.failures]
    if failed:
        console.print(f"failed: {', '.join(failed)}", soft_wrap=True)
        raise typer.Exit(1)
