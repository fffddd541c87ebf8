"""Statistics that may leave a client, each named as what it is.

A statistic takes the client's training rows and labels, the number of classes, a random stream and its options, and
gives named arrays. The ledger records it under its name.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from fedclade.clients.generative import gan, mean_code
from fedclade.errors import unknown

Statistic = Callable[..., dict[str, np.ndarray]]


def class_entropy(x: np.ndarray, y: np.ndarray, n_classes: int, random: np.random.Generator) -> dict[str, np.ndarray]:
    """How many classes a client holds and the Shannon entropy of their shares in bits (AdaCFL): two numbers."""
    shares = np.bincount(y, minlength=n_classes) / len(y)
    held = shares[shares > 0]
    entropy = max(0.0, float(-(held * np.log2(held)).sum()))
    return {"n_classes": np.array([len(held)], np.float32), "entropy": np.array([entropy], np.float32)}


def rows(
    x: np.ndarray, y: np.ndarray, n_classes: int, random: np.random.Generator, n: int | None = None, labels: bool = True
) -> dict[str, np.ndarray]:
    """Raw rows and (or not) their labels: `n` of them drawn at random (FedSCCS's probe), or all (Centralized)."""
    chosen = np.arange(len(x)) if n is None else np.sort(random.permutation(len(x))[:n])
    return {"rows": x[chosen], **({"labels": y[chosen].astype(np.int16)} if labels else {})}


def subspaces(
    x: np.ndarray, y: np.ndarray, n_classes: int, random: np.random.Generator, n_vectors: int = 3
) -> dict[str, np.ndarray]:
    """The first left singular vectors of each class's rows (PACFL): (features, vectors of all classes held)."""
    flat = x.reshape(len(x), -1).astype(np.float32)
    bases = []
    for label in np.unique(y):
        vectors = np.linalg.svd(flat[y == label].T, full_matrices=False)[0]
        bases.append(vectors[:, :n_vectors])
    return {"basis": np.concatenate(bases, axis=1).astype(np.float32)}


STATISTICS: dict[str, Statistic] = {
    "class-entropy": class_entropy,
    "rows": rows,
    "subspaces": subspaces,
    "gan": gan,
    "mean-code": mean_code,
}


def describe(
    what: str, options: dict[str, Any], x: np.ndarray, y: np.ndarray, n_classes: int, random: np.random.Generator
) -> dict[str, np.ndarray]:
    if what not in STATISTICS:
        raise unknown("statistic", what, STATISTICS)
    return STATISTICS[what](x, y, n_classes, random, **options)
