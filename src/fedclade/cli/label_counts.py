"""Who holds how many rows of which label: in words, as a table, as blocks in the terminal, and as a drawing."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedclade.display import counted, make_table
from fedclade.errors import FedcladeError, listed
from fedclade.files import write_atomically

if TYPE_CHECKING:
    import numpy as np

    from fedclade.data import Federation

FIRST, LAST = 20, 10  # clients in a table that cannot show all
HEAT_ROWS = 40
BLOCKS, PLAIN_BLOCKS = " ░▒▓█", " .:*#"


def headline(federation: "Federation") -> str:
    import numpy as np

    sizes = np.array([len(client.train) for client in federation.clients])
    groups = federation.groups
    hidden = "hidden groups not known" if groups is None else counted(len(set(groups.values())), "hidden group")
    spread = f"{sizes.min():,} to {sizes.max():,}, {np.median(sizes):,.0f} in the middle"
    return (
        f"{federation.data} ({federation.split}): {counted(len(federation), 'client')}, {hidden}, "
        f"{counted(federation.n_classes, 'amount' if federation.labels == 'numbers' else 'label')}, "
        f"{sizes.sum():,} training rows ({spread})"
    )


def table(federation: "Federation", width: int) -> Table:
    """Training rows by client and label, of the first and last clients where there are many."""
    counts = federation.label_counts()
    if counts is None:
        return amounts_table(federation)
    headings = _headings(federation.classes, width)
    grouped = federation.groups is not None
    columns = ["client", *(["group"] if grouped else []), "rows", "test rows"]
    columns += headings or ["labels", "most frequent"]
    shown = make_table(*columns, right=["group", "rows", "test rows", "labels", *headings])
    for place in _ends(len(federation)):
        if place is None:
            shown.add_row(f"... {len(federation) - FIRST - LAST:,} more")
            continue
        client, row = federation.clients[place], counts[place]
        group = [str(client.group)] if grouped else []
        cells = [f"{count:,}" if count else "." for count in row] if headings else _in_short(row, federation.classes)
        shown.add_row(client.name, *group, f"{len(client.train):,}", f"{len(client.test):,}", *cells)
    return shown


def amounts_table(federation: "Federation") -> Table:
    """Mean and standard deviation of every client's amounts."""
    headings = [f"{name}, mean ± std" for name in federation.classes]
    shown = make_table("client", "rows", "test rows", *headings, right=["rows", "test rows", *headings])
    for place in _ends(len(federation)):
        if place is None:
            shown.add_row(f"... {len(federation) - FIRST - LAST:,} more")
            continue
        client = federation.clients[place]
        y = federation.y[client.train]
        cells = [f"{mean:.4g} ± {std:.3g}" for mean, std in zip(y.mean(axis=0), y.std(axis=0), strict=True)]
        shown.add_row(client.name, f"{len(client.train):,}", f"{len(client.test):,}", *cells)
    return shown


def _headings(classes: tuple[str, ...], width: int) -> list[str]:
    """A heading for each label: its name, or its number where names are too long; none where even that does not fit."""
    for headings in (list(classes), [str(number) for number in range(len(classes))]):
        if 40 + sum(max(len(heading), 4) + 3 for heading in headings) <= width:
            return headings
    return []


def _ends(count: int) -> list[int | None]:
    """Which of so many clients a table shows; None stands for those it leaves out."""
    if count <= FIRST + LAST + 1:
        return list(range(count))
    return [*range(FIRST), None, *range(count - LAST, count)]


def _in_short(row: "np.ndarray", classes: tuple[str, ...]) -> list[str]:
    """How many labels a client holds, and the most frequent one."""
    top = int(row.argmax())
    return [str((row > 0).sum()), f"{classes[top]} ({row[top] / max(row.sum(), 1):.0%})"]


def heat_map(federation: "Federation", console: Console) -> Text:
    """A row of blocks for each client (or for some of many); the darker, the more training rows of that label."""
    chosen = _spread_out(len(federation))
    names = [federation.names[place] for place in chosen]
    margin = max(len(name) for name in names) + 2
    counts = federation.label_counts()
    assert counts is not None
    cells = _narrowed(counts[chosen], max(console.width - margin, 1))
    n_columns = cells.shape[1]
    across = 2 if 2 * n_columns + margin <= console.width else 1
    blocks = PLAIN_BLOCKS if console.options.ascii_only else BLOCKS
    picture = Text(no_wrap=True)
    if n_columns == federation.n_classes:
        digits = "".join(f"{label % 10:<{across}}" for label in range(n_columns))
        picture.append(f"{'':{margin}}{digits}\n", "dim")
    for name, row in zip(names, _levels(cells, len(blocks)), strict=True):
        picture.append(f"{name:<{margin}}", "dim")
        picture.append("".join(blocks[level] * across for level in row) + "\n", "cyan")
    return picture


def legend(federation: "Federation") -> str:
    rows = f"{HEAT_ROWS} of {len(federation):,} clients. " if len(federation) > HEAT_ROWS else ""
    names = [f"{number} {name}" for number, name in enumerate(federation.classes) if name != str(number)]
    return f"{rows}The darker, the more training rows of a label{': ' if names else '.'}{listed(names, 30)}"


def _spread_out(count: int) -> list[int]:
    """Which of so many clients the heat map shows.

    Not every k-th: splits that deal labels out in turn would then show only some of them.
    """
    shown = min(count, HEAT_ROWS)
    return [round(place * (count - 1) / max(shown - 1, 1)) for place in range(shown)]


def _narrowed(counts: "np.ndarray", most: int) -> "np.ndarray":
    """(clients, labels) with means of neighbouring labels where the labels are too many for the line."""
    import numpy as np

    parts = np.array_split(counts, min(counts.shape[1], most), axis=1)
    return np.stack([part.mean(axis=1) for part in parts], axis=1)


def _levels(cells: "np.ndarray", levels: int) -> "np.ndarray":
    """0 for nothing, else 1 .. levels - 1: even a single row of a label can be seen."""
    import numpy as np

    return np.ceil(cells / max(cells.max(), 1e-12) * (levels - 1)).astype(int)


def check_picture(path: Path) -> None:
    """Raise now, before the data are read, where the drawing cannot be made."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError:
        raise FedcladeError("--picture needs matplotlib: install it with `pip install 'fedclade[pictures]'`") from None
    known = FigureCanvasAgg.get_supported_filetypes()
    if path.suffix.lstrip(".").lower() not in known:
        raise FedcladeError(f"--picture {path}: its name must end in .png, .svg or .pdf")
    if path.is_dir():
        raise FedcladeError(f"--picture {path} is a folder: give the name of a file")


def draw(federation: "Federation", path: Path) -> None:
    """Label counts as a heat map, clients from top to bottom, a line between hidden groups."""
    from matplotlib.figure import Figure

    counts = federation.label_counts()
    assert counts is not None
    height = min(max(2.5, 1.5 + 0.16 * len(federation)), 12)
    figure = Figure(figsize=(min(max(5, 2.5 + 0.35 * federation.n_classes), 14), height), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(counts, aspect="auto", cmap="Blues", interpolation="nearest")
    figure.colorbar(image, label="training rows", aspect=40)
    axes.set(xlabel="label", ylabel="client", title=f"{federation.data}, {federation.split}")
    if federation.n_classes <= 30:
        axes.set_xticks(range(federation.n_classes), federation.classes)
        if max(map(len, federation.classes)) > 2:
            axes.tick_params("x", rotation=90)
    if len(federation) <= 40:
        axes.set_yticks(range(len(federation)), federation.names, fontsize="small")
    groups = [client.group for client in federation.clients]
    borders = [place for place in range(1, len(groups)) if groups[place] != groups[place - 1]]
    if len(borders) < 20:
        for place in borders:
            axes.axhline(place - 0.5, color="grey", linewidth=0.8)
    kind = path.suffix.lstrip(".").lower()
    write_atomically(path, lambda part: figure.savefig(part, format=kind, dpi=150))
