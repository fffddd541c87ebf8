"""The client runtime: what a client does when asked. It is the same on every engine."""

import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedclade.clients.describe import OF_FEATURES, describe
from fedclade.clients.device import device_of, here, seed_torch
from fedclade.clients.memory import Memory
from fedclade.clients.messages import unpack, whole
from fedclade.clients.networks import CHUNK, Built
from fedclade.clients.objective import Classification, Objective
from fedclade.clients.tasks import (
    APART,
    CONTROL,
    HALFWAY,
    PERSONAL,
    SERVER,
    SHARE,
    Answer,
    Describe,
    Described,
    Evaluate,
    Evaluated,
    Failure,
    Layers,
    Mixture,
    Predict,
    Predicted,
    Task,
    Train,
    Trained,
    Training,
    Tried,
    Try,
    effective_steps,
)
from fedclade.clients.training import Job, batches_of, train_beside
from fedclade.codec import Packet
from fedclade.data.federation import Client, Federation
from fedclade.models.assigned import Networks, Through, stacked_weights
from fedclade.models.mixture import RobustMixture
from fedclade.models.weights import Layout
from fedclade.randomness import seed_of, stream

WORST = 1e20  # the loss of a model that is of no use any more


@dataclass(frozen=True)
class Rows:
    """Some rows of a table, and their labels."""

    x: Tensor
    y: Tensor
    places: np.ndarray

    @classmethod
    def given(cls, x: np.ndarray | Tensor, y: np.ndarray, device: torch.device) -> "Rows":
        """All rows of a table that came with a task, or was computed."""
        table = x if isinstance(x, Tensor) else torch.from_numpy(np.ascontiguousarray(x))
        labels = torch.from_numpy(np.asarray(y, np.float32 if np.asarray(y).dtype.kind == "f" else np.int64))
        return cls(table.to(device), labels.to(device), np.arange(len(table)))

    @property
    def labels(self) -> np.ndarray:
        return self.y[self.places].cpu().numpy()

    def __len__(self) -> int:
        return len(self.places)

    def chunks(self) -> Iterator[np.ndarray]:
        return (self.places[start : start + CHUNK] for start in range(0, len(self.places), CHUNK))


@dataclass
class ClientRuntime:
    """The rows of some clients, the networks they train, and what they remember."""

    federation: Federation
    networks: Networks
    memory: Memory
    seed: int
    training: Training
    objective: Objective = field(default_factory=Classification)  # what networks are trained for
    device: str = "cpu"  # where they run (`device.device_of`)
    rows_of: Mapping[str, str] = field(default_factory=dict)  # whose rows a client holds, where they are not its own

    @cached_property
    def built(self) -> dict[str, Built]:
        """Every network, with the initial weights of this seed: they are the same for all clients that train it."""
        purpose = {name: f"initial model {name}" if name else "initial model" for name in self.networks.factories}
        built = {
            name: Built(factory, seed_of(self.seed, purpose[name])) for name, factory in self.networks.factories.items()
        }
        for network in built.values():
            network.work_for(self.objective, device_of(self.device))
        return built

    @property
    def layout(self) -> Layout:
        """Of the clusters' models."""
        return self.built[""].layout

    @property
    def initial(self) -> np.ndarray:
        return self.built[""].initial

    @property
    def facts(self) -> dict[str, Any]:
        """What a run records about how its clients work."""
        facts: dict[str, Any] = {"training_path": self._path(""), "chunk": CHUNK}
        if self.networks.of:
            own = [name for name in self.built if name]
            facts |= {"networks": dict(self.networks.of), "training_paths": {name: self._path(name) for name in own}}
        return facts

    def _path(self, network: str) -> str:
        return self.built[network].path(self.federation.input_shape, self.training.batch_size)

    def network(self, client: str, through: Through = "") -> Built:
        """The network whose weights a task for this client speaks of."""
        return self.built[self.networks.name(client, through)]

    @cached_property
    def x(self) -> Tensor:
        return _shared(self.federation.x).to(device_of(self.device))

    @cached_property
    def y(self) -> Tensor:
        return _shared(self.federation.y).to(device_of(self.device))

    @cached_property
    def clients(self) -> dict[str, Client]:
        return {client.name: client for client in self.federation.clients}

    def held(self, client: str) -> Client:
        """The rows a client holds now: those of another where its data have changed."""
        return self.clients[self.rows_of.get(client, client)]

    def is_batched(self, client: str, task: Task) -> bool:
        """Whether clients of this network that train like this train together in one go."""
        if not isinstance(task, Train | Try) or getattr(task, "rows", None) is not None:
            return False
        size = (getattr(task, "training", None) or self.training).batch_size
        return self.network(client).is_batched(self.federation.input_shape, size)

    def served_weights(self, client: str, task: Evaluate) -> np.ndarray:
        """The whole model that serves a client, as `Method.served` tells it."""
        if not task.through:
            return self._compose(client, task, task.weights)
        assert task.weights is not None
        module = self.networks.make(client, task.through)
        return stacked_weights(module, task.through, task.weights, lambda slot: self._kept(client, slot))

    def _kept(self, client: str, slot: str) -> np.ndarray:
        """The client's own network, as a slot of its memory has it."""
        weights = self.memory.read(client, slot)
        return self.network(client).initial if weights is None else weights

    def at_server(self, tasks: Sequence[Task], round: int) -> list[Answer | Failure]:
        """Tasks that bring their rows along, done where the server is."""
        return [self._alone(SERVER, task, round) for task in tasks]

    def received(self, client: str, packet: Packet) -> Task:
        """A task as it came over a wire. Raises KeyError, TypeError or ValueError where it is none."""
        task = unpack(packet)
        if not isinstance(task, Task):
            raise TypeError(f"{type(task).__name__} is no task")
        network = self.network(client, getattr(task, "through", ""))
        return whole(task, network.layout, network.initial)

    def perform(self, tasks: Mapping[str, Task], round: int) -> dict[str, Answer | Failure]:
        """Do what some clients are asked; a client that raises fails alone."""
        answers: dict[str, Answer | Failure] = {}
        together: dict[Any, dict[str, Any]] = {}
        for client, task in tasks.items():
            if self.is_batched(client, task):
                alike: Any = (task.epochs, task.halfway, task.alone, task.averaged) if isinstance(task, Try) else None
                alike = (task.training or self.training, task.beside) if isinstance(task, Train) else alike
                together.setdefault((self.networks.name(client), alike), {})[client] = task
            else:
                answers[client] = self._alone(client, task, round)
        for group in together.values():
            try:
                do = self._train if isinstance(next(iter(group.values())), Train) else self._try
                answers |= do(group, round)
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
                case Try():
                    return self._try({client: task}, round)[client]
                case Predict():
                    return self._predict(client, task)
                case Describe():
                    return self._describe(client, task, round)
        except Exception as error:
            return Failure("raised", f"{type(error).__name__}: {error}".splitlines()[0][:300])

    def _train(self, tasks: Mapping[str, Train], round: int) -> dict[str, Answer | Failure]:
        """Train clients of one network together; a task that brings its own rows comes alone."""
        first, one = next(iter(tasks.items()))
        training, network = (one.training or self.training).in_round(round), self.network(first)
        rows = {client: self._rows(client, task) for client, task in tasks.items()}
        jobs, chosen, responsible = [], {}, {}
        for client, task in tasks.items():
            starts = [self._compose(client, task, candidate) for candidate in (task.candidates or (None,))]
            fits = [losses(network, start, rows[client])[0].mean() for start in starts] if len(starts) > 1 else [0.0]
            chosen[client] = int(np.argmin(fits))
            # The halves of a client have an order each: noise that they shared would look like something real.
            purpose = f"batches of half {task.half}" if task.half else "batches"
            batches = batches_of(rows[client].places, training, stream(self.seed, purpose, client, round))
            before = task.epochs_before * len(batches) // max(training.local_epochs, 1)
            still = network.layout.others(task.trains)
            start, responsible[client] = settled(network, starts[chosen[client]], rows[client])
            own, linear = self._own(client, task, start), task.linear
            if task.control is not None:
                linear = task.control - self._control(client, task) + (0 if linear is None else linear)
            jobs.append(Job(start, batches, task.proximal, task.centre, linear, before, still, *own))
        seed_torch(seed_of(self.seed, "dropout", first, round) % 2**63, self.x.device)
        x, y = rows[first].x, rows[first].y
        learner = network.learner(tuple(x.shape[1:]), training.batch_size)
        counts = by_component(self._row_weights(x, y, [of.places for of in rows.values()]), rows, responsible)
        with here(x.device):
            trained, mean_losses, *beside = train_beside(learner, x, y, jobs, training, counts, one.beside)
        for place, task in enumerate(tasks.values()):
            trained[place] = between(jobs[place].weights, trained[place], task.way)
        answers: dict[str, Answer | Failure] = {}
        for (client, task), job, weights, loss in zip(tasks.items(), jobs, trained, mean_losses, strict=True):
            choice = chosen[client] if isinstance(task.weights, tuple) else None
            sent = self._outgoing(client, task, job.weights, weights, network.layout, round)
            control = self._control_after(client, task, job, weights, training)
            answers[client] = Trained(sent, len(rows[client]), len(job.batches), float(loss), choice, control)
        kept = [(client, task.save, weights) for (client, task), weights in zip(tasks.items(), trained, strict=True)]
        for client, answer in answers.items():
            if isinstance(answer, Trained) and answer.control is not None:
                kept.append((client, CONTROL, self._control(client, tasks[client]) + answer.control))
        for place, (client, task) in enumerate(tasks.items() if beside else ()):
            kept += self._kept_beside(client, task, trained[place], *(part[place] for part in beside))
        self.memory.write_all([one for one in kept if one[1]], round)
        afterwards = {c: self._afterwards(t.then, t) for c, t in tasks.items() if t.then is not None}
        for group in {then.training: 0 for then in afterwards.values()}:
            self._train({c: then for c, then in afterwards.items() if then.training == group}, round)
        return answers

    def _control(self, client: str, task: Train) -> np.ndarray:
        """The client's own mean gradient, as of its last training."""
        kept = self.memory.read(client, CONTROL)
        return np.zeros_like(task.control) if kept is None else kept

    def _control_after(
        self, client: str, task: Train, job: Job, weights: np.ndarray, training: Training
    ) -> np.ndarray | None:
        """How it has changed: what training went by, a step, in place of what all clients' was (option II)."""
        if task.control is None:
            return None
        length = training.learning_rate * effective_steps(len(job.batches), training.momentum)
        gone = (job.weights - weights) / max(length, 1e-12)
        gone[self.network(client).layout.n_parameters :] = 0  # running statistics are no result of gradient steps
        return (gone - task.control).astype(np.float32)

    def _own(self, client: str, task: Train, start: np.ndarray) -> tuple[np.ndarray | None, float]:
        """The model that a client trains beside another, where it begins, and its share in what serves the client."""
        if not isinstance(task.beside, Mixture):
            return None, 0.0
        own, share = (self.memory.read(client, slot) for slot in (APART, SHARE))
        return start if own is None else own, task.beside.share if share is None else float(share[0])

    def _kept_beside(
        self, client: str, task: Train, weights: np.ndarray, own: np.ndarray, share: np.ndarray
    ) -> list[tuple[str, str, np.ndarray]]:
        if not isinstance(task.beside, Mixture):
            return [(client, PERSONAL, own)]
        mixed = (share * own + (1 - share) * weights).astype(np.float32)
        kept = [(client, PERSONAL, mixed), (client, APART, own)]
        return [*kept, (client, SHARE, np.array([share]))] if task.beside.adapts else kept

    def _row_weights(self, x: Tensor, y: Tensor, clients: Sequence[np.ndarray]) -> Tensor | None:
        """How much each of some clients' rows of a table counts; None: all the same."""
        weights = [self.objective.row_weights(y[places].cpu().numpy(), self.federation.classes) for places in clients]
        if any(each is None for each in weights):
            return None
        counts = torch.zeros(len(x))
        for places, each in zip(clients, weights, strict=True):
            counts[places] = torch.from_numpy(each)
        return counts.to(x.device)

    def _outgoing(
        self, client: str, task: Train, start: np.ndarray, weights: np.ndarray, layout: Layout, round: int
    ) -> np.ndarray:
        """What leaves the client of its trained weights."""
        if task.upload == "nothing":
            return np.empty(0, np.float32)
        place = layout.select(task.upload)
        if not task.outgoing:
            return weights[place].copy()
        update = weights[place] - start[place]
        for number, step in enumerate(task.outgoing):
            update = step.leave(update, stream(self.seed, f"update step {number}", client, round))
        return (start[place] + update).astype(np.float32)

    def _afterwards(self, then: Train, before: Train) -> Train:
        """A further training, pulled to what was sent for the first one."""
        centre = before.weights if isinstance(before.weights, np.ndarray) else None
        spare, centre = then.spare or before.spare, then.centre if then.centre is not None else centre
        refill = then.refill or before.refill
        return replace(then, upload="nothing", spare=spare, refill=refill, centre=centre)

    def _rows(self, client: str, task: Train | Evaluate | Predict) -> Rows:
        """The rows a task is about: those it brings, or the client's own, as the task's network reads them."""
        if not isinstance(task, Evaluate) and task.rows is not None:
            labels = task.labels if isinstance(task, Train) else None
            labels = np.zeros(len(task.rows), np.int64) if labels is None else labels
            rows = Rows.given(task.rows, labels, device_of(self.device))
        else:
            rows = Rows(self.x, self.y, self._places(client, task))
        if isinstance(task, Train) or not task.through:
            return rows
        return Rows.given(self._side_by_side(client, task.through, rows), rows.labels, rows.x.device)

    def _side_by_side(self, client: str, through: Through, rows: Rows) -> Tensor:
        """The class probabilities that the clusters' network reads; a seat without a network has zeros."""
        if isinstance(through, str):
            through = ((self.networks.name(client), self._kept(client, through)),)
        said: list[Tensor | None] = []
        for name, weights in (seat or ("", None) for seat in through):
            if weights is None:
                said.append(None)
                continue
            if name not in self.built:
                raise ValueError(f"there is no network {name!r} here, only {', '.join(filter(None, self.built))}")
            network = self.built[name]
            if weights.shape != network.initial.shape:
                raise ValueError(
                    f"weights of shape {weights.shape} do not fit a model of {network.layout.size} numbers"
                )
            said.append(self.objective.predictions(torch.cat(outputs(network, weights, rows))))
        nothing = torch.zeros(len(rows), self.federation.n_classes, device=rows.x.device)
        return torch.cat([nothing if one is None else one for one in said], 1)

    def _places(self, client: str, task: Train | Evaluate | Predict) -> np.ndarray:
        held = self.held(client)
        if not isinstance(task, Train) and task.on == "test":
            return held.test
        if isinstance(task, Train) and task.half:
            return self._half(client, task)
        if not task.spare or len(held.train) < 2:  # who has one row must train on it
            return held.train
        spared = min(max(round(task.spare * len(held.train)), 1), len(held.train) - 1)
        order = stream(self.seed, "spare", client).permutation(len(held.train))
        chosen = order[spared:] if isinstance(task, Train) else order[:spared]
        if isinstance(task, Train) and task.refill:
            chosen = np.resize(chosen, len(held.train))  # from the first one on, again
        return held.train[np.sort(chosen)]

    def _half(self, client: str, task: Train) -> np.ndarray:
        """The rows of one half, of those that are not spared."""
        whole = np.unique(self._places(client, replace(task, half=0)))
        if len(whole) < 2:
            raise ValueError("one row has no halves")
        order, middle = stream(self.seed, "halves", client).permutation(len(whole)), len(whole) // 2
        part = order[:middle] if task.half == 1 else order[middle:]
        return whole[np.sort(np.resize(part, task.length or len(whole)))]

    def _compose(self, client: str, task: Train | Evaluate | Predict, sent: np.ndarray | None) -> np.ndarray:
        """The weights to work with: what was sent, over what the client remembers."""
        network = self.network(client, "" if isinstance(task, Train) else task.through)
        if sent is not None and sent.shape != network.initial.shape:
            raise ValueError(f"weights of shape {sent.shape} do not fit a model of {network.layout.size} numbers")
        if sent is not None and not task.start:
            return sent
        kept = self.memory.read(client, task.start) if task.start else None
        otherwise = None if isinstance(task, Train) else task.otherwise
        return composed(sent, task.layers, kept, network.initial if otherwise is None else otherwise, network.layout)

    def _evaluate(self, client: str, task: Evaluate, round: int) -> Evaluated:
        weights = self._compose(client, task, task.weights)
        if task.adapt is not None:
            if task.through:
                raise ValueError("a model that reads another one's probabilities cannot be adapted")
            practice = Train(weights, training=task.adapt, save="")
            answer = self._train({client: practice}, round)[client]
            assert isinstance(answer, Trained)
            weights = answer.weights
        rows = self._rows(client, task)
        return self.summary(*losses(self.network(client, task.through), weights, rows), rows.labels)

    def sweep(self, weights: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For engines that evaluate one model for many clients: each row's loss, and what metrics need of it."""
        return losses(self.built[""], weights, Rows(self.x, self.y, places))

    def summary(self, losses: np.ndarray, notes: np.ndarray, labels: np.ndarray) -> Evaluated:
        """Of some rows."""
        mean = float(losses.mean(dtype=np.float64))
        return Evaluated(mean, self.objective.measure(losses, notes, labels), len(losses))

    def _try(self, tasks: Mapping[str, Try], round: int) -> dict[str, Answer | Failure]:
        """Let clients train models on the rows they do not spare, and judge them by those they do."""
        task = next(iter(tasks.values()))
        seen: dict[str, list[list[float]]] = {client: [] for client in tasks}

        def judge(models: Mapping[str, np.ndarray]) -> None:
            for client, weights in models.items():
                rows = Rows(self.x, self.y, self._spared(client, tasks[client].spare))
                heat = tasks[client].temperatures
                if len(self.held(client).train) < 2:  # its one row is trained on, and judges nothing
                    seen[client].append([0.0] * len(heat))
                else:
                    seen[client].append(cooled_losses(self.network(client), weights, rows, heat))

        def trained(models: Mapping[str, np.ndarray], epochs: int) -> dict[str, np.ndarray]:
            longer = self.training.model_copy(update={"local_epochs": epochs, "averaged": task.averaged})
            how: dict[str, Any] = {"training": longer, "save": "", "refill": True}
            plans = {client: Train(w, spare=tasks[client].spare, **how) for client, w in models.items()}
            return {c: a.weights for c, a in self._train(plans, round).items() if isinstance(a, Trained)}

        start = {client: self._compose(client, one.model, one.model.weights) for client, one in tasks.items()}
        now = start
        for before, epochs in zip((0, *task.epochs), task.epochs, strict=False):
            now = trained(now, epochs - before) if epochs > before else now
            judge(now)
        if task.halfway:
            judge({client: between(start[client], weights, HALFWAY) for client, weights in now.items()})
        for place in range(len(task.others)):
            judge({client: one.others[place] for client, one in tasks.items()})
        if task.alone:
            judge(trained({client: self.network(client).initial for client in tasks}, task.alone))
        return {
            client: Tried(
                np.minimum(np.nan_to_num(values, nan=WORST), WORST).astype(np.float32),
                len(self._spared(client, tasks[client].spare)),
            )
            for client, values in seen.items()
        }

    def _spared(self, client: str, share: float) -> np.ndarray:
        return self._places(client, Predict(on="train", spare=share))

    def _describe(self, client: str, task: Describe, round: int) -> Described:
        held, options = self.held(client).train, dict(task.options)
        random = stream(self.seed, f"describe {task.what}", client, round)
        x, y = self.federation.x[held], self.federation.y[held]
        if task.what in OF_FEATURES:
            if y.dtype.kind == "f":  # amounts, as networks learn them: their unit must not matter
                y = self.objective.scaled(torch.from_numpy(y)).numpy()
            network = self.network(client)
            weights = options.pop("weights", network.initial)
            options["features"] = features(network, weights, Rows(self.x, self.y, held))
        return Described(describe(task.what, options, x, y, self.federation.n_classes, random))

    def _predict(self, client: str, task: Predict) -> Predicted:
        rows, network = self._rows(client, task), self.network(client, task.through)
        labels = rows.labels if task.rows is None else np.empty(0, np.int64)
        if task.output == "below":
            if not task.through:
                raise ValueError("there is nothing below: name networks to look through")
            return Predicted(rows.x.cpu().numpy(), labels)
        caught: list[Tensor] = []
        hooks = []
        if task.output not in ("probabilities", "outputs"):
            layer = network.module.get_submodule(task.output)
            keep = lambda _module, _input, output: caught.append(output.detach().flatten(1).clone())  # noqa: E731
            hooks.append(layer.register_forward_hook(keep))
        try:
            # A layer's own output is looked at, so no layer may leave its work to the next one.
            parts = outputs(network, self._compose(client, task, task.weights), rows, each_layer=bool(hooks))
        finally:
            for hook in hooks:
                hook.remove()
        values = torch.cat(caught or parts)
        if task.output == "probabilities":
            values = self.objective.predictions(values)
        return Predicted(values.flatten(1).cpu().numpy(), labels)


def between(start: np.ndarray, end: np.ndarray, way: float) -> np.ndarray:
    """Weights on the line from some to others."""
    return end if way == 1 else (start + way * (end - start)).astype(np.float32)


def composed(
    sent: np.ndarray | None, layers: Layers, kept: np.ndarray | None, otherwise: np.ndarray, layout: Layout
) -> np.ndarray:
    """What was sent, over what the client keeps; `otherwise` stands for the latter where it keeps nothing."""
    weights = (otherwise if kept is None else kept).copy()
    if sent is not None:
        place = layout.select(layers)
        weights[place] = sent[place]
    return weights


def outputs(network: Built, weights: np.ndarray, rows: Rows, each_layer: bool = False) -> list[Tensor]:
    """What a network puts out for some rows, chunk by chunk."""
    network.plain.bind(torch.from_numpy(np.array(weights[None], np.float32)).to(rows.x.device), None)
    with torch.inference_mode():
        return [network.outputs(rows.x[part], int(part[0]), each_layer) for part in rows.chunks()]


def features(network: Built, weights: np.ndarray, rows: Rows) -> np.ndarray:
    """(rows, numbers): what enters the last layer; over places of a row (words, say) its mean."""
    last = dict(network.module.named_modules()).get(network.layout.head)
    if last is None:  # a parameter of its own: what comes out must do
        return torch.cat(outputs(network, weights, rows)).flatten(1).cpu().numpy()
    caught: list[Tensor] = []

    def keep(_module: Any, given: tuple[Any, ...]) -> None:
        values = given[0].detach()
        caught.append(values.flatten(1, -2).mean(1) if values.ndim > 2 else values.clone())

    hook = last.register_forward_pre_hook(keep)
    try:
        outputs(network, weights, rows, each_layer=True)
    finally:
        hook.remove()
    return torch.cat(caught).float().cpu().numpy()


def settled(network: Built, weights: np.ndarray, rows: Rows) -> tuple[np.ndarray, Tensor | None]:
    """What training begins with: a mixture may first look at the rows, and tell how much each component answers for
    each of them. Other networks begin with the weights as they are."""
    mixture = network.module
    if not isinstance(mixture, RobustMixture):
        return weights, None
    held = torch.from_numpy(np.array(weights[None], np.float32)).to(rows.x.device)
    network.plain.bind(held, None)
    with torch.no_grad():
        parts = [mixture.responsibilities(network.plain.inputs(rows.x[p]), rows.y[p]) for p in rows.chunks()]
        mixture.settle(torch.cat(parts), rows.y[rows.places])
    return held[0].cpu().numpy(), torch.cat(parts)


def by_component(
    counts: Tensor | None, rows: Mapping[str, Rows], responsible: Mapping[str, Tensor | None]
) -> Tensor | None:
    """How much each row of a table counts or, where components of a mixture answer for it, for each of these."""
    table: Tensor | None = None
    for client, shares in responsible.items():
        if shares is not None:
            table = shares.new_zeros(len(rows[client].x), shares.shape[1]) if table is None else table
            table[rows[client].places] = shares
    return counts if table is None else table if counts is None else table * counts.unsqueeze(1)


def cooled_losses(network: Built, weights: np.ndarray, rows: Rows, temperatures: Sequence[float]) -> list[float]:
    """The mean loss on held-out rows at each temperature; where outputs are no logits, they are left as they are."""
    found, objective = outputs(network, weights, rows), network.objective
    means = []
    for heat in temperatures if objective.link == "softmax" else [1.0] * len(temperatures):
        each = [objective.held_out_losses(out / heat, rows.y[p]) for p, out in zip(rows.chunks(), found, strict=True)]
        means.append(float(torch.cat(each).double().mean()))
    return means


def losses(network: Built, weights: np.ndarray, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """The loss of every row, and what metrics need of it."""
    each, notes = [], []
    for part, output in zip(rows.chunks(), outputs(network, weights, rows), strict=True):
        each.append(network.objective.losses(output, rows.y[part]).cpu().numpy())
        notes.append(network.objective.notes(output).cpu().numpy())
    return np.concatenate(each), np.concatenate(notes)


def _shared(array: np.ndarray) -> Tensor:
    """A tensor over an array's memory. torch warns of read-only memory; nothing here writes to the rows."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)


def save_runtime(runtime: ClientRuntime, folder: Path) -> None:
    """Write a client runtime down for other processes of this machine: the rows are mapped there, not copied."""
    import cloudpickle

    folder.mkdir(parents=True, exist_ok=True)
    mapped = getattr(runtime.federation.x, "filename", None)
    if mapped and str(mapped).endswith(".npy") and Path(mapped).is_file():  # else it has no header to read it by
        (folder / "x.npy").symlink_to(mapped)
    else:
        np.save(folder / "x.npy", runtime.federation.x)
    np.save(folder / "y.npy", runtime.federation.y)
    parts = [rows for client in runtime.federation.clients for rows in (client.train, client.test)]
    index, place = {}, 0
    for rows in parts:  # clients often share their test rows: keep them once
        if id(rows) not in index:
            index[id(rows)] = (place, place + len(rows))
            place += len(rows)
    unique = {id(rows): rows for rows in parts}
    np.save(folder / "rows.npy", np.concatenate([unique[key] for key in index]).astype(np.int32))
    clients = [(c.name, index[id(c.train)], index[id(c.test)], c.group) for c in runtime.federation.clients]
    about = {
        "clients": clients,
        "classes": runtime.federation.classes,
        "memory": str(runtime.memory.folder),
        "seed": runtime.seed,
        "training": runtime.training.model_dump(),
        "device": runtime.device,
    }
    (folder / "about.json").write_text(json.dumps(about))
    (folder / "networks.pkl").write_bytes(cloudpickle.dumps((runtime.networks, runtime.objective)))


def load_runtime(folder: Path) -> ClientRuntime:
    """Read what `save_runtime` wrote in a folder of this machine's own making."""
    about: dict[str, Any] = json.loads((folder / "about.json").read_text())
    rows = np.load(folder / "rows.npy", mmap_mode="r")
    clients = tuple(
        Client(name, rows[slice(*train)], rows[slice(*test)], group) for name, train, test, group in about["clients"]
    )
    federation = Federation(
        np.load(folder / "x.npy", mmap_mode="r"),
        np.load(folder / "y.npy", mmap_mode="r"),
        clients,
        tuple(about["classes"]),
    )
    networks, objective = pickle.loads((folder / "networks.pkl").read_bytes())
    training, memory = Training(**about["training"]), Memory(about["memory"])
    return ClientRuntime(federation, networks, memory, about["seed"], training, objective, about["device"])
