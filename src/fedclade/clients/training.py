"""Local training: one loop of gradient descent, on flat buffers, for one client or for many at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedclade.clients.networks import Network
from fedclade.clients.tasks import Envelope, Mixture, Training

BETAS, EPSILON = (0.9, 0.999), 1e-8  # of Adam
SPREAD = 1e-2  # how far from the weights the two gradients are that stand for a product with the Hessian


@dataclass(frozen=True)
class Job:
    """One client's part: where it starts, which of its rows make up each step, and the extra terms of its loss."""

    weights: np.ndarray
    batches: np.ndarray  # (steps, batch_size) row numbers, -1 where a last batch is shorter
    proximal: float = 0.0
    centre: np.ndarray | None = None
    linear: np.ndarray | None = None
    steps_before: int = 0  # of its schedule that were taken earlier
    still: Sequence[slice] = ()  # parts of its weights that do not move
    own: np.ndarray | None = None  # a model of the client's own that is trained beside them, from here on
    share: float = 0.0  # of the own model in what serves the client


def batches_of(rows: np.ndarray, training: Training, order: np.random.Generator) -> np.ndarray:
    """The rows of every step: each epoch a new order, cut into batches; the last one of an epoch may be shorter."""
    table = np.full((training.local_epochs, training.steps_an_epoch(len(rows)) * training.batch_size), -1, np.int64)
    for epoch in table:
        epoch[: len(rows)] = rows[order.permutation(len(rows))][: len(epoch)]
    return table.reshape(-1, training.batch_size)


def train(
    network: Network, x: Tensor, y: Tensor, jobs: Sequence[Job], training: Training, counts: Tensor | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Train all jobs; returns the weights (jobs, size) and the mean loss of each over its steps.

    `counts` say how much each row of the table counts, where that is not the same.
    """
    weights, losses = train_beside(network, x, y, jobs, training, counts)
    return weights, losses


def train_beside(
    network: Network,
    x: Tensor,
    y: Tensor,
    jobs: Sequence[Job],
    training: Training,
    counts: Tensor | None = None,
    beside: Mixture | Envelope | None = None,
) -> tuple[np.ndarray, ...]:
    """The same, and each job's own model and share, where such models are trained beside the weights."""
    # Those with most steps first, so that the ones still at work are always the first ones of a group.
    order = sorted(range(len(jobs)), key=lambda k: (-len(jobs[k].batches), k))
    groups = np.array_split(order, -(-len(jobs) // network.at_once))
    parts = [train_together(network, x, y, [jobs[k] for k in group], training, counts, beside) for group in groups]
    back = np.argsort(order)
    return tuple(np.concatenate(part)[back] for part in zip(*parts, strict=True))


@torch.no_grad()
def train_together(
    network: Network,
    x: Tensor,
    y: Tensor,
    jobs: Sequence[Job],
    training: Training,
    counts: Tensor | None = None,
    beside: Mixture | Envelope | None = None,
) -> tuple[np.ndarray, ...]:
    """The same for as many as a network takes at once, sorted by their steps."""
    per_step = {"none": 1, "first-order": 2, "hessian-free": 3}[training.meta]
    lengths = np.array([len(job.batches) // per_step for job in jobs])
    network.begin(torch.from_numpy(np.stack([job.weights for job in jobs])).to(x.device))
    kind = {Mixture: MixtureDescent, Envelope: EnvelopeDescent}.get(type(beside), Descent)
    descent = kind(network, jobs, training, lengths, beside)
    losses = torch.zeros(len(jobs), device=x.device)
    past = LastEpochs(lengths, training) if training.averaged else None
    done = 0
    for active in range(len(jobs), 0, -1):
        end = int(lengths[active - 1])
        if end == done:
            continue
        network.go_on_with(active)
        rows = np.stack([job.batches[done * per_step : end * per_step] for job in jobs[:active]], 1)
        batches = network.batches(x, y, torch.from_numpy(rows).to(x.device), counts)
        for step in range(done, end):
            losses[:active] += descent.step(step, *(next(batches) for _ in range(per_step)))
            if past is not None:
                past.after(step + 1, network)
        done = end
    trained = (network.end() if past is None else past.mean(network)).cpu().numpy()
    mean_losses = losses.cpu().numpy() / np.maximum(lengths, 1).astype(np.float32)
    return trained, mean_losses, *(descent.beside(trained) if isinstance(descent, Paired) else ())


class LastEpochs:
    """The mean of each client's weights after each of its last epochs: steps of a constant size never settle, their
    mean does (Polyak and Juditsky 1992; Izmailov et al., "Averaging Weights Leads to Wider Optima", UAI 2018)."""

    def __init__(self, lengths: np.ndarray, training: Training) -> None:
        epochs = max(training.local_epochs, 1)
        self.lengths, self.epoch = lengths, np.maximum(lengths // epochs, 1)
        self.count = max(round(training.averaged * epochs), 1)
        self.sums: Tensor | None = None

    def after(self, steps: int, network: Network) -> None:
        """So many steps are done: who has ended one of its last epochs with them is looked at."""
        left = self.lengths - steps
        due = (left >= 0) & (left % self.epoch == 0) & (left // self.epoch < self.count)
        if due.any():
            now = network.end()
            self.sums = torch.zeros_like(now) if self.sums is None else self.sums
            places = torch.from_numpy(np.flatnonzero(due)).to(now.device)
            self.sums[places] += now[places]

    def mean(self, network: Network) -> Tensor:
        if self.sums is None:  # nobody took a step
            return network.end()
        stepped = torch.from_numpy(self.lengths > 0).to(self.sums.device).unsqueeze(1)
        return torch.where(stepped, self.sums / self.count, network.end())


class Descent:
    """The steps of an optimiser: the one place where parameters move. Each client has its own row."""

    mixes_gradients = False  # gradients are of several places, so that what is kept of them must be kept apart

    def __init__(
        self,
        network: Network,
        jobs: Sequence[Job],
        training: Training,
        lengths: np.ndarray,
        how: Mixture | Envelope | None = None,
    ) -> None:
        self.network, self.training, self.how = network, training, how
        # The gradients of a meta step are of different places: no momentum there.
        self.momentum = training.momentum if training.meta == "none" else 0.0
        device = network.parameters[0].device
        # Plain momentum is kept in the gradients themselves. What is clipped must be a new gradient by itself.
        self.is_apart = training.optimizer != "sgd" or training.clip is not None or self.mixes_gradients
        self.moments = [[torch.zeros_like(w) for w in network.parameters] for _ in BETAS] if self.is_apart else []
        self.terms = _extra_terms(network, jobs, device)
        self.rates = _cyclic_rates(jobs, training, lengths).to(device) if training.schedule == "cyclic" else None
        self.frozen: list[tuple[int, Tensor]] = []
        if network.frozen or any(job.still for job in jobs):
            apart = jobs if any(job.still for job in jobs) else jobs[:1]
            marked = torch.zeros(len(apart), len(jobs[0].weights), device=device)
            for row, job in zip(marked, apart, strict=True):
                for place in (*network.frozen, *job.still):
                    row[place] = 1
            self.frozen = [(part, mask > 0) for part, mask in enumerate(network.pack(marked)) if mask.any()]

    def step(self, number: int, *batches: Any) -> Tensor:
        """Take a step on a batch (a meta step: on two or three), and return the losses."""
        network, training = self.network, self.training
        keep = 0.0 if self.is_apart else self.momentum
        loss = network.gradients(*batches, keep) if len(batches) == 1 else self._meta_gradients(*batches)
        if self.terms is not None:
            for w, g, centre, linear in zip(network.parameters, network.grads, *self.terms[1:], strict=True):
                g.add_(self.terms[0][: len(w)] * (w - centre[: len(w)])).add_(linear[: len(w)])
        if training.clip is not None:
            self._freeze()
            share = (training.clip / (_lengths(network.grads) + 1e-6)).clamp(max=1)
            for g in network.grads:
                g.mul_(share)
        if training.weight_decay and training.optimizer != "adamw":
            for w, g in zip(network.parameters, network.grads, strict=True):
                g.add_(w, alpha=training.weight_decay)
        self._freeze()
        for part, w in enumerate(network.parameters):
            way = self._way(part, w, number + 1) if self.is_apart else network.grads[part]
            if self.rates is None:
                w.add_(way, alpha=-training.learning_rate)
            else:
                w.sub_(way * self.rates[: len(w), number, None])
        return loss

    def _way(self, part: int, w: Tensor, step: int) -> Tensor:
        """Where an optimiser goes for a gradient, by what it remembers of those before."""
        g, (first, second) = self.network.grads[part], (moments[part][: len(w)] for moments in self.moments)
        if self.training.optimizer == "sgd":
            return first.mul_(self.momentum).add_(g)
        first.lerp_(g, 1 - BETAS[0])
        second.mul_(BETAS[1]).addcmul_(g, g, value=1 - BETAS[1])
        below = second.sqrt().div_((1 - BETAS[1] ** step) ** 0.5).add_(EPSILON)
        way = first / below.mul_(1 - BETAS[0] ** step)
        if self.training.optimizer == "adamw" and self.training.weight_decay:
            way.add_(w, alpha=self.training.weight_decay)
            for frozen, mask in self.frozen:
                if frozen == part:
                    way.masked_fill_(mask[: len(way)], 0)
        return way

    def _freeze(self) -> None:
        for part, mask in self.frozen:
            grads = self.network.grads[part]
            grads.masked_fill_(mask[: len(grads)], 0)

    def _gradients(self, batch: Any) -> Tensor:
        loss = self.network.gradients(batch, 0.0)
        self._freeze()
        return loss

    def _meta_gradients(self, first: Any, second: Any, third: Any = None) -> Tensor:
        """Fill the gradients of the loss one inner step ahead; without a third batch, the Hessian is left out.

        Fallah et al., "Personalized Federated Learning with Theoretical Guarantees", NeurIPS 2020.
        """
        here = [w.clone() for w in self.network.parameters]
        self._gradients(first)
        self._go(here, self.network.grads, -self.training.inner_rate)
        loss = self._gradients(second)
        if third is not None:
            self._bend(here, third)
        self._go(here)
        return loss

    def _bend(self, here: Sequence[Tensor], batch: Any) -> None:
        """Take the Hessian's part from the gradients, by two gradients a fixed distance apart."""
        outer = [g.clone() for g in self.network.grads]
        length = _lengths(outer)
        way = [g / length.clamp(min=1e-12) for g in outer]
        self._go(here, way, SPREAD)
        self._gradients(batch)
        bend = [g.clone() for g in self.network.grads]
        self._go(here, way, -SPREAD)
        self._gradients(batch)
        for b, g in zip(bend, self.network.grads, strict=True):
            b.sub_(g).mul_(length * (self.training.inner_rate / (2 * SPREAD)))
        # At most as long as the step itself: else, where the loss bends much, it would turn the step round.
        share = (length / _lengths(bend).clamp(min=1e-12)).clamp(max=1)
        for g, o, b in zip(self.network.grads, outer, bend, strict=True):
            torch.sub(o, b * share, out=g)

    def _go(self, here: Sequence[Tensor], way: Sequence[Tensor] | None = None, far: float = 0.0) -> None:
        """Put the parameters somewhere: here, or some way off."""
        for part, (w, h) in enumerate(zip(self.network.parameters, here, strict=True)):
            w.copy_(h) if way is None else torch.add(h, way[part], alpha=far, out=w)


class Paired(Descent):
    """Beside the weights each client trains a model of its own."""

    mixes_gradients = True

    def __init__(self, network: Network, jobs: Sequence[Job], *args: Any) -> None:
        super().__init__(network, jobs, *args)
        device = network.parameters[0].device
        begun = np.stack([job.weights if job.own is None else job.own for job in jobs])
        self.own = [part.clone() for part in network.pack(torch.from_numpy(begun).to(device))]
        self.share = torch.tensor([[job.share] for job in jobs], dtype=torch.float32, device=device)

    def gradients_at(self, place: Sequence[Tensor], batch: Any) -> tuple[Tensor, list[Tensor]]:
        """The losses and gradients somewhere else; the parameters stay there."""
        self._go(place)
        loss = self._gradients(batch)
        return loss, [g.clone() for g in self.network.grads]

    def beside(self, trained: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The own models as flat vectors, with the running statistics of the trained ones; and the shares."""
        self.network.begin(torch.from_numpy(trained.copy()).to(self.share.device))
        self._go(self.own)
        return self.network.end().cpu().numpy().copy(), self.share[:, 0].cpu().numpy().copy()


class MixtureDescent(Paired):
    """Deng, Kamani and Mahdavi, "Adaptive Personalized Federated Learning", 2020."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.ways = [torch.zeros_like(v) for v in self.own]

    def step(self, number: int, *batches: Any) -> Tensor:
        count = len(self.network.parameters[0])
        share, here = self.share[:count], [w.clone() for w in self.network.parameters]
        own, ways = ([part[:count] for part in parts] for parts in (self.own, self.ways))
        mixed = [h + share * (v - h) for h, v in zip(here, own, strict=True)]
        _, slopes = self.gradients_at(mixed, batches[0])
        self._go(here)
        loss = super().step(number, *batches)
        rate = self.training.learning_rate if self.rates is None else self.rates[:count, number, None]
        between = [v - h for v, h in zip(own, here, strict=True)]
        for v, way, slope in zip(own, ways, slopes, strict=True):
            way.mul_(self.momentum).add_(share * slope).add_(v, alpha=self.training.weight_decay)
            v.sub_(rate * way)
        if isinstance(self.how, Mixture) and self.how.adapts:
            self.share[:count] = (share - rate * _products(between, slopes)).clamp(0, 1)
        return loss


class EnvelopeDescent(Paired):
    """Dinh, Tran and Nguyen, "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020."""

    def step(self, number: int, *batches: Any) -> Tensor:
        count, how = len(self.network.parameters[0]), self.how
        assert isinstance(how, Envelope)
        here, own = [w.clone() for w in self.network.parameters], [part[:count] for part in self.own]
        losses = []
        for _ in range(how.steps):
            loss, slopes = self.gradients_at(own, batches[0])
            losses.append(loss)
            for v, h, slope in zip(own, here, slopes, strict=True):
                decay = self.training.weight_decay * v
                v.sub_(how.rate * (slope + decay + how.strength * (v - h)))
        far = self.training.learning_rate * how.strength
        self._go([h - far * (h - v) for h, v in zip(here, own, strict=True)])
        return losses[0]


def _products(some: Sequence[Tensor], others: Sequence[Tensor]) -> Tensor:
    """(clients, 1): the inner product of each client's two vectors."""
    pairs = list(zip(some, others, strict=True))
    sums = [torch.stack([(a[k] * b[k]).sum() for a, b in pairs]).sum() for k in range(len(some[0]))]
    return torch.stack(sums).unsqueeze(1)


def _lengths(parts: Sequence[Tensor]) -> Tensor:
    """(clients, 1): the length of each client's vector. Summed together, they would depend on how many there are."""
    squares = [torch.stack([part[k].square().sum() for part in parts]).sum() for k in range(len(parts[0]))]
    return torch.stack(squares).sqrt().unsqueeze(1)


def cyclic_rate(step: np.ndarray, step_size: int, base: float, top: float) -> np.ndarray:
    """A rate that climbs from `base` to `top` in `step_size` steps and back in as many; each cycle is half as high.

    Smith, "Cyclical Learning Rates for Training Neural Networks", WACV 2017 (policy "triangular2").
    """
    cycle = np.floor(1 + step / (2 * step_size))
    height = np.maximum(0.0, 1 - np.abs(step / step_size - 2 * cycle + 1))
    return base + (top - base) * height / 2 ** (cycle - 1)


def _cyclic_rates(jobs: Sequence[Job], training: Training, lengths: np.ndarray) -> Tensor:
    """(jobs, steps): the learning rate of every job at each of its steps."""
    rates = torch.zeros(len(jobs), int(lengths.max(initial=0)))
    for row, job, length in zip(rates, jobs, lengths, strict=True):
        epoch = max(length // max(training.local_epochs, 1), 1)
        steps = job.steps_before + np.arange(length)
        size = training.step_size or 2 * epoch
        row[:length] = torch.from_numpy(cyclic_rate(steps, size, training.base_rate, training.learning_rate))
    return rates


def _extra_terms(
    network: Network, jobs: Sequence[Job], device: torch.device
) -> tuple[Tensor, Sequence[Tensor], Sequence[Tensor]] | None:
    """The proximal strength, its centre and the linear term of every job, or None where no job has any."""
    if not any(job.proximal or job.linear is not None for job in jobs):
        return None
    nothing = np.zeros_like(jobs[0].weights)
    centres = [job.weights if job.centre is None else job.centre for job in jobs]
    linears = [nothing if job.linear is None else job.linear for job in jobs]
    strengths = torch.tensor([[job.proximal] for job in jobs], dtype=torch.float32, device=device)
    pull, push = (network.pack(torch.from_numpy(np.stack(vectors)).to(device)) for vectors in (centres, linears))
    return strengths, pull, push
