"""The main figures as files for a column of a two-column paper, drawn by matplotlib: it needs no browser."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedclade.errors import FedcladeError
from fedclade.experiments import by_label, experiments
from fedclade.files import write_atomically
from fedclade.report.accuracy import is_local, named, pooled
from fedclade.report.matrices import averaged, kept_matrices
from fedclade.report.sections import FIRST_COLOURS, NO_CLUSTER
from fedclade.report.trees import gap, height_axis
from fedclade.result import Result

KINDS = ("png", "svg", "pdf")
COLUMN = (3.4, 2.3)  # inches
PAPER: Any = {
    "font.family": "serif", "font.serif": ["Times New Roman", "STIXGeneral"], "mathtext.fontset": "stix",
    "font.size": 8, "axes.labelsize": 8, "axes.titlesize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7,
    "legend.fontsize": 7, "axes.linewidth": 0.6, "pdf.fonttype": 42, "svg.fonttype": "path",
}  # fmt: skip


def need_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise FedcladeError("--pictures needs matplotlib: install it with `pip install 'fedclade[pictures]'`") from None


def draw_all(runs: Sequence[Result], folder: Path) -> dict[str, list[Path]]:
    """Draw what there is to draw; the files by the key of the section that they belong to."""
    drawn = {
        "accuracy": _of_experiments(accuracy, runs, folder / "accuracy"),
        "traffic": _of_experiments(traffic, runs, folder / "traffic"),
    }
    single: dict[str, Callable[[Any, Result], Any]] = {"dendrogram": dendrogram, "matrix": matrix, "holdings": holdings}
    for place, run in enumerate(runs):
        for name, draw in single.items():
            path = folder / (name if len(runs) == 1 else f"{place}-{run.method}-{run.seed}-{name}")
            drawn[f"{place}/{name}"] = _drawn(draw, run, path)
    return {key: paths for key, paths in drawn.items() if paths}


def _of_experiments(draw: Callable[..., Any], runs: Sequence[Result], path: Path) -> list[Path]:
    """A picture of each experiment, for only what is alike can be compared."""
    several = len(experiments(runs)) > 1
    return [
        made
        for place, (name, mine) in enumerate(experiments(runs).items())
        for made in _drawn(
            partial(draw, all_runs=runs), mine, path.with_name(f"{path.name}-{place}") if several else path, name
        )
    ]


def _drawn(draw: Callable[[Any, Any], Any], what: Any, path: Path, title: str = "") -> list[Path]:
    """The files of one picture: none if this run has nothing of the kind."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**PAPER, "svg.hashsalt": path.name}):  # the same run gives the same file
        figure = Figure(figsize=COLUMN, layout="constrained")
        axes = figure.add_subplot()
        if draw(axes, what) is False:
            return []
        if title:
            axes.set_title(title)
        paths = [path.with_name(f"{path.name}.{kind}") for kind in KINDS]
        path.parent.mkdir(parents=True, exist_ok=True)
        for target, kind in zip(paths, KINDS, strict=True):
            undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
            write_atomically(target, partial(figure.savefig, format=kind, dpi=300, metadata=undated))
    return paths


def accuracy(axes: Any, runs: Sequence[Result], all_runs: Sequence[Result]) -> None:
    for label, mine in by_label(runs).items():
        for column in mine[0].models:
            table = _factor(mine[0]) * pooled([run.measured(column) for run in mine])
            mean, std = table.mean(), table.std(ddof=0)
            name, tint = named(label, column, all_runs)
            if is_local(column):
                axes.errorbar(mean.index, mean, std, fmt="D", color=tint, markersize=3, linewidth=0.8, label=name)
            else:
                axes.plot(mean.index, mean, color=tint, linewidth=1.2, label=name)
                low, high = mean - std, mean + std
                if mine[0].metric.is_share:
                    low, high = low.clip(lower=0), high.clip(upper=100)
                axes.fill_between(mean.index, low, high, color=tint, alpha=0.15, linewidth=0)
    axes.set(xlabel="round", ylabel=f"{_unit(runs[0])}, mean and standard\ndeviation over clients")
    _finished(axes)


def traffic(axes: Any, runs: Sequence[Result], all_runs: Sequence[Result]) -> None:
    for run in runs:
        means = _factor(run) * run.by_round(run.metric.name)["mean"]
        tint = named(run.label, run.metric.name, all_runs)[1]
        sent = run.traffic.sum(axis=1).reindex(means.index) / 1e6
        axes.plot(sent, means, marker=".", markersize=3, linewidth=1, color=tint, label=f"{run.label}, seed {run.seed}")
    axes.set(xlabel="MB sent so far, up and down", ylabel=f"mean {_unit(runs[0])}, cluster models")
    _finished(axes)


def _factor(run: Result) -> int:
    return 100 if run.metric.is_share else 1


def _unit(run: Result) -> str:
    return f"{run.metric.words}{' in %' if run.metric.is_share else ''}"


def dendrogram(axes: Any, run: Result) -> bool:
    from scipy.cluster.hierarchy import dendrogram as draw

    kept = run.kept("dendrogram")
    if not kept or not len(kept[max(kept)]["merges"]):
        return False
    record = kept[max(kept)]
    merges, found = np.asarray(record["merges"], float), len(np.unique(record["labels"]))
    low, high = gap(merges[:, 2], found)
    cut = (low + high) / 2 if high < np.inf else 1.05 * low
    draw(merges, ax=axes, labels=record["clients"], color_threshold=cut, above_threshold_color=NO_CLUSTER,
         no_labels=len(record["clients"]) > 40, leaf_rotation=90, leaf_font_size=5)  # fmt: skip
    axes.axhline(cut, color=FIRST_COLOURS[3], linestyle="--", linewidth=0.8)
    axes.set(
        ylabel=height_axis(record["linkage"], run.kept("proximity").get(max(kept))), title=f"cut into {found} clusters"
    )
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
    count = len(axes.get_legend_handles_labels()[0])
    if 0 < count <= 24:
        axes.figure.legend(loc="outside lower center", ncols=2, frameon=False, columnspacing=1)
        axes.figure.set_size_inches(COLUMN[0], COLUMN[1] + 0.14 * ((count + 1) // 2))
