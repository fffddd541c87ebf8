"""pFedMe: each client has the model that is best for it near the shared one, which follows these models.

Dinh, Tran and Nguyen, "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020.

For every batch a client takes `steps` steps of `personal_rate` down its loss + strength / 2 * |own - w|^2, then moves
its w by rate * strength * (own - w). The server moves the shared model to the mean of the clients' w, or (beta) beyond.
Defaults are those that the authors' code is run with on MNIST, where all methods have the same rate (eta).
"""

from dataclasses import replace
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedclade.ask import Ask
from fedclade.clients.tasks import PERSONAL, Envelope, Evaluate, Train
from fedclade.methods.base import About, Clusters, Count, Method, RoundContext

Positive = Annotated[float, Field(gt=0)]


class PFedMe(Method):
    about: ClassVar[About] = About(
        "a model of its own for each client, which the shared one follows",
        "Dinh et al. 2020",
        formula="v_i minimises L_i(v) + lambda/2 |v - w|^2; w <- w - eta lambda (w - v_i)",
        use="when every client is a little different and rounds are many: it learns slowly",
    )

    strength: Positive = 15.0  # of strength / 2 * |own - w|^2 in the loss of a client's own model (lambda)
    rate: Positive | None = None  # of the shared model's steps (eta); None: the run's learning_rate
    personal_rate: Positive = 0.09  # of the own model's steps
    steps: Count = 5  # of the own model, for each batch (K)
    beta: Positive = 1.0  # how far the shared model goes to the mean of the clients'; above 1: beyond it

    def round(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        training = context.training.model_copy(update={"learning_rate": self.rate or context.training.learning_rate})
        before = clusters.models[0]
        task = Train(before, training=training, beside=Envelope(self.strength, self.personal_rate, self.steps))
        clients = context.sample()
        after = ask.combined(dict.fromkeys(clients, task), clusters.models, dict.fromkeys(clients, 0)).models[0]
        if self.beta != 1:
            moved = (before + self.beta * (after.astype(np.float64) - before)).astype(np.float32)
            ask.stepping.hand_on(after, moved)
            after = moved
        return replace(clusters, models={0: after})

    def served(self, clusters: Clusters, client: str) -> Evaluate:
        return Evaluate(start=PERSONAL, otherwise=clusters.model_of(client))
