"""Models of which only some layers are shared; the others stay with the client.

- LG-FedAvg shares the last layers and keeps the representation local: Liang et al., "Think Locally, Act Globally:
  Federated Learning with Local and Global Representations", 2020.
- FedPer shares the representation and keeps the last layers local: Arivazhagan et al., "Federated Learning with
  Personalization Layers", 2019.
- FedRep, too, but by turns: a client first trains its last layers for the representation it was sent, then the
  representation for these: Collins et al., "Exploiting Shared Representations for Personalized Federated Learning",
  ICML 2021.
- FedBABU shares the representation and never trains the last layers, until every client trains the whole for itself
  in the end: Oh, Kim and Yun, "FedBABU: Toward Enhanced Representation for Federated Image Classification", ICLR 2022.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

from fedclade.ask import Ask
from fedclade.clients.tasks import LOCAL, Evaluate, Train
from fedclade.methods.base import About, Clusters, Count, Method, RoundContext, remembered
from fedclade.models.weights import Layout


@remembered
class Shared:
    layers: tuple[str, ...]


class SharedLayers(Method):
    """FedAvg on some of the layers."""

    State = Shared

    def shared(self, layout: Layout) -> tuple[str, ...]:
        raise NotImplementedError

    def start(self, context: RoundContext, ask: Ask) -> Clusters:
        return Clusters.single(context.clients, context.initial, Shared(self.shared(context.layout)))

    def round(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        shared: Shared = clusters.state
        task = Train(clusters.models[0], layers=shared.layers, start=LOCAL, upload=shared.layers)
        return self.shared_by(context.sample(), task, clusters, ask)

    def shared_by(self, clients: Iterable[str], task: Train, clusters: Clusters, ask: Ask) -> Clusters:
        """With the shared layers that some clients make together."""
        tasks = dict.fromkeys(clients, task)
        return replace(clusters, models=ask.combined(tasks, clusters.models, dict.fromkeys(tasks, 0)).models)

    def served(self, clusters: Clusters, client: str) -> Evaluate:
        return Evaluate(clusters.model_of(client), layers=clusters.state.layers, start=LOCAL)


class LGFedAvg(SharedLayers):
    about: ClassVar[About] = About(
        "shares the last layers, keeps the first ones local",
        "Liang et al. 2020",
        sends="last layers",
        newcomers=False,
        formula="w_i = (own first layers of i, mean of all last layers)",
        use="when rows look different but mean the same: other sensors, other styles",
    )

    shared_layers: Count = 2  # how many of the last layers are shared

    def shared(self, layout: Layout) -> tuple[str, ...]:
        return tuple(layout.layers)[-self.shared_layers :]


class FedPer(SharedLayers):
    about: ClassVar[About] = About(
        "shares the first layers, keeps the last one local",
        "Arivazhagan et al. 2019",
        sends="first layers",
        newcomers=False,
        formula="w_i = (mean of all first layers, own last layer of i)",
        use="when rows look the same but labels differ from client to client",
    )

    personal_layers: Count = 1  # how many of the last layers stay with the client

    def shared(self, layout: Layout) -> tuple[str, ...]:
        # A network of one layer shares nothing but must share something: then all of it is personal but the first.
        return tuple(layout.layers)[: -self.personal_layers] or tuple(layout.layers)[:1]


class FedRep(FedPer):
    about: ClassVar[About] = About(
        "shares the first layers; the last one is trained for them first, alone",
        "Collins et al. 2021",
        sends="first layers",
        newcomers=False,
        formula="h_i <- argmin L_i(body, h), then body <- mean over clients of steps on L_i(body, h_i)",
        use="when rows look the same but labels differ from client to client",
    )

    head_epochs: Count = 10  # of the last layers, before the shared ones train for training.local_epochs

    def round(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        body = clusters.state.layers
        longer = context.training.model_copy(update={"local_epochs": self.head_epochs})
        own = tuple(layer for layer in context.layout.layers if layer not in body)
        first = Train(
            clusters.models[0], layers=body, start=LOCAL, trains=own or None, upload="nothing", training=longer
        )
        ready = ask(first, to=context.sample())
        return self.shared_by(ready, Train(start=LOCAL, trains=body, upload=body), clusters, ask)


class FedBABU(FedPer):
    """What serves clients before the last round has last layers that nobody has trained."""

    about: ClassVar[About] = About(
        "shares the first layers; the last one is trained in the end only, by each client",
        "Oh et al. 2022",
        sends="first layers",
        formula="FedAvg of the first layers under a last layer that stays as it began; clients train both in the end",
        use="when clients have rows enough to train a little by themselves in the end",
    )
    serving: ClassVar[str] = "fine-tune"

    def round(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        body = clusters.state.layers
        task = Train(clusters.models[0], layers=body, trains=body, upload=body)
        return self.shared_by(context.sample(), task, clusters, ask)

    def served(self, clusters: Clusters, client: str) -> Evaluate:
        return Evaluate(clusters.model_of(client))
