"""FedAvg, and what differs from it by one line: FedProx and FedNova.

- McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
- Li et al., "Federated Optimization in Heterogeneous Networks" (FedProx), MLSys 2020.
- Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization" (FedNova),
  NeurIPS 2020.
- Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates" (median, trimmed mean),
  ICML 2018.
"""

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedclade.ask import Ask, TrainedClients
from fedclade.clients.tasks import Train
from fedclade.methods.base import About, Clusters, Method, RoundContext
from fedclade.models.weights import average


class FedAvg(Method):
    about: ClassVar[About] = About("one model, the mean of what the clients trained", "McMahan et al. 2017")

    aggregate: Literal["mean", "median", "trimmed-mean"] = "mean"
    trim: Annotated[float, Field(ge=0, lt=0.5)] = 0.1  # trimmed mean: the share left out at either end

    def task(self, model: np.ndarray) -> Train:
        return Train(model)

    def round(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        trained = ask(self.task(clusters.models[0]), to=self.sample(context))
        if not len(trained):
            return clusters
        return replace(clusters, models={0: self.combine(clusters.models[0], trained, context)})

    def combine(self, model: np.ndarray, trained: TrainedClients, context: RoundContext) -> np.ndarray:
        if self.aggregate == "mean":
            return average((answer.weights for answer in trained.values()), [a.n_samples for a in trained.values()])
        # The robust ones give every client the same say: a weight would be one more thing to lie about.
        trim = (len(trained) - 1) // 2 if self.aggregate == "median" else int(self.trim * len(trained))
        ordered = np.sort(trained.stack(), axis=0)
        return ordered[trim : len(trained) - trim].mean(0, dtype=np.float64).astype(np.float32)


class FedProx(FedAvg):
    about: ClassVar[About] = About("FedAvg whose clients are held near the shared model", "Li et al. 2020")

    mu: Annotated[float, Field(ge=0)] = 0.001  # the strength of mu / 2 * |w - W|^2 in a client's loss

    def task(self, model: np.ndarray) -> Train:
        return Train(model, proximal=self.mu)


class FedNova(FedAvg):
    about: ClassVar[About] = About("FedAvg that takes out the effect of unlike numbers of steps", "Wang et al. 2020")

    def combine(self, model: np.ndarray, trained: TrainedClients, context: RoundContext) -> np.ndarray:
        steps = np.array([effective_steps(a.steps, context.training.momentum) for a in trained.values()])
        share = np.array([a.n_samples for a in trained.values()], float)
        share /= share.sum()
        directions = ((model - a.weights) / max(step, 1e-12) for a, step in zip(trained.values(), steps, strict=True))
        moved = model - float(share @ steps) * average(directions, share)
        # Running statistics are averaged as they are: they are no result of gradient steps.
        n = context.layout.n_parameters
        moved[n:] = average((a.weights[n:] for a in trained.values()), share)
        return moved.astype(np.float32)


def effective_steps(steps: int, momentum: float) -> float:
    """How far `steps` steps of gradient descent with momentum go, in steps without it."""
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
