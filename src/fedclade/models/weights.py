"""Weights are one flat float32 vector; a `Layout` names its slices.

Averaging is then arithmetic on vectors, a layer is a slice, and a checkpoint is one array. The parameters come first,
in the module's order, each once, and after them the buffers that a state dict holds: running statistics and counters,
which are whole numbers again once a module takes them.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from fedclade.errors import FedcladeError, unknown

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the tensors in a flat vector: first `n_parameters` numbers of parameters, then buffers."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    n_parameters: int

    @classmethod
    def of(cls, module: "torch.nn.Module") -> "Layout":
        """The layout of a module's weights."""
        parameters = [(name, tuple(p.shape)) for name, p in module.named_parameters()]
        kept = module.state_dict()
        tensors = parameters + [(name, tuple(b.shape)) for name, b in module.named_buffers() if name in kept]
        return cls(
            tuple(name for name, _ in tensors),
            tuple(shape for _, shape in tensors),
            sum(prod(shape) for _, shape in parameters),
        )

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Where each tensor lies in the vector."""
        places, start = {}, 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            places[name] = slice(start, start + prod(shape))
            start += prod(shape)
        return places

    @cached_property
    def size(self) -> int:
        """How many numbers the whole vector holds."""
        return sum(prod(shape) for shape in self.shapes)

    @cached_property
    def layers(self) -> dict[str, slice]:
        """Where each layer lies: a layer is one parametric module, weight and bias together (no buffers)."""
        places: dict[str, slice] = {}
        for name, place in self.slices.items():
            if place.start >= self.n_parameters:
                break
            layer = name.rpartition(".")[0] or name
            # A module's own parameters stand side by side, unless modules of one name prefix are interleaved.
            places[layer] = slice(places[layer].start, place.stop) if layer in places else place
        return places

    @cached_property
    def fully_connected(self) -> tuple[str, ...]:
        """The layers whose weight is a matrix, in order."""
        shapes = dict(zip(self.names, self.shapes, strict=True))
        return tuple(layer for layer in self.layers if len(shapes.get(f"{layer}.weight", shapes.get(layer, ()))) == 2)

    @property
    def head(self) -> str:
        """The last layer: the classifier."""
        return list(self.layers)[-1]

    def select(self, layers: str | Sequence[str] | None) -> np.ndarray | slice:
        """The index of some layers in the vector: None is everything, "head" the last layer, else names of layers."""
        if layers is None:
            return slice(0, self.size)
        names = [self.head if name == "head" else name for name in ([layers] if isinstance(layers, str) else layers)]
        for name in names:
            if name not in self.layers:
                raise unknown("layer", name, self.layers)
        if len(names) == 1:
            return self.layers[names[0]]
        places = [self.layers[name] for name in self.layers if name in names]
        return np.concatenate([np.arange(place.start, place.stop) for place in places] or [np.arange(0)])

    def within(self, layers: str | Sequence[str] | None) -> dict[str, slice]:
        """Where each of some layers lies in what `select` takes of the vector."""
        if layers is None:
            return self.layers
        others, places, start = self.others(layers), {}, 0
        for name, place in self.layers.items():
            if place not in others:
                places[name] = slice(start, start := start + place.stop - place.start)
        return places

    def others(self, layers: str | Sequence[str] | None) -> list[slice]:
        """Where the parameters of all other layers lie."""
        if layers is None:
            return []
        self.select(layers)  # names that are wrong are told there
        named = [self.head if name == "head" else name for name in ([layers] if isinstance(layers, str) else layers)]
        return [place for name, place in self.layers.items() if name not in named]

    def tensors(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """The named tensors of a flat vector, as views."""
        return {
            name: vector[place].reshape(shape)
            for (name, place), shape in zip(self.slices.items(), self.shapes, strict=True)
        }

    def to_json(self) -> dict[str, Any]:
        return {"names": self.names, "shapes": self.shapes, "n_parameters": self.n_parameters}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "Layout":
        shapes = tuple(tuple(int(side) for side in shape) for shape in record["shapes"])
        return cls(tuple(record["names"]), shapes, int(record["n_parameters"]))


def flatten(module: "torch.nn.Module") -> np.ndarray:
    """A module's weights as one flat vector (a copy)."""
    state = module.state_dict()
    parts = [state[name].float().numpy().ravel() for name in Layout.of(module).names]
    return np.concatenate([*parts, np.empty(0, np.float32)])


def load(module: "torch.nn.Module", vector: np.ndarray) -> "torch.nn.Module":
    """The module, with its weights set from a flat vector."""
    import torch

    layout = Layout.of(module)
    if vector.shape != (layout.size,):
        raise FedcladeError(f"weights of shape {vector.shape} do not fit a model of {layout.size} numbers")
    state = module.state_dict()
    for name, tensor in layout.tensors(vector).items():
        put(state[name], torch.from_numpy(np.array(tensor)))
    return module


def put(tensor: "torch.Tensor", values: "torch.Tensor") -> None:
    """Set a module's tensor, of whatever type, from float32 numbers."""
    if not tensor.is_floating_point():
        # What was not changed stays as it is: float32 does not hold every large whole number.
        values = values.round().to(tensor.dtype).where(tensor.float() != values, tensor)
    tensor.data.copy_(values)


def state_of(module: "torch.nn.Module", vector: np.ndarray) -> "dict[str, torch.Tensor]":
    """The complete state dict of a flat vector, as torch itself would save it: tied weights and counters too."""
    state = load(module, vector).state_dict()
    return {name: tensor.detach().clone() for name, tensor in state.items() if hasattr(tensor, "detach")}


def file_facts(
    model: str,
    input_shape: Sequence[int],
    classes: Sequence[str],
    scaling: Mapping[str, Any] | None,
    task: Mapping[str, Any],
) -> dict[str, str]:
    """What a file of weights says of itself, as JSON: enough to use it without this package."""
    facts = {
        "model": model,
        "input_shape": list(input_shape),
        "classes": list(classes),
        "scaling": scaling,
        "task": task,
    }
    return {"about": json.dumps(facts)}  # one entry: several would come in any order


def assembled(module: "torch.nn.Module", **parts: np.ndarray) -> np.ndarray:
    """The weights of a module from those of its children."""
    for name, vector in parts.items():
        load(module.get_submodule(name), vector)
    return flatten(module)


class WeightedSum:
    """A weighted mean of vectors that come one by one, in double precision: it does not depend on BLAS."""

    def __init__(self) -> None:
        self.total: np.ndarray | None = None
        self.mass = 0.0

    def add(self, weights: np.ndarray, mass: float) -> None:
        if self.total is None:
            self.total = np.zeros(weights.shape, np.float64)
        self.total += float(mass) * weights.astype(np.float64)
        self.mass += float(mass)

    def result(self) -> np.ndarray:
        if self.total is None or self.mass <= 0:
            raise FedcladeError("nothing to average: no client reported")
        return (self.total / self.mass).astype(np.float32)


def average(vectors: Iterable[np.ndarray], weights: Iterable[float]) -> np.ndarray:
    """The weighted mean of vectors that are there already."""
    total = WeightedSum()
    for vector, weight in zip(vectors, weights, strict=True):
        total.add(vector, weight)
    return total.result()
