"""How all nodes make features of their own rows: agreed on before a run, from statistics and without a row."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedclade.clients.objective import Objective
from fedclade.clients.tasks import Failure
from fedclade.data import DataOptions, Preprocessing
from fedclade.data.own.tables import agreed_kinds
from fedclade.data.preprocessing import Number, Scaling, Statistics
from fedclade.deploy.node import STATISTICS
from fedclade.engines.exchange import failure_of
from fedclade.engines.registry import NodeRegistry, Report, query, told_in
from fedclade.errors import FedcladeError


def agreed_on(
    registry: NodeRegistry, reports: Sequence[Report], options: DataOptions, task: Objective
) -> tuple[Preprocessing | None, Objective, int]:
    """What makes the features and the task, as for a folder that holds all clients; and how many bytes it took.

    The preprocessing is None where rows are taken as they are.
    """
    numbers, texts, scaling = _columns(reports, options)
    needed = scaling != "none" or options.missing != "refuse" or bool(texts)
    if not needed and options.labels != "numbers":
        return _plain(reports, numbers), task, 0
    asked = {"options": options.model_dump(mode="json"), "numbers": numbers if needed else [], "texts": texts}
    told, size = _told(registry, reports, asked, len(reports[0].classes) if options.labels == "numbers" else 0)
    if options.labels == "numbers":
        task = task.fitted([labels for _, labels in told])
    if not needed:
        return _plain(reports, numbers), task, size
    return Preprocessing.fit(numbers, [features for features, _ in told], scaling, options.missing), task, size


def _plain(reports: Sequence[Report], numbers: Sequence[str]) -> Preprocessing | None:
    """Columns in one order, as they are; arrays need not even that."""
    return Preprocessing(numbers=tuple(Number(name=name) for name in numbers)) if reports[0].columns else None


def _columns(reports: Sequence[Report], options: DataOptions) -> tuple[list[str], list[str], Scaling]:
    """The columns of numbers and of text, and how the former are scaled."""
    first = reports[0]
    if first.dtype != "float32" or len(first.input_shape) > 2:  # images, or tokens
        return [], [], "none"
    scaling: Scaling = options.scaling or ("federated" if all(r.scaling == "federated" for r in reports) else "none")
    numbers, texts = [str(number) for number in range(first.input_shape[0])], []
    if first.columns:
        kinds = agreed_kinds([report.columns for report in reports], options.categorical)
        numbers = [name for name in first.columns if kinds[name] != "text"]
        texts = [name for name in first.columns if kinds[name] == "text"]
    return numbers, texts, scaling


def _told(
    registry: NodeRegistry, reports: Sequence[Report], asked: Mapping[str, Any], amounts: int
) -> tuple[list[tuple[Statistics, Statistics]], int]:
    """What each node tells of its features and of its labels that are amounts, and how many bytes that took."""
    messages = {report.client: query(STATISTICS, report.node, asked, registry.exchange.timeout) for report in reports}
    came, size = {}, 0
    for client, reply in registry.exchange.exchange(messages):
        failure = reply if isinstance(reply, Failure) else failure_of(reply)
        if isinstance(reply, Failure) or failure is not None:
            raise FedcladeError(f"{client!r} could not tell the statistics of its rows: {failure}")
        try:
            told = told_in(reply)
            features = _statistics(told["features"], len(asked["numbers"]), asked["texts"])
            came[client] = (
                features,
                _arrays(told["labels"], ("count", "mean", "deviations") if amounts else (), amounts),
            )
            size += len(str(reply.content.config_records["told"]["json"]))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise FedcladeError(f"the statistics of {client!r} make no sense ({error!r}): leave it out") from None
    return [came[report.client] for report in reports], size


def _arrays(told: Mapping[str, Any], names: Sequence[str], size: int) -> Statistics:
    """Numbers that a node told, after a look at every one."""
    found: Statistics = {}
    for name in names:
        values = np.array(told[name], np.float64)
        if values.shape != (size,) or not np.isfinite(values).all():
            raise ValueError(f"{name} of shape {values.shape}")
        if name in ("count", "missing", "deviations") and (values < 0).any():
            raise ValueError(f"{name} below 0")
        found[name] = values
    return found


def _statistics(told: Mapping[str, Any], n_numbers: int, texts: Sequence[str]) -> Statistics:
    found = _arrays(told, ("count", "missing", "mean", "deviations", "median"), n_numbers) if n_numbers else {}
    for name in texts:
        found[f"categories:{name}"] = np.array([str(text) for text in told[f"categories:{name}"]], dtype=str)
        found[f"missing:{name}"] = np.array(told[f"missing:{name}"], np.int64).reshape(1)
    return found
