"""Networks layer by layer: their weights, and what a FedAvg that looks on (`LayerWatch`) kept of clients' updates."""

from collections.abc import Mapping

import numpy as np

from fedclade.reproduce.finished import Finished, Series
from fedclade.reproduce.kinds import Picture
from fedclade.reproduce.numbers import Numbers
from fedclade.reproduce.page import Line

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


def changes(run: Finished) -> Series:
    """The deciles of how much weights' updates change in the last round, in learning rates."""
    record = run.last_kept("layers")
    deciles = [10.0 * place for place in range(11)]
    return {layer: (deciles, list(map(float, record["change"][k]))) for k, layer in enumerate(record["layers"])}


def told_apart(when: str, run: Finished) -> float | None:
    """Share of the clients of the first two groups that a split by signs puts on the right side.

    As the paper: the most stable layer, the client with the least stability in it as reference. `before` is the first
    round that has a stability, `after` the last.
    """
    kept = {round: record for round, record in run.kept("layers").items() if "stability" in record}
    if not kept:
        return None
    record = kept[min(kept) if when == "before" else max(kept)]
    groups = [run.record["groups"][client] for client in record["clients"]]
    two = np.flatnonzero(np.array(groups) < 2)
    values = np.asarray(record["stability"])[two]
    layer = int(np.nanargmin(np.nanmean(values, axis=0)))
    reference = two[int(np.nanargmin(values[:, layer]))]
    side = np.asarray(record["cosine"])[layer][reference][two] > 0
    right = side == (np.array(groups)[two] == groups[reference])
    return float(max(right.mean(), 1 - right.mean()))


def distance_maps(layers: tuple[int, ...], run: Finished) -> list[Picture]:
    """Distances of weights by layer after one training from a common start; layers are counted from 1."""
    record = run.last_kept("layers")
    chosen = dict.fromkeys(min(n, len(record["layers"])) - 1 for n in layers)
    return [(f"layer {k + 1} ({record['layers'][k]})", record["distance"][k], record["clients"]) for k in chosen]
