"""The two ends between which federated learning lies: every client alone, and all rows in one place."""

from dataclasses import replace
from typing import ClassVar

from fedclade.ask import Ask
from fedclade.clients.tasks import LOCAL, SERVER, Describe, Evaluate, Train
from fedclade.data.federation import Federation
from fedclade.errors import FedcladeError
from fedclade.methods.base import About, Clusters, Method, RoundContext


class Local(Method):
    """Every client trains a model of its own and sends nothing."""

    about: ClassVar[About] = About("every client trains alone", "-", sends="nothing", newcomers=False)

    def round(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        ask(Train(start=LOCAL, upload="nothing"), to=self.sample(context))
        return clusters

    def serve(self, clusters: Clusters, client: str) -> Evaluate:
        return Evaluate(start=LOCAL)


class Centralized(Method):
    """All rows are collected in one place: what federated learning is there to avoid, and the yardstick for it."""

    about: ClassVar[About] = About("one model trained on all rows in one place", "-", timing="-", sends="raw rows")

    def arrange(self, federation: Federation) -> Federation:
        return federation.pooled(SERVER)

    def start(self, context: RoundContext, ask: Ask) -> Clusters:
        ask(Describe("rows"), to=context.clients, phase="raw rows")
        return super().start(context, ask)

    def round(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        trained = ask(Train(clusters.models[0]), to=[SERVER], phase="server")
        if trained.failures:
            why = trained.failures[SERVER]
            raise FedcladeError(f"the server cannot train ({why}): mend the training settings, e.g. learning_rate")
        return replace(clusters, models={0: trained[SERVER].weights})
