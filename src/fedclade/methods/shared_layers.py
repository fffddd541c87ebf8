"""Models of which only some layers are shared; the others stay with the client.

- LG-FedAvg shares the last layers and keeps the representation local: Liang et al., "Think Locally, Act Globally:
  Federated Learning with Local and Global Representations", 2020.
- FedPer shares the representation and keeps the last layers local: Arivazhagan et al., "Federated Learning with
  Personalization Layers", 2019.
"""

from dataclasses import replace
from typing import Annotated, ClassVar

from pydantic import Field

from fedclade.ask import Ask
from fedclade.clients.tasks import LOCAL, Evaluate, Train
from fedclade.methods.base import About, Clusters, Method, RoundContext
from fedclade.models.weights import Layout, average


class SharedLayers(Method):
    """FedAvg on some of the layers."""

    def shared(self, layout: Layout) -> tuple[str, ...]:
        raise NotImplementedError

    def start(self, context: RoundContext, ask: Ask) -> Clusters:
        return super().start(context, ask).noting(shared=list(self.shared(context.layout)))

    def round(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        layers = self.shared(context.layout)
        model = clusters.models[0].copy()
        trained = ask(Train(model, layers=layers, start=LOCAL, upload=layers), to=self.sample(context))
        if len(trained):
            sent, rows = [a.weights for a in trained.values()], [a.n_samples for a in trained.values()]
            model[context.layout.select(layers)] = average(sent, rows)
        return replace(clusters, models={0: model})

    def serve(self, clusters: Clusters, client: str) -> Evaluate:
        return Evaluate(clusters.models[0], layers=tuple(clusters.notes["shared"]), start=LOCAL)


class LGFedAvg(SharedLayers):
    about: ClassVar[About] = About(
        "shares the last layers, keeps the first ones local", "Liang et al. 2020", sends="last layers", newcomers=False
    )

    shared_layers: Annotated[int, Field(ge=1)] = 2  # how many of the last layers are shared

    def shared(self, layout: Layout) -> tuple[str, ...]:
        return tuple(layout.layers)[-self.shared_layers :]


class FedPer(SharedLayers):
    about: ClassVar[About] = About(
        "shares the first layers, keeps the last one local",
        "Arivazhagan et al. 2019",
        sends="first layers",
        newcomers=False,
    )

    personal_layers: Annotated[int, Field(ge=1)] = 1  # how many of the last layers stay with the client

    def shared(self, layout: Layout) -> tuple[str, ...]:
        # A network of one layer shares nothing but must share something: then all of it is personal but the first.
        return tuple(layout.layers)[: -self.personal_layers] or tuple(layout.layers)[:1]
