"""Models of which only some layers are shared; the others stay with the client.

- LG-FedAvg shares the last layers and keeps the representation local: Liang et al., "Think Locally, Act Globally:
  Federated Learning with Local and Global Representations", 2020.
- FedPer shares the representation and keeps the last layers local: Arivazhagan et al., "Federated Learning with
  Personalization Layers", 2019.
"""

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
        model, place = clusters.models[0].copy(), context.layout.select(shared.layers)
        task = Train(model, layers=shared.layers, start=LOCAL, upload=shared.layers)
        clients = context.sample()
        combined = ask.combined(dict.fromkeys(clients, task), {0: model[place]}, dict.fromkeys(clients, 0))
        model = model.copy()
        model[place] = combined.models[0]
        return replace(clusters, models={0: model})

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
