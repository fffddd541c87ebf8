"""A JSON header and a list of arrays as Flower's records. Nothing heavy is imported here, for nodes start often."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, RecordDict


def to_records(header: Mapping[str, Any], arrays: list[np.ndarray]) -> "RecordDict":
    from flwr.app import ConfigRecord, RecordDict

    return RecordDict({"arrays": array_record(arrays), "message": ConfigRecord({"json": json.dumps(header)})})


def array_record(arrays: list[np.ndarray]) -> "ArrayRecord":
    from flwr.app import Array, ArrayRecord

    return ArrayRecord({str(place): Array(np.ascontiguousarray(array)) for place, array in enumerate(arrays)})


def from_records(records: "RecordDict") -> tuple[dict[str, Any], list[np.ndarray]]:
    arrays = records.array_records["arrays"]
    header = json.loads(str(records.config_records["message"]["json"]))
    return header, [arrays[str(place)].numpy() for place in range(len(arrays))]
