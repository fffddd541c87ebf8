"""Local training: one loop of stochastic gradient descent, on flat buffers, for one client or for many at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedclade.clients.networks import Network
from fedclade.clients.tasks import Training

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


def batches_of(rows: np.ndarray, training: Training, order: np.random.Generator) -> np.ndarray:
    """The rows of every step: each epoch a new order, cut into batches; the last one of an epoch may be shorter."""
    size = training.batch_size
    steps = -(-len(rows) // size)
    table = np.full((training.local_epochs, steps * size), -1, np.int64)
    for epoch in table:
        epoch[: len(rows)] = rows[order.permutation(len(rows))]
    return table.reshape(-1, size)


def train(
    network: Network, n_parameters: int, x: Tensor, y: Tensor, jobs: Sequence[Job], training: Training
) -> tuple[np.ndarray, np.ndarray]:
    """Train all jobs; returns the weights (jobs, size) and the mean loss of each over its steps."""
    if training.meta != "none":
        return meta_train(network, n_parameters, x, y, jobs, training)
    # Those with most steps first, so that the ones still at work are always the first rows of the buffers.
    order = sorted(range(len(jobs)), key=lambda k: (-len(jobs[k].batches), k))
    jobs = [jobs[k] for k in order]
    weights = torch.from_numpy(np.stack([job.weights for job in jobs]))
    parameters = weights[:, :n_parameters]
    grads = torch.zeros_like(parameters)
    velocity = torch.zeros_like(parameters) if training.momentum else None
    terms = _extra_terms(jobs, parameters)
    rates = _cyclic_rates(jobs, training) if training.schedule == "cyclic" else None
    network.bind(weights, grads)
    losses = torch.zeros(len(jobs))
    lengths = np.array([len(job.batches) for job in jobs])
    for step in range(int(lengths.max(initial=0))):
        active = int((lengths > step).sum())
        losses[:active] += network.gradients(x, y, _rows([job.batches[step] for job in jobs[:active]]))
        w, g = parameters[:active], grads[:active]
        with torch.no_grad():
            if training.weight_decay:
                g.add_(w, alpha=training.weight_decay)
            if terms is not None:
                proximal, centre, linear = (term[:active] for term in terms)
                g.add_(proximal * (w - centre)).add_(linear)
            for place in network.frozen:
                g[:, place] = 0
            if velocity is not None:
                g = velocity[:active].mul_(training.momentum).add_(g)
            if rates is None:
                w.add_(g, alpha=-training.learning_rate)
            else:
                w.sub_(g * rates[:active, step, None])
    network.release()
    back = np.argsort(order)
    mean_loss = (losses / torch.from_numpy(np.maximum(lengths, 1))).numpy()
    return weights.numpy()[back], mean_loss[back]


def _rows(batches: Sequence[np.ndarray]) -> Tensor:
    return torch.from_numpy(np.stack(batches))


def meta_train(
    network: Network, n_parameters: int, x: Tensor, y: Tensor, jobs: Sequence[Job], training: Training
) -> tuple[np.ndarray, np.ndarray]:
    """Steps towards weights from which one more step does well: each takes two batches, hessian-free ones three.

    A client with fewer batches than that stays where it is. No momentum: the two gradients of a step are of different
    places. Fallah et al., "Personalized Federated Learning with Theoretical Guarantees", NeurIPS 2020.
    """
    per_step = 2 if training.meta == "first-order" else 3
    results, losses = [], []
    for job in jobs:
        weights = torch.from_numpy(np.array(job.weights[None]))
        w, grads = weights[:, :n_parameters], torch.zeros(1, n_parameters)
        network.bind(weights, grads)

        def gradient_at(place: Tensor, batch: np.ndarray, w: Tensor = w, grads: Tensor = grads) -> tuple[Tensor, float]:
            here = w.clone()
            w.copy_(place)
            loss = float(network.gradients(x, y, _rows([batch])).sum())
            w.copy_(here)
            for part in network.frozen:
                grads[:, part] = 0
            return grads.clone(), loss

        seen = []
        with torch.no_grad():
            for first in range(0, len(job.batches) - per_step + 1, per_step):
                inner, _ = gradient_at(w, job.batches[first])
                outer, loss = gradient_at(w - training.inner_rate * inner, job.batches[first + 1])
                seen.append(loss)
                if training.meta == "hessian-free":
                    third = job.batches[first + 2]
                    length = outer.norm()
                    reach = outer * (SPREAD / length.clamp(min=1e-12))
                    bend = gradient_at(w + reach, third)[0] - gradient_at(w - reach, third)[0]
                    bend *= training.inner_rate * length / (2 * SPREAD)
                    # At most as long as the step itself: else, where the loss bends much, it would turn the step round.
                    outer = outer - bend * (length / bend.norm().clamp(min=1e-12)).clamp(max=1)
                w.sub_(training.learning_rate * outer)
        network.release()
        results.append(weights.numpy()[0])
        losses.append(np.mean(seen) if seen else 0.0)
    return np.stack(results), np.array(losses, np.float32)


def cyclic_rate(step: np.ndarray, step_size: int, base: float, top: float) -> np.ndarray:
    """A rate that climbs from `base` to `top` in `step_size` steps and back in as many; each cycle is half as high.

    Smith, "Cyclical Learning Rates for Training Neural Networks", WACV 2017 (policy "triangular2").
    """
    cycle = np.floor(1 + step / (2 * step_size))
    height = np.maximum(0.0, 1 - np.abs(step / step_size - 2 * cycle + 1))
    return base + (top - base) * height / 2 ** (cycle - 1)


def _cyclic_rates(jobs: Sequence[Job], training: Training) -> Tensor:
    """(jobs, steps): the learning rate of every job at each of its steps."""
    lengths = [len(job.batches) for job in jobs]
    rates = torch.zeros(len(jobs), max(lengths, default=0))
    for row, job, length in zip(rates, jobs, lengths, strict=True):
        epoch = max(length // max(training.local_epochs, 1), 1)
        steps = job.steps_before + np.arange(length)
        size = training.step_size or 2 * epoch
        row[:length] = torch.from_numpy(cyclic_rate(steps, size, training.base_rate, training.learning_rate))
    return rates


def _extra_terms(jobs: Sequence[Job], parameters: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """The proximal strength, its centre and the linear term of every job, or None where no job has any."""
    if not any(job.proximal or job.linear is not None for job in jobs):
        return None
    size = parameters.shape[1]
    centre = parameters.clone()  # a copy: the live parameters as their own centre would make the term vanish
    linear = torch.zeros_like(parameters)
    for k, job in enumerate(jobs):
        if job.centre is not None:
            centre[k] = torch.from_numpy(job.centre[:size])
        if job.linear is not None:
            linear[k] = torch.from_numpy(job.linear[:size])
    return torch.tensor([[job.proximal] for job in jobs], dtype=torch.float32), centre, linear
