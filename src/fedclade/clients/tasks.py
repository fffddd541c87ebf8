"""What a method can ask of a client, and what a client answers.

Tasks and answers are plain frozen values. Weights in them are whole flat vectors; `layers` and `upload` say which part
really travels (see `fedclade.clients.messages`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fedclade.codec import travels
from fedclade.models.assigned import Through
from fedclade.updates import UpdateStep

Layers = str | tuple[str, ...] | None  # None: everything; "head": the last layer; else names of layers

LOCAL = "local"  # the slot of a client's memory that holds its locally trained model
PERSONAL = "personal"  # the slot of a model that is the client's own, which it has trained beside another
APART = "apart"  # of what such a model is mixed from (APFL)
SHARE = "share"  # of how much of it (APFL): one number
CONTROL = "control"  # of the mean gradient of a client's last training (SCAFFOLD)
NO_MODELS = (SHARE, CONTROL)  # slots that hold no model: whoever has lost what is in them begins without
HALFWAY = 0.5
SERVER = "server"  # the name under which the server itself works on rows it was given


def effective_steps(steps: int, momentum: float) -> float:
    """How far `steps` steps of gradient descent with momentum go, in steps without it."""
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


@travels
class Training(BaseModel):
    """How a client trains: gradient descent on its own rows, batch by batch. What an optimiser remembers of its steps
    begins anew in every round."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"  # how steps follow from gradients
    local_epochs: Annotated[int, Field(ge=0)] = 2  # times a round goes through a client's rows; more of few
    batch_size: Annotated[int, Field(ge=1)] = 16  # rows of a step
    drop_last: bool = False  # leave out an epoch's last batch where it is shorter, unless it is the only one
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.05  # how far a step goes
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.5  # of SGD
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0  # how much weights are pulled to zero
    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None  # the longest gradient of a step
    averaged: Annotated[float, Field(ge=0, le=1)] = 0.0  # the share of the epochs, the last, whose weights are averaged
    # "cyclic": the rate climbs from `base_rate` to `learning_rate` and back, each cycle half as high as the one before
    # "cosine": it falls from `learning_rate` to `base_rate` in `period` rounds
    # "step": it is multiplied by `gamma` every `period` rounds
    schedule: Literal["constant", "cyclic", "cosine", "step"] = "constant"  # how the rate changes
    period: Annotated[int, Field(ge=1)] | None = None  # None: the rounds of the run; for "step", a third of them
    gamma: Annotated[float, Field(gt=0, le=1)] = 0.1  # of "step": what the rate is multiplied by
    warmup: Annotated[int, Field(ge=0)] = 0  # rounds in which the rate climbs to what the schedule says
    base_rate: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-5  # the lowest rate of "cyclic" and "cosine"
    step_size: Annotated[int, Field(ge=1)] | None = None  # steps of half a cycle; None: those of two epochs
    # A meta step looks for weights from which one step of `inner_rate` does well (Per-FedAvg)
    meta: Literal["none", "first-order", "hessian-free"] = "none"  # of what kind a meta step is
    inner_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.01  # how far the step inside a meta step goes

    def steps_an_epoch(self, rows: int) -> int:
        """Batches in so many rows. A batch of a few rows is a step like any other, only noisier."""
        full, left = divmod(rows, self.batch_size)
        return full + (left > 0 and not (self.drop_last and full))

    @property
    def unhurried(self) -> "Training":
        """For those who come after the run: its schedule by rounds is over."""
        return self.model_copy(update={"warmup": 0, **({} if self.schedule == "cyclic" else {"schedule": "constant"})})

    def for_run(self, rounds: int) -> "Training":
        """With a period for its schedule."""
        if self.period is not None or self.schedule not in ("cosine", "step"):
            return self
        return self.model_copy(update={"period": max(rounds if self.schedule == "cosine" else rounds // 3, 1)})

    def in_round(self, round: int) -> "Training":
        """With the rate of a round; rounds that train are counted from 1."""
        done = max(round - 1, 0)
        rate, period = self.learning_rate, self.period or 1
        if self.schedule == "cosine":
            height = (1 + math.cos(math.pi * min(done / period, 1))) / 2
            rate = self.base_rate + (rate - self.base_rate) * height
        elif self.schedule == "step":
            rate *= self.gamma ** (done // period)
        rate *= min((done + 1) / (self.warmup + 1), 1)
        return self if rate == self.learning_rate else self.model_copy(update={"learning_rate": rate})


@travels
@dataclass(frozen=True)
class Mixture:
    """APFL: beside the model w that is sent, step by step, a model v of the client's own moves, by the loss of
    share v + (1 - share) w. The client keeps that mixture, v and the share."""

    share: float  # while the client has not found its own
    adapts: bool = False  # the share, too, goes down its gradient


@travels
@dataclass(frozen=True)
class Envelope:
    """pFedMe: in every step a model of the client's own takes some steps down the loss of the batch, held near the
    weights by strength / 2 * |own - w|^2, and the weights go to it. The client keeps its own model."""

    strength: float
    rate: float  # of the own model's steps
    steps: int  # of the own model, for each batch


@travels
@dataclass(frozen=True)
class Train:
    """Train on the client's training rows, remember the result, send (part of) it back."""

    weights: np.ndarray | tuple[np.ndarray, ...] | None = (
        None  # several: the client takes the one of lowest training loss
    )
    layers: Layers = None  # which layers of `weights` are sent; the client fills the others from its slot `start`
    start: str = ""  # start from this slot of the client's memory (the initial model while it is empty)
    upload: Layers | Literal["nothing"] = None
    trains: Layers = None  # the layers that move; others stay as they are (FedRep, FedBABU)
    save: str = LOCAL  # the slot that takes the trained weights; "" keeps nothing
    training: Training | None = None  # None: the run's own
    proximal: float = 0.0  # adds proximal / 2 * |w - centre|^2 to the loss (FedProx, Ditto)
    centre: np.ndarray | None = None  # None: the weights it started from
    linear: np.ndarray | None = None  # adds <linear, w> to the loss (ClusterFL)
    control: np.ndarray | None = (
        None  # all clients' mean gradient: what the client's own lacks of it is added (SCAFFOLD)
    )
    beside: Mixture | Envelope | None = None  # a model of the client's own that is trained in the same steps
    rows: np.ndarray | None = None  # train on these rows and `labels` (the server does), not on the client's own
    labels: np.ndarray | None = None
    spare: float = 0.0  # the share of the client's training rows that is not trained on
    refill: bool = False  # others are trained on twice in place of those spared, so that training is as long
    half: int = 0  # 1, 2: train on the first or the second half of the rows only, dealt at random; 0: on all of them
    length: int = 0  # of a half: as if it were so many rows, the first ones again where there are fewer; 0: all rows
    epochs_before: int = 0  # how many epochs of its schedule an earlier task has done
    way: float = 1.0  # how far what is kept and sent goes from the weights at the start to the trained ones
    outgoing: tuple[UpdateStep, ...] = ()  # what the update goes through before it leaves the client
    then: "Train | None" = None  # a further training after this one, with nothing more sent; it sends nothing back.
    # Where it has a proximal term, its centre is what was sent (Ditto).

    @property
    def candidates(self) -> tuple[np.ndarray, ...]:
        return self.weights if isinstance(self.weights, tuple) else () if self.weights is None else (self.weights,)


@travels
@dataclass(frozen=True)
class Evaluate:
    """Loss and metrics of some weights on the client's rows.

    It is also how a method says what serves a client (`Method.served`): the weights it sends, over those of the slot
    `start`, or `otherwise` where the client keeps nothing there.
    """

    weights: np.ndarray | None = None
    layers: Layers = None
    start: str = ""
    otherwise: np.ndarray | None = None  # None: the initial model
    on: Literal["test", "train"] = "test"
    spare: float = 0.0  # of training rows only those that a `Train` with the same share leaves out; 0: all of them
    adapt: Training | None = None  # train like this on the client's training rows first (nothing is kept)
    # `weights` are of the clusters' network, which reads the probabilities of this slot's model; of networks that come
    # along, all of theirs side by side
    through: Through = ""


@travels
@dataclass(frozen=True)
class Predict:
    """Outputs of some weights on given rows, or on the client's own."""

    weights: np.ndarray | None = None
    layers: Layers = None
    start: str = ""
    rows: np.ndarray | None = None  # None: the client's own rows, and their labels come along
    on: Literal["test", "train"] = "test"
    spare: float = 0.0  # as in `Evaluate`
    otherwise: np.ndarray | None = None
    # "probabilities", "outputs" (before the softmax), "below" (what the clusters' network reads, `through` others), or
    # the name of a layer: what that puts out
    output: str = "probabilities"
    through: Through = ""  # as in `Evaluate`


@travels
@dataclass(frozen=True)
class Try:
    """How well models would serve the client, by their losses on rows that it spares (nothing is kept).

    They are the model that serves it now, after so many epochs of its own, and others likewise.
    """

    model: Evaluate
    epochs: tuple[int, ...]  # growing
    spare: float  # the share of the client's training rows by which models are judged
    others: tuple[np.ndarray, ...] = ()  # judged as they are
    alone: int = 0  # epochs of a model of its own, from the initial one; 0: none
    averaged: float = 0.0  # as in `Training`
    temperatures: tuple[float, ...] = (1.0,)  # by which outputs are divided first: training makes models too sure
    halfway: bool = False  # and the mean of the model as it is and after the most epochs


@travels
@dataclass(frozen=True)
class Describe:
    """Something worked out from the client's rows that leaves the client: see `fedclade.clients.describe`."""

    what: str
    options: Mapping[str, Any] = field(default_factory=dict)  # arrays among them travel, and are counted


@travels
@dataclass(frozen=True)
class Trained:
    weights: np.ndarray  # the layers asked for, as one vector
    n_samples: int
    steps: int
    loss: float  # mean training loss over the steps
    chosen: int | None = None  # which of several candidates it started from
    control: np.ndarray | None = None  # how the client's own mean gradient has changed, where all clients' was sent


@travels
@dataclass(frozen=True)
class Evaluated:
    loss: float
    metrics: Mapping[str, float]  # by name, the main one first, without the loss
    n_samples: int

    @property
    def score(self) -> float:
        """The main metric."""
        return next(iter(self.metrics.values()), self.loss)


@travels
@dataclass(frozen=True)
class Predicted:
    values: np.ndarray  # (rows, outputs) float32
    labels: np.ndarray  # (rows,) int64, or amounts; empty where the rows were given


@travels
@dataclass(frozen=True)
class Tried:
    losses: np.ndarray  # float32 (models, temperatures): after each number of epochs, of the others, of the one alone
    n_samples: int


@travels
@dataclass(frozen=True)
class Described:
    values: Mapping[str, np.ndarray]


@travels
@dataclass(frozen=True)
class Failure:
    """Why a client did not answer; the same kinds on every engine."""

    kind: Literal["raised", "died", "timed out", "bad shape", "not finite", "refused", "absent"]
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}" if self.detail else self.kind


Task = Train | Evaluate | Try | Predict | Describe
Answer = Trained | Evaluated | Tried | Predicted | Described
