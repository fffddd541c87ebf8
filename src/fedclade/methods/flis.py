"""FLIS: clients whose models predict the same classes for a few rows of the server's go on together.

Morafah, Vahidian, Wang and Lin, "FLIS: Clustered Federated Learning via Inference Similarity for Non-IID Data
Distribution", IEEE Open Journal of the Computer Society, 2023.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np

from fedclade.ask import Ask
from fedclade.clustering.similarity import agreement_matrix
from fedclade.methods.base import About, Clusters, Count, RoundContext
from fedclade.methods.fedsccs import ByAnswers, Grouped, OnProbe


class FLIS(ByAnswers):
    """FedSCCS's loop with another measure: the share of the probe rows on which two models agree."""

    about: ClassVar[About] = About(
        "clusters once, by how often models predict the same class",
        "Morafah et al. 2023",
        "the number too",
        "one shot",
        "model, probe rows",
        needs_labels=True,
        formula="S(i, j) = share of probe rows for which models i and j predict the same class; clients with "
        "S above a threshold go together",
        use="when the server has some rows and whole models are too large to compare",
    )

    warmup: Count = 1  # rounds of plain averaging before the clusters are made
    linkage: Literal["single", "complete", "average", "weighted"] = "average"  # how far two clusters are apart

    @property
    def measure(self) -> str:
        return "mean share of rows predicted differently"

    def group(self, signals: Mapping[str, OnProbe], context: RoundContext, ask: Ask) -> np.ndarray:
        disagreement = 1 - agreement_matrix(np.stack([signal.values.argmax(1) for signal in signals.values()]))
        what = "share of rows predicted differently"
        return self.cut(disagreement, list(signals), self.linkage, ask, measure=what)

    def kept(self, clusters: Clusters, signals: Mapping[str, OnProbe], start: np.ndarray) -> Grouped:
        """The classes that members predict for all of the probe rows."""
        known = {k: np.stack([signals[c].values.argmax(1) for c in part]) for k, part in clusters.members.items()}
        return Grouped(start, known, next(iter(signals.values())).rows)

    def far(self, signal: OnProbe, state: Grouped, context: RoundContext) -> dict[int, float]:
        own = signal.values.argmax(1)
        return {k: float(np.mean([(own != other).mean() for other in others])) for k, others in state.known.items()}
