"""How all nodes make features of their own rows: agreed on before a run, from statistics and without a row."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from fedclade.clients.objective import Objective
from fedclade.clients.tasks import Failure
from fedclade.data import DataOptions, Preprocessing
from fedclade.data.own.tables import agreed_kinds
from fedclade.data.preprocessing import Number, Scaling, Statistics, lopsided
from fedclade.deploy.node import STATISTICS
from fedclade.engines.exchange import failure_of
from fedclade.engines.registry import NodeRegistry, Report, query, told_in
from fedclade.errors import FedcladeError

LARGEST = 1e30  # a mean or a standard deviation; beyond it float32 ends


def agreed_on(
    registry: NodeRegistry, reports: Sequence[Report], options: DataOptions, task: Objective, max_samples: int
) -> tuple[Preprocessing | None, Objective, int]:
    """What makes the features and the task, as for a folder that holds all clients; and how many bytes it took.

    The preprocessing is None where rows are taken as they are. Nodes whose statistics make no sense are left out of the
    registry.
    """
    numbers, texts, scaling = _columns(reports, options)
    needed = scaling != "none" or options.missing != "refuse" or bool(texts)
    if not needed and options.labels != "numbers":
        return _plain(reports, numbers), task, 0
    asked = {"options": options.model_dump(mode="json"), "numbers": numbers if needed else [], "texts": texts}
    amounts = len(reports[0].classes) if options.labels == "numbers" else 0
    told, size = _told(registry, reports, asked, amounts, max_samples * prod(reports[0].input_shape[1:]))
    if amounts:
        task = task.fitted([labels for _, labels in told.values()])
    if not needed:
        return _plain(reports, numbers), task, size
    found = {client: features for client, (features, _) in told.items()}
    if scaling == "federated":
        for remark in lopsided(numbers, found):
            print(f"note: {remark}", flush=True)
    return Preprocessing.fit(numbers, list(found.values()), scaling, options.missing), task, size


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
    registry: NodeRegistry, reports: Sequence[Report], asked: Mapping[str, Any], amounts: int, most: int
) -> tuple[dict[str, tuple[Statistics, Statistics]], int]:
    """What each node tells of its features and of its labels that are amounts, and how many bytes that took."""
    messages = {report.client: query(STATISTICS, report.node, asked, registry.exchange.timeout) for report in reports}
    came, size = {}, 0
    for client, reply in registry.exchange.exchange(messages):
        failure = reply if isinstance(reply, Failure) else failure_of(reply)
        if isinstance(reply, Failure) or failure is not None:
            registry.leave_out(client, f"it could not tell the statistics of its rows: {failure}")
            continue
        try:
            told = told_in(reply)
            features = _statistics(told["features"], len(asked["numbers"]), asked["texts"], most)
            labels = _arrays(told["labels"], ("count", "mean", "deviations"), amounts, most) if amounts else {}
            came[client] = features, labels
            size += len(str(reply.content.config_records["told"]["json"]))
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            registry.leave_out(client, f"the statistics of its rows make no sense ({error!r})")
    if not came:
        raise FedcladeError(f"no node could tell the statistics of its rows: {registry.reasons[-1]}")
    return {report.client: came[report.client] for report in reports if report.client in came}, size


def _arrays(told: Mapping[str, Any], names: Sequence[str], size: int, most: int) -> Statistics:
    """Numbers that a node told, after a look at every one. `most` values may be in a column."""
    found: Statistics = {}
    for name in names:
        values = np.array(told[name], np.float64)
        if values.shape != (size,) or not np.isfinite(values).all():
            raise ValueError(f"{name} of shape {values.shape}")
        if name in ("count", "missing", "deviations") and (values < 0).any():
            raise ValueError(f"{name} below 0")
        found[name] = values
    if (found["count"] + found.get("missing", 0) > most).any():
        raise ValueError("more values than rows can hold")
    std = np.sqrt(found["deviations"] / np.maximum(found["count"], 1))
    if max(np.abs(found[of]).max(initial=0) for of in ("mean", "median") if of in found) > LARGEST:
        raise ValueError(f"values above {LARGEST:g}")
    if std.max(initial=0) > LARGEST:
        raise ValueError(f"values above {LARGEST:g}")
    return found


def _statistics(told: Mapping[str, Any], n_numbers: int, texts: Sequence[str], most: int) -> Statistics:
    found = _arrays(told, ("count", "missing", "mean", "deviations", "median"), n_numbers, most) if n_numbers else {}
    for name in texts:
        found[f"categories:{name}"] = np.array([str(text) for text in told[f"categories:{name}"]], dtype=str)
        found[f"missing:{name}"] = np.array(told[f"missing:{name}"], np.int64).reshape(1)
    return found
