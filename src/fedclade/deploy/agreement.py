"""How all nodes make features of their own rows: agreed on before a run, from statistics and without a row."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from fedclade.clients.tasks import Failure
from fedclade.data import DataOptions, Preprocessing
from fedclade.data.own.tables import agreed_kinds
from fedclade.data.preprocessing import Number, Scaling, Statistics, lopsided
from fedclade.deploy.node import STATISTICS
from fedclade.engines.exchange import failure_of
from fedclade.engines.registry import NodeRegistry, Report, query, told_in
from fedclade.errors import FedcladeError

LARGEST = 1e30  # a mean or a standard deviation; beyond it float32 ends


def agreed_preprocessing(
    registry: NodeRegistry, reports: Sequence[Report], options: DataOptions, max_samples: int
) -> tuple[Preprocessing | None, int]:
    """What makes the features, as for a folder that holds all clients; and how many bytes of statistics it took.

    None: rows are taken as they are. Nodes whose statistics make no sense are left out of the registry.
    """
    first = reports[0]
    if first.dtype == "uint8" or len(first.input_shape) > 2:  # images
        return None, 0
    scaling: Scaling = options.scaling or ("federated" if all(r.scaling == "federated" for r in reports) else "none")
    numbers, texts = [str(number) for number in range(first.input_shape[0])], []
    if first.columns:
        kinds = agreed_kinds([report.columns for report in reports], options.categorical)
        numbers = [name for name in first.columns if kinds[name] != "text"]
        texts = [name for name in first.columns if kinds[name] == "text"]
    if scaling == "none" and options.missing == "refuse" and not texts:
        plain = Preprocessing(numbers=tuple(Number(name=name) for name in numbers))
        return (plain, 0) if first.columns else (None, 0)
    asked = {"options": options.model_dump(mode="json"), "numbers": numbers, "texts": texts}
    messages = {report.client: query(STATISTICS, report.node, asked, registry.exchange.timeout) for report in reports}
    came, size = {}, 0
    for client, reply in registry.exchange.exchange(messages):
        failure = reply if isinstance(reply, Failure) else failure_of(reply)
        if isinstance(reply, Failure) or failure is not None:
            registry.leave_out(client, f"it could not tell the statistics of its features: {failure}")
            continue
        try:
            came[client] = _statistics(told_in(reply), len(numbers), texts, max_samples * prod(first.input_shape[1:]))
            size += len(str(reply.content.config_records["told"]["json"]))
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            registry.leave_out(client, f"the statistics of its features make no sense ({error!r})")
    if not came:
        raise FedcladeError(f"no node could tell the statistics of its features: {registry.reasons[-1]}")
    found = {report.client: came[report.client] for report in reports if report.client in came}
    if scaling == "federated":
        for remark in lopsided(numbers, found):
            print(f"note: {remark}", flush=True)
    return Preprocessing.fit(numbers, list(found.values()), scaling, options.missing), size


def _statistics(told: Mapping[str, Any], n_numbers: int, texts: Sequence[str], most: int) -> Statistics:
    """What a node told, after a look at every number. `most` values may be in a column."""
    found: Statistics = {}
    for name in ("count", "missing", "mean", "deviations", "median"):
        values = np.array(told[name], np.float64)
        if values.shape != (n_numbers,) or not np.isfinite(values).all():
            raise ValueError(f"{name} of shape {values.shape}")
        if name in ("count", "missing", "deviations") and (values < 0).any():
            raise ValueError(f"{name} below 0")
        found[name] = values
    if (found["count"] + found["missing"] > most).any():
        raise ValueError("more values than rows can hold")
    std = np.sqrt(found["deviations"] / np.maximum(found["count"], 1))
    if max(np.abs(found["mean"]).max(initial=0), np.abs(found["median"]).max(initial=0), std.max(initial=0)) > LARGEST:
        raise ValueError(f"values above {LARGEST:g}")
    for name in texts:
        found[f"categories:{name}"] = np.array([str(text) for text in told[f"categories:{name}"]], dtype=str)
        found[f"missing:{name}"] = np.array(told[f"missing:{name}"], np.int64).reshape(1)
    return found
