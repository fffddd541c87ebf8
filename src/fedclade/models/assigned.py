"""Which network each client trains, and which one the clusters hold.

Mostly they are one and the same. Where clients are free to choose (FedStack), each trains a network of its own, and
what clusters hold is another one, which reads the class probabilities that those put out: of the client's own network,
or of several side by side.
"""

import functools
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fedclade.models import Factory, Shape, make
from fedclade.models.weights import assembled

if TYPE_CHECKING:
    from torch import nn

Spec = str | Factory  # a network by name, or a user's own
Seats = tuple[tuple[str, np.ndarray] | None, ...]  # networks and their weights, side by side; None: a seat stays empty
Through = str | Seats  # what the clusters' network reads: the model of a slot of the client's memory, or these


@dataclass(frozen=True)
class Networks:
    """The networks of a run by name. The one without a name is the clusters', and everybody's who has no other."""

    factories: "Mapping[str, Callable[[], nn.Module]]"
    of: Mapping[str, str] = field(default_factory=dict)  # the network of each client that has one of its own
    specs: tuple[Spec, ...] = ()  # what clients train, as it was named

    @classmethod
    def shared(cls, spec: Spec, input_shape: Shape, n_classes: int) -> "Networks":
        """One network for everybody."""
        return cls({"": functools.partial(make, spec, input_shape, n_classes)}, specs=(spec,))

    @classmethod
    def stacked(
        cls,
        top: Spec,
        specs: Sequence[Spec],
        clients: Sequence[str],
        input_shape: Shape,
        n_classes: int,
        seats: int = 1,
    ) -> "Networks":
        """Clients train these networks by turns; clusters hold `top`, which reads class probabilities of `seats`."""
        names = [spec if isinstance(spec, str) else f"own-{place}" for place, spec in enumerate(specs)]
        factories = {"": functools.partial(make, top, (seats * n_classes,), n_classes)}
        for name, spec in zip(names, specs, strict=True):
            factories[name] = functools.partial(make, spec, input_shape, n_classes)
        return cls(factories, {client: names[turn % len(names)] for turn, client in enumerate(clients)}, tuple(specs))

    def name(self, client: str, through: Through = "") -> str:
        """The network whose weights a task for this client speaks of."""
        return "" if through else self.of.get(client, "")

    def make(self, client: str, through: Through = "") -> "nn.Module":
        """The network that serves a client: its own; with `through`, the clusters' behind its own or behind others."""
        if not isinstance(through, str):
            from fedclade.models.networks import SideBySide

            below = [self.factories[seat[0]]() if seat else None for seat in through]
            return SideBySide(below, self.factories[""]())
        from torch import nn

        own = self.factories[self.name(client)]()
        if not through:
            return own
        layers = OrderedDict(own=own, probabilities=nn.Softmax(1), cluster=self.factories[""]())
        return nn.Sequential(layers)


def stacked_weights(
    module: "nn.Module", through: Through, cluster: np.ndarray, kept: Callable[[str], np.ndarray]
) -> np.ndarray:
    """The weights of a module that `Networks.make` has made: of what is below, and of the clusters' network above."""
    if isinstance(through, str):
        return assembled(module, own=kept(through), cluster=cluster)
    taken = [seat[1] for seat in through if seat]
    return assembled(module, cluster=cluster, **{f"below.{place}": weights for place, weights in enumerate(taken)})


def as_networks(networks: "Networks | Callable[[], nn.Module]") -> Networks:
    """A function that makes a network stands for one network for everybody."""
    return networks if isinstance(networks, Networks) else Networks({"": networks})


def specs_of(model: Any) -> tuple[Spec, ...]:
    """What a user named as the model: one network, several (`"ann,cnn1d"`, or a list), or none."""
    if isinstance(model, str):
        return tuple(name.strip() for name in model.split(","))
    return () if model is None else tuple(model) if isinstance(model, list | tuple) else (model,)
