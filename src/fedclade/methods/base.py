"""What every method shares: its settings, its state, and the two steps it is made of.

A method is written in direct style: `start` makes the first clusters, `round` takes them one round further. Both get
the `context` (who takes part, the initial model, this round's random streams) and `ask` (send tasks to clients, get
their answers). All state is in the `Clusters` that they return, so a run can stop and go on anywhere.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fedclade.ask import Ask
from fedclade.clients.objective import ACCURACY, Metric
from fedclade.clients.tasks import Evaluate, Train, Training
from fedclade.errors import FedcladeError
from fedclade.methods.clusters import Clusters, remembered
from fedclade.models import default_model
from fedclade.models.assigned import Networks, Spec
from fedclade.models.weights import Layout
from fedclade.randomness import stream

Count = Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class RoundContext:
    """Who takes part in a round, and what everybody knows."""

    clients: tuple[str, ...]
    initial: np.ndarray
    layout: Layout
    training: Training
    seed: int
    round: int = 0
    rounds: int = 0  # of the whole run; 0: nobody knows
    participation: float = 1.0  # the share of clients that take part in a round
    is_evaluated: bool = True  # whether the models of this round are evaluated
    input_shape: tuple[int, ...] = ()  # of one row
    n_classes: int = 0
    metric: Metric = ACCURACY  # the main one of the task
    network_of: Mapping[str, str] = field(default_factory=dict)  # of clients that train another than the clusters'

    def only(self, clients: Iterable[str]) -> "RoundContext":
        """The same context for some of the clients."""
        wanted = set(clients)
        return replace(self, clients=tuple(name for name in self.clients if name in wanted))

    def random(self, purpose: str) -> np.random.Generator:
        """The server's random stream for one purpose in this round."""
        return stream(self.seed, purpose, round=self.round)

    def sample(self) -> list[str]:
        """The clients that take part in this round: a random share of all, at least one, in their order."""
        count = max(int(self.participation * len(self.clients) + 1e-9), 1)
        chosen = self.random("sample").permutation(len(self.clients))[:count]
        return [self.clients[k] for k in sorted(chosen)]


@dataclass(frozen=True)
class Placement:
    """Where a newcomer belongs, and why."""

    cluster: int | None  # None: it fits none of them and gets a cluster of its own
    distances: Mapping[int, float]  # to every cluster, the nearest has the smallest
    measure: str  # what the distances are: "training loss", "distance of last layers", ...
    limit: float | None = None  # who is farther than this from every cluster gets one of its own
    confidence: float | None = None  # how much nearer the cluster is than the next: 0 to 1
    at_home: float | None = None  # the share of members who would be placed where they are, where the method says so


@dataclass(frozen=True)
class About:
    """A method in a few words, for `fedclade methods` and the documentation."""

    summary: str
    paper: str
    finds: str = "one model"  # "one model", "a given number", "the number too"
    timing: str = "every round"  # "every round", "one shot", ...
    sends: str = "model"
    newcomers: bool = True
    needs_labels: bool = False  # of classes: it looks at them beyond training on them
    formula: str = ""  # its idea in a line
    use: str = ""  # when to use it


class Method(BaseModel):
    """The server's side of a paper. Fields are its settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
    about: ClassVar[About] = About("a method that does not describe itself", "-")
    serving: ClassVar[str] = "model"  # what serves its clients, unless a run says otherwise (`fedclade.serving`)
    State: ClassVar[type | None] = None  # what it remembers between rounds: a dataclass made with `@remembered`

    def __setattr__(self, name: str, value: Any) -> None:
        raise FedcladeError(
            f"method {type(self).__name__}: it assigns to self.{name}; settings stay as they are, and what a method "
            "remembers goes into Clusters.remembering(...)"
        )

    def networks(
        self, models: Sequence[Spec], clients: Sequence[str], input_shape: tuple[int, ...], n_classes: int
    ) -> Networks:
        """The networks of a run, given the models that were named: by default one, which clients and clusters share."""
        if len(models) > 1:
            raise FedcladeError(
                "models that are averaged must be of one kind: name one model, or use method 'fedstack'"
            )
        return Networks.shared(models[0] if models else default_model(input_shape), input_shape, n_classes)

    def start(self, context: RoundContext, ask: Ask) -> Clusters:
        """The clusters before the first round."""
        return Clusters.single(context.clients, context.initial)

    def round(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        """One round further."""
        raise FedcladeError(f"method {type(self).__name__} has no `round`: write round(self, clusters, context, ask)")

    def served(self, clusters: Clusters, client: str) -> Evaluate:
        """What serves a client, as the task that evaluates it: for evaluation, `Result.model_for` and newcomers."""
        return Evaluate(clusters.model_of(client))

    def task(self, model: np.ndarray) -> Train:
        """How a cluster model is trained by one of its members."""
        return Train(model)

    def trained(self, clusters: Clusters, clients: Iterable[str], ask: Ask) -> Clusters:
        """The usual round: clients train their cluster's model, and it becomes what they make of it together."""
        tasks = {k: self.task(model) for k, model in clusters.models.items()}
        home = clusters.cluster_of
        combined = ask.combined({client: tasks[home[client]] for client in clients}, clusters.models, home)
        return replace(clusters, models=combined.models)

    # Newcomers

    def place(self, clusters: Clusters, context: RoundContext, ask: Ask) -> dict[str, Placement]:
        """Where newcomers (the context's clients) belong: by default with the model of lowest loss on their rows.

        A newcomer that does not answer is left out, and can be tried again.
        """
        if len(clusters.models) == 1:
            return {
                client: Placement(next(iter(clusters.models)), {}, "there is one model") for client in context.clients
            }
        losses: dict[str, dict[int, float]] = {}
        for cluster, model in clusters.models.items():
            for client, answer in ask(Evaluate(model, on="train"), to=context.clients, phase="place").items():
                losses.setdefault(client, {})[cluster] = answer.loss
        return {client: Placement(nearest(near), near, "training loss") for client, near in losses.items()}

    def looks_through(self, clusters: Clusters, initial: np.ndarray) -> np.ndarray:
        """The model whose features say where newcomers without labels belong (`PlacesUnlabelled`)."""
        return initial

    def admit(self, clusters: Clusters, newcomers: Iterable[str], context: RoundContext, ask: Ask) -> Clusters:
        """Assign newcomers, and those who missed the clustering; whoever does not answer waits in the largest."""
        new = set(newcomers)
        waiting = [client for client in context.clients if client in new]
        if not waiting:
            return clusters
        placements = self.place(clusters, context.only(waiting), ask)
        largest = clusters.largest
        for client in waiting:
            place = placements[client].cluster if client in placements else largest
            clusters = clusters.joined(client, place, context.initial)
        shown = {c: {"cluster": p.cluster, "distances": dict(p.distances)} for c, p in placements.items()}
        ask.record("placements", **ask.records.get("placements", {}), **shown)
        unassigned = {*clusters.unassigned, *waiting} - set(placements)
        return replace(clusters, unassigned=tuple(sorted(unassigned)))

    def retry(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        """Try again to assign those who are still waiting for it."""
        unassigned = set(clusters.unassigned)
        waiting = [client for client in context.clients if client in unassigned]
        if not waiting:
            return clusters
        return self.admit(clusters.without(waiting), waiting, context, ask)


@runtime_checkable
class PlacesUnlabelled(Protocol):
    """A method that can place newcomers of whom only rows are known."""

    size: int  # numbers of a sketch

    def place_unlabelled(
        self, clusters: Clusters, rows: Mapping[str, Mapping[str, np.ndarray]]
    ) -> dict[str, Placement]: ...


def nobody_answered(ask: Ask) -> FedcladeError:
    """The error of a clustering round in which every client failed, with the last one's reason."""
    why = f" ({ask.failures[-1]['failure']})" if ask.failures else ""
    return FedcladeError(
        f"no client answered the clustering round{why}: mend the clients or the training settings, and run again"
    )


def nearest(distances: Mapping[int, float]) -> int:
    """The nearest cluster; ties go to the smallest number."""
    return min(distances, key=lambda cluster: (distances[cluster], cluster))


__all__ = [
    "About",
    "Clusters",
    "Count",
    "Method",
    "Placement",
    "PlacesUnlabelled",
    "RoundContext",
    "nearest",
    "nobody_answered",
    "remembered",
]
