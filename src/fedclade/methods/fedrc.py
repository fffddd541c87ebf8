"""FedRC: soft clusters of clients whose rows mean other labels, whatever labels they hold and however rows look.

Guo, Tang and Lin, "FedRC: Tackling Diverse Distribution Shifts Challenge in Federated Learning by Robust Clustering",
ICML 2024.

As in FedEM all clients train all components, each row weighted by how much a component answers for it, and a client is
served by a mixture in shares of its own. But a component's likelihood of a row is divided by the share C_yk that the
row's label y has among all rows that component k answers for. A component gains nothing by taking the rows of a few
labels to itself, so that clients who only hold other labels stay together, and clients who disagree about labels part.

How we read it: components and mixing weights go down the likelihood step by step, as in our FedEM (the paper works out
responsibilities once a round). After training, a client tells how many rows of each label each component answers for,
by the models it has just trained; C for the next round are the sums over all clients, as each has told last. So that
no share is zero, a component counts as answering for one more row of each label (the authors' code: at least 1e-8).
Clients whose rows one component answers for most are shown as a cluster, the mixture in their mean shares as its model.
"""

from collections.abc import Mapping
from dataclasses import field, replace
from typing import ClassVar

import numpy as np

from fedclade.ask import Ask
from fedclade.clients.tasks import LOCAL, Describe, Evaluate, Train
from fedclade.methods.base import About, Clusters, RoundContext, remembered
from fedclade.methods.fedem import FedEM
from fedclade.methods.shared_layers import Shared

LABELS = "labels"  # the layer that holds the logarithms of label shares


@remembered
class Told(Shared):
    sums: Mapping[str, np.ndarray] = field(default_factory=dict)  # by client: rows of each component and label


class FedRC(FedEM):
    about: ClassVar[About] = About(
        "a mixture of shared models that parts clients by what labels mean, not by which they hold",
        "Guo et al. 2024",
        "a given number",
        sends="all components, and how many rows of each label they answer for",
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
        model = next(iter(clusters.models.values()))  # they differ in mixing weights only, which are not sent
        components = tuple(layer for layer in told.layers if layer != LABELS)
        task = Train(model, layers=told.layers, start=LOCAL, upload=components)
        trained = ask.combined(dict.fromkeys(context.sample(), task), {0: model}, lambda client, answer: 0)
        answers = ask(Describe("responsibilities", {"n_components": self.n_components}), to=trained.reports)
        sums = {**told.sums, **{client: answer.values["sums"] for client, answer in answers.items()}}
        sums = {client: sums[client] for client in context.clients if client in sums}
        return self.gathered(replace(clusters, state=replace(told, sums=sums)), trained.models[0], context, ask)

    def gathered(self, clusters: Clusters, model: np.ndarray, context: RoundContext, ask: Ask) -> Clusters:
        """Each client with those whose rows the same component answers for most; the model with new label shares."""
        sums = clusters.state.sums
        home = {**clusters.cluster_of, **{client: int(of.sum(axis=1).argmax()) for client, of in sums.items()}}
        members = {k: tuple(c for c in context.clients if home[c] == k) for k in sorted(set(home.values()))}
        models = {}
        for cluster, part in members.items():
            models[cluster] = model.copy()
            models[cluster][context.layout.select(LABELS)] = log_shares(list(sums.values())).ravel()
            mean = log_shares([sums[client].sum(axis=1) for client in part if client in sums])
            models[cluster][context.layout.select("head")] = mean
            ask.stepping.hand_on(model, models[cluster])
        return replace(clusters, members=members, models=models)

    def served(self, clusters: Clusters, client: str) -> Evaluate:
        model = clusters.model_of(client)
        return Evaluate(model, layers=clusters.state.layers, start=LOCAL, otherwise=model)


def log_shares(sums: list[np.ndarray]) -> np.ndarray:
    """Of what each has in its row, counting one more."""
    total = np.sum(sums, axis=0, dtype=np.float64) + 1.0
    return np.log(total / total.sum(axis=-1, keepdims=True)).astype(np.float32)
