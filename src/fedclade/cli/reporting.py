"""`fedclade report` and `fedclade watch`: runs to look at in a browser."""

from pathlib import Path
from typing import Annotated

import typer

from fedclade.display import make_console

Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, or of a study.")]


def report(
    runs: Runs,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.html", help="The page to write.  [RUN/report.html]")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Also write a summary in Markdown beside it.")] = False,
    pictures: Annotated[bool, typer.Option("--pictures", help="Also draw the main figures as PNG and SVG.")] = False,
) -> None:
    """Make one HTML page of what runs found, to be opened from the disk."""
    from fedclade.report.making import make_report

    console = make_console()
    made = make_report(runs, out, markdown=markdown, pictures=pictures)
    for path in made[: 2 if markdown else 1]:
        console.print(f"written to {path}", soft_wrap=True)
    if pictures:
        console.print(f"pictures in {made[-1].parent}", soft_wrap=True)


def watch(
    runs: Runs,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Of the address; 0 takes any.")] = 8765,
) -> None:
    """Show the page of a run while it goes on, in a browser on this machine."""
    from fedclade.report.watching import make_server

    console = make_console()
    server = make_server(runs, port)
    console.print(f"open http://{server.server_address[0]!s}:{server.server_port}/ in a browser; Ctrl-C ends this")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        console.print("not watching any more")
    finally:
        server.server_close()
