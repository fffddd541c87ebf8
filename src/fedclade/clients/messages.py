"""Tasks and answers as they travel: weights cut to the layers that are sent, labels as small as they fit."""

from dataclasses import replace
from typing import Any

import numpy as np

from fedclade.clients.tasks import Answer, Evaluate, Failure, Predict, Predicted, Task, Train
from fedclade.codec import Packet, decode, encode
from fedclade.models.weights import Layout


def pack(message: Task | Answer | Failure, layout: Layout) -> Packet:
    """What travels of a message; `layout` is that of the weights in it."""
    if isinstance(message, Train | Evaluate | Predict) and message.layers is not None:
        message = replace(message, weights=_cut(message.weights, layout.select(message.layers)))
    if isinstance(message, Train | Predicted) and message.labels is not None:
        message = replace(message, labels=_small(message.labels))
    return encode(message)


def unpack(packet: Packet) -> Any:
    """The message; weights of some layers are still cut (see `whole`). Raises KeyError, TypeError or ValueError."""
    message = decode(packet)
    if isinstance(message, Train | Predicted) and message.labels is not None:
        message = replace(message, labels=message.labels.astype(np.int64))
    return message


def whole(task: Task, layout: Layout, initial: np.ndarray) -> Task:
    """A task with whole vectors again: around the layers that were sent stands the initial model."""
    if not isinstance(task, Train | Evaluate | Predict) or task.layers is None or task.weights is None:
        return task
    place = layout.select(task.layers)

    def filled(sent: np.ndarray) -> np.ndarray:
        vector = initial.copy()
        vector[place] = sent
        return vector

    sent = task.weights
    vectors: Any = tuple(map(filled, sent)) if isinstance(sent, tuple) else filled(sent)
    return replace(task, weights=vectors)


def _cut(weights: Any, place: np.ndarray | slice) -> Any:
    if isinstance(weights, tuple):
        return tuple(one[place] for one in weights)
    return None if weights is None else weights[place]


def _small(labels: np.ndarray) -> np.ndarray:
    return labels.astype(np.int16 if labels.max(initial=0) < 2**15 else np.int32)
