"""The figures, drawn by matplotlib."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def curves(
    lines: Mapping[tuple[str, str], tuple[np.ndarray, np.ndarray]], x_name: str, y_name: str, figure: "Figure"
) -> None:
    """Lines by their label and panel."""
    from matplotlib import colormaps

    panels = list(dict.fromkeys(panel for _, panel in lines))
    labels = list(dict.fromkeys(label for label, _ in lines))
    shade = colormaps["tab10" if len(labels) <= 10 else "tab20"]
    colours = {label: shade(place % shade.N) for place, label in enumerate(labels)}
    figure.set_size_inches(max(5, 4.5 * len(panels)) + 2, 3.8 + 0.1 * max(0, len(labels) - 16))
    handles = {}
    for place, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(1, len(panels), place)
        for (label, where), (x, y) in lines.items():
            if where == panel:
                marker = "." if len(x) < 30 else None
                (handles[label],) = axes.plot(x, y, label=label, marker=marker, color=colours[label])
        axes.set(xlabel=x_name, ylabel=y_name, title=panel)
    if any(labels):
        figure.legend(handles=list(handles.values()), loc="outside right center", fontsize="x-small")


def maps(pictures: Sequence[tuple[str, np.ndarray]], figure: "Figure") -> None:
    across = min(len(pictures), 4)
    down = -(-len(pictures) // across)
    figure.set_size_inches(3.2 * across, 3.0 * down + 0.4)
    for place, (title, matrix) in enumerate(pictures, start=1):
        axes = figure.add_subplot(down, across, place)
        figure.colorbar(axes.imshow(matrix, cmap="viridis"))
        axes.set_title(title, fontsize="x-small", wrap=True)


def trees(records: Mapping[str, Any], figure: "Figure") -> None:
    from scipy.cluster.hierarchy import dendrogram

    figure.set_size_inches(7, 3.5 * len(records))
    for place, (row, record) in enumerate(records.items(), start=1):
        axes = figure.add_subplot(len(records), 1, place)
        dendrogram(np.asarray(record["merges"], float), labels=list(record["clients"]), ax=axes)
        axes.tick_params("x", rotation=90)
        axes.set(title=row, ylabel="height")
