"""Every table and figure of the five papers, by name."""

from fedclade.errors import unknown
from fedclade.reproduce.item import Item, Paper
from fedclade.reproduce.papers import adacfl, fedclust, fedsccs, fedstack, hicfl
from fedclade.tables import to_markdown

PAPERS: tuple[Paper, ...] = (hicfl.PAPER, adacfl.PAPER, fedclust.PAPER, fedsccs.PAPER, fedstack.PAPER)


def items() -> dict[str, tuple[Paper, Item]]:
    """All of them, as `paper/item`."""
    return {f"{paper.name}/{item.name}": (paper, item) for paper in PAPERS for item in paper.items}


def item_named(name: str) -> tuple[Paper, Item]:
    known = items()
    if name not in known:
        raise unknown("table or figure", name, known)
    return known[name]


def as_markdown() -> str:
    """The list for the documentation."""
    head = (
        "# Tables and figures of the papers\n\n"
        "Made by `fedclade reproduce list --markdown`. Each is made by `fedclade reproduce NAME --scale "
        "smoke|small|full`: `smoke` takes seconds on synthetic or bundled data and shows that it runs, `small` fits a "
        "2-core machine (MNIST, Fashion-MNIST or MotionSense, cut in rows and rounds), `full` is the paper's own "
        "setting as far as it says, with all its repeats (`--seeds` for fewer). Every table says in what it differs "
        "from the paper, and where it shows accuracies it has those of the cluster models and of the locally trained "
        "models.\n"
    )
    parts = [head]
    for paper in PAPERS:
        rows = [[f"`{paper.name}/{item.name}`", item.title, item.says, verdict(item)] for item in paper.items]
        table = to_markdown([["name", "what it shows", "what the paper's text says", "can it be made"], *rows])
        notes = "\n".join(f"- {note}" for note in paper.notes)
        parts.append(f"## {paper.citation}\n\n{table}\n\n{notes}".rstrip() + "\n")
    return "\n".join(parts)


def verdict(item: Item) -> str:
    """Whether an item can be made, and with what it can be compared."""
    if item.why_not:
        return f"no: {item.why_not}"
    if not item.has_numbers:
        return "yes; the paper's values are in a picture only"
    return f"yes, but {item.but}" if item.but else "yes"
