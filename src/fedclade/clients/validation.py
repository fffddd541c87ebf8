"""Why an answer must not be used, if so. It may come from anywhere and hold anything: every field is looked at.

What was asked says what may come back: types, shapes, names, finite numbers, ranges. Methods see good answers only.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedclade.clients.describe import fault_of_description
from fedclade.clients.objective import Metric
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
    Tried,
    Try,
)
from fedclade.errors import listed
from fedclade.models.weights import Layout

ABSURD = 1e4  # weights so many times as long as those that training began with are no honest answer
MOST_STEPS = 10**7  # of a client whose way of training is not known here
LARGEST_LOSS = 1e30
LARGEST_OUTPUT = 1e6  # numbers that a layer may put out for one row


class UnfitError(ValueError):
    """What is wrong with an answer; `kind` is that of the failure."""

    def __init__(self, kind: Any, detail: str) -> None:
        super().__init__(detail)
        self.failure = Failure(kind, detail)


@dataclass(frozen=True)
class Expected:
    """What is known beforehand of a client's answers."""

    layout: Layout  # of the weights that the task speaks of
    initial: np.ndarray
    input_shape: tuple[int, ...]
    n_classes: int
    training: Training | None  # how clients train; None: that is their own business
    max_samples: int
    from_stranger: bool
    metrics: tuple[Metric, ...] = ()  # what is measured, in the order in which it comes


def fault(task: Task, answer: Answer, expected: Expected) -> Failure | None:
    """Why an answer must not be used, if so."""
    try:
        match task, answer:
            case Train(), Trained():
                _check_training(task, answer, expected)
            case Evaluate(), Evaluated():
                _check_evaluation(answer, expected)
            case Try(), Tried():
                _check_trials(task, answer, expected)
            case Predict(), Predicted():
                _check_predictions(task, answer, expected)
            case Describe(), Described():
                _check_description(task, answer, expected)
            case _:
                return Failure("bad shape", f"answered with {type(answer).__name__}")
    except UnfitError as unfit:
        return unfit.failure
    except (AttributeError, TypeError, ValueError, OverflowError) as error:  # not even arrays and numbers
        return Failure("bad shape", f"sent what is no answer ({type(error).__name__}: {error})"[:300])
    return None


def not_finite(answer: Answer) -> Failure | None:
    """The one thing that can be wrong with what the server itself works out."""
    arrays = [value for value in vars(answer).values() if isinstance(value, np.ndarray | float)]
    return None if all(np.isfinite(array).all() for array in arrays) else Failure("not finite", "the outcome is NaN")


def _check_training(task: Train, answer: Trained, expected: Expected) -> None:
    layout = expected.layout
    wanted = 0
    if task.upload != "nothing":
        place = layout.select(task.upload)
        wanted = place.stop - place.start if isinstance(place, slice) else len(place)
    if not isinstance(answer.weights, np.ndarray) or answer.weights.shape != (wanted,):
        raise UnfitError("bad shape", f"sent {np.shape(answer.weights)} numbers, {wanted} were asked for")
    if answer.weights.dtype != np.float32:
        raise UnfitError("bad shape", f"sent {answer.weights.dtype}, float32 was asked for")
    _whole_number("samples", answer.n_samples, 1, expected.max_samples)
    _check_steps(task, answer, expected)
    if not np.isfinite(answer.weights).all():
        raise UnfitError("not finite", "the update holds NaN or infinite numbers")
    _real_number("loss", answer.loss, -LARGEST_LOSS, LARGEST_LOSS)
    several = isinstance(task.weights, tuple)
    if several:
        _whole_number("choice of model", answer.chosen, 0, len(task.candidates) - 1)
    elif answer.chosen is not None:
        raise UnfitError("bad shape", "chose a model where there was no choice")
    _check_control(task, answer, expected)
    if expected.from_stranger and wanted:
        begun = task.candidates[answer.chosen or 0] if task.candidates else expected.initial
        length = float(np.linalg.norm(answer.weights.astype(np.float64)))
        if length > ABSURD * (1.0 + float(np.linalg.norm(begun.astype(np.float64)))):
            raise UnfitError("refused", f"sent weights of length {length:.3g}, which is absurd")


def _check_control(task: Train, answer: Trained, expected: Expected) -> None:
    if (task.control is None) != (answer.control is None):
        raise UnfitError("bad shape", "sent a mean gradient where none was asked for, or none where one was")
    if task.control is None or answer.control is None:
        return
    if answer.control.shape != task.control.shape or answer.control.dtype != np.float32:
        raise UnfitError("bad shape", f"sent {answer.control.shape} numbers as its gradient")
    length = float(np.linalg.norm(answer.control.astype(np.float64)))
    if not math.isfinite(length):
        raise UnfitError("not finite", "the mean gradient holds NaN or infinite numbers")
    if expected.from_stranger and length > ABSURD * (1.0 + float(np.linalg.norm(task.control.astype(np.float64)))):
        raise UnfitError("refused", f"sent a mean gradient of length {length:.3g}, which is absurd")


def _check_steps(task: Train, answer: Trained, expected: Expected) -> None:
    """How many steps a client took follows from its rows and from how it was told to train."""
    _whole_number("steps", answer.steps, 0, MOST_STEPS if expected.training is None else None)
    training = task.training or expected.training
    if expected.training is None or training is None:
        return
    wanted = training.local_epochs * training.steps_an_epoch(answer.n_samples)
    if answer.steps != wanted:
        raise UnfitError("refused", f"took {answer.steps} steps where {answer.n_samples} rows make {wanted}")


def _check_evaluation(answer: Evaluated, expected: Expected) -> None:
    _real_number("loss", answer.loss, -LARGEST_LOSS, LARGEST_LOSS)
    wanted = {metric.name: metric for metric in expected.metrics if metric.name != "loss"}
    if list(answer.metrics) != list(wanted):
        raise UnfitError("bad shape", f"sent {listed(answer.metrics)} where {listed(wanted)} was asked for"[:300])
    for name, metric in wanted.items():
        _real_number(name, answer.metrics[name], *metric.limits)
    _whole_number("samples", answer.n_samples, 1, expected.max_samples)


def _check_trials(task: Try, answer: Tried, expected: Expected) -> None:
    wanted = (len(task.epochs) + len(task.others) + task.halfway + (task.alone > 0), len(task.temperatures))
    if not isinstance(answer.losses, np.ndarray) or answer.losses.shape != wanted or answer.losses.dtype != np.float32:
        raise UnfitError("bad shape", f"sent {np.shape(answer.losses)} losses, {wanted} were asked for")
    if not np.isfinite(answer.losses).all() or not (np.abs(answer.losses) <= LARGEST_LOSS).all():
        raise UnfitError("not finite", "some loss is no number")
    _whole_number("samples", answer.n_samples, 1, expected.max_samples)


def _check_predictions(task: Predict, answer: Predicted, expected: Expected) -> None:
    values, labels = answer.values, answer.labels
    if not (isinstance(values, np.ndarray) and isinstance(labels, np.ndarray)) or values.ndim != 2 or labels.ndim != 1:
        raise UnfitError("bad shape", f"sent predictions of shape {np.shape(values)}")
    if values.dtype != np.float32 or labels.dtype.kind != "i":
        raise UnfitError("bad shape", f"sent predictions as {values.dtype} and labels as {labels.dtype}")
    rows = len(labels) if task.rows is None else len(task.rows)
    if len(values) != rows or (task.rows is not None and len(labels)):
        raise UnfitError("bad shape", f"sent {values.shape} predictions and {len(labels)} labels for {rows} rows")
    _whole_number("rows", rows, 1, expected.max_samples)
    below = 1 if isinstance(task.through, str) else len(task.through)
    width = expected.n_classes * (below if task.output == "below" else 1)
    if task.output in ("probabilities", "outputs", "below") and values.shape[1] != width:
        raise UnfitError("bad shape", f"sent predictions for {values.shape[1]} classes of {width}")
    if not 0 < values.shape[1] <= LARGEST_OUTPUT:
        raise UnfitError("bad shape", f"sent {values.shape[1]} numbers for a row")
    if not np.isfinite(values).all():
        raise UnfitError("not finite", "the predictions hold NaN or infinite numbers")
    if task.output in ("probabilities", "below") and (values.min() < -1e-3 or values.max() > 1 + 1e-3):
        raise UnfitError("refused", "sent probabilities outside 0 and 1")
    if len(labels) and (labels.min() < 0 or labels.max() >= expected.n_classes):
        raise UnfitError("refused", f"sent labels that are none of the {expected.n_classes} classes")


def _check_description(task: Describe, answer: Described, expected: Expected) -> None:
    values = dict(answer.values)
    if not all(isinstance(name, str) and isinstance(array, np.ndarray) for name, array in values.items()):
        raise UnfitError("bad shape", "sent statistics that are no named arrays")
    if any(array.dtype.kind not in "fiu" for array in values.values()):
        raise UnfitError("bad shape", "sent statistics that are no numbers")
    if not all(np.isfinite(array).all() for array in values.values()):
        raise UnfitError("not finite", "the statistics hold NaN or infinite numbers")
    shape, most = expected.input_shape, expected.max_samples
    wrong = fault_of_description(task.what, dict(task.options), values, shape, expected.n_classes, most)
    if wrong:
        raise UnfitError("bad shape", wrong)


def _whole_number(what: str, value: Any, least: int, most: int | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise UnfitError("bad shape", f"sent {value!r:.40} as the number of {what}")
    if value < least or (most is not None and value > most):
        raise UnfitError("refused", f"sent {value} as the number of {what}: it must be from {least} to {most}")


def _real_number(what: str, value: Any, least: float, most: float) -> None:
    if not isinstance(value, float | np.floating):  # nor a whole number, which may be of any size
        raise UnfitError("bad shape", f"sent {value!r:.40} as its {what}")
    if not math.isfinite(value):
        raise UnfitError("not finite", f"the {what} is not a number")
    if not least <= value <= most:
        raise UnfitError("refused", f"sent {value:.6g} as its {what}: it must be from {least:g} to {most:g}")


__all__ = ["Expected", "fault", "not_finite"]
