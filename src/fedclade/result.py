"""What a run found, read from its folder: the one reader that tables, pages, comparisons and trackers ask."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from fedclade.errors import FedcladeError, listed
from fedclade.events import hidden_groups
from fedclade.models.weights import Layout
from fedclade.runs.folder import UNCOUNTED, RunFolder

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    from fedclade.clients.memory import Memory
    from fedclade.clients.objective import Metric
    from fedclade.clients.tasks import Evaluate
    from fedclade.methods import Clusters, Method
    from fedclade.models.assigned import Networks, Through

State = Literal["ended", "running", "stopped"]
MODELS = {"": "cluster model", "_local": "locally trained model"}  # by what their columns of the history end with
DIRECTIONS = ("up", "down")
BASELINES = {"fedavg": "one model for all", "local": "every client alone"}


class Result:
    """What a run found so far: one that has ended, is under way or was stopped.

    It reads from the run folder, and only what is asked for; of a run under way, what its last whole round left.
    """

    def __init__(self, folder: RunFolder, networks: "Networks | None" = None, method: "Method | None" = None) -> None:
        self.folder = folder
        self._networks = networks
        self._method = method

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Of the run in a folder, however far it has come."""
        return cls(RunFolder.open(path))

    def __repr__(self) -> str:
        mean = self.score["mean"]
        score = "not measured" if mean is None else self.metric.written(mean)
        found = len(self.clusters)
        return f"<Result of {self.method} on {self.settings['data']}: {self.metric.words} {score}, {found} clusters>"

    # What was run, and how far it has come

    @property
    def path(self) -> Path:
        return self.folder.path

    @cached_property
    def record(self) -> dict[str, Any]:
        """The settings as used, and what they met: clients, classes, versions."""
        return self.folder.settings

    @property
    def settings(self) -> dict[str, Any]:
        return self.record["settings"]

    @property
    def method(self) -> str:
        return str(self.settings["method"]["name"])

    @property
    def seed(self) -> int:
        return int(self.settings["seed"])

    @property
    def rounds(self) -> int:
        """How many rounds it is to have."""
        return int(self.settings["rounds"])

    @cached_property
    def label(self) -> str:
        """What tells its method from those of other runs; who reads several may set it."""
        return self.method

    @cached_property
    def summary(self) -> dict[str, Any]:
        """What the run wrote at its end."""
        return self.folder.read_json("result.json")

    @cached_property
    def _reached(self) -> tuple[State, int, Mapping[str, Any]]:
        """Its state, the last round that counts (-1 before the first), and what is known of that round."""
        if self.folder.is_finished:
            tree = self.folder.read_json("clusters.json")["tree"]
            return "ended", int(self.summary["rounds"]), {**self.summary, "tree": tree}
        state: State = "running" if self.folder.is_running else "stopped"
        saved = self.folder.last_checkpoint(arrays=False)
        if saved is None:
            return state, -1, {"seconds": 0.0, "cpu_seconds": 0.0, "tree": []}
        return state, saved[0], {**saved[1], "tree": saved[1]["clusters"]["tree"]}

    @property
    def state(self) -> State:
        return self._reached[0]

    @property
    def round(self) -> int:
        """The last round that has ended; -1 before the first."""
        return self._reached[1]

    @property
    def seconds(self) -> float:
        return float(self._reached[2]["seconds"])

    @property
    def cpu_seconds(self) -> float:
        """Of the server's process: with one worker, of everything."""
        return float(self._reached[2]["cpu_seconds"])

    @property
    def remarks(self) -> list[str]:
        """What a person should know of how the run went: damaged files, an early end."""
        passed_over = [] if self.state == "ended" else self.folder.damaged
        return [*self._reached[2].get("remarks", []), *passed_over]

    # The tables

    @cached_property
    def history(self) -> "pd.DataFrame":
        """A row for each round and client."""
        table = self._table("history")
        if table.empty and self.round >= 0:
            raise FedcladeError(f"{self.path} has no history: its files are damaged or were taken away; run it again")
        return table

    @cached_property
    def ledger(self) -> "pd.DataFrame":
        """Bytes by round, client, phase and direction."""
        return self._table("ledger")

    def _table(self, name: str) -> "pd.DataFrame":
        import pandas as pd

        # What the first round has left before its end does not count yet.
        table = self.folder.table(name) if self.round >= 0 else pd.DataFrame()
        if table.empty:
            columns = {"ledger": ["round", "client", "phase", "direction", "bytes"]}
            return pd.DataFrame(columns=columns.get(name, ["round", "client", "cluster", *self.models, "failure"]))
        return table[table["round"] <= self.round]

    # How well clients are served

    @cached_property
    def metrics(self) -> dict[str, "Metric"]:
        """What was measured, by name, the main metric of the task first."""
        from fedclade.clients.objective import ACCURACY, LOSS, Metric

        known = [Metric(**about) for about in self.record.get("metrics", ())] or [ACCURACY, LOSS]
        return {metric.name: metric for metric in known}

    @property
    def metric(self) -> "Metric":
        """The main metric."""
        return next(iter(self.metrics.values()))

    @property
    def models(self) -> dict[str, str]:
        """The columns of the history that hold the main metric, and of which model."""
        return {f"{self.metric.name}{end}": model for end, model in MODELS.items()}

    @cached_property
    def score(self) -> dict[str, Any]:
        """Of the main metric: mean, standard deviation and worst over clients of the cluster model, and how many."""
        return self.over_clients(self.metric.name)

    @cached_property
    def score_local(self) -> dict[str, Any]:
        """The same of each client's locally trained model."""
        return self.over_clients(f"{self.metric.name}_local")

    @property
    def accuracy(self) -> dict[str, Any]:
        """As `score`, of the accuracy."""
        return self.over_clients("accuracy")

    @property
    def accuracy_local(self) -> dict[str, Any]:
        return self.over_clients("accuracy_local")

    @cached_property
    def baselines(self) -> dict[str, "Result"]:
        """What was run beside it to see whether it pays, by method."""
        places = {name: self.path / "baselines" / name for name in BASELINES}
        return {name: Result.open(place) for name, place in places.items() if (place / "result.json").is_file()}

    @property
    def verdict(self) -> str:
        """Whether its method paid, in a sentence; empty where nothing was run beside it."""
        means = {name: run.score["mean"] for name, run in self.baselines.items() if run.score["mean"] is not None}
        if not means or self.score["mean"] is None:
            return ""
        mine, metric = self.score["mean"], self.metric
        paid = all(metric.gain(mine, mean) > 0 for mean in means.values())
        others = " and ".join(f"{metric.written(mean)} with {BASELINES[name]}" for name, mean in means.items())
        words = f"{self.method} {'paid' if paid else 'did not pay'}: {metric.words} {metric.written(mine)}, {others}."
        if "local" not in means:
            return words
        alone, served = self.baselines["local"].last(metric.name), self.last(metric.name)
        better = [name for name in served.index if name in alone and metric.gain(alone[name], served[name]) > 0]
        if metric.gain(means["local"], mine) > 0:
            words += " Training alone was better: with these settings, sharing does not help these clients."
        return f"{words} {len(better)} of {len(served)} clients would be better off alone."

    def over_clients(self, column: str) -> dict[str, Any]:
        """Mean, standard deviation and worst over clients of what was measured last, and how many were measured."""
        return self.metric_of(column).over_clients(self.last(column))

    def metric_of(self, column: str) -> "Metric":
        """The metric of a column of the history."""
        name = column.removesuffix("_local")
        if name not in self.metrics:
            raise FedcladeError(f"the run measured no {name!r}, but {listed(self.metrics)}")
        return self.metrics[name]

    def last(self, column: str) -> "pd.Series":
        """The last value that was measured of each client that is still there."""
        seen = self.history[self.history["client"].isin(self.clients)].dropna(subset=[column])
        return seen.groupby("client")[column].last()

    def measured(self, column: str) -> "pd.DataFrame":
        """Clients by rounds (rows by columns), those rounds in which the column was measured."""
        seen = self.history.dropna(subset=[column])
        return seen.pivot(index="client", columns="round", values=column)

    def by_round(self, column: str) -> "pd.DataFrame":
        """Mean, standard deviation, worst and number of clients, for each round in which the column was measured."""
        import pandas as pd

        seen = self.history.dropna(subset=[column]).groupby("round")[column]
        worst = seen.min() if self.metric_of(column).higher else seen.max()
        return pd.DataFrame({"mean": seen.mean(), "std": seen.std(ddof=0), "worst": worst, "clients": seen.count()})

    def first_reaching(self, target: float, column: str = "") -> int | None:
        """The first round whose mean reaches the target, by default of the main metric."""
        column = column or self.metric.name
        means = self.by_round(column)["mean"]
        reached = means[means >= target] if self.metric_of(column).higher else means[means <= target]
        return None if reached.empty else int(str(reached.index[0]))

    # Who is with whom

    @cached_property
    def clusters(self) -> dict[int, list[str]]:
        """The clients of each cluster after the last round."""
        last = self.history[self.history["round"] == self.round]
        return {int(str(cluster)): list(part) for cluster, part in last.groupby("cluster")["client"]}

    @cached_property
    def assignment(self) -> dict[str, int]:
        """The cluster of each client after the last round."""
        return {client: cluster for cluster, part in self.clusters.items() for client in part}

    @cached_property
    def clients(self) -> list[str]:
        """Who is there after the last round, cluster by cluster."""
        return list(self.assignment)

    def cluster_of(self, client: str) -> int:
        if client not in self.assignment:
            raise FedcladeError(f"the run has no client {client!r}")
        return self.assignment[client]

    @property
    def tree(self) -> list[dict[str, Any]]:
        """Every split of a cluster: its round, parent, children and reason."""
        return list(self._reached[2]["tree"])

    @cached_property
    def assignments(self) -> dict[int, dict[str, int]]:
        """The cluster of each client after the first round and after each in which that changed."""
        changes: dict[int, dict[str, int]] = {}
        before: dict[str, int] = {}
        for number, rows in self.history.groupby("round"):
            now = dict(zip(rows["client"], rows["cluster"].astype(int), strict=True))
            if now != before:
                changes[int(str(number))] = before = now
        return changes

    @cached_property
    def last_change(self) -> int:
        """The last round in which the partition of the clients changed, whatever its parts are called."""
        parts = [(number, _parts(now)) for number, now in self.assignments.items()]
        changed = [now[0] for before, now in pairwise(parts) if before[1] != now[1]]
        return changed[-1] if changed else 0

    @cached_property
    def groups(self) -> dict[str, int] | None:
        """The hidden group of every client after the last round, where that is known of all who are there."""
        known = hidden_groups(self.record, self.round)
        return dict(known) if known and set(self.clients) <= set(known) else None

    @cached_property
    def agreement(self) -> dict[str, float | None]:
        """How well the clusters agree with the hidden groups: ARI and NMI."""
        if self.groups is None or not self.clients:
            return {"ari": None, "nmi": None}
        from fedclade.clustering.scores import adjusted_rand, normalized_mutual_information

        truth, found = (np.array([of[name] for name in self.clients]) for of in (self.groups, self.assignment))
        return {"ari": adjusted_rand(truth, found), "nmi": normalized_mutual_information(truth, found)}

    @cached_property
    def label_counts(self) -> dict[str, np.ndarray] | None:
        """How many training rows of each label a client began with, where the run says so."""
        counts = self.record.get("label_counts")
        if counts is None:
            return None
        return {name: np.asarray(row) for name, row in zip(self.record["clients"], counts, strict=True)}

    # What it cost, what failed, what was kept

    @cached_property
    def sent(self) -> "pd.DataFrame":
        """Bytes sent in each round, by direction and phase (the columns); our own measuring is not counted."""
        import pandas as pd

        counted = self.ledger[~self.ledger["phase"].isin(UNCOUNTED)]
        sums = counted.groupby(["round", "direction", "phase"])["bytes"].sum().unstack(["direction", "phase"])
        return sums.reindex(pd.RangeIndex(self.round + 1, name="round")).fillna(0).astype(int)

    @cached_property
    def traffic(self) -> "pd.DataFrame":
        """Bytes sent until the end of each round, by direction."""
        return self.sent.T.groupby(level=0).sum().T.reindex(columns=DIRECTIONS, fill_value=0).cumsum()

    @property
    def bytes(self) -> dict[str, int]:
        """All bytes sent, by direction."""
        return {way: int(self.traffic[way].iloc[-1]) if len(self.traffic) else 0 for way in DIRECTIONS}

    @cached_property
    def failures(self) -> "pd.DataFrame":
        """The rows of the history in which a client failed."""
        return self.history[self.history["failure"] != ""]

    @cached_property
    def records(self) -> dict[tuple[int, str], Any]:
        """Everything the method kept to look at, by round and name."""
        return self.folder.records(self.round, self._reached[2].get("records", {}))

    def kept(self, name: str) -> dict[int, Any]:
        """The records of one name, by round."""
        return {number: record for (number, what), record in self.records.items() if what == name}

    def last_kept(self, name: str) -> Any:
        return (list(self.kept(name).values()) or [None])[-1]

    # The models

    @cached_property
    def layout(self) -> Layout:
        """Of the cluster models."""
        return Layout.from_json(self.summary["layout"])

    @cached_property
    def state_of_clusters(self) -> "Clusters":
        """The clusters with their models and all that the method remembers."""
        from fedclade.methods import Clusters

        return Clusters.from_plain(self._state["clusters"], self._its_method.State)

    @cached_property
    def _state(self) -> Mapping[str, Any]:
        """The run's own state after its last round."""
        saved = self.folder.last_checkpoint()
        if saved is None or saved[0] != self.round:
            why = f": {self.folder.damaged[0]}" if self.folder.damaged else ""
            raise FedcladeError(f"{self.path} has no checkpoint of round {self.round}{why}: the models cannot be read")
        return saved[1]

    def model_for(self, client: str) -> "nn.Module":
        """The model that serves a client, as a torch module; where a method has clients adapt it, before they do."""
        from fedclade.models.weights import load as load_weights

        task = self.served(client)
        return load_weights(self._network(client, task.through), self.weights_for(client)).eval()

    def local_model_of(self, client: str) -> "nn.Module":
        """The client's locally trained model, as a torch module."""
        from fedclade.clients.tasks import LOCAL
        from fedclade.models.weights import load as load_weights

        return load_weights(self._network(client), self._kept(client, LOCAL)).eval()

    def weights_for(self, client: str) -> np.ndarray:
        """The weights of the model that serves a client: the server's, completed by what the client keeps."""
        from fedclade.clients.runtime import composed
        from fedclade.models.assigned import stacked_weights

        task, model = self.served(client), self.state_of_clusters.model_of(client)
        if task.through:
            module = self._network(client, task.through)
            return stacked_weights(module, task.through, model, lambda slot: self._kept(client, slot))
        kept = self._remembered(client, task.start) if task.start else None
        if task.start and kept is None and (self.path / "nodes.json").is_file():
            told = f"{client} keeps the model that serves it on its node: these are the weights of its cluster's"
            warnings.warn(told, stacklevel=2)
        otherwise = model if task.otherwise is None else task.otherwise
        return composed(task.weights, task.layers, kept, otherwise, self.layout)

    def served(self, client: str) -> "Evaluate":
        """What serves a client, as its method tells it."""
        self.cluster_of(client)
        from fedclade.serving import Serving

        return Serving().served(self._its_method, self.state_of_clusters, client)

    @cached_property
    def _memory(self) -> "Memory":
        from fedclade.clients.memory import Memory

        return Memory(self.path / "clients", read_only=True)

    def _remembered(self, client: str, slot: str) -> np.ndarray | None:
        """What a client keeps in a slot: exactly what it kept at the last checkpoint."""
        expected = self._state["memory"].get(slot, {}).get(client)
        if expected is not None and self._memory.known().get(slot, {}).get(client) != expected:
            raise FedcladeError(f"what {client} remembered is lost: put {self.path / 'clients'} back from a copy")
        return self._memory.read(client, slot)

    @cached_property
    def _its_method(self) -> "Method":
        from fedclade.runs.record import recorded_settings

        return self._method or recorded_settings(self.record, self.path, task="classification").method

    def _kept(self, client: str, slot: str) -> np.ndarray:
        weights = self._remembered(client, slot)
        if weights is None and self.summary.get("engine") == "flower":
            raise FedcladeError(f"client {client!r} keeps its own model on its node: it does not travel")
        if weights is None:
            raise FedcladeError(f"client {client!r} has not trained in this run, so it has no model of its own")
        return weights

    def network_of(self, client: str) -> "nn.Module":
        """A new network as the client's cluster holds it."""
        return self._network(client, self.served(client).through)

    def _network(self, client: str, through: "Through" = "") -> "nn.Module":
        from fedclade.models.assigned import specs_of
        from fedclade.runs.record import IN_PYTHON

        if self._networks is None:
            model = self.settings["model"]
            if model == IN_PYTHON:
                raise FedcladeError(
                    "this run's model was given in Python: load the weights with result.weights_for(client)"
                )
            shape, n_classes = tuple(self.record["input_shape"]), len(self.record["classes"])
            self._networks = self._its_method.networks(specs_of(model), self.record["clients"], shape, n_classes)
        return self._networks.make(client, through)


@contextmanager
def readable(path: Path | str) -> Iterator[None]:
    """Files that do not hold what they should are named in one line."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise FedcladeError(f"{path}: the files of this run are damaged ({error!r}); run it again") from error


def _parts(assignment: Mapping[str, int]) -> set[frozenset[str]]:
    parts: dict[int, set[str]] = {}
    for client, cluster in assignment.items():
        parts.setdefault(cluster, set()).add(client)
    return {frozenset(part) for part in parts.values()}
