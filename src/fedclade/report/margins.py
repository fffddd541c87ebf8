"""How sure each client's assignment is, from the matrices that a method kept."""

import numpy as np

from fedclade.report.matrices import is_similarity
from fedclade.result import Result

MEANING = (
    "The margin says how sure an assignment is: 1 - (mean distance to its cluster) / (mean distance to the "
    "next cluster). At 0 a client stands on the border, below 0 it is nearer to others."
)


def margins(run: Result) -> dict[str, float]:
    """Of every client that was compared with others; what clade says itself is taken as it is."""
    told = run.last_kept("groups")
    if told and len(told["views"]):
        return dict(zip(map(str, told["clients"]), map(float, told["margins"]), strict=True))
    found: dict[str, float] = {}
    for record in run.kept("proximity").values():
        clients = list(map(str, record["clients"]))
        found |= _of(record["matrix"], clients, [run.assignment.get(client, -1) for client in clients])
    for record in run.kept("similarity").values():  # of clients that were parted again and again, the last time counts
        for test in record["tests"]:
            if "matrix" in test:
                found |= _of(test["matrix"], list(map(str, test["clients"])), test["labels"])
    return found


def _of(matrix: np.ndarray, clients: list[str], labels: object) -> dict[str, float]:
    distances, labels = np.asarray(matrix, float), np.asarray(labels)
    if is_similarity(distances):
        distances = 1 - distances
    clusters = np.unique(labels)
    if len(clusters) < 2:
        return {}
    sums = np.stack([distances[:, labels == cluster].sum(axis=1) for cluster in clusters], axis=1)
    sizes = np.array([(labels == cluster).sum() for cluster in clusters], float)
    own = labels[:, None] == clusters
    inside = (sums - np.diag(distances)[:, None])[own] / np.maximum(sizes - 1, 1)[own.argmax(axis=1)]
    outside = np.where(own, np.inf, sums / sizes).min(axis=1)
    alone = sizes[own.argmax(axis=1)] < 2
    margin = 1 - inside / np.maximum(outside, 1e-12)
    return {c: float(m) for c, m, single in zip(clients, margin, alone, strict=True) if not single and np.isfinite(m)}
