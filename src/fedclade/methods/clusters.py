"""The state of a federation: who is in which cluster, the clusters' models, and what the method remembers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar, dataclass_transform

import numpy as np
from pydantic import ConfigDict, TypeAdapter

from fedclade.ask import TrainedClients
from fedclade.errors import FedcladeError, listed

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def remembered(kind: type[T]) -> type[T]:
    """A frozen dataclass of what a method remembers: plain values, arrays, and others of its kind.

    Its types are what it comes back as from a checkpoint.
    """
    kind.__pydantic_config__ = ConfigDict(arbitrary_types_allowed=True)  # type: ignore[attr-defined]
    return dataclass(frozen=True)(kind)


@dataclass(frozen=True)
class Clusters:
    """A partition of the clients, a model for each part, how it came about, and what else the method remembers."""

    members: Mapping[int, tuple[str, ...]]
    models: Mapping[int, np.ndarray]
    tree: tuple[Mapping[str, Any], ...] = ()  # every split: round, parent, children, and why
    unassigned: tuple[str, ...] = ()  # who could not be assigned yet, and waits in the largest cluster
    choices: Mapping[str, str] = field(default_factory=dict)  # what serves clients best (`fedclade.serving`)
    made: tuple[str, ...] = ()  # who keeps a model that was made for it, as chosen
    state: Any = field(default=None)  # of the type that the method declares (`Method.State`)

    @classmethod
    def single(cls, clients: Iterable[str], model: np.ndarray, state: Any = None) -> "Clusters":
        """Everybody in one cluster."""
        return cls({0: tuple(clients)}, {0: model}, state=state)

    @classmethod
    def from_labels(
        cls, clients: Sequence[str], labels: Sequence[int] | np.ndarray, model: np.ndarray, state: Any = None
    ) -> "Clusters":
        """One cluster for each label; all start from the same model."""
        groups: dict[int, list[str]] = {}
        for client, label in zip(clients, labels, strict=True):
            groups.setdefault(int(label), []).append(client)
        members = {label: tuple(groups[label]) for label in sorted(groups)}
        return cls(members, dict.fromkeys(members, model), state=state)

    def __len__(self) -> int:
        return len(self.members)

    @cached_property
    def cluster_of(self) -> Mapping[str, int]:
        """The cluster of each client."""
        return {client: cluster for cluster, clients in self.members.items() for client in clients}

    def model_of(self, client: str) -> np.ndarray:
        return self.models[self.cluster_of[client]]

    @property
    def largest(self) -> int | None:
        return min(self.members, key=lambda k: (-len(self.members[k]), k)) if self.members else None

    def averaged(self, trained: TrainedClients) -> "Clusters":
        """Each cluster's model becomes what the run's aggregation rule makes of the whole models that its members sent.

        Only those who reported count; a cluster of which nobody reported keeps its model. Where clients send some
        layers only, `ask.combined` puts them in their place.
        """
        made = {k: trained.of(clients).combined(self.models[k]) for k, clients in self.members.items()}
        return replace(self, models={**self.models, **made})

    def split(self, parent: int, parts: Sequence[Iterable[str]], round: int, **why: Any) -> "Clusters":
        """Replace a cluster by parts of it, which inherit its model and get new numbers."""
        first = 1 + max([*self.members, *(child for branch in self.tree for child in branch["children"])])
        children = {first + number: tuple(part) for number, part in enumerate(parts)}
        branch = {"round": round, "parent": parent, "children": list(children), **why}
        members = {key: clients for key, clients in self.members.items() if key != parent} | children
        models = {key: model for key, model in self.models.items() if key != parent}
        models |= dict.fromkeys(children, self.models[parent])
        return replace(self, members=members, models=models, tree=(*self.tree, branch))

    def merged(self, stays: int, goes: int, model: np.ndarray | None = None) -> "Clusters":
        """With the members of one cluster in another, which goes on with `model` or, without, with its own."""
        members, models = dict(self.members), dict(self.models)
        members[stays] = (*members[stays], *members.pop(goes))
        del models[goes]
        if model is not None:
            models[stays] = model
        return replace(self, members=members, models=models)

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
        waiting = tuple(name for name in self.unassigned if name not in gone)
        return replace(self, members={key: part for key, part in left.items() if part}, unassigned=waiting)

    def remembering(self, state: Any) -> "Clusters":
        return replace(self, state=state)

    def check(self, clients: Iterable[str]) -> "Clusters":
        """This state, after making sure that it is a partition of the clients with a model for each part."""
        held = [client for part in self.members.values() for client in part]
        wanted = set(clients)
        missing, strange = sorted(wanted - set(held)), sorted(set(held) - wanted)
        wrong = None
        if missing or strange:
            wrong = f"leave out {listed(missing, 3)}" if missing else f"hold {listed(strange, 3)}, who is not there"
        elif len(held) > len(wanted):
            wrong = "hold a client twice"
        elif not all(self.members.values()):
            wrong = "hold an empty cluster"
        elif not set(self.members) <= set(self.models):
            wrong = "have no model for a cluster"
        if wrong:
            raise FedcladeError(f"the method's clusters {wrong}: they must be a partition of the clients")
        for cluster, model in self.models.items():
            if model.dtype != np.float32 or model.ndim != 1:
                told = f"{model.dtype} of shape {model.shape}"
                raise FedcladeError(f"the method's model of cluster {cluster} is {told}: return a vector of float32")
        return self

    # On the disk and back

    def to_plain(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {
            "members": dict(self.members),
            "models": dict(self.models),
            "tree": list(self.tree),
            "unassigned": list(self.unassigned),
            "choices": dict(self.choices),
            "made": list(self.made),
            "state": self.state,
        }

    @classmethod
    def from_plain(cls, saved: Mapping[str, Any], kind: type | None) -> "Clusters":
        """From a checkpoint of a method whose state is of this type."""
        members = {int(cluster): tuple(clients) for cluster, clients in saved["members"].items()}
        state = None if kind is None or saved["state"] is None else TypeAdapter(kind).validate_python(saved["state"])
        tree, waiting, made = (tuple(saved[name]) for name in ("tree", "unassigned", "made"))
        return cls(members, saved["models"], tree, waiting, dict(saved["choices"]), made, state)
