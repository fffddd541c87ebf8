"""What serves a client in the end: its cluster's model, the same trained on its own rows, or what is best for it.

It is a setting of the run (`serving`), which every method can take; a method may have a way of its own by default
(`Method.serving`). The method's rounds are as ever; what is done here happens beside and after them:

- `model`: what the method says, as it is.
- `fine-tune`: after the last round every client trains that for some epochs on its own rows.
- `pick`: a share of each client's rows is not trained on until models are judged by them, when a tenth of the rounds is
  left: what the method says, as it is, after some epochs and halfway to the most of them (Wortsman et al., "Robust
  fine-tuning of zero-shot models", CVPR 2022), the mean of all cluster models, and a model of the client's own. What
  has the lowest loss (Brier's score where rows have classes, `Objective.held_out_losses`), each client's own being
  shrunk to that of all clients, is made again after the last round, with all rows. All but the last begin with a model
  that has rounds to come: they are credited with what the last round has gained, for each of them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fedclade.ask import Ask
from fedclade.clients.tasks import HALFWAY, Evaluate, Train, Tried, Try
from fedclade.methods import Clusters, Method, RoundContext
from fedclade.models.weights import average

TO = "halfway to "
SERVED = "served"  # the slot of a client's memory that holds what was made for it
AS_IT_IS, ROOT, ALONE = "as it is", "mean of all", "alone"  # choices; others say how many epochs
TEMPERATURES = (1.0, 1.5, 2.0, 3.0, 5.0)  # the best one of each candidate counts: being too sure is no fault here
OUTWEIGHS = 10  # times the usual number of rows: a client that claims more has the usual say
LONGEST_ALONE = 50  # epochs of a model of the client's own

Share = Annotated[float, Field(gt=0, lt=1)]


class Serving(BaseModel):
    """What the method says, as it is."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def spare(self, context: RoundContext) -> float:
        """The share of clients' rows that nobody trains on in a round."""
        return 0.0

    def last_round(self, now: int) -> int:
        """Which round is to be the last if a run is to end soon after this one."""
        return now + 1

    def before(self, method: Method, clusters: Clusters, context: RoundContext, ask: Ask) -> Any:
        """What must be known from before a round when it is over."""

    def after(self, method: Method, clusters: Clusters, context: RoundContext, ask: Ask, seen: Any = None) -> Clusters:
        """What is to be done after a round."""
        return clusters

    def served(self, method: Method, clusters: Clusters, client: str) -> Evaluate:
        """What serves a client, as `Method.served` tells it."""
        if client in clusters.made:
            return Evaluate(start=SERVED, otherwise=clusters.model_of(client))
        return method.served(clusters, client)


class FineTune(Serving):
    """The same, after some epochs on each client's rows."""

    epochs: Annotated[int, Field(ge=1)] = 5  # on each client's rows

    def after(self, method: Method, clusters: Clusters, context: RoundContext, ask: Ask, seen: Any = None) -> Clusters:
        if context.round < context.rounds:
            return replace(clusters, made=())
        choices = dict.fromkeys(context.clients, after_epochs(self.epochs))
        return made(method, replace(clusters, choices=choices), context, ask)


class Pick(Serving):
    """What has the lowest loss on rows that were held out until then."""

    held: Share = 0.2  # of each client's rows, not trained on until models are judged
    left: Share = 0.1  # of the rounds, when they are; at least one
    epochs: tuple[Annotated[int, Field(ge=1)], ...] = (5, 20)  # of a client's own that are tried
    halfway: bool = True  # the mean of a model as it is and after the most epochs is tried, too
    averaged: Annotated[float, Field(ge=0, le=1)] = 0.5  # of these epochs, the last ones: their weights are averaged
    strength: Annotated[float, Field(ge=0)] = 100.0  # rows of all clients that count beside a client's own

    def judged_after(self, rounds: int) -> int:
        return max(rounds - max(round(self.left * rounds), 1), 1)

    def spare(self, context: RoundContext) -> float:
        return self.held if context.round <= self.judged_after(context.rounds) else 0.0

    def last_round(self, now: int) -> int:
        return next(rounds for rounds in count(now + 1) if self.judged_after(rounds) > now)

    def before(self, method: Method, clusters: Clusters, context: RoundContext, ask: Ask) -> dict[str, Tried]:
        """The losses of what serves clients now, where models are judged after the round."""
        if context.round != self.judged_after(context.rounds):
            return {}
        now = {client: method.served(clusters, client) for client in context.clients}
        tasks = {c: Try(t, (0,), self.held, temperatures=TEMPERATURES) for c, t in now.items() if not t.through}
        return dict(ask(tasks, phase="serve"))

    def after(self, method: Method, clusters: Clusters, context: RoundContext, ask: Ask, seen: Any = None) -> Clusters:
        if context.round == self.judged_after(context.rounds):
            clusters = self.judged(method, clusters, context, ask, seen or {})
        if 0 < context.round == context.rounds:
            return made(method, clusters, context, ask, self.averaged)
        return replace(clusters, made=())

    def judged(
        self, method: Method, clusters: Clusters, context: RoundContext, ask: Ask, before: Mapping[str, Tried]
    ) -> Clusters:
        """With the choice of every client."""
        now = {client: method.served(clusters, client) for client in context.clients}
        now = {client: task for client, task in now.items() if not task.through}  # those cannot be trained further
        others = (root_of(clusters),) if len(clusters.members) > 1 else ()
        epochs = (0, *sorted(set(self.epochs)))
        halfway = self.halfway and len(epochs) > 1
        between = [f"{TO}{after_epochs(epochs[-1])}"] if halfway else []
        names = [AS_IT_IS, *map(after_epochs, epochs[1:]), *between, *([ROOT] if others else [])]
        heat: Any = {"temperatures": TEMPERATURES, "averaged": self.averaged}
        all_of: Any = {**heat, "halfway": halfway}
        told = ask({c: Try(task, epochs, self.held, others, **all_of) for c, task in now.items()}, phase="serve")
        if not len(told):
            return clusters
        table = losses_of(told, len(names), context)
        if best_of_all(table, context)[: len(epochs)].argmin() == len(epochs) - 1:  # then perhaps without the others
            alone = ask({c: Try(now[c], (), self.held, alone=own_epochs(context), **heat) for c in told}, phase="serve")
            gained = best_of_all(losses_of(before, 1, context, told), context)[0] - best_of_all(table, context)[0]
            to_come = max(float(np.nan_to_num(gained)), 0.0) * (context.rounds - context.round)
            table = np.hstack([table, losses_of(alone, 1, context, told) + to_come])
            names.append(ALONE)
        rows = np.array([answer.n_samples for answer in told.values()], float)
        picked = picks(capped(table, context), rows, self.strength)
        choices = {client: names[place] for client, place in zip(told, picked, strict=True)}
        ask.record("serving", clients=list(told), candidates=names, losses=table, rows=rows, picked=picked)
        return replace(clusters, choices=choices)


SERVINGS: dict[str, type[Serving]] = {"model": Serving, "fine-tune": FineTune, "pick": Pick}


def after_epochs(epochs: int) -> str:
    return f"{epochs} epoch{'s' if epochs > 1 else ''}"


def own_epochs(context: RoundContext) -> int:
    """As many as a client trains in all the rounds, within reason."""
    all_rounds = context.training.local_epochs * context.rounds * context.participation
    return min(max(math.ceil(all_rounds), 1), LONGEST_ALONE)


def root_of(clusters: Clusters) -> np.ndarray:
    """The mean of all cluster models, by members."""
    return average((clusters.models[k] for k in clusters.members), [len(m) for m in clusters.members.values()])


def losses_of(told: Mapping[str, Tried], n: int, context: RoundContext, of: Any = None) -> np.ndarray:
    """(clients, candidates), each at the temperature that suits it best; not a number where nobody answered."""
    nothing = np.full((n, len(TEMPERATURES)), np.nan)
    table = np.stack([told[c].losses if c in told else nothing for c in (told if of is None else of)]).astype(float)
    best = np.nan_to_num(capped(table, context)).sum(axis=0).argmin(axis=1)
    return np.asarray(table[:, np.arange(n), best])


def capped(table: np.ndarray, context: RoundContext) -> np.ndarray:
    """A few rows that a model is very sure and wrong about must not decide, nor one client whose losses are absurd.

    Losses of amounts are of any size: the usual one counts.
    """
    usual = float(np.nanmedian(np.abs(table))) if np.isfinite(table).any() else 0.0
    limit = max(3.0, 1.3 * math.log(max(context.n_classes, 1)), 3 * usual)
    return np.clip(table, -limit, limit)


def best_of_all(table: np.ndarray, context: RoundContext) -> np.ndarray:
    return np.asarray(np.nanmean(capped(table, context), axis=0))


def picks(table: np.ndarray, rows: np.ndarray, strength: float) -> list[int]:
    """The candidate of each client: of the lowest loss, shrunk to that of all clients as by so many rows of theirs."""
    known = ~np.isnan(table)
    usual = np.median(rows)
    say = np.where(rows > OUTWEIGHS * usual, usual, rows)  # nobody's word for how many rows it has decides for all
    everybody = np.where(known, table, 0.0).T @ say / np.maximum(known.T @ say, 1e-12)
    own = rows[:, None] * known
    shrunk = (own * np.where(known, table, 0.0) + strength * everybody) / np.maximum(own + strength, 1e-12)
    return [int(place) for place in shrunk.argmin(axis=1)]


def made(method: Method, clusters: Clusters, context: RoundContext, ask: Ask, averaged: float = 0.0) -> Clusters:
    """After the last round: clients make what was chosen, with all their rows, and keep it."""
    tasks = {}
    for client in context.clients:
        choice = clusters.choices.get(client, AS_IT_IS)
        now = method.served(clusters, client)
        if choice != AS_IT_IS and not now.through:
            tasks[client] = plan(choice, now, clusters, context, averaged)
    done = ask(tasks, phase="serve")
    return replace(clusters, made=tuple(done))


def plan(choice: str, now: Evaluate, clusters: Clusters, context: RoundContext, averaged: float) -> Train:
    """The task that makes a choice."""

    def lasting(epochs: int) -> Any:
        return context.training.model_copy(update={"local_epochs": epochs, "averaged": averaged})

    keep: dict[str, Any] = {"upload": "nothing", "save": SERVED}
    if choice == ALONE:
        return Train(training=lasting(own_epochs(context)), **keep)
    if choice == ROOT:
        return Train(root_of(clusters), training=lasting(0), **keep)
    weights, start = now.weights, now.start
    if weights is None and now.otherwise is not None and not start:
        weights = now.otherwise
    epochs, way = choice.removeprefix(TO).partition(" ")[0], HALFWAY if choice.startswith(TO) else 1.0
    return Train(weights, now.layers, start, training=lasting(int(epochs)), way=way, **keep)


def serving_of(serving: Serving | None, method: Method) -> Serving:
    """How a run serves its clients: as it says or, where it says nothing, as its method does."""
    return SERVINGS[method.serving]() if serving is None else serving


__all__: Sequence[str] = ["SERVINGS", "FineTune", "Pick", "Serving", "serving_of"]
