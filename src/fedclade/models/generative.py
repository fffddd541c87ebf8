"""A small generative adversarial network with a categorical code, as flat weights (see `fedclade.methods.dynamic`).

Three perceptrons: the encoder reads a row and gives a code and some noise back, the generator makes a row of both, the
discriminator tells made rows from real ones. In the manner of ClusterGAN: Mukherjee et al., "ClusterGAN: Latent Space
Clustering in Generative Adversarial Networks", AAAI 2019.
"""

import numpy as np
import torch
from torch import Tensor, nn

from fedclade.models.weights import flatten, load

HIDDEN, NOISE = 32, 8


class CodedGAN(nn.Module):
    mean: Tensor
    square: Tensor

    def __init__(self, n_inputs: int, n_codes: int) -> None:
        super().__init__()
        self.n_codes = n_codes
        self.encoder = nn.Sequential(nn.Linear(n_inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, NOISE + n_codes))
        self.generator = nn.Sequential(nn.Linear(NOISE + n_codes, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, n_inputs))
        self.discriminator = nn.Sequential(nn.Linear(n_inputs, HIDDEN), nn.LeakyReLU(0.2), nn.Linear(HIDDEN, 1))
        # Of each code's output over the rows of all clients. Codes are read relative to these: without them all clients
        # would lean to the same code at first, and stay there.
        self.register_buffer("mean", torch.zeros(n_codes))
        self.register_buffer("square", torch.ones(n_codes))

    def encode(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The noise in which rows lie, and the logits of their code."""
        noise, outputs = self.encoder(rows).split([NOISE, self.n_codes], dim=1)
        spread = (self.square - self.mean**2).clamp(min=1e-6).sqrt()
        return noise, (outputs - self.mean) / spread

    def moments(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and mean square of each code's output, before they are made relative."""
        outputs = self.encoder(rows)[:, NOISE:]
        return outputs.mean(0), (outputs**2).mean(0)


def new_gan(n_inputs: int, n_codes: int, seed: int) -> np.ndarray:
    """Flat weights of a network that has learnt nothing."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return flatten(CodedGAN(n_inputs, n_codes))


def gan_of(weights: np.ndarray, n_inputs: int, n_codes: int) -> CodedGAN:
    gan = CodedGAN(n_inputs, n_codes)
    load(gan, weights)
    return gan
