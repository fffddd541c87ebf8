"""What a network is trained for: a loss, and a score of every row whose mean is what a run reports.

A further objective is a class here and a line in `OBJECTIVES`; the run's setting `task` chooses it.
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional


class Objective(Protocol):
    is_cross_entropy: bool  # the batched path trains by no other loss

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean over some rows: what training lowers."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Of each row."""

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Of each row; their mean is the main metric, the higher the better."""


class Classification:
    """One of several classes for each row: cross entropy, and the share of rows that are classified right."""

    is_cross_entropy = True

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets, reduction="none")

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.argmax(1) == targets.to(torch.int64)


OBJECTIVES: dict[str, Objective] = {"classification": Classification()}
