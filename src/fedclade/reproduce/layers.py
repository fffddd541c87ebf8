"""Networks layer by layer: their weights, and what a FedAvg that looks on (`LayerWatch`) kept of clients' updates."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fedclade.reproduce.finished import Finished, Series
from fedclade.reproduce.kinds import Picture
from fedclade.reproduce.numbers import Numbers
from fedclade.reproduce.page import Line

STABLE, WINDOW = 0.5, 3  # the paper's threshold in learning rates, and over how many rounds a stability is taken

WATCH = "fedclade.reproduce.watching:LayerWatch"


def weights_by_layer(networks: Mapping[str, tuple[str, tuple[int, ...]]], paper: Numbers | None = None) -> list[Line]:
    """How many weights (no biases) each layer of some networks has, beside what a paper says."""
    from fedclade.models import make

    return [
        Line((title, layer), {"weights": [values.numel()]}, {"weights": paper[title, layer]} if paper else {})
        for title, (model, shape) in networks.items()
        for name, values in make(model, shape, 10).named_parameters()
        if (layer := name.removesuffix(".weight")) != name
    ]


def layer_maps(rounds: int, run: Finished) -> list[Picture]:
    """Cosines of updates by layer, at the first round that was kept and at one as late as there is."""
    kept = run.kept("layers")
    shown = dict.fromkeys((min(kept), max(round for round in kept if round <= rounds)))
    return [
        (f"{layer}, round {round}", np.asarray(kept[round]["cosine"][place]), kept[round]["clients"])
        for round in shown
        for place, layer in enumerate(kept[round]["layers"])
    ]


def loss_and_stability(run: Finished) -> Series:
    kept = sorted(run.kept("layers").items())
    steady = [(round, record) for round, record in kept if "stability" in record]
    series: Series = {"loss": ([float(round) for round, _ in kept], [record["loss"] for _, record in kept])}
    for place, layer in enumerate(kept[0][1]["layers"]):
        values = [float(np.nanmean(record["stability"][:, place])) for _, record in steady]
        series[f"stability of {layer}"] = [float(round) for round, _ in steady], values
    return series


AGAIN = "of the tenth that change most, the same as a round before, %"
CHANGES = {AGAIN: 0, "change at the median": 4, "at nine tenths": 3, "at most": 2}


def changes(run: Finished) -> dict[tuple[str, ...], dict[str, float]]:
    """How much weights' updates change in the last round, in learning rates, and whether of the same as before."""
    record = run.last_kept("layers")
    lines: dict[tuple[str, ...], dict[str, float]] = {}
    for place, layer in enumerate(record["layers"]):
        deciles = record["change"][place]
        values = 100 * record["again"][place], deciles[5], deciles[9], deciles[10]
        lines[layer,] = dict(zip(CHANGES, map(float, values), strict=True))
    return lines


def most_stable(run: Finished) -> float | None:
    """The largest number of clients that were stable in one layer at the same time: a split needs all of a cluster."""
    limit = STABLE * run.settings["training"]["learning_rate"]
    kept = run.kept("stability").values()
    return max((float((record["values"] < limit).sum(axis=0).max()) for record in kept), default=None)


def told_apart(when: str, run: Finished) -> float | None:
    """Share of the clients, who are of two groups, that a split by signs puts on the right side.

    As the paper: the most stable layer, the client with the least stability in it as reference. A mean over rounds:
    `before` those in which not all clients are stable in some layer yet, `after` those from then on.
    """
    shares: list[float] = []
    turn = None
    for record, stable in _rounds_with_stability(run):
        groups = np.array([run.record["groups"][client] for client in record["clients"]])
        if turn is None and stable == len(groups):
            turn = len(shares)
        layer = int(np.nanargmin(np.nanmean(record["stability"], axis=0)))
        reference = int(np.nanargmin(record["stability"][:, layer]))
        side = record["cosine"][layer][reference] > 0
        right = side == (groups == groups[reference])
        shares.append(float(max(right.mean(), 1 - right.mean())))
    chosen = shares[:turn] if when == "before" else shares[len(shares) if turn is None else turn :]
    return float(np.mean(chosen)) if chosen else None


def most_stable_watched(run: Finished) -> float | None:
    """As `most_stable`, of a FedAvg that looked on."""
    return max((float(stable) for _, stable in _rounds_with_stability(run)), default=None)


def _rounds_with_stability(run: Finished) -> Iterator[tuple[Mapping[str, Any], int]]:
    """What was kept in each round in which updates have a stability, and how many clients are stable in one layer.

    A client is so by its mean over the window: in the first rounds nobody is.
    """
    limit = STABLE * run.settings["training"]["learning_rate"]
    recent: list[np.ndarray] = []
    for _, record in sorted(run.kept("layers").items()):
        if "stability" in record:
            recent = [*recent, record["stability"]][-WINDOW:]
            stable = np.mean(recent, axis=0) < limit
            yield record, int(stable.sum(axis=0).max()) if len(recent) == WINDOW else 0


def distance_maps(layers: tuple[int, ...], run: Finished) -> list[Picture]:
    """Distances of weights by layer after one training from a common start; layers are counted from 1."""
    record = run.last_kept("layers")
    chosen = dict.fromkeys(min(n, len(record["layers"])) - 1 for n in layers)
    return [(f"layer {k + 1} ({record['layers'][k]})", record["distance"][k], record["clients"]) for k in chosen]
