"""PACFL: clients whose rows span alike subspaces go on together; a few singular vectors tell, before any training.

Vahidian et al., "Efficient Distribution Similarity Identification in Clustered Federated Learning via Principal Angles
Between Client Data Subspaces", AAAI 2023.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from fedclade.ask import Ask
from fedclade.clients.tasks import Describe
from fedclade.clustering.similarity import angle_profiles, subspace_angles
from fedclade.methods.base import About, Clusters, Count, RoundContext, remembered
from fedclade.methods.one_shot import CutTree, OneShot, Signals


@remembered
class Subspaces:
    """The members' bases, cluster by cluster, and the angles between all of them in that order."""

    start: np.ndarray
    bases: Mapping[int, tuple[np.ndarray, ...]]
    angles: np.ndarray


class PACFL(OneShot, CutTree):
    about: ClassVar[About] = About(
        "clusters once, by the angles between subspaces of the clients' rows",
        "Vahidian et al. 2023",
        "the number too",
        "one shot",
        "singular vectors, model",
        needs_labels=True,
        formula="D(i, j) = smallest principal angle between the subspaces spanned by the leading singular vectors "
        "of each class of the clients' rows; the linkage tree of D is cut",
        use="when groups show in the rows themselves (rotations, other sensors) and singular vectors may leave clients",
    )
    State = Subspaces

    # Its threshold is in degrees, as in the paper; "auto" compares clients by their angles to all others.
    n_vectors: Count = 3  # for each class that a client holds
    legacy: bool = False  # the angles of the authors' code: between single vectors, signs included
    linkage: Literal["single", "complete", "average", "weighted"] = "weighted"  # how far two clusters are apart

    @property
    def by_profile(self) -> bool:
        return self.threshold == "auto"

    @property
    def measure(self) -> str:
        return "mean distance of angles to all" if self.by_profile else "mean degrees between subspaces"

    def compared(self, start: np.ndarray, context: RoundContext, ask: Ask, phase: str, state: Any = None) -> Signals:
        """What clients tell about their rows: a few singular vectors for each class."""
        told = ask(Describe("subspaces", {"n_vectors": self.n_vectors}), to=context.clients, phase=phase)
        return {client: answer.values["basis"] for client, answer in told.items()}

    def group(self, signals: Signals, context: RoundContext, ask: Ask) -> np.ndarray:
        angles = subspace_angles(list(signals.values()), self.legacy)
        clients, what = list(signals), "degrees between subspaces"
        return self.cut(self.distances(angles), clients, self.linkage, ask, measure=what, shown=angles)

    def distances(self, angles: np.ndarray) -> np.ndarray:
        """What clusters are made of: degrees, for thresholds are in degrees, or what serves better without one."""
        return angle_profiles(angles) if self.by_profile else angles

    def kept(self, clusters: Clusters, signals: Signals, start: np.ndarray) -> Subspaces:
        bases = {k: tuple(signals[client] for client in members) for k, members in clusters.members.items()}
        everyone = [basis for part in bases.values() for basis in part]
        return Subspaces(start, bases, subspace_angles(everyone, self.legacy))

    def far(self, signal: np.ndarray, state: Subspaces, context: RoundContext) -> dict[int, float]:
        """A newcomer adds a row to the matrix of angles; its distance from a cluster is the mean over its members."""
        others = [basis for part in state.bases.values() for basis in part]
        home = np.array([k for k, part in state.bases.items() for _ in part])
        row = np.array([subspace_angles([signal, other], self.legacy)[0, 1] for other in others])
        extended = np.block([[state.angles, row[:, None]], [row[None], np.zeros((1, 1))]])
        distances = self.distances(extended)[-1, :-1]
        return {k: float(distances[home == k].mean()) for k in state.bases}
