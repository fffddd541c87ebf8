"""What `fedclade.clustering.evidence` found, kept with the run for its page: whoever clusters by it records it here."""

from typing import Any

import numpy as np

from fedclade.ask import Ask
from fedclade.clustering.evidence import Evidence


def record(found: Evidence, clients: list[str], seen: np.ndarray, ask: Ask, *, measure: str, **more: Any) -> None:
    """Everything that was decided, and by what; distances and tree are those of the clients that were looked at."""
    looks = [
        {
            "view": view,
            "picture": look.picture,
            "p": look.p,
            "matters": look.matters,
            "z": dict(look.z),
            "weights": dict(look.weights),
            "reliability": look.reliability,
            "clusters": look.n_clusters,
            "clearness": look.clearness,
            "explained": dict(look.explained),
            "usual": dict(look.usual),
            "steps": [[step.n_clusters, step.beyond, step.needed, step.p] for step in look.steps],
        }
        for view, look in found.looks.items()
    ]
    told = {"why": found.why, "p": found.p, "views": list(found.views), "clusters": found.n_clusters, **more}
    ask.record("groups", **told, looks=looks, clients=clients, labels=found.labels, margins=found.margins)
    shown = found.looks[found.views[0]] if found.views else max(found.looks.values(), key=lambda look: -look.p)
    if len(shown.products):
        squares = np.diag(shown.products)
        apart = np.sqrt(np.maximum(squares[:, None] + squares - 2 * shown.products, 0.0))
        who, labels = [clients[place] for place in seen], found.labels[seen]
        ask.record("proximity", matrix=apart, clients=who, measure=measure)
        ask.record("dendrogram", merges=shown.merges, clients=who, linkage="ward", labels=labels)
