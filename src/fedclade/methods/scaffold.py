"""SCAFFOLD: FedAvg whose clients correct their steps by how their gradients differ from everybody's.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020 (option II).

Each client keeps the mean gradient of its last training, the server that of all clients; both travel, so that twice
as much is sent as by FedAvg, each way. Steps with momentum are counted by how far they go; with Adam, or averaged over
epochs, they are no measure of gradients, so that plain SGD must train.
"""

from dataclasses import replace
from typing import ClassVar

import numpy as np

from fedclade.ask import Ask
from fedclade.clients.tasks import Train
from fedclade.errors import FedcladeError
from fedclade.methods.base import About, Clusters, Method, RoundContext, remembered


@remembered
class Control:
    """All clients' mean gradient."""

    mean: np.ndarray


class Scaffold(Method):
    about: ClassVar[About] = About(
        "FedAvg whose clients correct their drift",
        "Karimireddy et al. 2020",
        sends="model and gradient",
        formula="w_i <- w_i - eta (gradient - c_i + c); c_i is what client i pulls to, c the mean of all",
        use="when one model should serve all, clients differ, and twice the bytes are no matter",
    )
    State = Control

    def start(self, context: RoundContext, ask: Ask) -> Clusters:
        if context.training.optimizer != "sgd":
            raise FedcladeError("method 'scaffold' needs SGD steps to know gradients: set training.optimizer=sgd")
        if context.training.averaged:
            raise FedcladeError("method 'scaffold' reads gradients off the last weights: leave training.averaged at 0")
        return super().start(context, ask).remembering(Control(np.zeros_like(context.initial)))

    def round(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        known: Control = clusters.state
        trained = ask(Train(clusters.models[0], control=known.mean), to=context.sample())
        changes = [answer.control for answer in trained.values() if answer.control is not None]
        if not changes:
            return clusters
        # Every client has the same say in it; who did not answer has not changed.
        mean = trained.rule.of(changes, [1.0] * len(changes), np.zeros_like(known.mean))
        share = len(changes) / len(context.clients)
        moved = Control((known.mean + share * mean).astype(np.float32))
        return replace(clusters, models={0: trained.combined(clusters.models[0])}, state=moved)
