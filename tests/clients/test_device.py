"""Where networks run. There is no GPU here: a guard sees to it that nothing is made where the rows are not."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

import fedclade
from fedclade.clients import runtime as runtime_module
from fedclade.clients.device import device_of
from fedclade.clients.memory import Memory
from fedclade.clients.runtime import ClientRuntime
from fedclade.clients.tasks import Evaluate, Predict, Train, Training
from fedclade.models.assigned import Networks
from synthetic import planted

MAKERS = ("zeros", "ones", "empty", "full", "arange", "tensor", "rand", "randn", "randint", "from_numpy", "as_tensor")
FROM_ANYWHERE = ("copy_", "__getitem__", "__setitem__", "numpy", "__get__", "__set__")  # torch takes both sides there


def tensors_in(values):
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)


class Guard(TorchFunctionMode):
    """Whatever is made without naming a device lies at home, and may not meet what lies on the device."""

    def __init__(self):
        super().__init__()
        self.at_home, self.made, self.wrong = {}, 0, []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        result = func(*args, **kwargs)
        given = list(tensors_in([*args, *kwargs.values()]))
        home = [one for one in given if id(one) in self.at_home]
        if name in MAKERS and "device" not in kwargs:
            self._keep(result)
        elif name in ("to", "cpu", "cuda") or name in FROM_ANYWHERE:
            return result
        elif home and len(home) == len(given):
            self._keep(result)
        elif home:
            self.wrong.append(name)
        self.made += name in MAKERS
        return result

    def _keep(self, result):
        for one in tensors_in([result]):
            self.at_home[id(one)] = one


@pytest.mark.parametrize("model", ["mlp", "ann", "cnn1d"])
@pytest.mark.parametrize("batch_size", [8, 1000])
def test_nothing_is_made_on_the_wrong_device(tmp_path: Path, monkeypatch, model: str, batch_size: int) -> None:
    federation = planted(n_clients=3)
    training = Training(local_epochs=1, batch_size=batch_size, momentum=0.5, weight_decay=1e-3)
    runtime = ClientRuntime(federation, Networks.shared(model, (8,), 4), Memory(tmp_path), 0, training)
    names = federation.names
    tasks = [
        {name: Train(runtime.initial, proximal=0.1) for name in names},
        {name: Train(runtime.initial, training=training.model_copy(update={"meta": "first-order"})) for name in names},
        {name: Evaluate(runtime.initial, adapt=training) for name in names},
        {name: Predict(runtime.initial) for name in names},
    ]
    plain = [runtime.perform(some, 1) for some in tasks]
    monkeypatch.setattr(runtime_module, "here", lambda device: device)  # as on a GPU
    runtime.built[""].learner.cache_clear()
    runtime.x, runtime.y  # noqa: B018  (rows are put there once)
    with Guard() as guard:
        guarded = [runtime.perform(some, 1) for some in tasks]
    assert not guard.wrong
    assert guard.made > 10
    for before, after in zip(plain, guarded, strict=True):
        for name in names:
            for mine, other in zip(vars(before[name]).values(), vars(after[name]).values(), strict=True):
                assert np.array_equal(mine, other)


def test_the_guard_sees_a_tensor_at_home() -> None:
    there = torch.zeros(3, device="cpu")
    with Guard() as guard:
        there.add_(torch.ones(3))
    assert guard.wrong == ["add_"]


def test_a_device_that_is_not_there_is_one_line() -> None:
    assert device_of("auto").type in ("cpu", "cuda", "mps")
    if not torch.cuda.is_available():
        with pytest.raises(fedclade.FedcladeError, match="device 'cuda' is not there"):
            fedclade.run("digits", clients=2, rounds=0, device="cuda")


def test_auto_gives_the_bits_of_the_device_it_takes() -> None:
    runs = [
        fedclade.run("digits", clients=3, rounds=1, workers=1, device=name) for name in ("auto", device_of("auto").type)
    ]
    name = runs[0].clusters[0][0]
    assert np.array_equal(*(run.weights_for(name) for run in runs))
