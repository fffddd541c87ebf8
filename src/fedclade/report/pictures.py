"""The main figures as PNG and SVG files, drawn by matplotlib: it needs no browser."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedclade.errors import FedcladeError
from fedclade.files import write_atomically
from fedclade.report.accuracy import HIGH, LOW, MODES, named, pooled, runs_by_label
from fedclade.report.matrices import averaged, kept_matrices
from fedclade.report.sections import COLOURS, colour
from fedclade.report.trees import used_threshold
from fedclade.result import Result

KINDS = ("png", "svg")


def need_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise FedcladeError("--pictures needs matplotlib: install it with `pip install 'fedclade[pictures]'`") from None


def draw_all(runs: Sequence[Result], folder: Path) -> dict[str, list[Path]]:
    """Draw what there is to draw; the files by the key of the section that they belong to."""
    drawn = {
        "accuracy": _drawn(accuracy, runs, folder / "accuracy"),
        "traffic": _drawn(traffic, runs, folder / "traffic"),
    }
    single: dict[str, Callable[[Any, Result], Any]] = {"dendrogram": dendrogram, "matrix": matrix, "holdings": holdings}
    for place, run in enumerate(runs):
        for name, draw in single.items():
            path = folder / (name if len(runs) == 1 else f"{place}-{run.method}-{run.seed}-{name}")
            drawn[f"{place}/{name}"] = _drawn(draw, run, path)
    return {key: paths for key, paths in drawn.items() if paths}


def _drawn(draw: Callable[[Any, Any], Any], what: Any, path: Path) -> list[Path]:
    """The files of one picture: none if this run has nothing of the kind."""
    import matplotlib
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    if draw(axes, what) is False:
        return []
    paths = [path.with_name(f"{path.name}.{kind}") for kind in KINDS]
    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": path.name}):  # the same run gives the same file
        for target, kind in zip(paths, KINDS, strict=True):
            undated = {"Date": None} if kind == "svg" else None
            write_atomically(target, partial(figure.savefig, format=kind, dpi=150, metadata=undated))
    return paths


def accuracy(axes: Any, runs: Sequence[Result]) -> None:
    together = runs_by_label(runs)
    for place, (label, mine) in enumerate(together.items()):
        for column in MODES:
            values, own = pooled([run.measured(column) for run in mine]), column == "accuracy_local"
            low, middle, high = (100 * values.quantile(share) for share in (LOW, 0.5, HIGH))
            name, tint = named(label, place, column, len(together))
            if own:
                bars = np.stack([middle - low, high - middle])
                axes.errorbar(middle.index, middle, bars, fmt="D", color=tint, markersize=5, linewidth=1, label=name)
            else:
                axes.plot(middle.index, middle, color=tint, linewidth=2, label=name)
                axes.fill_between(middle.index, low, high, color=tint, alpha=0.15, linewidth=0)
    axes.set(xlabel="round", ylabel="accuracy in %, median and 80 % of the clients")
    _finished(axes)


def traffic(axes: Any, runs: Sequence[Result]) -> None:
    labels = list(runs_by_label(runs))
    for run in runs:
        means = 100 * run.measured("accuracy").mean()
        sent = run.traffic.sum(axis=1).reindex(means.index) / 1e6
        axes.plot(sent, means, marker=".", color=colour(labels.index(run.label)), label=f"{run.label}, seed {run.seed}")
    axes.set(xlabel="MB sent so far, up and down", ylabel="mean accuracy in %, server's model")
    _finished(axes)


def dendrogram(axes: Any, run: Result) -> bool:
    from scipy.cluster.hierarchy import dendrogram as draw

    kept = run.kept("dendrogram")
    if not kept or not len(kept[max(kept)]["merges"]):
        return False
    record = kept[max(kept)]
    merges, found = np.asarray(record["merges"], float), len(np.unique(record["labels"]))
    threshold = used_threshold(merges[:, 2], found)
    draw(merges, ax=axes, labels=record["clients"], color_threshold=threshold, above_threshold_color="#8c8c8c",
         no_labels=len(record["clients"]) > 40, leaf_rotation=90)  # fmt: skip
    axes.axhline(threshold, color=COLOURS[3], linestyle="--")
    axes.set(ylabel="distance", title=f"{found} clusters at threshold {threshold:.3g}")
    return True


def matrix(axes: Any, run: Result) -> bool:
    kept = kept_matrices(run)
    if not kept:
        return False
    largest = max(kept, key=lambda one: (len(one.clients), one.round))
    values, _, _ = averaged(largest)
    image = axes.imshow(values, cmap="viridis" if largest.is_similarity else "viridis_r", interpolation="nearest")
    axes.figure.colorbar(image, label=largest.measure)
    axes.set(xticks=[], yticks=[], title=f"round {largest.round}, {len(largest.clients)} clients, by cluster")
    return True


def holdings(axes: Any, run: Result) -> bool:
    if run.label_counts is None:
        return False
    counts = np.stack([run.label_counts[client] for client in run.clients])
    image = axes.imshow(counts, aspect="auto", cmap="Blues", interpolation="nearest")
    axes.figure.colorbar(image, label="training rows")
    borders = np.cumsum([len(part) for part in run.clusters.values()])[:-1]
    for border in borders if len(borders) < 40 else ():
        axes.axhline(border - 0.5, color="grey", linewidth=0.8)
    axes.set(xlabel="label", ylabel="clients, by cluster", yticks=[])
    return True


def _finished(axes: Any) -> None:
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if 0 < len(axes.get_legend_handles_labels()[0]) <= 24:
        axes.legend(frameon=False, fontsize="small")
