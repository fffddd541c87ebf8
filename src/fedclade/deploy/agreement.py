"""How all nodes make features of their own rows: agreed on before a run, from statistics and without a row."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedclade.clients.tasks import Failure
from fedclade.data import DataOptions, Preprocessing
from fedclade.data.own.tables import agreed_kinds
from fedclade.data.preprocessing import Number, Scaling, Statistics
from fedclade.deploy.node import STATISTICS
from fedclade.engines.exchange import failure_of
from fedclade.engines.registry import NodeRegistry, Report, query, told_in
from fedclade.errors import FedcladeError


def agreed_preprocessing(
    registry: NodeRegistry, reports: Sequence[Report], options: DataOptions
) -> tuple[Preprocessing | None, int]:
    """What makes the features, as for a folder that holds all clients; and how many bytes of statistics it took.

    None: rows are taken as they are.
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
            raise FedcladeError(f"{client!r} could not tell the statistics of its features: {failure}")
        try:
            told = told_in(reply)
            came[client] = _statistics(told, len(numbers), texts)
            size += len(str(reply.content.config_records["told"]["json"]))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise FedcladeError(f"the statistics of {client!r} make no sense ({error!r}): leave it out") from None
    found = [came[report.client] for report in reports]
    return Preprocessing.fit(numbers, found, scaling, options.missing), size


def _statistics(told: Mapping[str, Any], n_numbers: int, texts: Sequence[str]) -> Statistics:
    """What a node told, after a look at every number."""
    found: Statistics = {}
    for name in ("count", "missing", "mean", "deviations", "median"):
        values = np.array(told[name], np.float64)
        if values.shape != (n_numbers,) or not np.isfinite(values).all():
            raise ValueError(f"{name} of shape {values.shape}")
        if name in ("count", "missing", "deviations") and (values < 0).any():
            raise ValueError(f"{name} below 0")
        found[name] = values
    for name in texts:
        found[f"categories:{name}"] = np.array([str(text) for text in told[f"categories:{name}"]], dtype=str)
        found[f"missing:{name}"] = np.array(told[f"missing:{name}"], np.int64).reshape(1)
    return found
