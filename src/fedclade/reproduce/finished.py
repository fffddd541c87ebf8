"""What a finished run says: the numbers and series that tables and figures are made of.

Every reader takes a `Finished` and returns a number (None where the run has none) or named series.
"""

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fedclade.reproduce.scale import participation_in
from fedclade.result import Result

if TYPE_CHECKING:
    import pandas as pd

    from fedclade.data import Federation
    from fedclade.newcomers import Placed

Series = dict[str, tuple[list[float], list[float]]]  # by name: x and y
Reader = Callable[["Finished"], float | None]

BITS_IN_A_NUMBER = 32


class Finished(Result):
    """A run that has ended, with its clients' rows where a reader needs them."""

    data_dir: str | None = None
    compared: frozenset[str] | None = None  # the clients that all runs beside it have trained; None: nothing is beside

    @cached_property
    def federation(self) -> "Federation":
        """The clients of the run, with their rows."""
        from fedclade.assembly import make_federation
        from fedclade.runs.record import recorded_settings

        return make_federation(recorded_settings(self.record, self.path, data_dir=self.data_dir))

    @cached_property
    def newcomers(self) -> "dict[str, Placed]":
        """Those who never took part (their event comes after the last round), placed and given a model."""
        from dataclasses import replace

        from fedclade.events import Calendar, Event
        from fedclade.newcomers import place

        events = [Event(**event) for event in self.record["settings"]["events"]]
        there = set(Calendar.of(self.record["clients"], events).present(self.round))
        late = tuple(client for client in self.federation.clients if client.name not in there)
        return place(self.path, replace(self.federation, clients=late), personalise=5, save=False)

    @cached_property
    def scores(self) -> dict[str, Any]:
        """Balanced accuracy, precision, recall and F1 of the clients' cluster models, on all their test rows."""
        import torch

        from fedclade.clients.tasks import Predicted
        from fedclade.methods.fedstack import scores

        answers = []
        for client in self.federation.clients:
            rows = torch.from_numpy(np.array(self.federation.x[client.test]))
            rows = rows.float() / 255 if rows.dtype == torch.uint8 else rows
            with torch.no_grad():
                values = self.model_for(client.name)(rows).numpy()
            answers.append(Predicted(values, self.federation.y[client.test]))
        return scores(answers, self.federation.n_classes)


# Numbers


def of_local_models(run: Finished) -> float | None:
    """The mean accuracy of locally trained models, over the clients that all runs beside it have trained too."""
    seen = run.last("accuracy_local")
    kept = seen if run.compared is None else seen[seen.index.isin(run.compared)]
    return float(kept.mean()) if len(kept) else None


def clients_with_local_models(run: Finished) -> float | None:
    """Over how many clients that mean is."""
    seen = run.last("accuracy_local")
    return float(len(seen) if run.compared is None else seen.index.isin(run.compared).sum())


def over_clusters(run: Finished) -> float | None:
    """The mean over clusters, each counted once, of its model's mean accuracy for its members."""
    seen = run.last("accuracy")
    return float(seen.groupby(run.cluster_of).mean().mean()) if len(seen) else None


def threshold(run: Finished) -> float | None:
    """The lowest threshold at which the tree of clients falls into as many clusters as the run has."""
    from fedclade.clustering.hierarchy import Tree, sweep

    kept = run.last_kept("dendrogram")
    cuts = sweep(Tree(np.asarray(kept["merges"]), kept["linkage"]))
    return next((cut.threshold for cut in cuts if cut.n_clusters == len(run.clusters)), None)


def score(name: str) -> Reader:
    return lambda run: run.scores[name]


def rounds_to(target: float, column: str) -> Reader:
    """The first measured round whose mean accuracy reaches the target."""
    return lambda run: run.first_reaching(target, column)


def of_everybody(run: Finished) -> "pd.Series":
    """The mean accuracy of locally trained models by round; who has not trained yet has the initial model."""
    trained, initial = run.measured("accuracy_local"), run.measured("accuracy")[0]
    return trained.reindex(initial.index).ffill(axis=1).apply(lambda of_round: of_round.fillna(initial)).mean()


def rounds_of_everybody_to(target: float) -> Reader:
    """The first round in which that mean reaches the target."""

    def read(run: Finished) -> float | None:
        means = of_everybody(run)
        reached = means.index[means >= target]
        return float(reached[0]) if len(reached) else None

    return read


def accuracy_after(share: float) -> Reader:
    """The mean accuracy of cluster models once that share of the rounds is over."""

    def read(run: Finished) -> float | None:
        means = run.by_round("accuracy")["mean"]
        return float(means.loc[: share * run.round].iloc[-1])

    return read


def rounds_until_level(run: Finished) -> float | None:
    """The first measured round whose accuracy is within one point of the last one's."""
    means = run.by_round("accuracy")["mean"]
    return float(means.index[int(np.argmax(means.to_numpy() >= means.iloc[-1] - 0.01))])


def megabits(rounds_to_target: Reader, models_per_round: int = 2) -> Reader:
    """Megabits a client in so many rounds, by the formula that FedClust's table follows: models that travel only."""

    def read(run: Finished) -> float | None:
        rounds = rounds_to_target(run)
        if rounds is None:
            return None
        method = run.settings["method"]
        sent = method.get("n_clusters", 2) + 1 if method["name"] == "ifca" else models_per_round
        numbers = run.summary["layout"]["n_parameters"]
        if method["name"] == "lg-fedavg":
            numbers = _shared_numbers(run)
        return rounds * participation_in(run.settings) * sent * numbers * BITS_IN_A_NUMBER / 1e6

    return read


def _shared_numbers(run: Finished) -> int:
    """Numbers in the layers that LG-FedAvg shares."""
    from fedclade.models.weights import Layout

    layout = Layout.from_json(run.summary["layout"])
    shared = list(layout.layers)[-run.record["settings"]["method"].get("shared_layers", 2) :]
    return sum(layout.layers[name].stop - layout.layers[name].start for name in shared)


def counted_megabits(rounds_to_target: Reader) -> Reader:
    """Megabits a client in so many rounds, as counted: with what clustering sends."""

    def read(run: Finished) -> float | None:
        rounds = rounds_to_target(run)
        if rounds is None:
            return None
        return int(run.traffic.loc[int(rounds)].to_numpy().sum()) * 8e-6 / len(run.record["clients"])

    return read


def uploads(run: Finished) -> float | None:
    """Trained models that were sent up, as a share of those that FedAvg with all clients sends."""
    sent = run.ledger[(run.ledger["phase"] == "train") & (run.ledger["direction"] == "up")]
    return len(sent) / (len(run.record["clients"]) * run.round)


def uplink(run: Finished) -> float | None:
    """All bytes that were sent up (probe rows and accuracies too), as a share of FedAvg's."""
    one = 4 * (run.summary["layout"]["n_parameters"] + 1)  # a model and the number of rows
    return run.bytes["up"] / (one * len(run.record["clients"]) * run.round)


def newcomers_served(run: Finished) -> float | None:
    return _mean([placed.score for placed in run.newcomers.values()])


def newcomers_personalised(run: Finished) -> float | None:
    return _mean([placed.score_personalised for placed in run.newcomers.values()])


def share_of_weights_kept(run: Finished) -> float | None:
    """Weights that count for HiCFL's stability, of all that are watched, at the end of the run."""
    past = run.state_of_clusters.state.past
    return _mean([float(one.mask.mean()) for one in past.values() if one.mask is not None])


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


# Series


def by_round(column: str = "accuracy", name: str = "") -> Callable[[Finished], Series]:
    """A column of the history, as the mean over clients, round by round."""

    def read(run: Finished) -> Series:
        means = run.by_round(column)["mean"]
        return {name: ([float(round) for round in means.index], means.tolist())}

    return read


accuracy_by_round = by_round()


def sizes_of_clusters(run: Finished) -> Series:
    sizes = sorted(map(len, run.clusters.values()), reverse=True)
    return {"": ([float(place) for place in range(1, len(sizes) + 1)], [float(size) for size in sizes])}


def times_selected(run: Finished) -> Series:
    """How often each client trained after the warm-up, those who trained most first."""
    record = run.last_kept("selection")
    times = {**dict.fromkeys(run.record["clients"], 0), **(record["times"] if record else {})}
    counts = sorted(times.values(), reverse=True)
    return {"": ([float(place) for place in range(1, len(counts) + 1)], [float(count) for count in counts])}


def bic_curve(run: Finished) -> Series:
    record = run.last_kept("bic")
    return {"": ([float(k) for k in record["k"]], [float(value) for value in record["bic"]])}


def stacked_by_round(run: Finished) -> Series:
    """Accuracy of each cluster's stacked model after every round of its training."""
    series: Series = {}
    for round, record in sorted(run.kept("stacking").items()):
        for part in record["clusters"]:
            if "cluster" in part:
                x, y = series.setdefault(f"cluster {part['number'] + 1}", ([], []))
                x.append(float(round))
                y.append(part["cluster"]["accuracy"])
    return series
