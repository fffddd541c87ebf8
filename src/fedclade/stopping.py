"""When a run ends before its last round: its models no longer improve.

It is a setting of the run (`stop`), off unless given. A share of each client's training rows is then not trained on;
after every round clients tell how well they are served on those; test rows decide nothing. Once the mean (or that of no
cluster) has not risen for some rounds, the run is brought to its end: one more round, or as many as what serves clients
needs (`serving`).
"""

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fedclade.ask import Ask
from fedclade.methods import Clusters, Method, RoundContext, remembered
from fedclade.serving import Serving, Share


@remembered
class Watched:
    """How far a run has come."""

    best: Mapping[str, float] = field(default_factory=dict)  # means of the main metric, the higher the better
    best_round: int = 0  # the last in which one of them rose
    ends: int | None = None  # the round that is to be the last; None: the run's own
    of: int = 0  # the rounds that the run was to have when that was decided


class Stop(BaseModel):
    """End a run when its models no longer improve on rows that nobody trains on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    patience: Annotated[int, Field(ge=1)] = 10  # rounds without improvement after which the run is brought to its end
    min_delta: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.001  # by how much the main metric must improve
    held: Share = 0.1  # of each client's training rows, not trained on, by which models are judged
    each_cluster: bool = False  # the run ends once no cluster's mean improves, however few its members; else the mean

    def watched(
        self, seen: Watched, method: Method, serving: Serving, clusters: Clusters, context: RoundContext, ask: Ask
    ) -> Watched:
        """What is known after a round; it is in the records too (`validation`)."""
        if not 0 < context.round < context.rounds or seen.ends is not None:
            return seen
        now = {client: method.served(clusters, client) for client in context.clients}
        tasks = {client: replace(task, on="train", spare=self.held) for client, task in now.items()}
        scores = {client: answer.score for client, answer in ask(tasks, phase="validate").items()}
        if not scores:
            return seen
        parts: dict[str, list[float]] = {}
        for client, score in scores.items():
            part = str(clusters.cluster_of.get(client)) if self.each_cluster else "everybody"
            parts.setdefault(part, []).append(score if context.metric.higher else -score)
        means = {part: float(np.mean(of_part)) for part, of_part in parts.items()}
        better = {
            part: mean
            for part, mean in means.items()
            if part not in seen.best or mean > seen.best[part] + self.min_delta
        }
        if better:
            seen = replace(seen, best={**seen.best, **better}, best_round=context.round)
        elif context.round - seen.best_round >= self.patience:
            ends = min(serving.last_round(context.round), context.rounds)
            seen = replace(seen, ends=ends, of=context.rounds)
        mean = float(np.mean(list(scores.values())))
        ask.record("validation", score=mean, means=means, best_round=seen.best_round, ends=seen.ends)
        return seen


__all__ = ["Stop", "Watched"]
