"""A client's part in a federated GAN whose encoder puts a code on clients (see `fedclade.methods.dynamic`)."""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss, one_hot, softplus

from fedclade.models.generative import NOISE, CodedGAN, gan_of
from fedclade.models.weights import flatten

MOST_ROWS = 512  # of a client: a code is settled by then
BATCH = 64


def gan(
    x: np.ndarray,
    y: np.ndarray,
    n_classes: int,
    random: np.random.Generator,
    weights: np.ndarray,
    n_codes: int,
    epochs: int,
    learning_rate: float,
    turn: int,  # so that every turn within a round has random numbers of its own
) -> dict[str, np.ndarray]:
    """The weights of a GAN after some epochs on the client's rows: nothing else of them leaves the client."""
    random = np.random.default_rng([int(random.integers(2**31)), turn])
    rows = flat_rows(x, random)
    network = gan_of(weights, rows.shape[1], n_codes)
    noise = torch.Generator().manual_seed(int(random.integers(2**31)))
    with torch.no_grad():
        code = int(network.encode(rows)[1].softmax(1).mean(0).argmax())
    parts = network.discriminator.parameters(), [*network.encoder.parameters(), *network.generator.parameters()]
    tell_apart, make = (torch.optim.Adam(part, lr=learning_rate, betas=(0.5, 0.9)) for part in parts)
    with torch.enable_grad():
        for _ in range(epochs):
            for batch in torch.from_numpy(random.permutation(len(rows))).split(BATCH):
                _step(network, rows[batch], code, noise, tell_apart, make)
    with torch.no_grad():
        mean, square = network.moments(rows)
        network.mean.copy_(mean)
        network.square.copy_(square)
    return {"weights": flatten(network)}


def _step(
    network: CodedGAN,
    real: Tensor,
    code: int,
    random: torch.Generator,
    tell_apart: torch.optim.Optimizer,
    make: torch.optim.Optimizer,
) -> None:
    """The generator makes rows of the client's code, and the encoder must find it in real and made rows alike."""
    codes = torch.full((len(real),), code)
    noise = torch.randn(len(real), NOISE, generator=random)
    made = network.generator(torch.cat([noise, one_hot(codes, network.n_codes).float()], 1))
    told = softplus(-network.discriminator(real)).mean() + softplus(network.discriminator(made.detach())).mean()
    tell_apart.zero_grad()
    told.backward()
    tell_apart.step()
    noise_back, code_back = network.encode(made)
    loss = cross_entropy(network.encode(real)[1], codes) + cross_entropy(code_back, codes)
    loss = loss + mse_loss(noise_back, noise) + softplus(-network.discriminator(made)).mean()
    make.zero_grad()
    loss.backward()
    make.step()


def mean_code(
    x: np.ndarray, y: np.ndarray, n_classes: int, random: np.random.Generator, weights: np.ndarray, n_codes: int
) -> dict[str, np.ndarray]:
    """The mean categorical code of a client's rows, and the moments of outputs that codes are relative to."""
    rows = flat_rows(x, random)
    network = gan_of(weights, rows.shape[1], n_codes)
    with torch.no_grad():
        mean, square = network.moments(rows)
        code = network.encode(rows)[1].softmax(1).mean(0)
    return {"code": code.numpy(), "mean": mean.numpy(), "square": square.numpy()}


def flat_rows(x: np.ndarray, random: np.random.Generator) -> Tensor:
    """Some rows as vectors; bytes of images become numbers from 0 to 1."""
    some = np.sort(random.permutation(len(x))[:MOST_ROWS])
    rows = np.asarray(x[some], np.float32).reshape(len(some), -1)
    return torch.from_numpy(rows / 255 if x.dtype == np.uint8 else rows)
