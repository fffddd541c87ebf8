"""What a model may contain (the table of docs/models.md): trained as torch trains it, on the path it takes."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedclade
from fedclade.clients.networks import Built
from fedclade.clients.tasks import Training
from fedclade.clients.training import Job, batches_of, train
from fedclade.errors import FedcladeError
from fedclade.models import make, row_type
from fedclade.models.weights import Layout, flatten, state_of
from synthetic import planted

FEATURES, CLASSES = 8, 4
TRAINING = Training(local_epochs=2, batch_size=6, learning_rate=0.05, momentum=0.9, weight_decay=0.1)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


class Custom(nn.Module):
    """Layers of one's own, and a forward that is not a chain."""

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.inner = nn.Linear(FEATURES, FEATURES)
        self.outer = nn.Linear(FEATURES, FEATURES, bias=False)
        self.head = nn.Linear(FEATURES, CLASSES)
        if tied:
            self.outer.weight = self.inner.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.outer(torch.tanh(self.inner(x))))


class Counting(nn.Module):
    """Counters that forward passes change: in place, by another tensor in their place, and one that is not saved."""

    steps: Tensor
    rows: Tensor
    unsaved: Tensor
    large: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(FEATURES, CLASSES)
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("rows", torch.tensor([0, 0]))
        self.register_buffer("unsaved", torch.tensor(0.0), persistent=False)
        self.register_buffer("large", torch.tensor(2**40 + 1))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
            self.rows = self.rows + torch.tensor([len(x), 0])
            self.unsaved = self.unsaved + 1
        return self.head(x) * (1 + self.unsaved)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(2, 5, batch_first=True)
        self.head = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(x.unflatten(1, (4, 2)))[1][0])


class Attentive(nn.Module):
    """Whole numbers are looked up in a table, and what is found looks at itself."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(4 * FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        found = self.table(x.abs().long().clamp(max=4))
        return self.head((found + self.attention(found, found, found)[0]).flatten(1))


class Mixed(nn.Module):
    """A body in another type, which casts for itself."""

    def __init__(self, inside: torch.dtype) -> None:
        super().__init__()
        self.body = nn.Linear(FEATURES, FEATURES, dtype=inside)
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x.to(self.body.weight.dtype)).relu().float())


class Noisy(nn.Module):
    """Draws random numbers in evaluation too."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(nn.functional.dropout(x, 0.5, training=True) + torch.randn_like(x))


class LouderLinear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def chain() -> nn.Sequential:
    return nn.Sequential(nn.Linear(FEATURES, 7), nn.ReLU(), nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, CLASSES))


def frozen(module: nn.Module, *names: str) -> nn.Module:
    for name, value in module.named_parameters():
        value.requires_grad = name not in names
    return module


def convolution(*frozen_names: str) -> nn.Module:
    layers = nn.Unflatten(1, (1, 2, 4)), nn.Conv2d(1, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(9, CLASSES)
    return frozen(nn.Sequential(*layers), *frozen_names)


def signal(*frozen_names: str) -> nn.Module:
    layers = nn.Unflatten(1, (1, -1)), nn.Conv1d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(18, CLASSES)
    return frozen(nn.Sequential(*layers), *frozen_names)


def twice() -> nn.Module:
    layer = nn.Linear(FEATURES, FEATURES)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(FEATURES, CLASSES))


def hooked() -> nn.Module:
    module = chain()
    module[1].register_forward_hook(lambda _module, _input, output: 2 * output)
    return module


def normalised(**options: object) -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 7), nn.BatchNorm1d(7, **options), nn.ReLU(), nn.Linear(7, CLASSES))  # type: ignore[arg-type]


BODY = ("0.weight", "0.bias", "2.weight", "2.bias")
KINDS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "a chain": (chain, "batched"),
    "frozen body": (lambda: frozen(chain(), *BODY), "batched"),
    "frozen in the middle": (lambda: frozen(chain(), "2.weight"), "batched"),
    "frozen head": (lambda: frozen(chain(), "4.weight", "4.bias"), "batched"),
    "frozen convolution, batched": (lambda: signal("1.weight", "1.bias"), "batched"),
    "frozen head, batched": (lambda: signal("4.weight", "4.bias"), "batched"),
    "frozen layer, plain": (lambda: frozen(Custom(), "inner.weight", "inner.bias"), "plain"),
    "frozen convolution": (lambda: convolution("1.weight", "1.bias"), "plain"),
    "tied weights": (lambda: Custom(tied=True), "plain"),
    "a layer used twice": (twice, "plain"),
    "BatchNorm": (normalised, "plain"),
    "BatchNorm over all batches": (lambda: normalised(momentum=None), "plain"),
    "LayerNorm": (lambda: nn.Sequential(nn.LayerNorm(FEATURES), nn.Linear(FEATURES, CLASSES)), "plain"),
    "counters": (Counting, "plain"),
    "custom forward": (Custom, "plain"),
    "a layer's own forward": (lambda: nn.Sequential(LouderLinear(FEATURES, CLASSES)), "plain"),
    "hooks": (hooked, "plain"),
    "recurrent": (Recurrent, "plain"),
    "attention, an embedding": (Attentive, "plain"),
    "float64": (lambda: chain().double(), "plain"),
    "float64 inside": (lambda: Mixed(torch.float64), "plain"),
}
HALVES = {
    "bfloat16": lambda: chain().bfloat16(),
    "float16": lambda: chain().half(),
    "bfloat16 inside": lambda: Mixed(torch.bfloat16),
    "frozen bfloat16 inside": lambda: frozen(Mixed(torch.bfloat16), "body.weight", "body.bias"),
}


def rows(n: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(5)
    return torch.randn(n, FEATURES), torch.randint(0, CLASSES, (n,))


def trained(built: Built, x: Tensor, y: Tensor, proximal: float = 0.0) -> tuple[Job, np.ndarray]:
    rows = batches_of(np.arange(len(x)), TRAINING, np.random.default_rng(0))
    job = Job(built.initial, rows, proximal, built.initial + 1 if proximal else None)
    network = built.learner((FEATURES,), TRAINING.batch_size)
    return job, train(network, x, y, [job], TRAINING)[0][0]


def by_torch(module: nn.Module, job: Job, x: Tensor, y: Tensor) -> np.ndarray:
    """A loop of torch's own optimiser over the trainable parameters, each step in float32."""
    module.train()
    parameters = [value for value in module.parameters() if value.requires_grad]
    masters = [value.detach().float().requires_grad_() for value in parameters]
    sgd = torch.optim.SGD(masters, lr=TRAINING.learning_rate, momentum=TRAINING.momentum, weight_decay=0.1)
    for batch in job.batches:
        here = torch.from_numpy(batch[batch >= 0])
        module.zero_grad()
        nn.functional.cross_entropy(module(x[here].to(row_type(module))).float(), y[here]).backward()
        for master, value in zip(masters, parameters, strict=True):
            assert value.grad is not None
            master.grad = value.grad.float() + job.proximal * (master.detach() - (master_start(job, module, value) + 1))
        sgd.step()
        with torch.no_grad():
            for master, value in zip(masters, parameters, strict=True):
                value.copy_(master)
    result, layout = flatten(module), Layout.of(module)
    names = {id(value): name for name, value in module.named_parameters()}
    for master, value in zip(masters, parameters, strict=True):
        result[layout.slices[names[id(value)]]] = master.detach().numpy().ravel()
    return result


def master_start(job: Job, module: nn.Module, value: Tensor) -> Tensor:
    layout = Layout.of(module)
    name = next(name for name, other in module.named_parameters() if other is value)
    return torch.from_numpy(layout.tensors(job.weights)[name])


@pytest.mark.parametrize("proximal", [0.0, 0.5])
@pytest.mark.parametrize("kind", [*KINDS, *HALVES])
def test_a_model_is_trained_as_torch_trains_it(kind: str, proximal: float) -> None:
    factory, path = KINDS[kind] if kind in KINDS else (HALVES[kind], "plain")
    built = Built(lambda: make(lambda: factory(), (FEATURES,), CLASSES), 2)
    other = copy.deepcopy(built.module)
    assert built.is_batched((FEATURES,), TRAINING.batch_size) == (path == "batched")
    x, y = rows(23)
    job, found = trained(built, x, y, proximal)
    exact = 2e-5 if kind in KINDS else 2e-3  # half the numbers of half the digits
    np.testing.assert_allclose(found, by_torch(other, job, x, y), atol=exact)
    for name, value in built.module.named_parameters():
        place = built.layout.slices[name]
        assert np.array_equal(found[place], job.weights[place]) == (not value.requires_grad)


@pytest.mark.parametrize("kind", ["counters", "BatchNorm", "BatchNorm over all batches"])
def test_nothing_is_left_of_the_client_before(kind: str) -> None:
    built = Built(KINDS[kind][0], 2)
    x, y = rows(23)
    assert np.array_equal(trained(built, x, y)[1], trained(built, x, y)[1])


def test_counters_count() -> None:
    x, y = rows(23)
    job, found = trained(Built(Counting, 0), x, y)
    state = state_of(Counting(), found)
    assert state["steps"] == len(job.batches) == 8
    assert state["rows"].tolist() == [46, 0]
    assert state["large"] == 2**40 + 1
    assert state["steps"].dtype == state["rows"].dtype == torch.int64


@pytest.mark.parametrize("kind", [*KINDS, *HALVES])
def test_a_state_dict_is_complete(kind: str) -> None:
    """Another module takes it whole, and is then the same."""
    factory = KINDS[kind][0] if kind in KINDS else HALVES[kind]
    module, other, third = factory(), factory(), factory()
    state = state_of(third, flatten(module))
    other.load_state_dict(state, strict=True)
    assert {key: (value.dtype, value.shape) for key, value in state.items()} == {
        key: (value.dtype, value.shape) for key, value in module.state_dict().items()
    }
    assert all(torch.equal(value.float(), module.state_dict()[key].float()) for key, value in state.items())
    assert len({value.data_ptr() for value in state.values() if value.numel()}) == len(state)  # files need own memory
    x, _ = rows(4)
    outputs = [each.eval()(x.to(row_type(module))) for each in (module, other)]
    torch.testing.assert_close(*outputs)


def test_averaged_counters_are_whole_numbers() -> None:
    module = Counting()
    vector = flatten(module)
    vector[Layout.of(module).slices["rows"]] = [2.4, 3.6]
    assert state_of(module, vector)["rows"].tolist() == [2, 4]


@pytest.mark.parametrize("factory", [Noisy, lambda: nn.Sequential(nn.Linear(FEATURES, CLASSES), nn.Dropout())])
def test_random_numbers_of_a_forward_pass_do_not_depend_on_workers(factory: Callable[[], nn.Module]) -> None:
    federation = planted(n_clients=5, rows=40)
    runs = [
        fedclade.run(federation, method="fedavg", model=factory, training=TRAINING, rounds=2, workers=workers, seed=4)
        for workers in (1, 2)
    ]
    assert np.array_equal(*(run.weights_for("c0") for run in runs))
    columns = ["client", "accuracy", "loss"]
    first, second = (run.history.sort_values(["round", "client"])[columns].reset_index(drop=True) for run in runs)
    assert first.equals(second)


def test_evaluation_draws_the_same_numbers_whatever_was_done_before() -> None:
    built = Built(Noisy, 3)
    x, _ = rows(10)
    built.plain.bind(torch.from_numpy(built.initial[None].copy()), None)
    first = built.outputs(x, 0)
    torch.randn(100)
    assert torch.equal(first, built.outputs(x, 0))
    assert not torch.equal(first, built.outputs(x, 250))


class Phases(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Parameter(torch.ones(FEATURES, CLASSES, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return (x.to(torch.complex64) @ self.turn).abs()


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (lambda: frozen(chain(), *dict(chain().named_parameters())), "has nothing to train: leave requires_grad on"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Unflatten(1, (CLASSES, 2)), nn.MaxPool1d(2), nn.Flatten()), "nothing"),
        (Phases, "has complex numbers in turn: keep their two parts as real ones"),
    ],
)
def test_what_cannot_be_trained_is_said_in_one_line(factory: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(FedcladeError, match=message) as caught:
        make(factory, (FEATURES,), CLASSES)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["frozen body", "tied weights", "BatchNorm", "counters", "float64", "bfloat16"])
def test_a_run_takes_it(kind: str) -> None:
    factory = KINDS[kind][0] if kind in KINDS else HALVES[kind]
    result = fedclade.run(planted(), method="fedavg", model=factory, training=TRAINING, rounds=2, workers=1)
    assert result.accuracy["clients"] == 6
    assert np.isfinite(result.weights_for("c0")).all()
