"""Networks by name, or a user's own: `make("lenet5", (1, 28, 28), 10)`."""

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

from fedclade.errors import FedcladeError, listed, unknown

if TYPE_CHECKING:  # a list of names need not wait for torch
    import torch
    from torch import nn

Shape = tuple[int, ...]  # of one row: (channels, height, width), (channels, time) or (features,)
Factory = Callable[..., "nn.Module"]


@dataclass(frozen=True)
class ModelInfo:
    """A network of a paper."""

    name: str
    description: str
    paper: str
    input: str  # "images", "windows" (channels, time), "windows or features", "any" or "tokens"
    smallest: int = 1  # the shortest side of an image, or the shortest window, that goes through

    @property
    def build(self) -> Factory:
        from fedclade.models import networks

        name, _, norm = self.name.rpartition("-")
        if norm in networks.NORMS:
            return partial(getattr(networks, name), networks.NORMS[norm])
        return getattr(networks, self.name.replace("-", "_"))

    def fits(self, input_shape: Shape) -> bool:
        if self.input == "tokens":
            return len(input_shape) == 1
        kind = {1: "features", 2: "windows", 3: "images"}.get(len(input_shape), "unknown")
        return self.input == "any" or (kind in self.input and min(input_shape[1:], default=1) >= self.smallest)

    @property
    def wants(self) -> str:
        """The input it takes, in words."""
        size = f"{self.smallest}x{self.smallest}" if self.input == "images" else f"{self.smallest} moments"
        return f"{self.input} of {size} or more" if self.smallest > 1 else self.input


_NORMS = {"plain": "nothing normalised", "bn": "BatchNorm", "gn": "GroupNorm"}


def _normalised(
    name: str, description: str, paper: str, smallest: int = 1, norms: Sequence[str] = ("bn", "gn")
) -> tuple[ModelInfo, ...]:
    """A deep network for images in some forms, named for what they are."""
    return tuple(
        ModelInfo(f"{name}-{norm}", f"{description}, {_NORMS[norm]}", paper, "images", smallest) for norm in norms
    )


_SMALL_CNNS = "AdaCFL (MONET 2022), HiCFL (TMC 2024)"
_FEDSTACK = "Clustered FedStack"

_MODELS = (
    ModelInfo("mnist-cnn", "2 convolutions (20, 50), 1 dense", _SMALL_CNNS, "images", 16),
    ModelInfo("fmnist-cnn", "2 convolutions (16, 32), 1 dense", _SMALL_CNNS, "images", 16),
    ModelInfo("cifar-cnn", "2 convolutions (6, 16), 1 dense", _SMALL_CNNS, "images", 16),
    ModelInfo("lenet5", "2 convolutions (6, 16), 3 dense", "FedClust (ICPP 2024)", "images", 16),
    ModelInfo("digits-cnn", "2 convolutions (16, 32), 1 dense", "none: for 8x8 images", "images", 6),
    *_normalised("resnet9", "9 layers", "FedClust (ICPP 2024)", 8),
    *_normalised("resnet18", "18 layers, small-image stem", "HiCFL (TMC 2024)"),
    *_normalised("vgg11", "8 convolutions, 3 dense (512)", "HiCFL (TMC 2024)", norms=tuple(_NORMS)),
    *_normalised("vgg16", "13 convolutions, 3 dense (512)", "AdaCFL, FedClust", norms=tuple(_NORMS)),
    ModelInfo("har-cnn", "3 convolutions over time, 2 dense", "HiCFL (TMC 2024)", "windows", 36),
    ModelInfo("mlp", "dense 128-64-32", "FedSCCS (ICC 2024)", "any"),
    ModelInfo("ann", "dense 128-64", _FEDSTACK, "any"),
    ModelInfo("cnn1d", "2 convolutions over time (32, 64)", _FEDSTACK, "windows or features"),
    ModelInfo("char-lstm", "embedding (16), LSTM (128), dense", "none: for texts", "tokens"),
    ModelInfo("bilstm", "LSTM in both directions (32 each)", _FEDSTACK, "windows or features"),
)


def models() -> dict[str, ModelInfo]:
    """Every network by name."""
    return {model.name: model for model in _MODELS}


def default_model(input_shape: Shape) -> str:
    """The network to take where a user names none: small and quick to train."""
    name = {3: "lenet5", 2: "cnn1d"}.get(len(input_shape), "ann")
    return name if models()[name].fits(input_shape) else "ann"


def make(spec: str | Factory, input_shape: Shape, n_classes: int) -> "nn.Module":
    """A new network for rows of this shape: by name, by `package.module:factory`, or from a function or class.

    `3*lenet5` is a mixture of three, `3/lenet5` one whose likelihood is divided by label shares
    (`fedclade.models.mixture`).

    A factory is given `input_shape` and `n_classes` (or `num_classes`) where it takes arguments of these names. Under
    other names, two required arguments are the input shape and the number of classes, one is the number of classes.
    """
    from torch import nn

    input_shape = tuple(input_shape)
    name = repr(spec if isinstance(spec, str) else getattr(spec, "__qualname__", type(spec).__name__))
    if not isinstance(spec, str):
        factory = spec
    elif mixed := re.fullmatch(r"(\d+)([*/])(.+)", spec):
        factory = mixture_of(mixed[3], int(mixed[1]), mixed[2])
    elif ":" in spec:
        factory = _imported(spec)
    else:
        factory = _known(spec, input_shape)
    if isinstance(factory, nn.Module) or not callable(factory):
        raise FedcladeError(
            f"model {name} is a {type(factory).__name__}: give a class or function that makes a network"
        )
    arguments = _arguments(name, factory, input_shape, n_classes)
    try:
        model = factory(*arguments.args, **arguments.kwargs)
    except Exception as error:
        raise FedcladeError(f"model {name} cannot be made for {_words(input_shape)}: {_first_line(error)}") from error
    _check_outputs(name, model, input_shape, n_classes)
    _check_weights(name, model)
    return model


def row_type(model: "nn.Module") -> "torch.dtype":
    """The type in which a network takes rows: that of its parameters, float32 where these are of several."""
    import torch

    types = {value.dtype for value in model.parameters() if value.is_floating_point()}
    return types.pop() if len(types) == 1 else torch.float32


def _known(name: str, input_shape: Shape) -> Factory:
    """The factory of a network of ours, if it can take such rows."""
    if name not in models():
        raise unknown("model", name, models())
    model = models()[name]
    if not model.fits(input_shape):
        fitting = listed(other.name for other in _MODELS if other.fits(input_shape) and other.input != "tokens")
        raise FedcladeError(f"model {name!r} takes {model.wants}, not {_words(input_shape)}: choose one of {fitting}")
    return model.build


def mixture_of(spec: str | Factory, count: int, sign: str) -> Factory:
    """Makes a mixture of so many networks; the sign says of which kind."""
    from fedclade.models.mixture import MIXTURES

    return partial(MIXTURES[sign], spec, count)


def _imported(spec: str) -> Factory:
    """The factory that `package.module:factory` names; modules in the working folder count, as for `python -m`."""
    module, _, attribute = spec.partition(":")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return attrgetter(attribute)(importlib.import_module(module))
    except Exception as error:  # a user's module may raise anything
        raise FedcladeError(
            f"model {spec!r} cannot be imported: {_first_line(error)}: write package.module:factory, check both names"
        ) from error


def _arguments(name: str, factory: Factory, input_shape: Shape, n_classes: int) -> inspect.BoundArguments:
    """What to call a factory with: values by the names it uses, then in order."""
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # built in C: nothing can be known
        signature = inspect.Signature()
    values = {"input_shape": input_shape, "n_classes": n_classes, "num_classes": n_classes}
    given = {each: values[each] for each in signature.parameters if each in values}
    left = [input_shape] * ("input_shape" not in given) + [n_classes] * (
        not given.keys() & {"n_classes", "num_classes"}
    )
    required = [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and parameter.name not in given
    ]
    if len(required) > len(left):
        raise FedcladeError(f"model {name} needs {listed(required)}: let it take input_shape and n_classes only")
    given |= zip(required, left[len(left) - len(required) :], strict=True)
    arguments = signature.bind_partial()
    arguments.arguments.update(given)
    return arguments


def _check_outputs(name: str, model: object, input_shape: Shape, n_classes: int) -> None:
    """Raise unless two rows of zeros give two rows of outputs, one for each class (and place of a row of tokens)."""
    import torch

    if not isinstance(model, torch.nn.Module):
        raise FedcladeError(f"model {name} made a {type(model).__name__}: let it return a torch.nn.Module")
    modes = [(module, module.training) for module in model.modules()]
    model.eval()  # leaves batch statistics alone
    try:
        with torch.no_grad():
            outputs = _outputs_of_zeros(model, input_shape)
    except Exception as error:
        raise FedcladeError(f"model {name} does not take {_words(input_shape)}: {_first_line(error)}") from error
    finally:
        for module, mode in modes:
            module.training = mode
    found = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else f"a {type(outputs).__name__}"
    if found != (2, n_classes) and not (len(input_shape) == 1 and found == (2, n_classes, *input_shape)):
        raise FedcladeError(f"model {name} makes {found} of two rows: let it return a tensor of (2, {n_classes})")


def _outputs_of_zeros(model: "nn.Module", input_shape: Shape) -> object:
    """Of two rows: of numbers or, where a network does not take these, of tokens."""
    import torch
    from torch import nn

    try:
        return model(torch.zeros(2, *input_shape, dtype=row_type(model)))
    except Exception:
        if len(input_shape) != 1 or not any(
            isinstance(part, nn.Embedding | nn.EmbeddingBag) for part in model.modules()
        ):
            raise
        return model(torch.zeros(2, *input_shape, dtype=torch.int64))


def _check_weights(name: str, model: "nn.Module") -> None:
    import torch

    if not any(value.requires_grad for value in model.parameters()):
        raise FedcladeError(f"model {name} has nothing to train: leave requires_grad on for some of its parameters")
    strange = [
        key for key, value in model.state_dict().items() if isinstance(value, torch.Tensor) and value.is_complex()
    ]
    if strange:
        raise FedcladeError(f"model {name} has complex numbers in {listed(strange)}: keep their two parts as real ones")


def _words(input_shape: Shape) -> str:
    kind = {1: "features", 2: "windows", 3: "images"}.get(len(input_shape), "rows")
    return f"{'x'.join(map(str, input_shape))} {kind}"


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
