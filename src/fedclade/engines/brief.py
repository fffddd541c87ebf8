"""What the server tells a node with every task. A node starts a new process for each message and knows nothing else."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from pydantic import BaseModel

from fedclade.clients.objective import Objective, objective_class, record_of
from fedclade.clients.tasks import Training
from fedclade.data import DataOptions, Preprocessing
from fedclade.errors import FedcladeError
from fedclade.models import make
from fedclade.models.assigned import Networks, Spec


@dataclass(frozen=True)
class Brief:
    run: str  # the name under which a node keeps what it remembers of this run
    session: str  # changes each time the server starts
    since: int  # the last round that counted when it started; a node forgets what it did later
    seed: int
    training: Training
    classes: tuple[str, ...]
    task: Objective  # what networks are trained for
    options: DataOptions  # how own data are read
    preprocessing: Preprocessing | None  # what makes their features; None: they are as they should be
    rows: int | None  # training rows that a client keeps at most
    recipes: Mapping[str, tuple[str, tuple[int, ...], int]]  # of every network: its name, the shape of a row, classes
    network: str  # which of them this client trains

    def to_json(self) -> dict[str, Any]:
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        models = {name: value.model_dump(mode="json") for name, value in plain.items() if isinstance(value, BaseModel)}
        return {**plain, **models, "task": record_of(self.task)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Brief":
        recipes = {name: (spec, tuple(shape), n) for name, (spec, shape, n) in values["recipes"].items()}
        task = dict(values["task"])
        made = {
            "task": objective_class(task.pop("name"))(**task),
            "classes": tuple(values["classes"]),
            "training": Training(**values["training"]),
            "options": DataOptions(**values["options"]),
            "preprocessing": values["preprocessing"] and Preprocessing.model_validate(values["preprocessing"]),
            "recipes": recipes,
        }
        return cls(**{**values, **made})

    def networks(self, client: str) -> Networks:
        factories = {name: functools.partial(make, *recipe) for name, recipe in self.recipes.items()}
        return Networks(factories, {client: self.network} if self.network else {})


def recipes_of(networks: Networks) -> dict[str, tuple[str, tuple[int, ...], int]]:
    """How a node makes each network: functions do not travel, names do."""
    recipes = {}
    for name, factory in networks.factories.items():
        spec, shape, n_classes = factory.args  # type: ignore[attr-defined]
        recipes[name] = (_named(spec), tuple(shape), n_classes)
    return recipes


def _named(spec: Spec) -> str:
    if isinstance(spec, str):
        return spec
    path = f"{spec.__module__}:{spec.__qualname__}"
    if "<" in path or spec.__module__ == "__main__":
        raise FedcladeError(f"the model {path} has no name that nodes know: put it into a module and name that")
    return path
