"""The two ends between which federated learning lies: every client alone, and all rows in one place."""

from dataclasses import replace
from typing import ClassVar

import numpy as np

from fedclade.ask import Ask
from fedclade.clients.tasks import LOCAL, SERVER, Describe, Evaluate, Train
from fedclade.errors import FedcladeError
from fedclade.methods.base import About, Clusters, Method, RoundContext, nobody_answered, remembered


class Local(Method):
    """Every client trains a model of its own and sends nothing."""

    about: ClassVar[About] = About(
        "every client trains alone",
        "-",
        sends="nothing",
        newcomers=False,
        formula="w_i <- train(w_i) for each client i; nothing is shared",
        use="as a yardstick: whoever is better off alone gains nothing from a federation",
    )

    def round(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        ask(Train(start=LOCAL, upload="nothing"), to=context.sample())
        return clusters

    def served(self, clusters: Clusters, client: str) -> Evaluate:
        return Evaluate(start=LOCAL)


@remembered
class Pool:
    """Everybody's training rows, as they came."""

    rows: np.ndarray
    labels: np.ndarray


class Centralized(Method):
    """All rows are collected in one place: what federated learning is there to avoid, and the yardstick for it."""

    about: ClassVar[About] = About(
        "one model trained on all rows in one place",
        "-",
        timing="-",
        sends="raw rows",
        needs_labels=True,
        formula="W <- train(W) on the union of all rows",
        use="as a yardstick, where rows may be pooled: what one model could reach",
    )
    State = Pool

    def start(self, context: RoundContext, ask: Ask) -> Clusters:
        told = ask(Describe("rows"), to=context.clients, phase="raw rows")
        if not len(told):
            raise nobody_answered(ask)
        rows, labels = (np.concatenate([a.values[name] for a in told.values()]) for name in ("rows", "labels"))
        return Clusters.single(context.clients, context.initial, Pool(rows, labels))

    def round(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        pool: Pool = clusters.state
        task = Train(clusters.models[0], rows=pool.rows, labels=pool.labels, save="")
        trained = ask.server({SERVER: task})
        if trained.failures:
            why = trained.failures[SERVER]
            raise FedcladeError(f"the server cannot train ({why}): mend the training settings, e.g. learning_rate")
        return replace(clusters, models={0: trained[SERVER].weights})
