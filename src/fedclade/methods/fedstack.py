"""Clustered FedStack: clients of any architecture send what they predict, and stacked models learn from that.

Shaik et al., "Clustered FedStack: Intermediate Global Models with Bayesian Information Criterion", 2023. It builds on
"FedStack: Personalized Activity Monitoring Using Stacked Federated Learning", Knowledge-Based Systems 257, 2022.

What travels does so once, in round 0: every client trains a network of its own and sends its last layer, the class
probabilities it gives its training rows, and their labels. The server stacks the probabilities and trains a global
model on them. It groups the clients by the direction of their last layers, into as many clusters as the BIC asks for,
and trains an intermediate model on each cluster's part of the stack, from the global one on (the paper does not say
from where, nor what networks the stacked models are). A client is served by its own network with its cluster's stacked
model behind it. One cluster is plain FedStack.

In later rounds the server trains the stacked models on, along the same cyclical learning rate, and nothing is sent.
With `refresh` the clients train on too and send their predictions anew. The rate's first peak is 0.1 by default, not
the paper's 0.001, with which models of some thousand stacked rows stay near what clients' networks say already.

Algorithm 1 trains g on a `stack` of all models' predictions and tests it on a D' that it does not say who holds, and it
can be read in two ways (`layout`):

- "pooled": a row of the stack is what one client's network says of one of that client's rows. No whole network leaves
  a client, but a stacked model sees one network at a time, and can correct it, not weigh it against others.
- "aligned", as stacking is usually meant: a row of the stack is what the networks of all members say of the same row,
  side by side. Then whoever is served needs all these networks: clients send theirs, and get those of their cluster
  (the first `seats` of them by rows). With these each says what all of them predict of its own training rows, so that
  no public rows are needed (with a `probe_file` all networks predict that instead). Clusters are stacked at once: a
  model over all clients' networks would have every network sent to everybody, and clusters could not begin with it,
  for they read other networks. One cluster gives that model. Which networks a stack reads is settled with the clusters:
  newcomers are served by those of their cluster and bring rows, but no seat.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, ValidationInfo, field_validator, model_validator

from fedclade.ask import Ask, TrainedClients
from fedclade.clients.tasks import LOCAL, Evaluate, Predict, Predicted, Train, Training
from fedclade.clustering.hierarchy import agglomerate
from fedclade.clustering.similarity import directions, distance_matrix, informative
from fedclade.errors import FedcladeError
from fedclade.methods.base import (
    About,
    Clusters,
    Count,
    Method,
    Placement,
    RoundContext,
    nearest,
    nobody_answered,
    remembered,
)
from fedclade.methods.probing import public_rows
from fedclade.models import models as known_models
from fedclade.models.assigned import Networks, Seats, Spec
from fedclade.models.weights import Layout

ARCHITECTURES = ("ann", "cnn1d", "bilstm")  # the paper's; their last layers are equally wide, so they can be compared
STACK_TRAINING = Training(batch_size=64, momentum=0.9, schedule="cyclic")

Algorithm = Literal["kmeans", "agglomerative", "gaussian-mixture", "random"]
Criterion = Literal["pooled", "sklearn-full", "sklearn-tied", "sklearn-diag", "sklearn-spherical"]


@remembered
class Sent:
    """What a client's network predicts for some rows, or (aligned) what all of its cluster do; and the rows' labels."""

    values: np.ndarray  # (rows, classes), or (rows, networks x classes)
    labels: np.ndarray


Stack = Mapping[str, Sent]


@remembered
class Stacked:
    whole: np.ndarray  # the global stacked model
    stack: Mapping[str, Sent]  # by client
    centres: Mapping[int, np.ndarray]  # of each cluster: the mean direction of its members' signatures
    # Aligned: whose networks a cluster's stacked model reads, and of each its architecture and weights
    seated: Mapping[int, Mapping[str, tuple[str, np.ndarray]]] = field(default_factory=dict)


class FedStack(Method):
    about: ClassVar[About] = About(
        "clients of any architecture; models stacked on their predictions, one for each cluster of last layers",
        "Shaik et al. 2023",
        "the number too",
        "one shot",
        "predictions, labels, last layer",
        needs_labels=True,
        formula="client i is served by stack_k(p_i(x)): its own network's class probabilities p_i, corrected "
        "by the model that was trained on those of its cluster k (aligned: stack_k(p_a(x), p_b(x), ...), of all of k)",
        use="when clients have networks of different architectures, or a single upload must do",
    )
    State = Stacked

    layout: Literal["pooled", "aligned"] = "pooled"  # "aligned": all networks of a cluster predict the same rows
    seats: Count = 32  # aligned: networks that a cluster's stacked model reads at most, those trained on the most rows
    epochs: Count = 20  # of local training before anything is sent
    spare: Annotated[float, Field(ge=0, lt=1)] = 0.0  # ours: train without this share of the rows, predict only these
    signature: Literal["head", "predictions"] = "head"  # what clients are grouped by: last layer, answers to a probe
    algorithm: Algorithm = "kmeans"  # that groups their directions; "random" shows what grouping as such is worth
    n_clusters: Count | None = None  # None: where the BIC is lowest, or by `threshold`
    threshold: Literal["auto"] | None = None  # "auto": the number of clusters by the rule that all methods share
    bic: Criterion = "pooled"  # one variance for all clusters; with variances of their own k comes out too low or high
    most_clusters: Count = 10  # that the BIC looks at
    stack_model: str = "correction"  # a small network that corrects what clients predict; or one of `fedclade models`
    stack_epochs: Count = 5  # in each round
    stack_rate: Annotated[float, Field(gt=0)] = 0.1  # at the first peak; the paper's 0.001 hardly moves small stacks
    refresh: bool = False  # in later rounds clients train on, and send their predictions anew
    probe_file: str | None = None  # public rows, .npz with x and y: clients predict these, and no label leaves them

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if self.n_clusters is not None and self.threshold is not None:
            raise ValueError("threshold and n_clusters exclude each other: give one of them")
        return self

    @field_validator("probe_file")
    @classmethod
    def _answers_need_a_probe(cls, path: str | None, info: ValidationInfo) -> str | None:
        if path is None and info.data.get("signature") == "predictions":
            raise ValueError("answers are compared on the same rows: with signature = 'predictions' give a probe_file")
        return path

    def networks(
        self, models: Sequence[Spec], clients: Sequence[str], input_shape: tuple[int, ...], n_classes: int
    ) -> Networks:
        """The models that were named (else those of the paper that fit the rows), by turns; stacked ones above."""
        fitting = [name for name in ARCHITECTURES if known_models()[name].fits(input_shape)]
        from fedclade.models.networks import Correction  # torch, which listing the methods need not wait for

        top = Correction if self.stack_model == "correction" else self.stack_model
        seats = self.seats if self.layout == "aligned" else 1
        networks = Networks.stacked(top, models or fitting, clients, input_shape, n_classes, seats)
        heads = {name: head_size(make) for name, make in networks.factories.items() if name}
        if self.signature == "head" and len(set(heads.values())) > 1:
            raise FedcladeError(
                f"last layers of unlike size cannot be compared ({heads}): choose models that agree in it, "
                "or method.signature = 'predictions'"
            )
        return networks

    def start(self, context: RoundContext, ask: Ask) -> Clusters:
        self.probe(context)  # what is wrong with it must be known now, not after the training
        trained = self.network_trained(context, ask, "train")
        is_pooled, told = self.layout == "pooled", dict[str, Sent]()
        if is_pooled or self.signature == "predictions":
            told = self.predictions(trained.clients, context, ask, "stack")
        signatures = self.signatures(trained, told, ask)
        if not signatures or (is_pooled and not told):
            raise nobody_answered(ask)
        labels = self.grouped(signatures, context, ask)
        clusters = Clusters.from_labels(list(signatures), labels, context.initial)
        unit = dict(zip(signatures, directions(np.stack(list(signatures.values()))), strict=True))
        centres = {k: np.mean([unit[client] for client in part], axis=0) for k, part in clusters.members.items()}
        clusters = clusters.remembering(Stacked(context.initial, told if is_pooled else {}, centres))
        if not is_pooled:
            clusters = self.with_seats(clusters, trained, context)
            clusters = self.handed_round(clusters, clusters.cluster_of, ask)
        clusters = self.admit(clusters, set(context.clients) - set(signatures), context, ask)
        return self.stacked(clusters, context, ask)

    def round(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        clusters = self.retry(clusters, context, ask)
        if self.refresh:
            upload = "nothing" if self.layout == "pooled" else None
            trained = ask(Train(start=LOCAL, upload=upload, spare=self.spare), to=context.sample())
            if self.layout == "pooled":
                anew = self.predictions(trained.clients, context, ask, "stack")
                clusters = clusters.remembering(replace(clusters.state, stack={**clusters.state.stack, **anew}))
            else:
                clusters = self.handed_round(self.reseated(clusters, trained), context.clients, ask)
        return self.stacked(clusters, context, ask)

    def served(self, clusters: Clusters, client: str) -> Evaluate:
        if self.layout == "pooled":
            return Evaluate(clusters.model_of(client), through=LOCAL)
        seats = self.seats_of(clusters, client)
        # Whoever has founded a cluster by itself has nothing but its own network there.
        return Evaluate(clusters.model_of(client), through=seats) if seats else Evaluate(start=LOCAL)

    def place(self, clusters: Clusters, context: RoundContext, ask: Ask) -> dict[str, Placement]:
        """With those whose signatures point nearest to a newcomer's; one that points nowhere stays alone."""
        trained = self.network_trained(context, ask, "place", joins=True)
        answers = self.predictions(trained.clients, context, ask, "place") if self.signature == "predictions" else {}
        placements = {}
        for client, vector in self.signatures(trained, answers, ask).items():
            unit, centres = directions(vector), clusters.state.centres
            if any(len(centre) != len(unit) for centre in centres.values()):
                raise FedcladeError(
                    f"client {client!r} has a last layer of unlike size: choose a model whose last layer is the run's"
                )
            far = {k: float(np.linalg.norm(unit - centre)) for k, centre in centres.items()}
            placements[client] = Placement(nearest(far) if unit.any() else None, far, "distance of directions")
        return placements

    def admit(self, clusters: Clusters, newcomers: Iterable[str], context: RoundContext, ask: Ask) -> Clusters:
        """Whoever finds a place brings predictions along; one that founds a cluster has the global model there."""
        coming = set(newcomers) & set(context.clients)
        clusters = super().admit(clusters, coming, replace(context, initial=clusters.state.whole), ask)
        assigned = [c for c in context.clients if c in coming and c not in clusters.unassigned]
        stack = {client: rows for client, rows in clusters.state.stack.items() if client not in coming}
        if self.layout == "aligned":
            return self.handed_round(clusters.remembering(replace(clusters.state, stack=stack)), assigned, ask)
        stack |= self.predictions(assigned, context, ask, "stack")
        return clusters.remembering(replace(clusters.state, stack=stack))

    # What clients do

    def network_trained(self, context: RoundContext, ask: Ask, phase: str, joins: bool = False) -> TrainedClients:
        """Clients train their networks from the start that all of one architecture share.

        What leaves them is the last layer; aligned, the whole network, but of those who `join` later.
        """
        training = context.training.model_copy(update={"local_epochs": self.epochs})
        part = "head" if self.signature == "head" else "nothing"
        upload = None if self.layout == "aligned" and not joins else part
        return ask(Train(upload=upload, training=training, spare=self.spare), to=context.clients, phase=phase)

    def predictions(self, clients: Iterable[str], context: RoundContext, ask: Ask, phase: str) -> dict[str, Sent]:
        """What their networks say of their own training rows (of those spared, if any are), or of the public ones."""
        rows, labels = self.probe(context) or (None, None)
        answers = ask(Predict(start=LOCAL, on="train", spare=self.spare, rows=rows), to=clients, phase=phase)
        return {c: Sent(a.values, a.labels if labels is None else labels) for c, a in answers.items()}

    def probe(self, context: RoundContext) -> tuple[np.ndarray, np.ndarray] | None:
        if self.probe_file is None:
            return None
        return labelled_rows(self.probe_file, context.input_shape, context.n_classes)

    def handed_round(self, clusters: Clusters, clients: Iterable[str], ask: Ask) -> Clusters:
        """Aligned: a cluster's networks go to its members, and what they all say of a member's rows comes back.

        With public rows only how well they do comes back; whoever is served by networks must have been sent them.
        """
        if self.probe_file is not None:
            ask({client: replace(self.served(clusters, client), on="train") for client in clients}, phase="stack")
            return clusters
        tasks = {}
        for client in clients:
            if seats := self.seats_of(clusters, client, empty=False):
                tasks[client] = Predict(through=seats, output="below", on="train", spare=self.spare)
        told = {client: Sent(a.values, a.labels) for client, a in ask(tasks, phase="stack").items()}
        return clusters.remembering(replace(clusters.state, stack={**clusters.state.stack, **told}))

    def signatures(self, trained: TrainedClients, stack: Stack, ask: Ask) -> dict[str, np.ndarray]:
        if self.signature == "predictions":
            return {client: sent.values.ravel() for client, sent in stack.items()}
        heads = {}
        for client, answer in trained.items():
            layout = ask.engine.layout_of(client)
            is_whole = len(answer.weights) == layout.size
            heads[client] = answer.weights[layout.select("head")] if is_whole else answer.weights
        return heads

    # Aligned: whose networks a cluster's stacked model reads

    def with_seats(self, clusters: Clusters, trained: TrainedClients, context: RoundContext) -> Clusters:
        """Those of its members that were trained on the most rows, in the order of the clients."""
        seated = {}
        for k, members in clusters.members.items():
            first = set(sorted(members, key=lambda c: -trained[c].n_samples)[: self.seats])
            seated[k] = {c: (context.network_of[c], trained[c].weights) for c in members if c in first}
        return clusters.remembering(replace(clusters.state, seated=seated))

    def reseated(self, clusters: Clusters, trained: TrainedClients) -> Clusters:
        """With the networks of those who have trained on, where they are still members."""
        home, seated = clusters.cluster_of, {}
        for k, seats in clusters.state.seated.items():
            fresh = {c for c in seats if c in trained and home.get(c) == k}
            seated[k] = {c: (name, trained[c].weights if c in fresh else old) for c, (name, old) in seats.items()}
        return clusters.remembering(replace(clusters.state, seated=seated))

    def seats_of(self, clusters: Clusters, client: str, empty: bool = True) -> Seats:
        """The networks of a client's cluster and, for its stacked model, the seats that stay `empty`."""
        taken = tuple(clusters.state.seated.get(clusters.cluster_of[client], {}).values())
        return (*taken, *[None] * (self.seats - len(taken) if empty and taken else 0))

    def aligned(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Stack:
        """The rows that stacked models learn from, with zeros for empty seats: by client or, of public rows, by the
        number of the cluster, whose networks the server asks itself."""
        stack, public = clusters.state.stack, self.probe(context)
        if public is not None:
            seats = {str(k): self.seats_of(clusters, members[0], False) for k, members in clusters.members.items()}
            tasks = {k: Predict(through=some, output="below", rows=public[0]) for k, some in seats.items() if some}
            stack = {k: Sent(answer.values, public[1]) for k, answer in ask.server(tasks).items()}
        width = self.seats * context.n_classes
        return {
            k: replace(s, values=np.pad(s.values, ((0, 0), (0, width - s.values.shape[1])))) for k, s in stack.items()
        }

    # What the server makes of it

    def grouped(self, signatures: Mapping[str, np.ndarray], context: RoundContext, ask: Ask) -> np.ndarray:
        """Clusters of directions; a client without one (all zeros) is alone, beside the others."""
        from fedclade.clustering.centers import cluster_rows, random_labels  # take a second to load

        rows, clients = np.stack(list(signatures.values())), list(signatures)
        known = informative(rows)
        what = "last layers" if self.signature == "head" else "predictions"
        distances = distance_matrix(rows, "cosine")
        ask.record("proximity", matrix=distances, clients=clients, measure=f"1 - cosine of {what}")
        if not known.any():
            return np.arange(len(rows))
        curve = self.bic_curve(directions(rows[known]))
        wanted = self.n_clusters or int(np.argmin(curve)) + 1
        if self.threshold == "auto":
            close, _ = agglomerate(distances[np.ix_(known, known)], "average", metric="cosine", threshold="auto")
            wanted = int(close.max()) + 1
        number = min(wanted, int(known.sum()))
        ask.record("bic", k=list(range(1, len(curve) + 1)), bic=curve, chosen=number, rule=self.bic)
        if self.algorithm == "random":
            return random_labels(len(rows), number, context.random("clusters"))
        return cluster_rows(rows, number, "gmm" if self.algorithm == "gaussian-mixture" else self.algorithm)

    def bic_curve(self, rows: np.ndarray) -> np.ndarray:
        """The BIC of 1, 2, ... clusters."""
        from fedclade.clustering.centers import mixture_bic, pooled_bic

        most = min(self.most_clusters, max(1, len(rows) - 2))
        if self.bic == "pooled":
            return pooled_bic(rows, most)
        return mixture_bic(rows, most, self.bic.removeprefix("sklearn-"))

    def stacked(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        """Train the global stacked model, and from there the intermediate one of each cluster."""
        if self.layout == "aligned":
            starts = clusters.models if context.round else dict.fromkeys(clusters.members, context.initial)
            groups = clusters.members if self.probe_file is None else {k: (str(k),) for k in clusters.members}
            models = self.taught(groups, starts, self.aligned(clusters, context, ask), context, ask)
            return self.measured(replace(clusters, models={**clusters.models, **models}), context, ask)
        everyone = {"all": context.clients}
        whole = self.taught(everyone, {"all": clusters.state.whole}, clusters.state.stack, context, ask)["all"]
        if len(clusters) == 1:
            models = dict.fromkeys(clusters.members, whole)
        else:
            starts = clusters.models if context.round else dict.fromkeys(clusters.members, whole)
            models = self.taught(clusters.members, starts, clusters.state.stack, context, ask)
        clusters = replace(clusters, models={**clusters.models, **models}, state=replace(clusters.state, whole=whole))
        return self.measured(clusters, context, ask)

    def taught(
        self,
        groups: Mapping[Any, Iterable[str]],
        models: Mapping[Any, np.ndarray],
        stack: Stack,
        context: RoundContext,
        ask: Ask,
    ) -> dict[Any, np.ndarray]:
        """The model of each group, trained on its members' part of the stack (as it was where they have none)."""
        settings = {"local_epochs": self.stack_epochs, "learning_rate": self.stack_rate}
        training = STACK_TRAINING.model_copy(update=settings)
        so_far = 0 if self.refresh else self.stack_epochs * context.round  # fresh rows deserve a fresh schedule
        tasks = {}
        for group, members in groups.items():
            part = [stack[client] for client in members if client in stack]
            if part:
                rows, labels = (np.concatenate([getattr(sent, name) for sent in part]) for name in ("values", "labels"))
                learn = Train(models[group], rows=rows, labels=labels, training=training, epochs_before=so_far, save="")
                tasks[str(group)] = learn
        trained = ask.server(tasks)
        if trained.failures:
            why = next(iter(trained.failures.values()))
            raise FedcladeError(f"a stacked model cannot be trained ({why}): lower method.stack_rate")
        return {group: trained[str(group)].weights if str(group) in trained else models[group] for group in groups}

    def measured(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        """How well clients' networks do alone, with the global stacked model behind them (aligned: those of a cluster
        before their stacked model has learned: a mean vote), and with their cluster's."""
        if not context.is_evaluated:
            return clusters
        clients, home = context.clients, clusters.cluster_of
        now = {c: self.served(clusters, c) for c in clients}
        tasks = {c: Predict(served.weights, start=served.start, through=served.through) for c, served in now.items()}
        answers = {"own": ask(Predict(start=LOCAL), to=clients, phase="measure")}
        if self.layout == "pooled" or self.stack_model == "correction":
            shared = clusters.state.whole  # aligned, it is the initial one
            told = ask({c: replace(t, weights=shared) if t.through else t for c, t in tasks.items()}, phase="measure")
            answers["global" if self.layout == "pooled" else "vote"] = told
        answers["cluster"] = ask(tasks, phase="measure")

        def of(members: Iterable[str]) -> dict[str, Any]:
            seen = [c for c in members if all(c in told for told in answers.values())]
            return {
                model: scores([told[c] for c in seen], context.n_classes) for model, told in answers.items() if seen
            }

        parts = [{"number": k, "clients": list(part), **of(part)} for k, part in clusters.members.items()]
        ask.record("stacking", all=of(clients), clusters=parts)
        names = sorted(set(context.network_of.values()))
        counts = np.zeros((len(clusters), len(names)), np.int64)
        for client in clients:
            counts[list(clusters.members).index(home[client]), names.index(context.network_of[client])] += 1
        ask.record("architectures", networks=names, clusters=list(clusters.members), counts=counts)
        return clusters


def scores(answers: Sequence[Predicted], n_classes: int) -> dict[str, Any]:
    """Accuracy and, as means over the classes that the test rows hold, balanced accuracy, precision, recall and F1."""
    from sklearn.metrics import precision_recall_fscore_support

    labels = np.concatenate([answer.labels for answer in answers])
    found = np.concatenate([answer.values.argmax(1) for answer in answers])
    held = np.unique(labels)
    pairs = np.bincount(labels * n_classes + found, minlength=n_classes**2)
    precision, recall, f1, rows = precision_recall_fscore_support(labels, found, labels=held, zero_division=0.0)
    return {
        "accuracy": float((labels == found).mean()),
        "balanced_accuracy": float(recall.mean()),
        "precision": float(precision.mean()),
        "recall": float(recall.mean()),
        "f1": float(f1.mean()),
        "by_class": {"class": held, "precision": precision, "recall": recall, "f1": f1, "rows": rows},
        "confusion": pairs.reshape(n_classes, n_classes),
    }


def head_size(make: Callable[[], Any]) -> int:
    layout = Layout.of(make())
    place = layout.layers[layout.head]
    return place.stop - place.start


def labelled_rows(path: str, input_shape: tuple[int, ...], n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Public rows and their labels from an .npz file."""
    rows = public_rows(path, input_shape)
    held = np.load(path, allow_pickle=False)
    labels = np.asarray([] if isinstance(held, np.ndarray) or "y" not in held else held["y"]).astype(np.int64)
    if labels.shape != (len(rows),) or labels.min() < 0 or labels.max() >= n_classes:
        raise FedcladeError(
            f"the rows in {path} need labels: give an array `y` with one of 0 .. {n_classes - 1} for each"
        )
    return rows, labels
