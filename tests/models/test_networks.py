"""Networks: the papers' parameter counts, every input they take, and clear words for what they do not."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from fedclade.errors import FedcladeError
from fedclade.models import default_model, make, models

CHAIN = (nn.Conv2d, nn.ReLU, nn.MaxPool2d, nn.Flatten, nn.Linear)
GREY, COLOUR, DIGIT, WINDOW, FEATURES = (1, 28, 28), (3, 32, 32), (1, 8, 8), (6, 200), (12,)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def count(model: nn.Module, kind: str = "") -> int:
    return sum(value.numel() for name, value in model.named_parameters() if name.endswith(kind))


def by_layer(model: nn.Module, kind: str = "") -> list[int]:
    return [size for layer in model.children() if (size := count(layer, kind))]


@pytest.mark.parametrize(
    ("name", "shape", "weights", "total"),
    [
        ("mnist-cnn", GREY, [500, 25_000, 8_000], 33_580),
        ("fmnist-cnn", GREY, [400, 12_800, 5_120], 18_378),
        ("cifar-cnn", COLOUR, [450, 2_400, 4_000], 6_882),
    ],
)
def test_small_cnns_have_the_papers_weights(name: str, shape: tuple[int, ...], weights: list[int], total: int) -> None:
    model = make(name, shape, 10)
    assert by_layer(model, "weight") == weights
    assert count(model) == total


@pytest.mark.parametrize(
    ("shape", "layers", "total"),
    [(COLOUR, [456, 2_416, 48_120, 10_164, 850], 62_006), (GREY, [156, 2_416, 30_840, 10_164, 850], 44_426)],
)
def test_lenet5_has_the_papers_parameters(shape: tuple[int, ...], layers: list[int], total: int) -> None:
    model = make("lenet5", shape, 10)
    assert by_layer(model) == layers
    assert count(model) == total


def test_resnet9_has_the_papers_parameters() -> None:
    model = make("resnet9-gn", COLOUR, 100)
    assert count(model) == 6_621_540
    last_four = list(model.parameters())[-4:]  # what LG-FedAvg shares: the last GroupNorm and the linear layer
    assert sum(value.numel() for value in last_four) == 52_324
    assert count(model.get_submodule("fc1")) == 51_300


@pytest.mark.parametrize(("features", "classes", "total"), [(12, 6, 12_198), (12, 10, 12_330), (7, 10, 11_690)])
def test_mlp_has_the_papers_parameters(features: int, classes: int, total: int) -> None:
    assert count(make("mlp", (features,), classes)) == total


def test_deep_networks_have_the_usual_parameters() -> None:
    dense = 2 * (512 * 512 + 512) + 512 * 10 + 10
    for norm, kind in (("bn", nn.BatchNorm2d), ("gn", nn.GroupNorm)):
        resnet = make(f"resnet18-{norm}", COLOUR, 10)
        assert count(resnet) == 11_173_962  # the widespread CIFAR variant
        assert sum(isinstance(module, kind) for module in resnet.modules()) == 20
        for name, convolutions, channels in (("vgg11", 9_220_480, 2_752), ("vgg16", 14_714_688, 4_224)):
            vgg = make(f"{name}-{norm}", COLOUR, 10)
            assert count(vgg) == convolutions + 2 * channels + dense
            assert any(isinstance(module, kind) for module in vgg.modules())


def test_har_cnn_is_three_convolutions_and_two_dense_layers() -> None:
    assert by_layer(make("har-cnn", WINDOW, 12)) == [992, 10_304, 20_544, 64 * 21 * 128 + 128, 128 * 12 + 12]


def test_fedstack_heads_can_be_compared() -> None:
    for name in ("ann", "cnn1d", "bilstm"):
        head = make(name, WINDOW, 8).get_submodule("head")
        assert isinstance(head, nn.Linear)
        assert (head.in_features, head.out_features) == (64, 8)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        *((name, shape) for name in ("mnist-cnn", "fmnist-cnn", "cifar-cnn", "lenet5") for shape in (GREY, COLOUR)),
        *((name, shape) for name in ("mlp", "ann") for shape in (GREY, DIGIT, WINDOW, FEATURES)),
        ("digits-cnn", DIGIT),
    ],
)
def test_chains_are_plain(name: str, shape: tuple[int, ...]) -> None:
    model = make(name, shape, 10)
    assert type(model) is nn.Sequential
    for layer in model:
        assert type(layer) in CHAIN
        if isinstance(layer, nn.Conv2d):
            assert (layer.stride, layer.padding, layer.dilation, layer.groups) == ((1, 1), (0, 0), (1, 1), 1)
        if isinstance(layer, nn.MaxPool2d):
            assert (layer.kernel_size, layer.stride, layer.padding, layer.ceil_mode) == (2, 2, 0, False)
    named = [key for key, layer in model.named_children() if list(layer.parameters())]
    assert named[0] in ("conv1", "fc1")


@pytest.mark.parametrize("shape", [(1, 15, 20), (1, 7, 5), WINDOW, (3, 36), (3, 35), FEATURES, (1,)])
def test_a_network_fits_exactly_where_it_says(shape: tuple[int, ...]) -> None:
    for name, info in models().items():
        if info.fits(shape):
            rows = torch.rand(4, *shape) if info.input != "tokens" else torch.zeros(4, *shape, dtype=torch.int64)
            assert make(name, shape, 3)(rows).shape[:2] == (4, 3)
        else:
            with pytest.raises(FedcladeError, match=f"model '{name}' takes {info.wants}, not .*: choose one of .*mlp"):
                make(name, shape, 3)
            with pytest.raises((RuntimeError, ValueError, TypeError, IndexError)):  # it would not have gone through
                info.build(shape, 3)(torch.zeros(2, *shape))


@pytest.mark.parametrize("name", list(models()))
def test_gradients_reach_every_parameter(name: str) -> None:
    shape = {"images": (3, 16, 16), "tokens": (7,)}.get(models()[name].input, (6, 40))
    model = make(name, shape, 5)
    rows = torch.randn(3, *shape) if models()[name].input != "tokens" else torch.ones(3, *shape, dtype=torch.int64)
    out = model(rows)
    labels = torch.tensor([0, 1, 2]).reshape(3, *[1] * (out.ndim - 2)).expand(3, *out.shape[2:])
    nn.functional.cross_entropy(out, labels).backward()
    assert all(value.grad is not None for value in model.parameters())


def test_equal_seeds_make_equal_networks() -> None:
    weights = []
    for _ in range(2):
        torch.manual_seed(3)
        weights.append(nn.utils.parameters_to_vector(make("lenet5", GREY, 10).parameters()))
    assert torch.equal(*weights)


def test_every_shape_has_a_default() -> None:
    defaults = {GREY: "lenet5", COLOUR: "lenet5", DIGIT: "ann", WINDOW: "cnn1d", FEATURES: "ann", (2, 3, 4, 5): "ann"}
    for shape, name in defaults.items():
        assert default_model(shape) == name
        make(name, shape, 4)


# --- a user's own -----------------------------------------------------------------------------------------------------


class NamedArguments(nn.Sequential):
    def __init__(self, num_classes: int = 3, *, input_shape: tuple[int, ...]) -> None:
        super().__init__(nn.Flatten(), nn.Linear(input_shape[0], num_classes))


class NoArguments(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(12, 4))


def two_arguments(shape: tuple[int, ...], outputs: int, bias: bool = True) -> nn.Module:
    return nn.Linear(shape[0], outputs, bias)


def one_argument(outputs: int) -> nn.Module:
    return nn.Linear(12, outputs)


def shape_and_named(shape: tuple[int, ...], /, n_classes: int) -> nn.Module:
    return nn.Linear(shape[0], n_classes)


def forgiving(*args: object, **kwargs: object) -> nn.Module:
    return nn.Linear(12, 4)


@pytest.mark.parametrize(
    "factory",
    [NamedArguments, NoArguments, two_arguments, one_argument, shape_and_named, forgiving, lambda: nn.Linear(12, 4)],
)
def test_factories_are_called_by_what_they_take(factory: Callable[..., nn.Module]) -> None:
    assert make(factory, FEATURES, 4)(torch.zeros(5, 12)).shape == (5, 4)


def test_factories_are_imported_also_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own_net.py").write_text(
        "from torch import nn\nclass Nets:\n    small = staticmethod(lambda n_classes: nn.Linear(12, n_classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    assert isinstance(make("my_own_net:Nets.small", FEATURES, 4), nn.Linear)


def test_the_check_leaves_batch_statistics_and_modes_alone() -> None:
    def factory() -> nn.Module:
        model = nn.Sequential(nn.Linear(12, 4), nn.BatchNorm1d(4), nn.Dropout())
        model[2].eval()
        return model

    model = make(factory, FEATURES, 4)
    assert [module.training for module in model.modules()] == [True, True, True, False]
    assert model[1].num_batches_tracked == 0


def demanding(shape: object, outputs: object, more: object) -> nn.Module:
    return nn.Identity()


def broken(n_classes: int) -> nn.Module:
    raise RuntimeError("no such luck\nsecond line")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("lenet", "unknown model 'lenet': did you mean 'lenet5'"),
        ("lenet5", "takes images of 16x16 or more, not 12 features: choose one of mlp, ann, cnn1d, bilstm"),
        ("har-cnn", "takes windows of 36 moments or more, not 12 features"),
        ("no_such_module:Net", "cannot be imported: ModuleNotFoundError"),
        ("torch.nn:NoSuchLayer", "cannot be imported: AttributeError"),
        (":Net", "cannot be imported"),
        ("math:", "cannot be imported"),
        ("math:pi", "is a float: give a class or function"),
        (nn.Linear(12, 4), "is a Linear: give a class or function that makes a network"),
        (demanding, "needs shape, outputs, more: let it take input_shape and n_classes only"),
        (broken, "model 'broken' cannot be made for 12 features: RuntimeError: no such luck"),
        (lambda: 3, "made a int: let it return a torch.nn.Module"),
        (lambda: nn.Linear(13, 4), "does not take 12 features: RuntimeError"),
        (lambda: nn.Linear(12, 5), r"makes \(2, 5\) of two rows: let it return a tensor of \(2, 4\)"),
        (lambda: nn.LSTM(12, 4), "makes a tuple of two rows"),
    ],
)
def test_wrong_models_get_one_clear_line(spec: str | Callable[..., nn.Module], message: str) -> None:
    with pytest.raises(FedcladeError, match=message) as caught:
        make(spec, FEATURES, 4)
    assert "\n" not in str(caught.value)


def test_the_registry_describes_every_network() -> None:
    for name, info in models().items():
        assert info.name == name
        assert info.description
        assert info.paper
        assert info.input in ("images", "windows", "windows or features", "any", "tokens")
