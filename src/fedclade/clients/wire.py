"""Tasks and answers as they travel: a JSON header and a list of arrays, cut to the layers that are really sent."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from fedclade.clients.tasks import (
    Answer,
    Describe,
    Described,
    Evaluate,
    Evaluated,
    Failure,
    Predict,
    Predicted,
    Task,
    Train,
    Trained,
    Training,
)
from fedclade.models.weights import Layout

KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (Train, Evaluate, Predict, Describe, Trained, Evaluated, Predicted, Described, Failure)
}
ARRAY, MESSAGE = "@array", "@message"


def encode(message: Task | Answer | Failure, layout: Layout) -> tuple[dict[str, Any], list[np.ndarray]]:
    arrays: list[np.ndarray] = []

    def packed(value: Any) -> Any:
        match value:
            case np.ndarray():
                arrays.append(value)
                return {ARRAY: len(arrays) - 1}
            case Training():
                return value.model_dump()
            case Train():
                return {MESSAGE: {field.name: packed(getattr(value, field.name)) for field in fields(value)}}
            case Mapping():
                return {str(key): packed(item) for key, item in value.items()}
            case tuple() | list():
                return [packed(item) for item in value]
            case np.generic():
                return value.item()
        return value

    values = {field.name: getattr(message, field.name) for field in fields(message)}
    if isinstance(message, Train | Evaluate | Predict):
        place = layout.select(message.layers)
        sent = values["weights"]
        if isinstance(sent, tuple):
            values["weights"] = tuple(one[place] for one in sent)
        elif sent is not None:
            values["weights"] = sent[place]
    return {"message": type(message).__name__, **{name: packed(value) for name, value in values.items()}}, arrays


def decode(header: Mapping[str, Any], arrays: Sequence[np.ndarray], layout: Layout) -> Task | Answer | Failure:
    """The message again. Raises ValueError or KeyError where it is none."""

    def whole(value: Any) -> Any:
        match value:
            case {"@message": dict(inner)}:
                values = {key: whole(item) for key, item in inner.items()}
                return Train(**values | {"training": Training(**values["training"]) if values["training"] else None})
            case {"@array": int(place)}:
                return np.array(arrays[place])  # a copy, which can be written to
            case dict():
                return {key: whole(item) for key, item in value.items()}
            case list():
                return tuple(whole(item) for item in value)
        return value

    kind = KINDS[header["message"]]
    known = {field.name for field in fields(kind)}
    values = {name: whole(value) for name, value in header.items() if name in known}
    for name in ("training", "adapt"):
        if values.get(name) is not None:
            values[name] = Training(**values[name])
    if issubclass(kind, Train | Evaluate | Predict):
        sent = values.get("weights")
        layers = values.get("layers")
        if isinstance(sent, tuple):
            values["weights"] = tuple(_spread(one, layers, layout) for one in sent)
        elif sent is not None:
            values["weights"] = _spread(sent, layers, layout)
    return kind(**values)


def _spread(sent: np.ndarray, layers: Any, layout: Layout) -> np.ndarray:
    """A whole vector that holds what was sent in its place, and zeros where nothing was."""
    if layers is None:
        return sent
    vector = np.zeros(layout.size, np.float32)
    vector[layout.select(layers)] = sent
    return vector
