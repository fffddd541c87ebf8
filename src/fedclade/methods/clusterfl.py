"""ClusterFL: every client keeps a model of its own, and models of clients that answer alike are trained in relation.

Ouyang, Xie, Zhou, Huang and Xing, "ClusterFL: A Similarity-Aware Federated Learning System for Human Activity
Recognition", MobiSys 2021.

The clients' models w_i, rows of W, minimise the sum of their losses + alpha |W|^2 - beta tr(F^T W W^T F). F says who is
related to whom; the server makes it anew every few rounds from what the models answer on probe rows. With Omega_j
standing for F_j^T W, the alternating direction method of multipliers works on

    sum_i L_i(w_i) + alpha |W|^2 - beta |Omega|^2 + <U, Omega - F^T W> + rho / 2 |Omega - F^T W|^2

by turns: clients train their w_i, the server sets Omega to where this is least and moves U. The published code adds the
term -<U, F^T W> with the other sign and leaves out how clients depend on each other; here both are as derived.

With the paper's numbers (rho = 4 beta) U does not admit but swings around its value; any larger rho lets it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field, ValidationInfo, field_validator

from fedclade.ask import Ask, TrainedClients
from fedclade.clients.tasks import Evaluate, Train
from fedclade.clustering.hierarchy import agglomerate
from fedclade.clustering.similarity import distance_matrix, kl_matrix, relation_weights
from fedclade.methods.base import About, Clusters, RoundContext, remembered
from fedclade.methods.probing import Probing, answers_on, some_of


@remembered
class Relations:
    """The server's side of the optimisation; rows, and columns of `relation`, are in the order of `clients`."""

    clients: tuple[str, ...]
    weights: np.ndarray  # W: everybody's model
    relation: np.ndarray  # F: column j says of whom the j-th mixture is made
    mixtures: np.ndarray  # Omega
    dual: np.ndarray  # U
    losses: Mapping[str, float]  # last training loss of those who have trained
    probe: np.ndarray  # the rows on which models are compared
    is_stopped: bool = False

    @classmethod
    def unrelated(
        cls, clients: tuple[str, ...], weights: np.ndarray, n_parameters: int, probe: np.ndarray
    ) -> "Relations":
        """Everybody by itself, so that the first trainings are free of any pull."""
        own = weights[:, :n_parameters]
        return cls(clients, weights, np.eye(len(clients)), own.copy(), np.zeros_like(own), {}, probe)

    @property
    def mixed(self) -> np.ndarray:
        """F^T W. Running statistics behind the parameters have no part in it."""
        return self.relation.T @ self.weights[:, : self.mixtures.shape[1]]

    def pulls(self, rho: float) -> np.ndarray:
        """For each client the gradient of the coupling terms by its own weights, where these are now."""
        return (self.relation @ (rho * (self.mixed - self.mixtures) - self.dual)).astype(np.float32)

    def stiffness(self, rho: float) -> np.ndarray:
        """How much that gradient grows for each unit that the client's own weights move."""
        return rho * (self.relation**2).sum(1)

    def stepped(self, beta: float, rho: float) -> "Relations":
        """Omega to where it is best, then U one step on."""
        mixed = self.mixed
        mixtures = (rho * mixed - self.dual) / (rho - 2 * beta)
        dual = self.dual + rho * (mixtures - mixed)
        return replace(self, mixtures=mixtures.astype(np.float32), dual=dual.astype(np.float32))

    def with_reports(self, trained: TrainedClients) -> "Relations":
        weights = self.weights.copy()
        for place, client in enumerate(self.clients):
            if client in trained:
                weights[place] = trained[client].weights
        losses = {client: answer.loss for client, answer in trained.items()}
        return replace(self, weights=weights, losses={**self.losses, **losses})

    def among(self, clients: tuple[str, ...], start: Mapping[str, np.ndarray]) -> "Relations":
        """After clients left or came. Newcomers start from the model given and are related to nobody yet."""
        if clients == self.clients:
            return self
        place = {client: number for number, client in enumerate(self.clients)}
        stay = [k for k, client in enumerate(clients) if client in place]
        old = [place[clients[k]] for k in stay]
        weights = np.stack([self.weights[place[c]] if c in place else start[c] for c in clients])
        fresh = Relations.unrelated(clients, weights, self.mixtures.shape[1], self.probe)
        fresh.mixtures[stay], fresh.dual[stay] = self.mixtures[old], self.dual[old]
        kept = self.relation[np.ix_(old, old)]
        empty = kept.sum(0) <= 0
        kept[empty, empty] = 1.0
        fresh.relation[np.ix_(stay, stay)] = kept / kept.sum(0)
        known = {c: loss for c, loss in self.losses.items() if c in clients}
        return replace(fresh, losses=known, is_stopped=self.is_stopped)


class ClusterFL(Probing):
    about: ClassVar[About] = About(
        "a model for each client, trained in relation to those that answer alike",
        "Ouyang et al. 2021",
        "the number too",
        "every few rounds",
        "2 models down, 1 up; probe rows",
        formula="min over W, F of sum_i L_i(w_i) + alpha |W|^2 - beta tr(F' W W' F), by ADMM",
        use="with few clients, each with a model of its own, when relations matter more than sharp groups",
    )
    State = Relations

    alpha: Annotated[float, Field(ge=0)] = 1e-3  # of the squared length of all weights
    beta: Annotated[float, Field(ge=0)] = 5e-4  # of the relation between clients
    rho: Annotated[float, Field(gt=0)] = 2e-3  # of the penalty that ties mixtures to weights
    relation_every: Annotated[int, Field(ge=1)] = 3  # rounds between two looks at who is related
    temperature: Annotated[float, Field(gt=0)] = 6.0  # by which outputs are softened before they are compared
    tolerance: Annotated[float, Field(gt=0)] | None = None  # stop when losses change by less in sum; the paper: 0.01

    @field_validator("rho")
    @classmethod
    def _mixtures_have_a_minimum(cls, rho: float, info: ValidationInfo) -> float:
        if rho <= 2 * info.data.get("beta", 0.0):
            raise ValueError("it must be larger than 2 * beta, else there is no best mixture: raise rho or lower beta")
        return rho

    def start(self, context: RoundContext, ask: Ask) -> Clusters:
        probe = self.probe_set(context, ask)
        weights = np.tile(context.initial, (len(context.clients), 1))
        n, kept = context.layout.n_parameters, probe[some_of(probe)]
        return super().start(context, ask).remembering(Relations.unrelated(context.clients, weights, n, kept))

    def round(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        clusters = self.retry(clusters, context, ask)
        homes = {client: clusters.model_of(client) for client in context.clients}
        before: Relations = clusters.state.among(context.clients, homes)
        if before.is_stopped:
            return clusters.remembering(before)
        trained = ask(self.tasks(before, context.sample(), context))
        state = before.with_reports(trained)
        if context.round % self.relation_every == 0:
            clusters, state = self.related(clusters, state, context, ask)
        stopped = replace(state.stepped(self.beta, self.rho), is_stopped=self.is_done(before, state))
        return clusters.remembering(stopped)

    def tasks(self, state: Relations, chosen: list[str], context: RoundContext) -> dict[str, Train]:
        """The server sums up the coupling terms, so that a client need not see the models of others.

        `pulls` is their gradient where the client starts; the proximal term, around the same place, adds how that
        gradient changes as the client's own weights move.
        """
        decay = context.training.weight_decay + 2 * self.alpha
        training = context.training.model_copy(update={"weight_decay": decay})
        pulls, stiffness = state.pulls(self.rho), state.stiffness(self.rho)
        return {
            client: Train(state.weights[k], training=training, linear=pulls[k], proximal=float(stiffness[k]))
            for k, client in enumerate(state.clients)
            if client in set(chosen)
        }

    def related(
        self, clusters: Clusters, state: Relations, context: RoundContext, ask: Ask
    ) -> tuple[Clusters, Relations]:
        """Who is related to whom, from the answers of all models that have trained; the others wait by themselves."""
        models = {c: state.weights[k] for k, c in enumerate(state.clients) if c in state.losses}
        outputs = answers_on(state.probe, models, "outputs", ask)
        if not outputs:
            return clusters, state
        known = list(outputs)
        divergence = kl_matrix(np.stack(list(outputs.values())), self.temperature)
        relation, places = np.eye(len(state.clients)), [state.clients.index(client) for client in known]
        relation[np.ix_(places, places)] = relation_weights(divergence)
        ask.record("proximity", matrix=divergence, clients=known, measure="KL divergence of softened outputs")
        ask.record("relation", matrix=relation, clients=list(state.clients))
        grouped = self.grouped(known, divergence, models)
        waiting = [client for client in context.clients if client not in models or client not in outputs]
        largest = grouped.largest
        for client in waiting:
            grouped = grouped.joined(client, largest, context.initial)
        return grouped, replace(state, relation=relation)

    def grouped(self, known: list[str], divergence: np.ndarray, models: Mapping[str, np.ndarray]) -> Clusters:
        """Clusters to report: F is the Gram matrix of the rows of divergences, so their distances say who is alike.

        Nothing is averaged, so a cluster's model, for newcomers, is that of its member nearest to the others.
        """
        labels, _ = agglomerate(distance_matrix(divergence), "average", threshold="auto")
        centres = {}
        for label in np.unique(labels).tolist():
            inside = np.flatnonzero(labels == label)
            far = (divergence + divergence.T)[np.ix_(inside, inside)].sum(1)
            centres[label] = models[known[inside[np.argmin(far)]]]
        return replace(Clusters.from_labels(known, labels, models[known[0]]), models=centres)

    def is_done(self, before: Relations, after: Relations) -> bool:
        if self.tolerance is None or set(before.losses) != set(after.clients):
            return False
        return sum(abs(after.losses[c] - before.losses[c]) for c in after.clients) < self.tolerance

    def served(self, clusters: Clusters, client: str) -> Evaluate:
        state: Relations = clusters.state
        known = client in state.clients  # a newcomer has its cluster's model until it has trained
        return Evaluate(state.weights[state.clients.index(client)] if known else clusters.model_of(client))

    def admit(self, clusters: Clusters, newcomers: Iterable[str], context: RoundContext, ask: Ask) -> Clusters:
        """Whoever is new, or is not what it was, starts from its cluster's model: its old one is forgotten."""
        new, state = set(newcomers), clusters.state
        stay = tuple(client for client in state.clients if client not in new)
        if stay != state.clients and stay:
            clusters = clusters.remembering(state.among(stay, {}))
        return super().admit(clusters, new, context, ask)
