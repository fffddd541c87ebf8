"""FLIS: clients whose models predict the same classes for a few rows of the server's go on together.

Morafah, Vahidian, Wang and Lin, "FLIS: Clustered Federated Learning via Inference Similarity for Non-IID Data
Distribution", IEEE Open Journal of the Computer Society, 2023.
"""

from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedclade.ask import Ask, TrainedClients
from fedclade.clustering.hierarchy import agglomerate
from fedclade.clustering.similarity import agreement_matrix
from fedclade.errors import FedcladeError
from fedclade.methods.base import About, Clusters, RoundContext
from fedclade.methods.fedsccs import FedSCCS, by_cluster


class FLIS(FedSCCS):
    """FedSCCS's loop with another measure: the share of the probe rows on which two models agree."""

    about: ClassVar[About] = About(
        "clusters once, by how often models predict the same class",
        "Morafah et al. 2023",
        "the number too",
        "one shot",
        "model, probe rows",
    )

    warmup: Annotated[int, Field(ge=1)] = 1
    n_clusters: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    threshold: Annotated[float, Field(ge=0, le=1)] | None = None  # of disagreement, up to which clusters merge
    linkage: Literal["single", "complete", "average", "weighted"] = "average"
    fraction: Annotated[float, Field(gt=0, le=1)] = 0.1

    def group(self, trained: TrainedClients, context: RoundContext, ask: Ask) -> tuple[dict[str, int], dict[str, Any]]:
        probe = self.probe_set(context, ask)
        outputs = self.outputs(trained, probe, ask)
        if not outputs:
            raise FedcladeError("no model gives finite output on the probe rows: mend them or lower the learning rate")
        classes = {client: values.argmax(1) for client, values in outputs.items()}
        clients, disagreement = list(classes), 1 - agreement_matrix(np.stack(list(classes.values())))
        if self.threshold is not None or self.n_clusters == "auto":
            threshold: float | Literal["auto"] = "auto" if self.threshold is None else self.threshold
            labels, tree = agglomerate(disagreement, self.linkage, threshold=threshold)
        else:
            labels, tree = agglomerate(disagreement, self.linkage, n_clusters=min(self.n_clusters, len(clients)))
        ask.record("proximity", matrix=disagreement, clients=clients, measure="share of rows predicted differently")
        ask.record("dendrogram", merges=tree.merges, clients=clients, linkage=self.linkage, labels=labels)
        homes = dict(zip(clients, labels.tolist(), strict=True))
        return homes, {"probe": probe, "outputs": by_cluster(homes, classes)}

    def compare(
        self, clusters: Clusters, trained: TrainedClients, context: RoundContext, ask: Ask
    ) -> tuple[str, dict[str, dict[int, float]]]:
        known = clusters.notes["outputs"]
        far = {
            client: {k: float(np.mean([(own.argmax(1) != other).mean() for other in known[k]])) for k in known}
            for client, own in self.outputs(trained, clusters.notes["probe"], ask).items()
        }
        return "mean share of rows predicted differently", far
