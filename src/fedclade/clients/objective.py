"""What a network is trained for: how labels are read, a loss, and the metrics that a run reports, the main one first.

A further task is a class here and a line in `OBJECTIVES`; the run's setting `task` chooses it.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, PositiveFloat, field_serializer, field_validator

from fedclade.data.options import LabelKind, RowKind
from fedclade.errors import FedcladeError, imported, listed, unknown

if TYPE_CHECKING:  # settings and lists of methods need not wait for torch
    from torch import Tensor

Link = Literal["softmax", "sigmoid", "identity"]
IN_PYTHON = "own"  # what a record says of functions without a name
LARGEST = 1e30  # no honest number is larger


@dataclass(frozen=True)
class Metric:
    """A number that tells how well a client is served."""

    name: str
    title: str = ""
    higher: bool = True  # the higher, the better
    is_share: bool = False  # from 0 to 1: pages and tables show it in percent

    @property
    def words(self) -> str:
        return self.title or self.name.replace("_", " ")

    @property
    def limits(self) -> tuple[float, float]:
        return (0.0, 1.0) if self.is_share else (-LARGEST, LARGEST)

    @property
    def best(self) -> Callable[..., Any]:
        """`max` or `min`."""
        return max if self.higher else min

    @property
    def worst(self) -> Callable[..., Any]:
        return min if self.higher else max

    def gain(self, value: float, over: float) -> float:
        """How much better a value is than another."""
        return value - over if self.higher else over - value

    def over_clients(self, values: Iterable[float]) -> dict[str, Any]:
        """Mean, standard deviation and worst over the clients that have a value, and how many those are."""
        array = np.asarray(list(values), float)
        if not len(array):
            return {"mean": None, "std": None, "worst": None, "clients": 0}
        worst = array.min() if self.higher else array.max()
        return {"mean": float(array.mean()), "std": float(array.std()), "worst": float(worst), "clients": len(array)}

    def written(self, value: float | None) -> str:
        """In a terminal: `0.913`, `472.9`, `12,306`."""
        if value is None or value != value:
            return "-"
        return f"{value:.3f}" if self.is_share else f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"


ACCURACY = Metric("accuracy", is_share=True)
LOSS = Metric("loss", higher=False)


class Objective(BaseModel):
    """What all tasks have in common. Fields are settings of the task.

    Outputs of a network are (rows, outputs) or, where every place of a row is predicted, (rows, outputs, places).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: ClassVar[str] = ""
    labels: ClassVar[LabelKind | None] = "classes"  # None: the setting data.labels says it
    rows: ClassVar[RowKind] = "features"
    link: ClassVar[Link | None] = None  # how the batched path makes predictions of outputs; None: it cannot
    has_classes: ClassVar[bool] = False  # each row has one of several classes
    default_model: ClassVar[str | None] = None  # None: one that fits the rows

    @property
    def measured(self) -> tuple[Metric, ...]:
        """The main one first; the loss is always there."""
        raise NotImplementedError

    @property
    def metric(self) -> Metric:
        """By which models are ranked."""
        return self.measured[0]

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Of each row."""
        raise NotImplementedError

    def held_out_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """By what models are compared on held-out rows: of each row, the less the better."""
        return self.losses(outputs, targets)

    def mean_loss(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """The mean over some rows, each with its weight: what training lowers."""
        losses = self.losses(outputs, targets)
        return losses.mean() if weights is None else (losses * weights).sum() / weights.sum()

    def row_weights(self, y: np.ndarray, classes: Sequence[str]) -> np.ndarray | None:
        """How much each training row of a client counts, by its labels; None: all the same."""
        return None

    def scaled(self, targets: Tensor) -> Tensor:
        """Labels as the outputs of a network are compared with them."""
        return targets

    def notes(self, outputs: Tensor) -> Tensor:
        """What metrics have to know of each row's outputs."""
        raise NotImplementedError

    def measure(self, losses: np.ndarray, notes: np.ndarray, targets: np.ndarray) -> dict[str, float]:
        """All metrics but the loss over some rows."""
        raise NotImplementedError

    def predictions(self, outputs: Tensor) -> Tensor:
        """Outputs as people read them: probabilities, or amounts."""
        return outputs

    def fitted(self, statistics: Sequence[Mapping[str, np.ndarray]]) -> Objective:
        """The task as a run works with it, from statistics of all clients' labels (`label_statistics`)."""
        return self


class Classification(Objective):
    """One of several classes for each row: cross entropy, and the share of rows that are classified right."""

    name = "classification"
    link: ClassVar[Link | None] = "softmax"
    has_classes = True

    # How much rows of a class count in training: a number for each class, or "balanced", by which each client lets its
    # own classes count alike
    class_weights: Literal["balanced"] | dict[str, float] | tuple[float, ...] | None = None

    @property
    def measured(self) -> tuple[Metric, ...]:
        shares = Metric("balanced_accuracy", is_share=True), Metric("f1", "F1", is_share=True)
        return ACCURACY, *shares, Metric("loss", "log loss", higher=False)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        from torch.nn import functional

        losses = functional.cross_entropy(outputs, targets, reduction="none")
        return losses if losses.ndim == 1 else losses.flatten(1).mean(1)

    def held_out_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Brier's score: it goes with accuracy, and no row that a model is very sure and wrong about decides alone."""
        shares = outputs.softmax(1)
        of_target = shares.gather(1, targets.unsqueeze(1)).squeeze(1)
        scores = (shares**2).sum(1) - 2 * of_target + 1
        return scores if scores.ndim == 1 else scores.flatten(1).mean(1)

    def mean_loss(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        from torch.nn import functional

        if weights is not None:
            return super().mean_loss(outputs, targets, weights)
        return functional.cross_entropy(outputs, targets)

    def row_weights(self, y: np.ndarray, classes: Sequence[str]) -> np.ndarray | None:
        if self.class_weights is None:
            return None
        if self.class_weights == "balanced":
            counts = np.bincount(y, minlength=len(classes))
            weights = len(y) / (np.maximum(counts, 1) * max(np.count_nonzero(counts), 1))
        else:
            weights = np.array(self.weight_of_class(classes))
        return weights[y].astype(np.float32)

    def weight_of_class(self, classes: Sequence[str]) -> list[float]:
        """Given by names or in the order of the classes."""
        given = self.class_weights
        if isinstance(given, Mapping):
            strange = [name for name in given if name not in classes]
            if strange:
                raise FedcladeError(f"task.class_weights names {strange[0]!r}: the classes are {listed(classes)}")
            return [given.get(name, 1.0) for name in classes]
        if not isinstance(given, tuple) or len(given) != len(classes):
            raise FedcladeError(f"task.class_weights must have a number for each of the classes {listed(classes)}")
        return list(given)

    @field_validator("class_weights")
    @classmethod
    def _are_weights(cls, value: Any) -> Any:
        numbers = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else ()
        if not all(np.isfinite(number) and number > 0 for number in numbers):
            raise ValueError("weights of classes must be above 0")
        return value

    def notes(self, outputs: Tensor) -> Tensor:
        return outputs.argmax(1).int()

    def measure(self, losses: np.ndarray, notes: np.ndarray, targets: np.ndarray) -> dict[str, float]:
        found, wanted = notes.ravel(), targets.ravel()
        is_right = found == wanted
        n = int(max(found.max(), wanted.max())) + 1
        right, there, told = (np.bincount(of, minlength=n) for of in (wanted[is_right], wanted, found))
        recall, seen = right[there > 0] / there[there > 0], there + told
        f1 = 2 * right[seen > 0] / seen[seen > 0]
        return {
            "accuracy": float(is_right.mean()),
            "balanced_accuracy": float(recall.mean()),
            "f1": float(f1.mean()),
        }

    def predictions(self, outputs: Tensor) -> Tensor:
        return outputs.softmax(1)


class Tokens(Classification):
    """The next of several tokens, at the end of each row or at each of its places; rows are token ids, not numbers."""

    name = "tokens"
    rows = "tokens"
    link = None
    has_classes = False
    default_model = "char-lstm"

    @property
    def measured(self) -> tuple[Metric, ...]:
        return ACCURACY, Metric("perplexity", higher=False), LOSS

    def measure(self, losses: np.ndarray, notes: np.ndarray, targets: np.ndarray) -> dict[str, float]:
        mean = float(losses.mean(dtype=np.float64))
        return {"accuracy": float((notes == targets).mean()), "perplexity": float(np.exp(min(mean, 60.0)))}

    def row_weights(self, y: np.ndarray, classes: Sequence[str]) -> np.ndarray | None:
        if self.class_weights is not None and y.ndim > 1:
            raise FedcladeError("task.class_weights: rows that predict many tokens have no class: leave it out")
        return super().row_weights(y, classes)


class Regression(Objective):
    """One or several amounts for each row: mean squared error.

    Networks put out amounts scaled by mean and standard deviation; metrics are in the amounts' own unit.
    """

    name = "regression"
    labels = "numbers"
    link = "identity"

    # Mean and standard deviation of each amount. None: those of all clients' training rows
    scale: tuple[tuple[float, PositiveFloat], ...] | None = None

    @property
    def measured(self) -> tuple[Metric, ...]:
        errors = Metric("rmse", "RMSE", higher=False), Metric("mae", "MAE", higher=False)
        return *errors, Metric("r2", "R2"), LOSS

    def fitted(self, statistics: Sequence[Mapping[str, np.ndarray]]) -> Regression:
        if self.scale is not None:
            return self
        count, mean, deviations = (
            np.stack([each[of] for each in statistics]) for of in ("count", "mean", "deviations")
        )
        n = count.sum(axis=0)
        centre = (count * mean).sum(axis=0) / n
        within = (deviations + count * np.square(mean - centre)).sum(axis=0)
        spread = np.sqrt(within / n)
        spread = np.where(spread > 1e-12 * np.abs(centre), spread, 1.0)
        return self.model_copy(update={"scale": tuple(zip(centre.tolist(), spread.tolist(), strict=True))})

    def _scale(self, like: Tensor) -> Tensor:
        """Means and standard deviations, a row each."""
        return like.new_tensor(self.scale or ((0.0, 1.0),) * like.shape[-1]).T

    def scaled(self, targets: Tensor) -> Tensor:
        mean, std = self._scale(targets)
        return (targets - mean) / std

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - self.scaled(targets)).square().mean(1)

    def notes(self, outputs: Tensor) -> Tensor:
        return self.predictions(outputs)

    def measure(self, losses: np.ndarray, notes: np.ndarray, targets: np.ndarray) -> dict[str, float]:
        wanted = targets.astype(np.float64)
        errors = notes - wanted
        squares, spread = np.square(errors).sum(axis=0), np.square(wanted - wanted.mean(axis=0)).sum(axis=0)
        # Of rows that are all the same nothing can be explained.
        r2 = np.where(spread > 0, 1 - squares / np.where(spread > 0, spread, 1), squares == 0)
        return {
            "rmse": float(np.sqrt(squares / len(errors)).mean()),
            "mae": float(np.abs(errors).mean()),
            "r2": float(r2.mean()),
        }

    def predictions(self, outputs: Tensor) -> Tensor:
        mean, std = self._scale(outputs)
        return outputs * std + mean


class MultiLabel(Objective):
    """Any number of several labels for each row: cross entropy of each label by itself."""

    name = "multilabel"
    labels = "sets"
    link = "sigmoid"

    @property
    def measured(self) -> tuple[Metric, ...]:
        f1 = Metric("micro_f1", "micro F1", is_share=True), Metric("f1", "F1", is_share=True)
        return *f1, Metric("exact_match", is_share=True), LOSS

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        from torch.nn import functional

        return functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none").mean(1)

    def notes(self, outputs: Tensor) -> Tensor:
        return outputs > 0

    def measure(self, losses: np.ndarray, notes: np.ndarray, targets: np.ndarray) -> dict[str, float]:
        wanted = targets > 0
        right, seen = (notes & wanted).sum(axis=0), notes.sum(axis=0) + wanted.sum(axis=0)
        # Where there is nothing to find and nothing was found, all is right.
        return {
            "micro_f1": float(2 * right.sum() / seen.sum()) if seen.any() else 1.0,
            "f1": float((2 * right[seen > 0] / seen[seen > 0]).mean()) if seen.any() else 1.0,
            "exact_match": float((notes == wanted).all(axis=1).mean()),
        }

    def predictions(self, outputs: Tensor) -> Tensor:
        return outputs.sigmoid()


class Own(Objective):
    """A loss and metrics of one's own, given in Python or as `my_module:function`.

    `loss(outputs, targets)` takes tensors and returns a loss for each row (torch's losses are asked for that). A metric
    takes the outputs and targets of a client's rows as arrays and returns a number; the first is the main one, and
    without any it is the loss.
    """

    name = "own"
    labels = None

    loss: Any
    metrics: tuple[Any, ...] = ()
    lower_is_better: tuple[str, ...] = ()  # the metrics of which this is so

    @field_validator("loss")
    @classmethod
    def _loss_by_name(cls, value: Any) -> Any:
        return _function(value, "loss")

    @field_validator("metrics", mode="before")
    @classmethod
    def _metrics_by_name(cls, value: Any) -> Any:
        given = value if isinstance(value, list | tuple) else (value,)
        return tuple(_function(metric, "metric") for metric in given)

    @field_validator("lower_is_better", mode="before")
    @classmethod
    def _one_is_a_list_too(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_serializer("loss", "metrics")
    def _named(self, value: Any) -> Any:
        return [path_of(each) for each in value] if isinstance(value, tuple) else path_of(value)

    @property
    def measured(self) -> tuple[Metric, ...]:
        names = [_name(metric) for metric in self.metrics]
        strange = [name for name in self.lower_is_better if name not in names]
        if strange:
            raise FedcladeError(f"task.lower_is_better names {strange[0]!r}, but the metrics are {listed(names)}")
        return *(Metric(name, higher=name not in self.lower_is_better) for name in names), LOSS

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        from torch import Tensor

        losses = _by_row(self.loss)(outputs, targets)
        if not isinstance(losses, Tensor) or losses.ndim == 0 or len(losses) != len(outputs):
            shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise FedcladeError(
                f"the loss {path_of(self.loss)} made {shape} of {len(outputs)} rows: return a loss for each row"
            )
        return losses if losses.ndim == 1 else losses.flatten(1).mean(1)

    def notes(self, outputs: Tensor) -> Tensor:
        return outputs

    def measure(self, losses: np.ndarray, notes: np.ndarray, targets: np.ndarray) -> dict[str, float]:
        return {_name(metric): float(metric(notes, targets)) for metric in self.metrics}


OBJECTIVES: dict[str, type[Objective]] = {
    kind.name: kind for kind in (Classification, Regression, MultiLabel, Tokens, Own)
}


def objective_class(name: str) -> type[Objective]:
    """A task by its name, or your own as `my_module:MyTask`."""
    if ":" in name:
        found = imported(name, "task")
        if not (isinstance(found, type) and issubclass(found, Objective)):
            raise FedcladeError(f"task {name!r} is no subclass of fedclade.clients.objective.Objective")
        return found
    if name not in OBJECTIVES:
        raise unknown("task", name, OBJECTIVES)
    return OBJECTIVES[name]


def record_of(objective: Objective) -> dict[str, Any]:
    """A task as a record has it: its name and all its settings."""
    kind = type(objective)
    name = kind.name if OBJECTIVES.get(kind.name) is kind else path_of(kind)
    return {"name": name, **objective.model_dump(mode="json")}


def label_statistics(y: np.ndarray) -> dict[str, np.ndarray]:
    """What all must know of a client's labels that are amounts (rows, amounts): their number, mean and spread."""
    values = y.astype(np.float64)
    mean = values.mean(axis=0)
    deviations = np.square(values - mean).sum(axis=0)
    return {"count": np.full(mean.shape, float(len(values))), "mean": mean, "deviations": deviations}


def _function(value: Any, kind: str) -> Any:
    found = imported(value, kind) if isinstance(value, str) and ":" in value else value
    if not callable(found) or isinstance(found, type):
        raise ValueError(f"the {kind} must be a function, or its name as my_module:function")
    return found


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def path_of(function: Any) -> str:
    """`module:function` where it can be imported again."""
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    is_found = module != "__main__" and getattr(sys.modules.get(module), name, None) is function
    return f"{module}:{name}" if is_found else IN_PYTHON


def _by_row(loss: Any) -> Callable[[Tensor, Tensor], Any]:
    """A loss that gives one number a row; torch's own give their mean unless told otherwise."""
    from torch import nn

    if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
        loss = copy.copy(loss)
        loss.reduction = "none"
        return loss
    try:
        has_choice = "reduction" in inspect.signature(loss).parameters
    except (TypeError, ValueError):
        has_choice = False
    return (lambda outputs, targets: loss(outputs, targets, reduction="none")) if has_choice else loss
