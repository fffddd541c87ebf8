"""Dynamic Clustering: a federated GAN groups the clients, their losses correct the groups, the worst group is divided.

Kim et al., "Dynamic Clustering in Federated Learning", ICC 2021.

**A reconstruction.** The paper's abstract names three phases, GAN-based clustering, calibration and division; how they
work is filled in here:

1. Clients train a small GAN with a categorical code (see `fedclade.models.generative`) and exchange its weights and the
   means of its codes only. In each turn a client takes the argmax of its mean code as its own code, trains the
   generator to make its rows of that code and the encoder to find it again. In the end that code is its cluster. Where
   codes come out even, the encoder cannot tell the clients apart, and they stay together.
2. Every few rounds each client moves to the cluster whose model has the lowest loss on its training rows.
3. Every few rounds the cluster of highest loss is divided in two by phase 1 among its members, if that lowers the
   validation loss by enough; the first time that it does not, division ends. No rows are set apart for validation:
   each client judges the mean of the *other* members' models, of its half against those of the whole cluster.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedclade.ask import Ask, TrainedClients
from fedclade.clients.tasks import Describe, Evaluate, Train
from fedclade.methods.base import About, Clusters, Count, Method, RoundContext, nearest, nobody_answered, remembered
from fedclade.models.weights import average


@remembered
class Division:
    is_over: bool = False  # the first division that did not pay was the last


class Dynamic(Method):
    about: ClassVar[About] = About(
        "clusters by a federated GAN, corrects them by losses, divides the worst (a reconstruction)",
        "Kim et al. 2021",
        "the number too",
        "every few rounds",
        "GAN weights, model; K models at times",
        formula="k_i = argmax of the mean code that a federated GAN's encoder gives the client's rows; then "
        "k_i = argmin_k L_i(W_k), and the worst cluster is divided while that helps",
        use="to compare with the paper; it trains a GAN first, and is a reconstruction",
    )
    State = Division

    n_clusters: Count = 2  # codes of the first clustering; division finds more
    gan_turns: Count = 8  # exchanges of GAN weights for one clustering
    gan_epochs: Count = 2  # of the generative model, in each of its rounds
    gan_rate: Annotated[float, Field(gt=0)] = 3e-3  # of its training
    margin: Annotated[float, Field(ge=0)] = 0.04  # by which the mean code must exceed an even one to be believed
    calibrate_every: Count = 5  # rounds
    divide_every: Count = 5  # rounds
    gain: Annotated[float, Field(ge=0, lt=1)] = 0.01  # share by which division must lower the validation loss

    def start(self, context: RoundContext, ask: Ask) -> Clusters:
        codes = self.codes(context.clients, self.n_clusters, context, ask)
        if not codes:
            raise nobody_answered(ask)
        clusters = Clusters.from_labels(list(codes), list(codes.values()), context.initial, Division())
        return self.admit(clusters, set(context.clients) - set(codes), context, ask)

    def round(self, clusters: Clusters, context: RoundContext, ask: Ask) -> Clusters:
        chosen = context.sample()
        clusters = self.retry(clusters, context, ask)
        # In the first round all models are the same, so that losses tell nothing.
        if context.round > 1 and context.round % self.calibrate_every == 0:
            clusters = self.calibrated(clusters, chosen, context, ask)
        trained = ask({client: Train(clusters.model_of(client)) for client in chosen})
        clusters = clusters.averaged(trained)
        if context.round % self.divide_every == 0 and not clusters.state.is_over:
            clusters = self.divided(clusters, trained, context, ask)
        return clusters

    # Phase 1

    def codes(self, clients: Sequence[str], n_codes: int, context: RoundContext, ask: Ask) -> dict[str, int]:
        """The code of each client that answered; all the same where the codes are not to be believed."""
        from fedclade.models.generative import new_gan  # torch, which listing the methods need not wait for

        weights = new_gan(int(np.prod(context.input_shape)), n_codes, int(context.random("gan").integers(2**31)))
        weights, _ = self._relative(weights, n_codes, clients, ask)
        options = {"n_codes": n_codes, "epochs": self.gan_epochs, "learning_rate": self.gan_rate}
        for turn in range(self.gan_turns):
            task = Describe("gan", {**options, "weights": weights, "turn": turn})
            told = ask(task, to=clients, phase="gan")
            if len(told):  # every client has the same say: it is clients that get codes, not rows
                weights = average((answer.values["weights"] for answer in told.values()), [1.0] * len(told))
        weights, _ = self._relative(weights, n_codes, clients, ask)
        _, codes = self._relative(weights, n_codes, clients, ask)
        ask.record("codes", clients=list(codes), codes=[code.tolist() for code in codes.values()])
        if np.mean([code.max() for code in codes.values()] or [0.0]) < 1 / n_codes + self.margin:
            return dict.fromkeys(codes, 0)
        return {client: int(code.argmax()) for client, code in codes.items()}

    def _relative(
        self, weights: np.ndarray, n_codes: int, clients: Sequence[str], ask: Ask
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The GAN with its codes made relative to what all clients have, and the clients' mean codes as they were."""
        told = ask(Describe("mean-code", {"weights": weights, "n_codes": n_codes}), to=clients, phase="gan")
        if not len(told):
            return weights, {}
        mean, square = (np.mean([a.values[name] for a in told.values()], axis=0) for name in ("mean", "square"))
        relative = np.concatenate([weights[: -2 * n_codes], mean, square]).astype(np.float32)
        return relative, {client: answer.values["code"] for client, answer in told.items()}

    # Phase 2

    def calibrated(self, clusters: Clusters, chosen: Sequence[str], context: RoundContext, ask: Ask) -> Clusters:
        """Each client that is there moves to the model of lowest loss. A cluster left by all is closed."""
        if len(clusters) == 1:
            return clusters
        losses: dict[str, dict[int, float]] = {}
        for cluster in clusters.members:
            task = Evaluate(clusters.models[cluster], on="train")
            for client, answer in ask(task, to=chosen, phase="calibrate").items():
                losses.setdefault(client, {})[cluster] = answer.loss
        home = {**clusters.cluster_of, **{client: nearest(near) for client, near in losses.items()}}
        members = {k: tuple(c for c in context.clients if home[c] == k) for k in clusters.members}
        members = {k: part for k, part in members.items() if part}
        return replace(clusters, members=members, models={k: clusters.models[k] for k in members})

    # Phase 3

    def divided(self, clusters: Clusters, trained: TrainedClients, context: RoundContext, ask: Ask) -> Clusters:
        """The cluster of highest loss in two, or the end of division."""
        losses = {k: [answer.loss for answer in trained.of(part).values()] for k, part in clusters.members.items()}
        seen = {k: float(np.mean(values)) for k, values in losses.items() if values}
        if not seen:
            return clusters
        worst = min(seen, key=lambda k: (-seen[k], k))
        codes = self.codes(clusters.members[worst], 2, context, ask)
        halves = [[c for c in clusters.members[worst] if codes.get(c) == side] for side in (0, 1)]
        if min(len(half) for half in halves) < 2:  # nobody else there to be judged
            return clusters.remembering(Division(is_over=True))
        halves[0] += [client for client in clusters.members[worst] if client not in codes]
        models = ask(Train(clusters.models[worst]), to=clusters.members[worst], phase="divide")
        whole = self.validation_loss([list(models.clients)], models, ask)
        apart = self.validation_loss([[c for c in half if c in models] for half in halves], models, ask)
        ask.record("division", cluster=worst, halves=halves, whole=whole, apart=apart)
        if not apart < (1 - self.gain) * whole:
            return clusters.remembering(Division(is_over=True))
        return clusters.split(worst, halves, context.round, whole=whole, apart=apart).averaged(models)

    def validation_loss(self, groups: Sequence[Sequence[str]], trained: TrainedClients, ask: Ask) -> float:
        """Mean loss of clients on their training rows, of a model in which they have no part."""
        tasks = {}
        for group in groups:
            rows = np.array([trained[client].n_samples for client in group], np.float64)
            summed = sum(n * trained[c].weights.astype(np.float64) for n, c in zip(rows, group, strict=True))
            for n, client in zip(rows, group, strict=True):
                if len(group) > 1:
                    others = (summed - n * trained[client].weights) / (rows.sum() - n)
                    tasks[client] = Evaluate(others.astype(np.float32), on="train")
        answers = ask(tasks, phase="divide")
        return float(np.mean([answer.loss for answer in answers.values()])) if len(answers) else np.inf
