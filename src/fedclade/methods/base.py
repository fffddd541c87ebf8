"""What every method shares: its settings, its state, and the two steps it is made of.

A method is written in direct style: `start` makes the first clusters, `round` takes them one round further. Both get
the `roster` (who there is, the initial model, this round's random streams) and `ask` (send tasks to clients, get their
answers). All state is in the `Clusters` that they return, so a run can stop and go on anywhere.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fedclade.asking import Ask, TrainedClients
from fedclade.clients.tasks import Evaluate, Training
from fedclade.data.federation import Federation
from fedclade.models.weights import Layout, average
from fedclade.randomness import stream


@dataclass(frozen=True)
class Roster:
    """Who takes part, and what everybody knows."""

    clients: tuple[str, ...]
    initial: np.ndarray
    layout: Layout
    training: Training
    seed: int
    round: int = 0

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

    def noting(self, **notes: Any) -> "Clusters":
        return replace(self, notes={**self.notes, **notes})

    def check(self, clients: Iterable[str]) -> "Clusters":
        """This state, after making sure that it is a partition of the clients with a model for each part."""
        held = sorted(client for part in self.members.values() for client in part)
        if held != sorted(clients) or not all(self.members.values()) or not set(self.members) <= set(self.models):
            raise AssertionError("clusters must be disjoint, not empty, cover all clients and have a model each")
        return self


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

    def start(self, roster: Roster, ask: Ask) -> Clusters:
        """The clusters before the first round."""
        return Clusters.single(roster.clients, roster.initial)

    def round(self, clusters: Clusters, roster: Roster, ask: Ask) -> Clusters:
        """One round further."""
        raise NotImplementedError

    def serve(self, clusters: Clusters, client: str) -> Evaluate:
        """The model that a client gets, as the task that evaluates it."""
        return Evaluate(clusters.model_of(client))

    def sample(self, roster: Roster) -> list[str]:
        """The clients of this round: a random `fraction` of all, at least one, in the roster's order."""
        count = max(int(self.fraction * len(roster.clients) + 1e-9), 1)
        chosen = roster.random("sample").permutation(len(roster.clients))[:count]
        return [roster.clients[k] for k in sorted(chosen)]
