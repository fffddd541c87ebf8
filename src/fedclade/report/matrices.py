"""Who is near whom: the distance or similarity matrices that a method kept, in the order of its tree or by cluster."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from fedclade.display import counted
from fedclade.report.sections import Section, View, evenly, make_figure, names_axis, short, trace
from fedclade.result import Result

LONGEST = 250  # rows of a matrix that are drawn; of more clients, neighbours are averaged
MOST_CELLS = 1_000_000  # of all matrices in one page
MOST_FRAMES = 30  # clusters that get a frame


@dataclass(frozen=True)
class Kept:
    """A matrix of a run, its rows in the order of the tree that was made of it or, without one, by cluster."""

    round: int
    choice: Mapping[str, str]
    measure: str
    clients: Sequence[str]
    labels: np.ndarray
    matrix: np.ndarray

    @property
    def side(self) -> int:
        return min(len(self.clients), LONGEST)

    @property
    def is_similarity(self) -> bool:
        return is_similarity(self.matrix)


def matrices(run: Result, cells: int = MOST_CELLS) -> Section | None:
    everything = kept_matrices(run)
    if not everything:
        return None
    most = max(1, cells // max(kept.side for kept in everything) ** 2)
    shown = evenly(everything, most)
    first = shown[0]
    alike = "similarity" if first.is_similarity else "distance"
    words = f"The brighter a cell, the more alike two clients look to the server ({first.measure})."
    if len(shown) < len(everything):
        words += f" To keep the page small, {len(shown)} of the run's {len(everything)} matrices are here."
    views = [View(_figure(kept), _words(kept), kept.choice) for kept in shown]
    return Section("matrix", f"The {alike} matrix", words, views)


def kept_matrices(run: Result) -> list[Kept]:
    return sorted((kept for kept in _kept(run) if len(kept.clients) > 1), key=lambda kept: kept.round)


def _kept(run: Result) -> Iterator[Kept]:
    for number, record in run.kept("proximity").items():
        clients, choice, order = list(record["clients"]), {"round": str(number)}, None
        labels = [run.assignment.get(client, -1) for client in clients]
        tree = run.kept("dendrogram").get(number)
        if tree is not None and list(tree["clients"]) == clients and len(clients) > 1:
            labels, order = tree["labels"], leaves(tree["merges"])
        yield _ordered(number, choice, str(record["measure"]), clients, labels, record["matrix"], order)
    for number, record in run.kept("similarity").items():
        for test in record["tests"]:
            if "matrix" not in test:
                continue
            layer = str(test.get("layer") or "all layers")
            look = " unit by unit" if test.get("look") == "units" else ""
            choice = {"round": str(number), "layer": layer, "cluster": str(test["cluster"])}
            measure = f"cosine of updates of {layer}{look}"
            yield _ordered(number, choice, measure, test["clients"], test["labels"], test["matrix"])


def is_similarity(matrix: np.ndarray) -> bool:
    """Nobody is more like a client than itself."""
    return bool(np.nanmean(np.diag(matrix)) > np.nanmean(matrix))


def leaves(merges: Any) -> np.ndarray:
    """The clients in the order in which a drawn tree has them."""
    from scipy.cluster.hierarchy import leaves_list

    return leaves_list(np.asarray(merges, float))


def _ordered(
    number: int,
    choice: Mapping[str, str],
    measure: str,
    clients: Sequence[str],
    labels: Any,
    matrix: np.ndarray,
    order: np.ndarray | None = None,
) -> Kept:
    labels = np.asarray(labels)
    order = np.argsort(labels, kind="stable") if order is None else order
    rows = np.asarray(matrix, float)[np.ix_(order, order)]
    return Kept(number, choice, measure, [clients[place] for place in order], labels[order], rows)


def _figure(kept: Kept) -> Any:
    z, names, labels = averaged(kept)
    digits = max(0, 3 - int(np.floor(np.log10(np.nanmax(np.abs(z)) or 1))))
    cells = trace(
        "heatmap",
        z=short(z, digits),
        x=names,
        y=names,
        colorscale="Viridis",
        reversescale=not kept.is_similarity,
        colorbar={"thickness": 10},
        hovertemplate="%{y}<br>%{x}<br>" + kept.measure + ": %{z}<extra></extra>",
    )
    axis = names_axis(showgrid=False, constrain="domain")
    yaxis = {**axis, "autorange": "reversed", "scaleanchor": "x"}
    return make_figure([cells], 520, xaxis=axis, yaxis=yaxis, shapes=_frames(labels))


def averaged(kept: Kept) -> tuple[np.ndarray, list[str], np.ndarray]:
    """The matrix with neighbours averaged where it is too large, names of its rows, and the cluster of each."""
    count = len(kept.clients)
    starts = np.unique(np.linspace(0, count, kept.side, endpoint=False).astype(int))
    if len(starts) == count:
        return kept.matrix, list(kept.clients), kept.labels
    sizes = np.diff([*starts, count])
    sums = np.add.reduceat(np.add.reduceat(kept.matrix, starts, 0), starts, 1)
    ends = [*(starts[1:] - 1), count - 1]
    names = [
        kept.clients[a] if a == b else f"{kept.clients[a]} … {kept.clients[b]}"
        for a, b in zip(starts, ends, strict=True)
    ]
    return sums / np.outer(sizes, sizes), names, kept.labels[starts]


def _frames(labels: np.ndarray) -> list[dict[str, Any]]:
    """A frame around each cluster."""
    starts = [0, *(np.flatnonzero(np.diff(labels)) + 1).tolist(), len(labels)]
    if len(starts) - 1 > MOST_FRAMES or len(starts) == 2:
        return []
    line = {"color": "rgba(255,255,255,0.8)", "width": 1.5}
    edges = [(a - 0.5, b - 0.5) for a, b in pairwise(starts)]
    return [{"type": "rect", "x0": a, "x1": b, "y0": a, "y1": b, "line": line} for a, b in edges]


def _words(kept: Kept) -> str:
    same = kept.labels[:, None] == kept.labels[None, :]
    apart = ~np.eye(len(same), dtype=bool)
    where = f"Round {kept.round}, {counted(len(kept.clients), 'client')}, {kept.measure}: "
    inside, between = kept.matrix[same & apart], kept.matrix[~same]
    if not len(inside) or not len(between):
        words = f"{where}{np.nanmean(kept.matrix[apart]):.3g} on average between two clients."
    else:
        words = f"{where}{np.nanmean(inside):.3g} on average inside clusters, {np.nanmean(between):.3g} between them."
    if len(kept.clients) > kept.side:
        words += f" Neighbours are averaged: {kept.side} rows stand for {len(kept.clients):,} clients."
    return words
