"""What other programs read: JSON on standard output."""

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedclade.result import Result


def print_json(value: Any) -> None:
    print(json.dumps(_plain(value), indent=2))


def facts_of(result: "Result") -> dict[str, Any]:
    """What a run found so far."""
    from fedclade.result import MODELS

    return {
        "run": result.path.absolute(),
        "state": result.state,
        "method": result.method,
        "data": result.settings["data"],
        "split": result.record["split"],
        "model": result.settings["model"],
        "seed": result.seed,
        "round": result.round,
        "rounds": result.rounds,
        "metric": result.metric.name,
        **{f"{name}{end}": result.over_clients(f"{name}{end}") for end in MODELS for name in result.metrics},
        "clusters": {str(cluster): clients for cluster, clients in result.clusters.items()},
        **result.agreement,
        "bytes": result.bytes,
        "failures": len(result.failures),
        "verdict": result.verdict,
        "seconds": result.seconds,
        "remarks": [*result.record.get("remarks", ()), *result.remarks],
    }


def _plain(value: Any) -> Any:
    """With nothing in it that JSON does not have."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(inner) for inner in value]
    if hasattr(value, "tolist"):  # a number or an array of NumPy
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


__all__ = ["facts_of", "print_json"]
