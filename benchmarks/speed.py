"""How fast the engine is, as ratios measured in one run: `make runtime`.

(a) Fashion-MNIST, 100 clients, label skew 20 %, 10 clients a round, LeNet-5, 2 local epochs, batch 10.
(b) MotionSense rows, 24 people, MLP 128-64-32, batch 32, everybody in one round.
(c) Evaluating all 100 clients of (a), against a round of (a).
(d) Memory of 1,000 clients of Fashion-MNIST, against the data.

The bare loop that (a) and (b) are set against is torch alone: a process a core, a client after the other, nothing but
forward, backward and step on tensors that are ready. Where the real files are not found, rows of the same shape are
made up: speed does not depend on what is in the pictures.
"""

import argparse
import contextlib
import multiprocessing as mp
import os
import platform
import statistics
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fedclade.clients.tasks import Evaluate, Train, Training
from fedclade.data import Federation, federation_of
from fedclade.data.federation import Dataset
from fedclade.data.partition import partition
from fedclade.engines.local import LocalEngine
from fedclade.errors import FedcladeError
from fedclade.models import make
from fedclade.settings import cores

LENET = Training(local_epochs=2, batch_size=10, learning_rate=0.01, momentum=0.5)
MLP = Training(local_epochs=1, batch_size=32, learning_rate=0.01)


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


def bare_client(module: nn.Module, x: torch.Tensor, y: torch.Tensor, training: Training) -> None:
    optimiser = torch.optim.SGD(module.parameters(), lr=training.learning_rate, momentum=training.momentum)
    for _ in range(training.local_epochs):
        order = torch.randperm(len(x))
        for start in range(0, len(x), training.batch_size):
            rows = order[start : start + training.batch_size]
            optimiser.zero_grad()
            nn.functional.cross_entropy(module(x[rows]), y[rows]).backward()
            optimiser.step()


def bare_worker(pipe, clients, model, shape, classes, training) -> None:  # type: ignore[no-untyped-def]
    torch.set_num_threads(1)
    module = make(model, shape, classes)
    tensors = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in clients]
    bare_client(module, *(part[:100] for part in tensors[0]), training)  # warm up
    pipe.send("ready")
    while pipe.recv():
        for x, y in tensors:
            bare_client(module, x, y, training)
        pipe.send("done")


class Bare:
    """The bare loop on all cores at once."""

    def __init__(
        self, federation: Federation, names: list[str], model: str, training: Training, limit: int | None
    ) -> None:
        shares: list[list] = [[] for _ in range(cores())]
        for place, name in enumerate(sorted(names, key=lambda n: -len(federation[n].train))):
            rows = federation[name].train[:limit]
            x = federation.x[rows].astype(np.float32) / (255 if federation.x.dtype == np.uint8 else 1)
            shares[place % cores()].append((x, federation.y[rows].astype(np.int64)))
        context = mp.get_context("spawn")
        self.pipes = []
        for share in shares:
            ours, theirs = context.Pipe()
            arguments = (theirs, share, model, federation.input_shape, federation.n_classes, training)
            context.Process(target=bare_worker, args=arguments, daemon=True).start()
            self.pipes.append(ours)
        for pipe in self.pipes:
            pipe.recv()

    def seconds(self) -> float:
        began = time.perf_counter()
        for pipe in self.pipes:
            pipe.send(True)
        for pipe in self.pipes:
            pipe.recv()
        return time.perf_counter() - began

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.send(False)


def shortened(federation: Federation, limit: int | None) -> Federation:
    if limit is None:
        return federation
    return replace(
        federation, clients=tuple(replace(client, train=client.train[:limit]) for client in federation.clients)
    )


def timed(action) -> float:  # type: ignore[no-untyped-def]
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def compare(
    federation: Federation, model: str, training: Training, per_round: int, repeats: int, limit: int | None = None
):  # type: ignore[no-untyped-def]
    """Seconds of the bare loop, of a round, and of an evaluation, taken in turns."""
    federation = shortened(federation, limit)
    names = list(federation.names[:: len(federation) // per_round][:per_round])
    bare = Bare(federation, names, model, training, limit)
    with tempfile.TemporaryDirectory() as memory:
        engine = LocalEngine(
            federation,
            lambda: make(model, federation.input_shape, federation.n_classes),
            seed=0,
            training=training,
            memory=Path(memory),
            workers=cores(),
        )
        round_of = lambda: engine.answer({name: Train(engine.initial) for name in names}, 1)  # noqa: E731
        evaluation = lambda: engine.answer({name: Evaluate(engine.initial) for name in federation.names}, 1)  # noqa: E731
        round_of(), evaluation()
        times = [(bare.seconds(), timed(round_of), timed(evaluation)) for _ in range(repeats)]
        engine.close()
    bare.close()
    return [statistics.median(column) for column in zip(*times, strict=True)]


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
    with tempfile.TemporaryDirectory() as memory:
        engine = LocalEngine(
            federation,
            lambda: make("lenet5", (1, 28, 28), 10),
            seed=0,
            training=LENET,
            memory=Path(memory),
            workers=cores(),
        )
        engine.answer({name: Train(engine.initial) for name in federation.names}, 1)
        family = [psutil.Process(), *psutil.Process().children(recursive=True)]
        total = sum(process.memory_full_info().pss for process in family)
        engine.close()
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default=os.environ.get("FEDCLADE_DATA"))
    parser.add_argument("--out", type=Path, help="also write the table to this Markdown file")
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    federation = fashion(100, arguments.data_dir)
    bare, ours, evaluation = compare(federation, "lenet5", LENET, 10, arguments.repeats)
    lines = [
        "| what | bare loop on all cores | fedclade | ratio |",
        "|---|---|---|---|",
        f"| (a) a round: {federation.data}, LeNet-5, 10 clients, batch 10 | {bare:.2f} s | {ours:.2f} s | {bare / ours:.1f}x |",
    ]
    motionsense = motion(arguments.data_dir)
    bare_b, ours_b, _ = compare(motionsense, "mlp", MLP, len(motionsense), max(3, arguments.repeats // 2), limit=20_000)
    lines += [
        f"| (b) a round: {motionsense.data}, MLP, {len(motionsense)} clients, batch 32 "
        f"| {bare_b:.2f} s | {ours_b:.2f} s | {bare_b / ours_b:.1f}x |",
        f"| (c) evaluating all 100 clients of (a) | | {evaluation:.3f} s | {evaluation / ours:.1%} of a round |",
    ]
    used, data = memory_of(arguments.data_dir)
    lines.append(
        f"| (d) memory of 1,000 clients beyond Python and torch | {data:.0f} MB of rows as bytes, {4 * data:.0f} MB as "
        f"float32 | {used:.0f} MB | {used / data:.1f}x the bytes, {used / data / 4:.2f}x the float32 |"
    )
    kind = f"{cores()}-core CPU, {platform.machine()}, torch {torch.__version__}, Python {platform.python_version()}"
    table = "\n".join([f"Measured on a {kind}.", "", *lines])
    print(table)
    if arguments.out:
        text = arguments.out.read_text() if arguments.out.exists() else "<!-- table -->\n<!-- end -->\n"
        before, _, rest = text.partition("<!-- table -->\n")
        _, _, after = rest.partition("<!-- end -->")
        arguments.out.write_text(f"{before}<!-- table -->\n{table}\n<!-- end -->{after}")


if __name__ == "__main__":
    main()
