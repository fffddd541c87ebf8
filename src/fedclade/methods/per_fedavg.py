"""Per-FedAvg: one model from which every client does well after a step of its own.

Fallah, Mokhtari and Ozdaglar, "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach", NeurIPS 2020.
"""

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedclade.ask import Ask
from fedclade.clients.tasks import Evaluate, Train, Training
from fedclade.methods.base import About, Clusters, Method, RoundContext


class PerFedAvg(Method):
    about: ClassVar[About] = About("one model that each client adapts by a step of its own", "Fallah et al. 2020")

    variant: Literal["first-order", "hessian-free"] = "first-order"
    inner_rate: Annotated[float, Field(gt=0)] = 1e-2  # of a client's own step (alpha)
    outer_rate: Annotated[float, Field(gt=0)] = 1e-3  # of the shared model's steps (beta)
    adapt_epochs: Annotated[int, Field(ge=1)] = 1  # that a client trains the shared model before it is used

    def start(self, context: RoundContext, ask: Ask) -> Clusters:
        """What clients do to adapt is part of the state: serving the model needs it."""
        adapt = context.training.model_copy(
            update={"local_epochs": self.adapt_epochs, "learning_rate": self.inner_rate, "momentum": 0.0}
        )
        return super().start(context, ask).noting(adapt=adapt.model_dump())

    def round(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        meta = {"meta": self.variant, "inner_rate": self.inner_rate, "learning_rate": self.outer_rate, "momentum": 0.0}
        training = context.training.model_copy(update=meta)
        trained = ask(Train(clusters.models[0], training=training), to=self.sample(context))
        return replace(clusters, models=clusters.averaged(trained).models)

    def serve(self, clusters: Clusters, client: str) -> Evaluate:
        return Evaluate(clusters.models[0], adapt=Training(**clusters.notes["adapt"]))
