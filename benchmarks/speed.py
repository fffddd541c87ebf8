"""How fast training and evaluation are, as ratios measured in one run: `make bench`.

(a) A round on Fashion-MNIST: 100 clients, label skew 20 %, 10 clients a round, LeNet-5, 2 local epochs, batch 10.
(b) A round on MotionSense rows: 24 people, all of them, MLP 128-64-32, batch 32.
(c) Evaluating all 100 clients of (a), against a round of (a).
(a', b', c') The same with the compiled kernel, where it was built.
(d) Memory of 1,000 clients of Fashion-MNIST, against the data.
(e) Networks of other kinds, batches of 10 and of 64: the clients' training alone.

The bare loop that (a), (b) and (e) are set against is torch alone: a client after the other, nothing but forward,
backward and step on tensors that are ready. Both sides run in this process on one core and take turns; a time is the
smallest of several, in seconds of the processor, so that other work on the machine matters little. Where the real files
are not found, rows of the same shape are made up: speed does not depend on what is in the pictures.
"""

import argparse
import contextlib
import multiprocessing as mp
import os
import platform
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fedclade.clients.batched import kernel, operations
from fedclade.clients.memory import Memory
from fedclade.clients.networks import BatchedNetwork, Built, Network, as_inputs
from fedclade.clients.runtime import ClientRuntime
from fedclade.clients.tasks import Evaluate, Train, Training
from fedclade.clients.training import Job, batches_of, train
from fedclade.data import Federation, federation_of
from fedclade.data.federation import Dataset
from fedclade.data.partition import partition
from fedclade.engines.local import LocalTransport
from fedclade.errors import FedcladeError
from fedclade.models import make
from fedclade.models.assigned import Networks
from fedclade.settings import cores

LENET = Training(local_epochs=2, batch_size=10, learning_rate=0.01, momentum=0.5)
MLP = Training(local_epochs=1, batch_size=32, learning_rate=0.01)
Shape = tuple[int, ...]
Model = str | Callable[[Shape, int], nn.Module]


def convolutional(widths: Sequence[int], side: int, pool: bool = True, **options: int) -> Model:
    """Convolutions of these widths, each with ReLU and (unless it strides) a 2x2 pool, and a dense layer."""

    def build(input_shape: Shape, n_classes: int) -> nn.Module:
        layers: list[nn.Module] = []
        for before, after in pairwise([input_shape[0], *widths]):
            layers += [nn.Conv2d(before, after, side, **options), nn.ReLU()]  # type: ignore[arg-type]
            layers += [nn.MaxPool2d(2)] if pool else []
        return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(n_classes))

    return build


def dense(width: int) -> Model:
    def build(input_shape: Shape, n_classes: int) -> nn.Module:
        layers = nn.Linear(input_shape[0], width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        return nn.Sequential(*layers, nn.Linear(width, n_classes))

    return build


GREY, COLOUR = (1, 28, 28), (3, 32, 32)
OTHERS: list[tuple[str, Model, Shape]] = [
    ("LeNet-5, 28x28", "lenet5", GREY),
    ("LeNet-5, 3x32x32", "lenet5", COLOUR),
    ("5x5 convolutions (16, 32), 28x28", "fmnist-cnn", GREY),
    ("3x3 convolutions with padding (16, 32), 28x28", convolutional((16, 32), 3, padding=1), GREY),
    ("3x3 convolutions of stride 2 (16, 32), 28x28", convolutional((16, 32), 3, False, padding=1, stride=2), GREY),
    ("1-D convolutions (cnn1d), 6x64", "cnn1d", (6, 64)),
    ("1-D convolutions (har-cnn), 9x128", "har-cnn", (9, 128)),
    ("LSTM in both directions (bilstm), 6x32", "bilstm", (6, 32)),
    ("MLP 128-64-32, 784 inputs", "mlp", (784,)),
    ("residual, normalised (resnet9), 3x16x16", "resnet9-gn", (3, 16, 16)),
]
LIMITS: list[tuple[str, Model, Shape]] = [
    ("3x3 convolutions with padding (8, 16)", convolutional((8, 16), 3, padding=1), GREY),
    ("3x3 convolutions with padding (32, 64)", convolutional((32, 64), 3, padding=1), GREY),
    ("3x3 convolutions with padding (64, 128)", convolutional((64, 128), 3, padding=1), GREY),
    ("5x5 convolutions (20, 50)", "mnist-cnn", GREY),
    ("5x5 convolutions (32, 64)", convolutional((32, 64), 5), GREY),
    ("5x5 convolutions (64, 128)", convolutional((64, 128), 5), GREY),
    ("3x3 convolutions of stride 2 (16, 32)", convolutional((16, 32), 3, False, padding=1, stride=2), COLOUR),
    ("3x3 convolutions of stride 2 (32, 64)", convolutional((32, 64), 3, False, padding=1, stride=2), COLOUR),
    ("dense layers of 256", dense(256), (64,)),
    ("dense layers of 512", dense(512), (64,)),
    ("dense layers of 1024", dense(1024), (64,)),
]


def fashion(clients: int, data_dir: str | None) -> Federation:
    try:
        return federation_of("fashion-mnist", "label-skew:0.2", clients, data_dir=data_dir)
    except FedcladeError:
        random = np.random.default_rng(0)
        rows = random.integers(0, 256, (70_000, 1, 28, 28), dtype=np.uint8)
        labels = np.arange(70_000) % 10
        made = Dataset("made-up images", rows, labels, 60_000, tuple("0123456789"))
        return partition(made, "label-skew:0.2", clients)


def motion(data_dir: str | None) -> Federation:
    try:
        return federation_of("motionsense:rows", "natural", data_dir=data_dir)
    except FedcladeError:
        random = np.random.default_rng(0)
        rows = random.standard_normal((1_412_640, 12), dtype=np.float32)
        owner = np.arange(len(rows)) % 24
        names = tuple(str(k) for k in range(24))
        made = Dataset("made-up rows", rows, np.arange(len(rows)) % 6, 1_100_000, tuple("abcdef"), owner, names)
        return partition(made, "natural", None)


def shortened(federation: Federation, limit: int) -> Federation:
    """With so many training rows a client at most."""
    return replace(federation, clients=tuple(replace(one, train=one.train[:limit]) for one in federation.clients))


def smallest(repeats: int, *actions: Callable[[], object]) -> list[float]:
    """The processor's seconds of each action, the smallest of several; they take turns."""
    times: list[list[float]] = [[] for _ in actions]
    for turn in range(repeats + 1):
        for action, seconds in zip(actions, times, strict=True):
            began = time.process_time()
            action()
            if turn:  # the first is for warming up
                seconds.append(time.process_time() - began)
    return [min(seconds) for seconds in times]


def bare(module: nn.Module, clients: Sequence[tuple[torch.Tensor, torch.Tensor]], training: Training) -> None:
    """The bare loop."""
    for x, y in clients:
        optimiser = torch.optim.SGD(module.parameters(), lr=training.learning_rate, momentum=training.momentum)
        for _ in range(training.local_epochs):
            for rows in torch.randperm(len(x)).split(training.batch_size):
                optimiser.zero_grad()
                nn.functional.cross_entropy(module(x[rows]), y[rows]).backward()
                optimiser.step()


@contextlib.contextmanager
def transport_for(
    federation: Federation, model: str, training: Training, workers: int = 1
) -> Iterator[tuple[LocalTransport, np.ndarray]]:
    """The way to all clients, and the model they begin with."""
    networks = Networks.shared(model, federation.input_shape, federation.n_classes)
    with tempfile.TemporaryDirectory() as memory:
        runtime = ClientRuntime(federation, networks, Memory(Path(memory)), 0, training)
        transport = LocalTransport(runtime, workers)
        yield transport, runtime.initial
        transport.close()


@contextlib.contextmanager
def multiplied_by(chosen: kernel.Kernel | None) -> Iterator[None]:
    """Networks that are first used inside are trained by these products."""
    before, kernel.KERNEL = kernel.KERNEL, chosen
    yield
    kernel.KERNEL = before


def rounds(
    federation: Federation, model: str, training: Training, per_round: int, repeats: int, evaluates: bool
) -> tuple[float, list[tuple[float, float]]]:
    """Seconds of the bare loop; of a round and of an evaluation of all clients, by torch's products and by the kernel."""
    names = federation.names[:: len(federation) // per_round][:per_round]
    clients = [
        (as_inputs(torch.from_numpy(federation.x[rows])), torch.from_numpy(federation.y[rows].astype(np.int64)))
        for rows in (federation[name].train for name in names)
    ]
    module = make(model, federation.input_shape, federation.n_classes)
    actions: list[Callable[[], object]] = [lambda: bare(module, clients, training)]
    with contextlib.ExitStack() as stack:
        for chosen in (None, kernel.KERNEL)[: 1 + (kernel.KERNEL is not None)]:
            transport, initial = stack.enter_context(transport_for(federation, model, training))
            train_some = partial(transport.deliver, {name: Train(initial) for name in names}, 1)
            measure = partial(transport.deliver, {name: Evaluate(initial) for name in federation.names}, 1)
            with multiplied_by(chosen):
                train_some(), measure()
            actions += [train_some, measure if evaluates else lambda: None]
        alone, *ours = smallest(repeats, *actions)
    return alone, list(zip(ours[::2], ours[1::2], strict=True))


def training_alone(model: Model, shape: Shape, batch: int, repeats: int, anyway: bool = False) -> tuple[float, Network]:
    """How often a client is trained in the time of the bare loop, and by what; `anyway`: at once, rule or no rule."""
    training = Training(local_epochs=1, batch_size=batch, learning_rate=0.01, momentum=0.5)
    built = Built(lambda: make(model, shape, 10), 0)
    ops = operations(built.module, shape, batch)
    network = BatchedNetwork(ops, ()) if anyway and ops else built.learner(shape, batch)
    n_clients, per_client = min(network.at_once * 2, 12), batch * (10 if batch < 32 else 4)
    torch.manual_seed(0)
    x, y = torch.rand(n_clients * per_client, *shape), torch.randint(0, 10, (n_clients * per_client,))
    jobs = [
        Job(built.initial, batches_of(rows, training, np.random.default_rng(k)))
        for k, rows in enumerate(np.arange(len(x)).reshape(n_clients, per_client))
    ]
    clients = list(zip(x.split(per_client), y.split(per_client), strict=True))[:4]
    module = make(model, shape, 10)
    alone, ours = smallest(
        repeats, lambda: bare(module, clients, training), lambda: train(network, x, y, jobs, training)
    )
    return alone / len(clients) / (ours / n_clients), network


def memory_of(data_dir: str | None) -> tuple[float, float]:
    """Peak memory beyond the imports of a run with 1,000 clients (all processes), and the size of its rows, in MB."""
    context = mp.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_measure_memory, args=(queue, data_dir))
    process.start()
    used, data = queue.get()
    process.join()
    return used, data


def _measure_memory(queue, data_dir: str | None) -> None:  # type: ignore[no-untyped-def]
    import psutil

    import fedclade

    me = psutil.Process()
    family = lambda: [me, *me.children(recursive=True)]  # noqa: E731

    def unshared() -> float:
        """Memory in use, shared pages counted once (proportional set size)."""
        total = 0
        for process in family():
            with contextlib.suppress(psutil.Error):
                total += process.memory_full_info().pss
        return total

    import fedclade.api

    base = _idle_workers()  # the price of Python and torch, not of the clients
    peak, done = [0.0], threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            peak[0] = max(peak[0], unshared())

    threading.Thread(target=watch, daemon=True).start()
    settings = {"model": "lenet5", "participation": 0.1, "method": "fedavg", "training": LENET, "rounds": 2}
    try:
        fedclade.run("fashion-mnist", split="label-skew:0.2", clients=1000, data_dir=data_dir, **settings)
    except FedcladeError:
        fedclade.run(fashion(1000, None), **settings)
    done.set()
    queue.put(((peak[0] - base) / 1e6, 70_000 * 28 * 28 / 1e6))


def _idle_workers() -> float:
    """Memory of this process and its workers while they hold a federation of almost no rows."""
    import psutil

    rows = np.zeros((20, 1, 28, 28), np.uint8)
    federation = federation_of({f"c{k}": (rows, np.arange(20) % 10) for k in range(2)})
    with transport_for(federation, "lenet5", LENET, cores()) as (transport, initial):
        transport.deliver({name: Train(initial) for name in federation.names}, 1)
        family = [psutil.Process(), *psutil.Process().children(recursive=True)]
        return sum(process.memory_full_info().pss for process in family)


MARKS = (("", "torch's products"), ("'", "compiled kernel"))


def line(letter: str, what: str, alone: float, ours: float, mark: tuple[str, str]) -> str:
    return f"| ({letter}{mark[0]}) {what}, {mark[1]} | {alone:.2f} s | {ours:.3f} s | {alone / ours:.1f}x |"


def tables(data_dir: str | None, repeats: int) -> Iterator[str]:
    """The lines of the page, as they are known."""
    yield from (
        f"Measured on a {platform.machine()} CPU, torch {torch.__version__}, Python {platform.python_version()}.",
        "",
        "| what | bare loop | fedclade | ratio |",
        "|---|---|---|---|",
    )
    images = fashion(100, data_dir)
    alone, lenet = rounds(images, "lenet5", LENET, 10, repeats, evaluates=True)
    what = f"a round: {images.data}, LeNet-5, 10 clients, batch 10"
    yield from (line("a", what, alone, ours, mark) for (ours, _), mark in zip(lenet, MARKS, strict=False))
    people = shortened(motion(data_dir), 6_000)
    alone, mlp = rounds(people, "mlp", MLP, len(people), repeats, evaluates=False)
    what = f"a round: {people.data}, MLP, {len(people)} clients, batch 32"
    yield from (line("b", what, alone, ours, mark) for (ours, _), mark in zip(mlp, MARKS, strict=False))
    for (ours, evaluation), (mark, how) in zip(lenet, MARKS, strict=False):
        share = f"{evaluation / ours:.0%} of a round (a{mark}), {evaluation / lenet[0][0]:.0%} of a round (a)"
        yield f"| (c{mark}) evaluating all 100 clients of (a), {how} | | {evaluation:.3f} s | {share} |"
    used, data = memory_of(data_dir)
    yield (
        f"| (d) memory of 1,000 clients beyond Python and torch | {data:.0f} MB of rows as bytes, {4 * data:.0f} MB as "
        f"float32 | {used:.0f} MB | {used / data:.1f}x the bytes, {used / data / 4:.2f}x the float32 |"
    )
    yield from ("", "| (e) training alone | path | batch 10 | batch 64 |", "|---|---|---|---|")
    for name, model, shape in OTHERS:
        (small, network), (large, _) = (training_alone(model, shape, batch, repeats) for batch in (10, 64))
        batched = "compiled" if kernel.KERNEL else "batched"
        path = batched if isinstance(network, BatchedNetwork) else "plain"
        yield f"| {name} | {path} | {small:.1f}x | {large:.1f}x |"


def limits(repeats: int) -> Iterator[str]:
    """Where training many at once stops being faster: what the rule was made from."""
    batches = (10, 32, 64, 128)
    yield "| network | weights of its largest layer |" + "".join(f" batch {batch} |" for batch in batches)
    yield "|---" * (len(batches) + 2) + "|"
    for name, model, shape in LIMITS:
        weights = max(value.numel() for value in list(make(model, shape, 10).parameters())[:-2])
        with multiplied_by(None):  # the path must not depend on whether the kernel was built
            ratios = [training_alone(model, shape, batch, repeats, anyway=True)[0] for batch in batches]
        yield f"| {name} | {weights:,} |" + "".join(f" {ratio:.1f}x |" for ratio in ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default=os.environ.get("FEDCLADE_DATA"))
    parser.add_argument("--out", type=Path, help="also write the tables to this Markdown file")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--limits", action="store_true", help="only: where training many at once stops being faster")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    name = "limits" if arguments.limits else "table"
    lines = []
    for line in limits(arguments.repeats) if arguments.limits else tables(arguments.data_dir, arguments.repeats):
        print(line, flush=True)
        lines.append(line)
    if arguments.out:
        before, _, rest = arguments.out.read_text().partition(f"<!-- {name} -->\n")
        _, _, after = rest.partition(f"<!-- end of {name} -->")
        text = "\n".join([f"{before}<!-- {name} -->", *lines, f"<!-- end of {name} -->{after}"])
        arguments.out.write_text(text)


if __name__ == "__main__":
    main()
