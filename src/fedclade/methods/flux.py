"""FLUX: clients are told apart once by what a shared model makes of their rows, class by class.

Fenoglio et al., "FLUX: Efficient Descriptor-Driven Clustered Federated Learning under Arbitrary Distribution Shifts",
NeurIPS 2025.

FedAvg comes first, until a round improves accuracy by less than `gain` (or most rounds are over). Then each client
sends a descriptor: mean and standard deviation of a few projections of the model's features, over all its rows and over
those of each class. Each part of it is brought to the range from 0 to 1 over clients, and dense regions become
clusters, which go on from the shared model. A newcomer joins the nearest centre; one without labels by the part that is
about all rows.

How we read it: accuracy is that on training rows of those who train. Projections are random sums of features with
signs, in place of the principal directions of random points; a class that a client does not have stands at -1 in the
scaled descriptor, outside of what others have there (the authors' code puts -1 before scaling).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedclade.ask import Ask
from fedclade.clients.tasks import Describe, Described, Evaluate
from fedclade.clustering.density import dense_groups
from fedclade.clustering.similarity import distance_matrix
from fedclade.methods.base import About, Clusters, Count, Method, Placement, RoundContext, nearest, remembered

FEWEST = 3  # rounds before clients are told apart
ABSENT = -1.0  # where a class stands that a client does not have


@remembered
class Known:
    """The accuracies of the first rounds; then the model through which clients were described, and their clusters."""

    accuracies: tuple[float, ...] = ()
    through: np.ndarray | None = None
    low: np.ndarray | None = None  # of each part of a descriptor
    high: np.ndarray | None = None
    centres: Mapping[int, np.ndarray] | None = None
    at_home: float | None = None  # the share of members who would be placed where they are by all rows, without classes

    def scaled(self, parts: np.ndarray, there: np.ndarray) -> np.ndarray:
        """(clients, numbers): descriptors (clients, parts, numbers) between 0 and 1; parts that are not there apart."""
        assert self.low is not None
        assert self.high is not None
        low, wide = self.low[:, None], np.maximum(self.high - self.low, 1e-12)[:, None]
        return np.where(there[..., None], (parts - low) / wide, ABSENT).reshape(len(parts), -1)


class Flux(Method):
    about: ClassVar[About] = About(
        "clusters of clients whose features are distributed alike",
        "Fenoglio et al. 2025",
        "the number too",
        "one shot",
        needs_labels=True,
        formula="density clustering of descriptors: means and spreads of features, class by class",
        use="when groups differ in features or labels, and newcomers may come without labels",
    )
    State = Known

    gain: Annotated[float, Field(ge=0)] = 0.06  # of accuracy in a round: with less, clients are told apart
    latest: Annotated[float, Field(gt=0, le=1)] = 0.8  # of the rounds, when they are told apart in any case
    size: Count = 10  # projections of features in a descriptor

    def start(self, context: RoundContext, ask: Ask) -> Clusters:
        return Clusters.single(context.clients, context.initial, Known())

    def round(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        known: Known = clusters.state
        if known.through is not None:
            return self.trained(self.retry(clusters, context, ask), context.sample(), ask)
        if self.is_time(known, context):
            return self.trained(self.parted(clusters, context, ask), context.sample(), ask)
        clusters = self.trained(clusters, context.sample(), ask)
        told = ask(Evaluate(clusters.models[0], on="train"), to=context.sample(), phase="cluster")
        if not len(told):
            return clusters
        rows = [answer.n_samples for answer in told.values()]
        accuracy = float(np.average([answer.score for answer in told.values()], weights=rows))
        return clusters.remembering(Known((*known.accuracies, accuracy)))

    def is_time(self, known: Known, context: RoundContext) -> bool:
        if context.rounds and context.round > max(self.latest * context.rounds, 1):
            return True
        return len(known.accuracies) >= FEWEST and bool((np.diff(known.accuracies) < self.gain).any())

    def described(self, through: np.ndarray, context: RoundContext, ask: Ask, phase: str) -> dict[str, Described]:
        task = Describe("moments", {"weights": through, "size": self.size})
        answers = dict(ask(task, to=context.clients, phase=phase))
        widths = [answer.values["means"].shape for answer in answers.values()]
        usual = max(set(widths), key=widths.count) if widths else ()
        return {client: one for client, one in answers.items() if one.values["means"].shape == usual}

    def parted(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        """The clusters that descriptors show; they go on from the shared model."""
        through = clusters.models[0]
        told = self.described(through, context, ask, "cluster")
        if not told:
            return clusters
        parts, there = descriptors(told)
        low, high = ranges(parts, there)
        known = Known((), through, low, high, {})
        rows = known.scaled(parts, there)
        labels, limit = dense_groups(rows)
        ask.record("proximity", matrix=distance_matrix(rows), clients=list(told), measure="distance of descriptors")
        ask.record("density", limit=limit, labels=labels, clients=list(told))
        made = Clusters.from_labels(list(told), labels, through)
        centres = {k: rows[labels == k].mean(axis=0) for k in made.members}
        at_home = recognised(rows[:, : 2 * parts.shape[-1]], labels, centres)
        made = made.remembering(replace(known, centres=centres, at_home=at_home))
        return self.admit(made, set(context.clients) - set(told), context, ask)

    # Newcomers

    def place(self, clusters: Clusters, context: RoundContext, ask: Ask) -> dict[str, Placement]:
        known: Known = clusters.state
        if known.through is None or known.centres is None:
            return super().place(clusters, context, ask)
        told = self.described(known.through, context, ask, "place")
        if not told:
            return {}
        rows = known.scaled(*descriptors(told))
        return {client: self._nearest(known, row, "descriptors") for client, row in zip(told, rows, strict=True)}

    def _nearest(self, known: Known, row: np.ndarray, what: str) -> Placement:
        assert known.centres is not None
        far = {k: float(np.linalg.norm(row - centre[: len(row)])) for k, centre in known.centres.items()}
        return Placement(nearest(far), far, f"distance of {what}")

    def looks_through(self, clusters: Clusters, initial: np.ndarray) -> np.ndarray:
        known: Known = clusters.state
        return initial if known.through is None else known.through

    def place_unlabelled(
        self, clusters: Clusters, rows: Mapping[str, Mapping[str, np.ndarray]]
    ) -> dict[str, Placement]:
        """By the part of descriptors that is about all rows; `rows` holds sketches of each newcomer's features."""
        known: Known = clusters.state
        if known.through is None or len(clusters.models) == 1:
            return {client: Placement(clusters.largest, {}, "there is one model") for client in rows}
        placements = {}
        for client, of in rows.items():
            parts = np.stack([of["features"].mean(axis=0), of["features"].std(axis=0)])[None]
            whole = replace(known, low=known.low[:2], high=known.high[:2])  # type: ignore[index]
            row = whole.scaled(parts, np.ones((1, 2), np.bool_))[0]
            found = self._nearest(known, row, "descriptors of rows without labels")
            placements[client] = replace(found, at_home=known.at_home)
        return placements


def descriptors(told: Mapping[str, Described]) -> tuple[np.ndarray, np.ndarray]:
    """(clients, parts, numbers): mean and deviation of all rows, then of each class; and which parts are there."""
    values = [answer.values for answer in told.values()]
    parts = np.stack([np.stack([one["means"], one["deviations"]], axis=1) for one in values])
    counts = np.stack([one["counts"] for one in values])
    there = np.hstack([np.ones((len(values), 2), np.bool_), np.repeat(counts > 1, 2, axis=1)])
    return parts.reshape(len(values), -1, parts.shape[-1]).astype(np.float64), there


def recognised(rows: np.ndarray, labels: np.ndarray, centres: Mapping[int, np.ndarray]) -> float | None:
    """The share of clients who are nearest to the others of their cluster, by the first numbers of descriptors."""
    far = np.stack([np.linalg.norm(rows - centre[: rows.shape[1]], axis=1) for centre in centres.values()], axis=1)
    own = np.searchsorted(list(centres), labels)
    sizes = np.bincount(own)[own]
    far[np.arange(len(rows)), own] *= sizes / np.maximum(sizes - 1, 1)  # from the centre of the others
    there = sizes > 1
    return float((far.argmin(axis=1) == own)[there].mean()) if there.any() else None


def ranges(parts: np.ndarray, there: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The least and the largest number of each part, over the clients that have it."""
    low = np.where(there[..., None], parts, np.inf).min(axis=(0, 2))
    high = np.where(there[..., None], parts, -np.inf).max(axis=(0, 2))
    nobody = ~there.any(axis=0)
    return np.where(nobody, 0.0, low), np.where(nobody, 0.0, high)
