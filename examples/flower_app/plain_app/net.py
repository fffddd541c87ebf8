"""The network and a client's rows: nothing here knows of fedclade."""

import torch
from sklearn.datasets import load_digits
from torch import nn


def make_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def rows_of(partition: int, partitions: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Digits 0 to 4 for clients of even numbers, 5 to 9 for the others; a fifth is held out."""
    x, y = load_digits(return_X_y=True)
    mine = (y >= 5) == (partition % 2 == 1)
    x = torch.tensor(x[mine][partition // 2 :: (partitions + 1) // 2] / 16, dtype=torch.float32)
    y = torch.tensor(y[mine][partition // 2 :: (partitions + 1) // 2])
    n = len(y) * 4 // 5
    return x[:n], y[:n], x[n:], y[n:]
