"""A report on some runs, as files."""

from collections.abc import Sequence
from pathlib import Path

from fedclade.errors import FedcladeError
from fedclade.files import write_atomically
from fedclade.report.page import html_page, page_data, sections_of
from fedclade.report.reading import read_runs
from fedclade.report.sections import need_plotly
from fedclade.report.summary import summary


def make_report(
    paths: Sequence[Path | str], out: Path | str | None = None, *, markdown: bool = False, pictures: bool = False
) -> list[Path]:
    """Write the page, beside it what else is wanted, and return where these are."""
    need_plotly()
    if pictures:
        from fedclade.report.pictures import need_matplotlib

        need_matplotlib()
    page = Path(out) if out is not None else default_page(paths)
    if page.suffix.lower() not in (".html", ".htm"):
        raise FedcladeError(f"--out {page}: the name of the page must end in .html")
    runs = read_runs(paths)
    unbegun = [run for run in runs if run.round < 0]
    if unbegun:
        path = unbegun[0].path
        raise FedcladeError(
            f"not one round of the run in {path} has ended yet: see it begin with `fedclade watch {path}`"
        )
    sections = sections_of(runs)
    _write(page, html_page(runs, {**page_data(runs, sections), "live": False}))
    made, drawn = [page], {}
    if pictures:
        from fedclade.report.pictures import draw_all

        drawn = draw_all(runs, page.with_name(f"{page.stem}-pictures"))
        made += [path for paths in drawn.values() for path in paths]
    if markdown:
        text = page.with_suffix(".md")
        shown = {key: [p.relative_to(page.parent) for p in paths if p.suffix == ".png"] for key, paths in drawn.items()}
        _write(text, summary(runs, sections, shown))
        made.insert(1, text)
    return made


def default_page(paths: Sequence[Path | str]) -> Path:
    """In the folder of the run or study; of several, in the current one."""
    return Path(paths[0]) / "report.html" if len(paths) == 1 else Path("report.html")


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))
    except OSError as error:
        raise FedcladeError(f"cannot write {path}: {error.strerror or error}; choose another --out") from error
