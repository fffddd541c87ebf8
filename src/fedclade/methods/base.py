"""What every method shares: its settings, its state, and the two steps it is made of.

A method is written in direct style: `start` makes the first clusters, `round` takes them one round further. Both get
the `context` (who there is, the initial model, this round's random streams) and `ask` (send tasks to clients, get their
answers). All state is in the `Clusters` that they return, so a run can stop and go on anywhere.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fedclade.ask import Ask, TrainedClients
from fedclade.clients.tasks import Evaluate, Training
from fedclade.data.federation import Federation
from fedclade.errors import FedcladeError
from fedclade.models import default_model
from fedclade.models.assigned import Networks, Spec
from fedclade.models.weights import Layout, average
from fedclade.randomness import stream


@dataclass(frozen=True)
class RoundContext:
    """Who takes part, and what everybody knows."""

    clients: tuple[str, ...]
    initial: np.ndarray
    layout: Layout
    training: Training
    seed: int
    round: int = 0
    input_shape: tuple[int, ...] = ()  # of one row
    n_classes: int = 0
    network_of: Mapping[str, str] = field(default_factory=dict)  # of clients that train another than the clusters'

    def only(self, clients: Iterable[str]) -> "RoundContext":
        """The same context for some of the clients."""
        wanted = set(clients)
        return replace(self, clients=tuple(name for name in self.clients if name in wanted))

    def random(self, purpose: str) -> np.random.Generator:
        """The server's random stream for one purpose in this round."""
        return stream(self.seed, purpose, round=self.round)


@dataclass(frozen=True)
class Clusters:
    """The state of a federation: a partition of the clients, a model for each part, and how it came about."""

    members: Mapping[int, tuple[str, ...]]
    models: Mapping[int, np.ndarray]
    tree: tuple[Mapping[str, Any], ...] = ()  # every split: round, parent, children, and why
    notes: Mapping[str, Any] = field(default_factory=dict)  # what else the method remembers: plain values and arrays

    @classmethod
    def single(cls, clients: Iterable[str], model: np.ndarray) -> "Clusters":
        """Everybody in one cluster."""
        return cls({0: tuple(clients)}, {0: model})

    @classmethod
    def from_labels(cls, clients: Sequence[str], labels: Sequence[int] | np.ndarray, model: np.ndarray) -> "Clusters":
        """One cluster for each label; all start from the same model."""
        groups: dict[int, list[str]] = {}
        for client, label in zip(clients, labels, strict=True):
            groups.setdefault(int(label), []).append(client)
        members = {label: tuple(groups[label]) for label in sorted(groups)}
        return cls(members, dict.fromkeys(members, model))

    def __len__(self) -> int:
        return len(self.members)

    @property
    def cluster_of(self) -> dict[str, int]:
        return {client: cluster for cluster, clients in self.members.items() for client in clients}

    def model_of(self, client: str) -> np.ndarray:
        return self.models[self.cluster_of[client]]

    def averaged(self, trained: TrainedClients) -> "Clusters":
        """Each cluster's model becomes the mean of what its members sent, weighted by their rows.

        Only those who reported count; a cluster of which nobody reported keeps its model.
        """
        models = dict(self.models)
        for cluster, clients in self.members.items():
            reports = trained.of(clients)
            if len(reports):
                weights = [answer.n_samples for answer in reports.values()]
                models[cluster] = average((answer.weights for answer in reports.values()), weights)
        return replace(self, models=models)

    def split(self, parent: int, parts: Sequence[Iterable[str]], round: int, **why: Any) -> "Clusters":
        """Replace a cluster by parts of it, which inherit its model and get new numbers."""
        first = 1 + max([*self.members, *(child for branch in self.tree for child in branch["children"])])
        children = {first + number: tuple(part) for number, part in enumerate(parts)}
        branch = {"round": round, "parent": parent, "children": list(children), **why}
        members = {key: clients for key, clients in self.members.items() if key != parent} | children
        models = {key: model for key, model in self.models.items() if key != parent}
        models |= dict.fromkeys(children, self.models[parent])
        return Clusters(members, models, (*self.tree, branch), self.notes)

    def joined(self, client: str, cluster: int | None, model: np.ndarray) -> "Clusters":
        """With a newcomer in one of the clusters, or (None) in a new one of its own that starts from `model`."""
        if cluster is None:
            cluster = 1 + max([*self.members, *self.models, *(c for branch in self.tree for c in branch["children"])])
            return replace(self, members={**self.members, cluster: (client,)}, models={**self.models, cluster: model})
        return replace(self, members={**self.members, cluster: (*self.members.get(cluster, ()), client)})

    def without(self, clients: Iterable[str]) -> "Clusters":
        """After some clients left. A cluster that is empty now is closed; its model stays, for newcomers may fit it."""
        gone = set(clients)
        left = {key: tuple(name for name in part if name not in gone) for key, part in self.members.items()}
        return replace(self, members={key: part for key, part in left.items() if part})

    def noting(self, **notes: Any) -> "Clusters":
        return replace(self, notes={**self.notes, **notes})

    def check(self, clients: Iterable[str]) -> "Clusters":
        """This state, after making sure that it is a partition of the clients with a model for each part."""
        held = sorted(client for part in self.members.values() for client in part)
        if held != sorted(clients) or not all(self.members.values()) or not set(self.members) <= set(self.models):
            raise AssertionError("clusters must be disjoint, not empty, cover all clients and have a model each")
        return self


@dataclass(frozen=True)
class Placement:
    """Where a newcomer belongs, and why."""

    cluster: int | None  # None: it fits none of them and gets a cluster of its own
    distances: Mapping[int, float]  # to every cluster, the nearest has the smallest
    measure: str  # what the distances are: "training loss", "distance of last layers", ...
    limit: float | None = None  # who is farther than this from every cluster gets one of its own


@dataclass(frozen=True)
class About:
    """One line on a method for `fedclade methods`."""

    summary: str
    paper: str
    finds: str = "one model"  # "one model", "a given number", "the number too"
    timing: str = "every round"  # "every round", "one shot", ...
    sends: str = "model"
    newcomers: bool = True


class Method(BaseModel):
    """The server's side of a paper. Fields are its settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
    about: ClassVar[About]

    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0  # of the clients that take part in a round

    def arrange(self, federation: Federation) -> Federation:
        """Who trains on what. Only Centralized changes it."""
        return federation

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
        raise NotImplementedError

    def serve(self, clusters: Clusters, client: str) -> Evaluate:
        """The model that a client gets, as the task that evaluates it."""
        return Evaluate(clusters.model_of(client))

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

    def admit(self, clusters: Clusters, newcomers: Iterable[str], context: RoundContext, ask: Ask) -> Clusters:
        """Give newcomers, and those who missed the clustering, their place.

        Whoever does not answer waits in the largest cluster and is noted as `unassigned`.
        """
        waiting = [client for client in context.clients if client in set(newcomers)]
        if not waiting:
            return clusters
        placements = self.place(clusters, context.only(waiting), ask)
        largest = min(clusters.members, key=lambda k: (-len(clusters.members[k]), k)) if clusters.members else None
        for client in waiting:
            place = placements[client].cluster if client in placements else largest
            clusters = clusters.joined(client, place, context.initial)
        ask.record(
            "placements", **{c: {"cluster": p.cluster, "distances": dict(p.distances)} for c, p in placements.items()}
        )
        unassigned = (set(clusters.notes.get("unassigned", ())) | set(waiting)) - set(placements)
        return (
            clusters.noting(unassigned=sorted(unassigned)) if unassigned or "unassigned" in clusters.notes else clusters
        )

    def retry(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        """Try again to place those who are still waiting for their place."""
        waiting = [client for client in context.clients if client in set(clusters.notes.get("unassigned", ()))]
        return self.admit(clusters.without(waiting), waiting, context, ask) if waiting else clusters

    def sample(self, context: RoundContext) -> list[str]:
        """The clients of this round: a random `fraction` of all, at least one, in the context's order."""
        count = max(int(self.fraction * len(context.clients) + 1e-9), 1)
        chosen = context.random("sample").permutation(len(context.clients))[:count]
        return [context.clients[k] for k in sorted(chosen)]


def nobody_answered(ask: Ask) -> FedcladeError:
    """The error of a clustering round in which every client failed, with the last one's reason."""
    why = f" ({ask.failures[-1]['failure']})" if ask.failures else ""
    return FedcladeError(
        f"no client answered the clustering round{why}: mend the clients or the training settings, and run again"
    )


def nearest(distances: Mapping[int, float]) -> int:
    """The nearest cluster; ties go to the smallest number."""
    return min(distances, key=lambda cluster: (distances[cluster], cluster))
