"""Per-FedAvg: one model from which every client does well after a step of its own.

Fallah, Mokhtari and Ozdaglar, "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach", NeurIPS 2020.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedclade.ask import Ask
from fedclade.clients.tasks import Evaluate, Train, Training
from fedclade.methods.base import About, Clusters, Count, Method, RoundContext, remembered


@remembered
class Adaptation:
    """What a client does to the shared model before it uses it."""

    training: Training


class PerFedAvg(Method):
    about: ClassVar[About] = About(
        "one model that each client adapts by a step of its own",
        "Fallah et al. 2020",
        formula="W minimises sum_i L_i(W - alpha grad L_i(W))",
        use="when newcomers must get a good model of their own within a step or an epoch",
    )
    State = Adaptation

    variant: Literal["first-order", "hessian-free"] = "first-order"  # how the meta step is worked out
    inner_rate: Annotated[float, Field(gt=0)] = 1e-2  # of a client's own step (alpha)
    outer_rate: Annotated[float, Field(gt=0)] = 1e-3  # of the shared model's steps (beta)
    adapt_epochs: Count = 1  # that a client trains the shared model before it is used

    def start(self, context: RoundContext, ask: Ask) -> Clusters:
        change = {"local_epochs": self.adapt_epochs, "learning_rate": self.inner_rate, "momentum": 0.0}
        adaptation = Adaptation(context.training.model_copy(update=change))
        return Clusters.single(context.clients, context.initial, adaptation)

    def round(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        meta = {"meta": self.variant, "inner_rate": self.inner_rate, "learning_rate": self.outer_rate, "momentum": 0.0}
        training = context.training.model_copy(update=meta)
        return clusters.averaged(ask(Train(clusters.models[0], training=training), to=context.sample()))

    def served(self, clusters: Clusters, client: str) -> Evaluate:
        adaptation: Adaptation = clusters.state
        return Evaluate(clusters.model_of(client), adapt=adaptation.training)
