"""FedAvg, and what differs from it by one line: FedProx and FedNova.

- McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
- Li et al., "Federated Optimization in Heterogeneous Networks" (FedProx), MLSys 2020.
- Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization" (FedNova),
  NeurIPS 2020.
"""

from dataclasses import replace
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedclade.ask import Ask, TrainedClients
from fedclade.clients.tasks import Train, effective_steps
from fedclade.methods.base import About, Clusters, Method, RoundContext


class FedAvg(Method):
    about: ClassVar[About] = About(
        "one model, the mean of what the clients trained",
        "McMahan et al. 2017",
        formula="W <- sum_i (n_i / n) w_i, over the clients i of a round with n_i rows each",
        use="when clients are alike, or as the yardstick for everything else",
    )

    def round(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        return self.trained(clusters, context.sample(), ask)


class FedProx(FedAvg):
    about: ClassVar[About] = About(
        "FedAvg whose clients are held near the shared model",
        "Li et al. 2020",
        formula="client i minimises L_i(w) + mu/2 |w - W|^2; then as FedAvg",
        use="when clients are somewhat unlike and train long between rounds",
    )

    mu: Annotated[float, Field(ge=0)] = 0.001  # the strength of mu / 2 * |w - W|^2 in a client's loss

    def task(self, model: np.ndarray) -> Train:
        return Train(model, proximal=self.mu)


class FedNova(Method):
    about: ClassVar[About] = About(
        "FedAvg that takes out the effect of unlike numbers of steps",
        "Wang et al. 2020",
        formula="W <- W - t sum_i p_i (W - w_i) / t_i, with t_i the steps of client i, p_i its share of rows "
        "and t = sum_i p_i t_i",
        use="when clients take very unlike numbers of steps",
    )

    def round(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        trained = ask(Train(clusters.models[0]), to=context.sample())
        if not len(trained):
            return clusters
        before = clusters.models[0]
        return replace(clusters, models={0: trained.step(before, self.normalised(before, trained, context))})

    def normalised(self, model: np.ndarray, trained: TrainedClients, context: RoundContext) -> np.ndarray:
        """The model moved along the combined direction of single steps, by as many steps as clients took on average.

        All three are combined by the run's rule: a robust one must not believe a number of steps either.
        """
        rule, n = trained.rule, context.layout.n_parameters
        steps = np.array([effective_steps(a.steps, context.training.momentum) for a in trained.values()])
        share = np.array([a.n_samples for a in trained.values()], float)
        share /= share.sum()
        directions = ((model - a.weights) / max(step, 1e-12) for a, step in zip(trained.values(), steps, strict=True))
        taken = float(rule.of((np.array([step]) for step in steps), share, np.zeros(1))[0])
        moved = model - taken * rule.of(directions, share, np.zeros_like(model))
        if n < len(model):  # running statistics are combined as they are: they are no result of gradient steps
            moved[n:] = rule.of((a.weights[n:] for a in trained.values()), share, model[n:])
        return moved.astype(np.float32)
