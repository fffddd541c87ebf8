"""The words and tables of a page as Markdown, for a mail, an issue or a paper's appendix."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedclade.report import facts
from fedclade.report.page import ORDER
from fedclade.report.reading import names_of
from fedclade.report.sections import Section
from fedclade.result import Result
from fedclade.tables import to_markdown

LONGEST = 100  # rows of a table


def summary(
    runs: Sequence[Result], sections: Mapping[str, Section], pictures: Mapping[str, Sequence[Path]] | None = None
) -> str:
    """Every section's words; `pictures` are files by the key of their section."""
    parts = [f"# {facts.headline(runs)}"]
    parts += [_written(key, section, pictures or {}) for key, section in sections.items() if "/" not in key]
    for place, name in enumerate(names_of(runs)):
        if len(runs) > 1:
            parts.append(f"## {name}")
        mine = [key for part in ORDER if (key := f"{place}/{part}") in sections]
        parts += [_written(key, sections[key], pictures or {}, depth=3 if len(runs) > 1 else 2) for key in mine]
    return "\n\n".join(parts) + "\n"


def _written(key: str, section: Section, pictures: Mapping[str, Sequence[Path]], depth: int = 2) -> str:
    parts = [f"{'#' * depth} {section.title}", section.words]
    if section.views and section.views[0].words:
        parts.append(section.views[0].words)
    parts += [f"![{section.title}, as described above.]({path.as_posix()})" for path in pictures.get(key, ())]
    if len(section.table) > LONGEST:
        parts.append(f"The table has {len(section.table) - 1:,} rows: they are in the page.")
    elif section.table:
        parts.append(to_markdown(section.table))
    return "\n\n".join(parts)
