"""The networks of the papers. Each is made for an input shape (without the batch) and a number of classes.

The small ones are plain chains of named layers, which the engine can train for many clients at once. The large ones
come in forms: with BatchNorm (as ResNets were published), with GroupNorm, since batch statistics of unlike clients do
not average, and VGG also plain, as it was published.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import cast

import torch
from torch import Tensor, nn

from fedclade.models import Shape


def _chain(layers: Iterable[tuple[str, nn.Module]]) -> nn.Sequential:
    return nn.Sequential(OrderedDict(layers))


def _width_after(features: nn.Module, input_shape: Shape) -> int:
    """How many numbers a row has once it went through these layers."""
    features.eval()  # batch statistics need more than one row, and are left alone
    with torch.no_grad():
        width = features(torch.zeros(1, *input_shape)).numel()
    features.train()
    return width


def _with_dense(features: list[tuple[str, nn.Module]], input_shape: Shape, widths: Sequence[int]) -> nn.Sequential:
    """These layers, flattened, then fully connected layers of these widths with ReLU between them."""
    layers = [*features, ("flatten", nn.Flatten())]
    inputs = _width_after(_chain(layers), input_shape)
    for number, (before, after) in enumerate(zip([inputs, *widths], widths, strict=False), start=1):
        layers.append((f"fc{number}", nn.Linear(before, after)))
        if number < len(widths):
            layers.append((f"fc{number}_relu", nn.ReLU()))
    return _chain(layers)


# --- chains for images ------------------------------------------------------------------------------------------------


def _conv_pool(input_shape: Shape, channels: Sequence[int]) -> list[tuple[str, nn.Module]]:
    """5x5 convolutions without padding, each with ReLU and 2x2 max pooling."""
    layers: list[tuple[str, nn.Module]] = []
    for number, (before, after) in enumerate(zip([input_shape[0], *channels], channels, strict=False), start=1):
        layers += [
            (f"conv{number}", nn.Conv2d(before, after, 5)),
            (f"conv{number}_relu", nn.ReLU()),
            (f"conv{number}_pool", nn.MaxPool2d(2)),
        ]
    return layers


def mnist_cnn(input_shape: Shape, n_classes: int) -> nn.Module:
    return _with_dense(_conv_pool(input_shape, [20, 50]), input_shape, [n_classes])


def fmnist_cnn(input_shape: Shape, n_classes: int) -> nn.Module:
    return _with_dense(_conv_pool(input_shape, [16, 32]), input_shape, [n_classes])


def cifar_cnn(input_shape: Shape, n_classes: int) -> nn.Module:
    return _with_dense(_conv_pool(input_shape, [6, 16]), input_shape, [n_classes])


def lenet5(input_shape: Shape, n_classes: int) -> nn.Module:
    return _with_dense(_conv_pool(input_shape, [6, 16]), input_shape, [120, 84, n_classes])


def digits_cnn(input_shape: Shape, n_classes: int) -> nn.Module:
    layers: list[tuple[str, nn.Module]] = [
        ("conv1", nn.Conv2d(input_shape[0], 16, 3)),
        ("conv1_relu", nn.ReLU()),
        ("conv2", nn.Conv2d(16, 32, 3)),
        ("conv2_relu", nn.ReLU()),
        ("conv2_pool", nn.MaxPool2d(2)),
    ]
    return _with_dense(layers, input_shape, [n_classes])


# --- deep networks for images -----------------------------------------------------------------------------------------


class Residual(nn.Module):
    """What goes in plus what the body makes of it."""

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.shortcut(x) + self.body(x)


Norm = Callable[[int], nn.Module]  # of so many channels


def group_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(32, channels)


def nothing(channels: int) -> nn.Module:
    return nn.Identity()


NORMS: dict[str, Norm] = {"plain": nothing, "bn": nn.BatchNorm2d, "gn": group_norm}  # by the end of a network's name


def _conv_norm_relu(before: int, after: int, norm: Norm) -> list[nn.Module]:
    return [nn.Conv2d(before, after, 3, padding=1), norm(after), nn.ReLU()]


def resnet9(norm: Norm, input_shape: Shape, n_classes: int) -> nn.Module:
    def block(before: int, after: int) -> nn.Module:
        return nn.Sequential(*_conv_norm_relu(before, after, norm), nn.MaxPool2d(2))

    def residual(width: int) -> nn.Module:
        return Residual(nn.Sequential(*_conv_norm_relu(width, width, norm), *_conv_norm_relu(width, width, norm)))

    return _chain(
        [
            ("prep", nn.Sequential(*_conv_norm_relu(input_shape[0], 64, norm))),
            ("block1", block(64, 128)),
            ("residual1", residual(128)),
            ("block2", block(128, 256)),
            ("block3", block(256, 512)),
            ("residual3", residual(512)),
            ("pool", nn.AdaptiveMaxPool2d(1)),  # 4x4 for 32x32 images, as in the original
            ("flatten", nn.Flatten()),
            ("fc1", nn.Linear(512, n_classes)),
        ]
    )


def resnet18(norm: Norm, input_shape: Shape, n_classes: int) -> nn.Module:
    """With the usual stem for 32x32 images: one 3x3 convolution, no pooling."""

    def conv_norm(before: int, after: int, size: int, stride: int) -> list[nn.Module]:
        return [nn.Conv2d(before, after, size, stride, padding=size // 2, bias=False), norm(after)]

    def block(before: int, after: int, stride: int) -> nn.Module:
        body = nn.Sequential(*conv_norm(before, after, 3, stride), nn.ReLU(), *conv_norm(after, after, 3, 1))
        shortcut = nn.Sequential(*conv_norm(before, after, 1, stride)) if before != after else None
        return nn.Sequential(Residual(body, shortcut), nn.ReLU())

    layers: list[tuple[str, nn.Module]] = [("stem", nn.Sequential(*conv_norm(input_shape[0], 64, 3, 1), nn.ReLU()))]
    for stage, (before, after) in enumerate(((64, 64), (64, 128), (128, 256), (256, 512)), start=1):
        layers.append((f"stage{stage}a", block(before, after, 1 if stage == 1 else 2)))
        layers.append((f"stage{stage}b", block(after, after, 1)))
    layers += [("pool", nn.AdaptiveAvgPool2d(1)), ("flatten", nn.Flatten()), ("fc1", nn.Linear(512, n_classes))]
    return _chain(layers)


def _vgg(norm: Norm, input_shape: Shape, n_classes: int, stages: Sequence[Sequence[int]]) -> nn.Module:
    """VGG for small images: fully connected layers are 512 wide instead of 4096. Weights begin as He et al. have them,
    without which so many plain layers do not learn."""
    layers: list[tuple[str, nn.Module]] = []
    before, number = input_shape[0], 0
    for stage, widths in enumerate(stages, start=1):
        for width in widths:
            number += 1
            conv, normed, relu = _conv_norm_relu(before, width, norm)
            nn.init.kaiming_normal_(cast(Tensor, conv.weight), mode="fan_out", nonlinearity="relu")
            layers += [(f"conv{number}", conv), (f"conv{number}_norm", normed), (f"conv{number}_relu", relu)]
            before = width
        layers.append((f"pool{stage}", nn.MaxPool2d(2, ceil_mode=True)))  # ceil: five times also for 28x28
    return _with_dense(layers, input_shape, [512, 512, n_classes])


def vgg11(norm: Norm, input_shape: Shape, n_classes: int) -> nn.Module:
    return _vgg(norm, input_shape, n_classes, [[64], [128], [256] * 2, [512] * 2, [512] * 2])


def vgg16(norm: Norm, input_shape: Shape, n_classes: int) -> nn.Module:
    return _vgg(norm, input_shape, n_classes, [[64] * 2, [128] * 2, [256] * 3, [512] * 3, [512] * 3])


# --- any input --------------------------------------------------------------------------------------------------------


def mlp(input_shape: Shape, n_classes: int) -> nn.Module:
    return _with_dense([], input_shape, [128, 64, 32, n_classes])


# --- windows of a signal (channels, time) -----------------------------------------------------------------------------


def har_cnn(input_shape: Shape, n_classes: int) -> nn.Module:
    layers: list[tuple[str, nn.Module]] = []
    for number, (before, after) in enumerate(((input_shape[0], 32), (32, 64), (64, 64)), start=1):
        layers += [
            (f"conv{number}", nn.Conv1d(before, after, 5)),
            (f"conv{number}_relu", nn.ReLU()),
            (f"conv{number}_pool", nn.MaxPool1d(2)),
        ]
    return _with_dense(layers, input_shape, [128, n_classes])


# --- Clustered FedStack: three architectures whose heads can be compared, all Linear(64, classes) ---------------------

HEAD_WIDTH = 64


def ann(input_shape: Shape, n_classes: int) -> nn.Module:
    return _chain(
        [
            ("flatten", nn.Flatten()),
            ("fc1", nn.Linear(prod(input_shape), 128)),
            ("fc1_relu", nn.ReLU()),
            ("fc2", nn.Linear(128, HEAD_WIDTH)),
            ("fc2_relu", nn.ReLU()),
            ("head", nn.Linear(HEAD_WIDTH, n_classes)),
        ]
    )


def cnn1d(input_shape: Shape, n_classes: int) -> nn.Module:
    """Flat features are read as a signal with one channel."""
    flat = len(input_shape) == 1
    layers: list[tuple[str, nn.Module]] = [("unflatten", nn.Unflatten(1, (1, -1)))] if flat else []
    layers += [
        ("conv1", nn.Conv1d(1 if flat else input_shape[0], 32, 5, padding=2)),
        ("conv1_relu", nn.ReLU()),
        ("conv1_pool", nn.MaxPool1d(2, ceil_mode=True)),
        ("conv2", nn.Conv1d(32, HEAD_WIDTH, 5, padding=2)),
        ("conv2_relu", nn.ReLU()),
        ("pool", nn.AdaptiveAvgPool1d(1)),
        ("flatten", nn.Flatten()),
        ("head", nn.Linear(HEAD_WIDTH, n_classes)),
    ]
    return _chain(layers)


class BiLSTM(nn.Module):
    """The last states of an LSTM that reads a window forwards and of one that reads it backwards.

    Flat features are read as a window of one moment: a step for each of thousands of features would take for ever.
    """

    def __init__(self, channels: int, n_classes: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(channels, HEAD_WIDTH // 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(HEAD_WIDTH, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        moments = x.flatten(1).unsqueeze(1) if x.dim() == 2 else x.transpose(1, 2)
        _, (last, _) = self.lstm(moments)
        return self.head(last.transpose(0, 1).flatten(1))


def bilstm(input_shape: Shape, n_classes: int) -> nn.Module:
    return BiLSTM(input_shape[0], n_classes)


class CharLSTM(nn.Module):
    """What comes after each token of a row, told from those before it: (rows, tokens, places)."""

    def __init__(self, n_tokens: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_tokens, 16)
        self.lstm = nn.LSTM(16, 2 * HEAD_WIDTH, batch_first=True)
        self.head = nn.Linear(2 * HEAD_WIDTH, n_tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(tokens))
        return self.head(states).transpose(1, 2)


def char_lstm(n_classes: int) -> nn.Module:
    return CharLSTM(n_classes)


class Correction(nn.Module):
    """A stacked model: the class probabilities that it reads, and a correction that is nothing before training.

    Where there are only a few rows to learn from, it still says at least what the network below it said; of several
    networks, side by side, their mean. Seats without a network hold zeros.
    """

    def __init__(self, input_shape: Shape, n_classes: int) -> None:
        super().__init__()
        self.seats = max(input_shape[0] // n_classes, 1)
        self.fc = nn.Linear(input_shape[0], HEAD_WIDTH)
        self.head = nn.Linear(HEAD_WIDTH, n_classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, probabilities: Tensor) -> Tensor:
        each = probabilities.unflatten(1, (self.seats, -1))
        taken = each.sum(2, keepdim=True) > 0
        count = taken.sum(1).clamp(min=1)
        scores = each.clamp(min=1e-6).log() * taken  # as deep as -14: a quarter is of a size that layers like,
        told = scores.flatten(1) / (4 * count.sqrt())  # and so is the whole, however many there are
        return (each.sum(1) / count).clamp(min=1e-6).log() + self.head(self.fc(told).relu())


class SideBySide(nn.Module):
    """Several networks, and a clusters' one that reads the class probabilities of all of them."""

    def __init__(self, below: Sequence[nn.Module | None], cluster: nn.Module) -> None:
        super().__init__()
        self.below = nn.ModuleList(network for network in below if network is not None)
        self.is_taken = [network is not None for network in below]
        self.cluster = cluster

    def forward(self, x: Tensor) -> Tensor:
        said = [network(x).float().softmax(1) for network in self.below]
        turns = iter(said)
        return self.cluster(torch.cat([next(turns) if taken else said[0] * 0 for taken in self.is_taken], 1))
