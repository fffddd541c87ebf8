"""The workbench: what a client does when asked. It is the same on every engine."""

import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedclade.clients.describe import describe
from fedclade.clients.memory import Memory
from fedclade.clients.networks import PlainNetwork, as_inputs, is_batched, network_for, with_quick_pools
from fedclade.clients.tasks import (
    Answer,
    Describe,
    Described,
    Evaluate,
    Evaluated,
    Failure,
    Predict,
    Predicted,
    Task,
    Train,
    Trained,
    Training,
)
from fedclade.clients.training import Job, batches_of, train
from fedclade.data.federation import Client, Federation
from fedclade.models import weights as vectors
from fedclade.randomness import seed_of, stream

CHUNK = 250  # rows in one forward pass; fixed, because the size of a product may touch the last bit of a sum


@dataclass
class Workbench:
    """The rows of some clients, the network they train, and what they remember."""

    federation: Federation
    factory: Callable[[], nn.Module]
    memory: Memory
    seed: int
    training: Training
    rows_of: Mapping[str, str] = field(default_factory=dict)  # whose rows a client holds, where they are not its own

    @cached_property
    def module(self) -> nn.Module:
        """The network, with the initial weights of this seed."""
        torch.manual_seed(seed_of(self.seed, "initial model") % 2**63)
        return with_quick_pools(self.factory())

    @cached_property
    def layout(self) -> vectors.Layout:
        return vectors.Layout.of(self.module)

    @cached_property
    def initial(self) -> np.ndarray:
        return vectors.flatten(self.module)

    @cached_property
    def x(self) -> Tensor:
        return _shared(self.federation.x)

    @cached_property
    def y(self) -> Tensor:
        return _shared(self.federation.y)

    @cached_property
    def clients(self) -> dict[str, Client]:
        return {client.name: client for client in self.federation.clients}

    def held(self, client: str) -> Client:
        """The rows a client holds now: those of another where its data have changed."""
        return self.clients[self.rows_of.get(client, client)]

    def is_batched(self, training: Training | None) -> bool:
        """Whether clients that train like this train together in one go."""
        size = (training or self.training).batch_size
        return is_batched(self.module, self.federation.input_shape, size)

    def perform(self, tasks: Mapping[str, Task], round: int) -> dict[str, Answer | Failure]:
        """Do what some clients are asked; a client that raises fails alone."""
        self.initial  # noqa: B018  (made before the module takes on other weights)
        answers: dict[str, Answer | Failure] = {}
        together: dict[Training, dict[str, Train]] = {}
        for client, task in tasks.items():
            if isinstance(task, Train) and self.is_batched(task.training):
                together.setdefault(task.training or self.training, {})[client] = task
            else:
                answers[client] = self._alone(client, task, round)
        for group in together.values():
            try:
                answers |= self._train(group, round)
            except Exception:  # one of them: find out which
                answers |= {client: self._alone(client, task, round) for client, task in group.items()}
        return {client: answers[client] for client in tasks}

    def _alone(self, client: str, task: Task, round: int) -> Answer | Failure:
        try:
            match task:
                case Train():
                    return self._train({client: task}, round)[client]
                case Evaluate():
                    return self._evaluate(client, task, round)
                case Predict():
                    return self._predict(client, task)
                case Describe():
                    held = self.held(client).train
                    random = stream(self.seed, f"describe {task.what}", client, round)
                    x, y = self.federation.x[held], self.federation.y[held]
                    return Described(describe(task.what, dict(task.options), x, y, self.federation.n_classes, random))
        except Exception as error:
            return Failure("raised", f"{type(error).__name__}: {error}".splitlines()[0][:300])

    def _train(self, tasks: Mapping[str, Train], round: int) -> dict[str, Answer | Failure]:
        training = next(iter(tasks.values())).training or self.training
        jobs, chosen = [], {}
        for client, task in tasks.items():
            held = self.held(client).train
            starts = [self._compose(client, task, candidate) for candidate in (task.candidates or (None,))]
            fits = [self._losses(start, held)[0].mean() for start in starts] if len(starts) > 1 else [0.0]
            chosen[client] = int(np.argmin(fits))
            order = stream(self.seed, "batches", client, round)
            start = starts[chosen[client]]
            jobs.append(Job(start, batches_of(held, training, order), task.proximal, task.centre, task.linear))
        network = network_for(self.module, self.federation.input_shape, training.batch_size)
        torch.manual_seed(seed_of(self.seed, "dropout", next(iter(tasks)), round) % 2**63)
        trained, losses = train(network, self.layout.n_parameters, self.x, self.y, jobs, training)
        answers: dict[str, Answer | Failure] = {}
        for (client, task), job, weights, loss in zip(tasks.items(), jobs, trained, losses, strict=True):
            if task.save:
                self.memory.write(client, task.save, weights, round)
            sent = weights[:0] if task.upload == "nothing" else weights[self.layout.select(task.upload)]
            held = self.held(client).train
            answers[client] = Trained(sent.copy(), len(held), len(job.batches), float(loss), chosen[client])
        return answers

    def _compose(self, client: str, task: Train | Evaluate | Predict, sent: np.ndarray | None) -> np.ndarray:
        """The weights to work with: what was sent, over what the client remembers."""
        if sent is not None and sent.shape != self.initial.shape:
            raise ValueError(f"weights of shape {sent.shape} do not fit a model of {self.layout.size} numbers")
        if sent is not None and not task.start:
            return sent
        weights = self.memory.read(client, task.start) if task.start else None
        weights = self.initial.copy() if weights is None else weights
        if sent is not None:
            place = self.layout.select(task.layers)
            weights[place] = sent[place]
        return weights

    def _evaluate(self, client: str, task: Evaluate, round: int) -> Evaluated:
        weights = self._compose(client, task, task.weights)
        if task.adapt is not None:
            practice = Train(weights, training=task.adapt, save="")
            answer = self._train({client: practice}, round)[client]
            assert isinstance(answer, Trained)
            weights = answer.weights
        rows = self.held(client).test if task.on == "test" else self.held(client).train
        losses, predictions = self._losses(weights, rows)
        return summary(losses, predictions == self.federation.y[rows])

    def _losses(self, weights: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The loss and the predicted class of every row."""
        losses, predictions = [], []
        for start, outputs in enumerate(self.outputs(weights, rows)):
            part = rows[start * CHUNK : (start + 1) * CHUNK]
            losses.append(nn.functional.cross_entropy(outputs, self.y[part], reduction="none").numpy())
            predictions.append(outputs.argmax(1).numpy())
        return np.concatenate(losses), np.concatenate(predictions)

    def outputs(self, weights: np.ndarray, rows: np.ndarray) -> Sequence[Tensor]:
        """The network's outputs for some rows of the pool, chunk by chunk."""
        self._load(weights)
        self.module.eval()
        with torch.inference_mode():
            parts = [rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK)]
            return [self.module(as_inputs(self.x[part])) for part in parts]

    def sweep(self, weights: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For engines that evaluate one model for many clients: each row's loss and whether it was classified right."""
        losses, predictions = self._losses(weights, rows)
        return losses, predictions == self.federation.y[rows]

    def _predict(self, client: str, task: Predict) -> Predicted:
        weights = self._compose(client, task, task.weights)
        labels = np.empty(0, np.int64)
        if task.rows is None:
            held = self.held(client).test if task.on == "test" else self.held(client).train
            inputs, labels = self.x[held], self.federation.y[held]
        else:
            inputs = torch.from_numpy(np.ascontiguousarray(task.rows))
        self._load(weights)
        self.module.eval()
        caught: list[Tensor] = []
        hooks = []
        if task.output not in ("probabilities", "outputs"):
            layer = self.module.get_submodule(task.output)
            hooks.append(layer.register_forward_hook(lambda _m, _i, out: caught.append(out.flatten(1).clone())))
        try:
            with torch.inference_mode():
                parts = [self.module(as_inputs(inputs[i : i + CHUNK])) for i in range(0, len(inputs), CHUNK)]
        finally:
            for hook in hooks:
                hook.remove()
        values = torch.cat(caught or parts)
        return Predicted((values.softmax(1) if task.output == "probabilities" else values).numpy(), labels)

    def _load(self, weights: np.ndarray) -> None:
        buffer = torch.from_numpy(np.array(weights[None], np.float32))
        PlainNetwork(self.module).bind(buffer, torch.zeros(1, self.layout.n_parameters))


def _shared(array: np.ndarray) -> Tensor:
    """A tensor over an array's memory. torch warns of read-only memory; nothing here writes to the rows."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)


def summary(losses: np.ndarray, right: np.ndarray) -> Evaluated:
    return Evaluated(float(losses.mean(dtype=np.float64)), float(right.mean()), len(right))


def save_workbench(bench: Workbench, folder: Path) -> None:
    """Write a workbench down for other processes of this machine: the rows are mapped there, not copied."""
    import cloudpickle

    folder.mkdir(parents=True, exist_ok=True)
    mapped = getattr(bench.federation.x, "filename", None)
    if mapped and Path(mapped).is_file():
        (folder / "x.npy").symlink_to(mapped)
    else:
        np.save(folder / "x.npy", bench.federation.x)
    np.save(folder / "y.npy", bench.federation.y)
    parts = [rows for client in bench.federation.clients for rows in (client.train, client.test)]
    index, place = {}, 0
    for rows in parts:  # clients often share their test rows: keep them once
        if id(rows) not in index:
            index[id(rows)] = (place, place + len(rows))
            place += len(rows)
    unique = {id(rows): rows for rows in parts}
    np.save(folder / "rows.npy", np.concatenate([unique[key] for key in index]).astype(np.int32))
    clients = [(c.name, index[id(c.train)], index[id(c.test)], c.group) for c in bench.federation.clients]
    about = {
        "clients": clients,
        "classes": bench.federation.classes,
        "memory": str(bench.memory.folder),
        "seed": bench.seed,
        "training": bench.training.model_dump(),
    }
    (folder / "about.json").write_text(json.dumps(about))
    (folder / "network.pkl").write_bytes(cloudpickle.dumps(bench.factory))


def load_workbench(folder: Path) -> Workbench:
    """Read what `save_workbench` wrote in a folder of this machine's own making."""
    about: dict[str, Any] = json.loads((folder / "about.json").read_text())
    rows = np.load(folder / "rows.npy", mmap_mode="r")
    clients = tuple(
        Client(name, rows[slice(*train)], rows[slice(*test)], group) for name, train, test, group in about["clients"]
    )
    federation = Federation(
        np.load(folder / "x.npy", mmap_mode="r"), np.load(folder / "y.npy", mmap_mode="r"), clients, tuple(about["classes"])
    )
    factory = pickle.loads((folder / "network.pkl").read_bytes())
    return Workbench(federation, factory, Memory(about["memory"]), about["seed"], Training(**about["training"]))


