"""FedRC: soft clusters of clients that mean the same by labels, whichever labels they hold and however rows look.

Guo, Tang and Lin, "FedRC: Tackling Diverse Distribution Shifts Challenge in Federated Learning by Robust Clustering",
ICML 2024.

As in FedEM all clients train all components, each row weighted by how much a component answers for it, and a client is
served by a mixture in shares of its own, omega_i. But a component's likelihood of a row is divided by the share C_yk
that the row's label y has among all rows that component k answers for. So a component gains nothing by taking all rows
of a few labels: clients that only hold other labels stay together, and clients that disagree about labels part.

How we read it: once a round, before training, a client works out for its rows who answers for them, gamma_ijk in
proportion to omega_ik p_k(y | x) / C_yk; then omega_ik is the mean of gamma_ijk, and all epochs go down the mean of
sum_k gamma_ijk f_k. Sums of gamma_ijk by label come back with the components; C are those of all clients, as each has
told last, and at least 1e-8, as in the authors' code. The paper's clusters are soft: here a client is shown with those
whose rows the same component answers for most, and the model of such a cluster mixes by the rows of its members.
"""

from collections.abc import Mapping
from dataclasses import field, replace
from typing import ClassVar

import numpy as np

from fedclade.ask import Ask
from fedclade.clients.tasks import LOCAL, Evaluate, Train, Trained
from fedclade.methods.base import About, Clusters, RoundContext, remembered
from fedclade.methods.fedem import FedEM
from fedclade.methods.shared_layers import Shared

LABELS = "labels"  # the layer of the mixture that holds the shares of labels
LEAST = 1e-8  # of a client's rows that a component answers for


@remembered
class Told(Shared):
    rows: Mapping[str, np.ndarray] = field(default_factory=dict)  # each client's, by component and label


class FedRC(FedEM):
    about: ClassVar[About] = About(
        "a mixture of shared models that parts clients by what labels mean, not by which they hold",
        "Guo et al. 2024",
        "a given number",
        sends="all components, label counts",
        needs_labels=True,
        formula="max sum_ij ln sum_k omega_ik p_k(y | x) / C_yk; C_yk is the share of label y among the rows of k",
        use="when groups disagree about labels, clients hold few labels each besides, and rounds are many",
    )
    State = Told
    sign: ClassVar[str] = "/"

    def start(self, context: RoundContext, ask: Ask) -> Clusters:
        return Clusters.single(context.clients, context.initial, Told(self.shared(context.layout)))

    def round(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        told: Told = clusters.state
        rows = dict(told.rows)

        def heard(client: str, answer: Trained) -> int:
            shares = answer.weights[-self.n_components * context.n_classes :]  # the last layer that is sent
            shares = np.maximum(shares, LEAST).reshape(self.n_components, -1)  # whoever sent it
            rows[client] = answer.n_samples * shares / shares.sum()
            return 0

        model = next(iter(clusters.models.values()))  # they differ in mixing weights only, which are not sent
        task = Train(model, layers=told.layers, start=LOCAL, upload=told.layers)
        trained = ask.combined(dict.fromkeys(context.sample(), task), {0: model}, heard)
        if not trained.reports:
            return clusters
        known = replace(told, rows={client: rows[client] for client in context.clients if client in rows})
        return self.gathered(clusters.remembering(known), trained.models[0], context, ask)

    def gathered(self, clusters: Clusters, model: np.ndarray, context: RoundContext, ask: Ask) -> Clusters:
        """Each client with those whose rows the same component answers for most; all know the new label shares."""
        rows = clusters.state.rows
        home = {**clusters.cluster_of, **{client: int(of.sum(axis=1).argmax()) for client, of in rows.items()}}
        members = {k: tuple(c for c in context.clients if home[c] == k) for k in sorted(set(home.values()))}
        everybody, models = np.sum(list(rows.values()), axis=0, dtype=np.float64), {}
        for cluster, part in members.items():
            of_part = np.sum([rows[c] for c in part if c in rows] or [everybody], axis=0, dtype=np.float64)
            models[cluster] = model.copy()
            models[cluster][context.layout.select(LABELS)] = (everybody / everybody.sum()).ravel()
            models[cluster][context.layout.select("head")] = np.log(of_part.sum(axis=1) + 1)
            ask.stepping.hand_on(model, models[cluster])
        return replace(clusters, members=members, models=models)

    def served(self, clusters: Clusters, client: str) -> Evaluate:
        model = clusters.model_of(client)
        return Evaluate(model, layers=clusters.state.layers, start=LOCAL, otherwise=model)
