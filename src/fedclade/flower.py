"""Clusters for people who have their own Flower ServerApp and ClientApp, in any framework.

    from fedclade.flower import Clustered
    from fedclade.methods import FedClust

    @app.main()
    def main(grid, context):
        found = Clustered(FedClust(), fraction_train=0.5).start(grid=grid, initial_arrays=arrays, num_rounds=20)
        found.clusters            # {0: ["node-71...", ...], 1: [...]}
        found.arrays_for(client)  # an ArrayRecord

The ClientApp is the one that Flower's FedAvg takes: `train` gets `arrays` and `config` and replies with `arrays` and
`metrics` (with `num-examples`); `evaluate` replies with `metrics` (a loss, an accuracy, `num-examples`). What it may
make use of stands in `config`: see docs/deploy.md.
"""

import tempfile
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any

import numpy as np

from fedclade.aggregation import Aggregation
from fedclade.ask import MAX_SAMPLES
from fedclade.assembly import check_number_of_clusters, go
from fedclade.clients.objective import ACCURACY, LOSS, Metric
from fedclade.clients.tasks import Answer, Evaluate, Evaluated, Failure, Task, Train, Trained, Training
from fedclade.data.federation import natural_order
from fedclade.engines.exchange import Exchange, Online, failure_of
from fedclade.errors import FedcladeError, listed, needs_flower
from fedclade.methods import METHODS, Method, name_of
from fedclade.models.assigned import Through
from fedclade.models.weights import Layout
from fedclade.optimizers import ServerOptimizer
from fedclade.result import Result
from fedclade.rounds import Progress
from fedclade.runs.folder import RunFolder
from fedclade.runs.record import IN_PYTHON, run_record
from fedclade.settings import Settings, settings_from

if TYPE_CHECKING:
    import pandas as pd
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

# Methods that ask for nothing but training from given weights and evaluating them
PLAIN = {
    "fedavg", "fedprox", "fednova", "fedclust", "hicfl", "agreement", "cfl", "cfl-stability", "ifca", "hypcluster",
    "fl-hc", "fesem", "fedgroup", "random", "wc",
}  # fmt: skip
STATISTICS = ("running_mean", "running_var", "num_batches_tracked", "moving_mean", "moving_variance")


# What others call on a strategy, which can carry no more than one model
WRAPPED = {"summary", "configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate"}
LEGACY = {"initialize_parameters", "configure_fit", "aggregate_fit", "evaluate"}

Aggregate = Callable[[list["RecordDict"], str], "MetricRecord"]


class Clustered:
    """A clustered strategy for any ServerApp: the method's clusters, one model for each."""

    def __init__(
        self,
        method: Method,
        *,
        fraction_train: float = 1.0,  # of the nodes that train in a round
        fraction_evaluate: float = 1.0,  # of the nodes that evaluate their cluster's model
        min_train_nodes: int = 1,
        min_evaluate_nodes: int = 1,
        min_available_nodes: int = 2,
        aggregation: str | Mapping[str, Any] | Aggregation = "mean",  # of a cluster's replies
        server: str | Mapping[str, Any] | ServerOptimizer = "average",  # how a cluster's model steps to what they make
        evaluate_every: int = 1,  # rounds; 0: at the end only
        head: str | None = None,  # the layer that methods compare, by its key; None: the last one
        training: Training | None = None,  # how clients train, where a method wants to know (its learning rate)
        quorum: float = 0.0,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: Aggregate | None = None,
        evaluate_metrics_aggr_fn: Aggregate | None = None,
    ) -> None:
        needs_flower("Clustered")
        name = name_of(method)
        if name in METHODS and name not in PLAIN:
            raise FedcladeError(
                f"method {name!r} asks for more than a plain ClientApp answers: use one of {listed(sorted(PLAIN))}, "
                "or fedclade's own client app (`fedclade deploy init`)"
            )
        if not 0 < fraction_train <= 1:
            raise FedcladeError(f"fraction_train is {fraction_train}: it must be above 0 and at most 1")
        keys = self.keys = Keys(arrayrecord_key, configrecord_key, weighted_by_key)
        self.settings = settings_from(
            {
                "data": IN_PYTHON,
                "model": IN_PYTHON,
                "method": method,
                "participation": fraction_train,
                "evaluate_participation": fraction_evaluate,
                "aggregation": aggregation,
                "server": server,
                "training": training or Training(),
                "evaluate_every": evaluate_every,
                "quorum": quorum,
                "max_samples": MAX_SAMPLES * keys.scale,
                "engine": "flower",
                "workers": 1,
            }
        )
        self.min_available_nodes = max(min_available_nodes, min_train_nodes, min_evaluate_nodes)
        self.min_train_nodes, self.min_evaluate_nodes, self.head = min_train_nodes, min_evaluate_nodes, head
        self.aggregate = {Train: train_metrics_aggr_fn, Evaluate: evaluate_metrics_aggr_fn}

    def __getattr__(self, name: str) -> Any:
        if name in WRAPPED:
            raise FedcladeError(
                "Clustered trains a model for each cluster, so no strategy of Flower's can be put around it: call its "
                "own `start`; for differential privacy give clients Flower's mod: @app.train(mods=[LocalDpMod(...)])"
            )
        if name in LEGACY:
            raise FedcladeError("Clustered must see each client's arrays, so SecAgg+ cannot hide them: leave it out")
        raise AttributeError(f"Clustered has no {name}")

    def start(
        self,
        grid: Any,
        initial_arrays: "ArrayRecord",
        num_rounds: int = 3,
        timeout: float | None = 3600,
        train_config: Mapping[str, Any] | None = None,
        evaluate_config: Mapping[str, Any] | None = None,
        evaluate_fn: "Callable[[int, ArrayRecord], MetricRecord | None] | None" = None,
        *,
        seed: int = 0,
        out: Path | str | None = None,
        wait: float = 120,
    ) -> "Found":
        """Run, and keep all in the folder `out` (None: a temporary one). A folder that holds a run goes on with it.

        `evaluate_fn` is given the model of each cluster, before the first round and after every round.
        """
        temporary = tempfile.mkdtemp(prefix="fedclade-run-") if out is None else None
        place = Path(out or str(temporary))
        form = Form.of(initial_arrays, self.head)
        configs = dict(train_config or {}), dict(evaluate_config or {})
        engine = PlainEngine(Exchange(grid, timeout), form, self.keys, *configs)
        is_old = (place / "settings.json").is_file()
        folder = RunFolder.open(place) if is_old else RunFolder(place).unused()
        if is_old:
            engine.clients = tuple(folder.settings["clients"])
        engine.wait_for(self.min_available_nodes, wait)
        settings = self._settings(num_rounds, seed, timeout, len(engine.clients))
        if not is_old:
            check_number_of_clusters(settings.method, len(engine.clients))
            record = run_record(settings, clients=engine.clients, fingerprint="clustered", metrics=engine.metrics)
            folder = RunFolder.create(place, record)
        books = Books(folder, form, engine, self.keys.weight, self.aggregate, evaluate_fn)
        clients = folder.settings["clients"]
        go(folder, settings, lambda: engine, clients, about={"split": "own"}, on_round=books.close_round)
        found = Found(folder, form, settings.method, books)
        engine.deliver(found)
        if temporary is not None:
            weakref.finalize(found, rmtree, temporary, ignore_errors=True)
        return found

    def _settings(self, rounds: int, seed: int, timeout: float | None, n_clients: int) -> Settings:
        chosen = self.settings
        least = {"participation": self.min_train_nodes, "evaluate_participation": self.min_evaluate_nodes}
        shares = {name: max(getattr(chosen, name), min(count / n_clients, 1.0)) for name, count in least.items()}
        if not chosen.evaluate_participation:
            shares["evaluate_participation"] = 0.0
        return chosen.model_copy(update={"rounds": rounds, "seed": seed, "timeout": timeout, **shares})


@dataclass(frozen=True)
class Keys:
    """Under which keys a user's apps expect things, as in Flower's own strategies."""

    arrays: str = "arrays"
    config: str = "config"
    weight: str = "num-examples"

    @property
    def scale(self) -> int:
        """Rows are counted; of what else a user weighs replies by, thousandths are."""
        return 1 if self.weight == Keys.weight else 1000


class Books:
    """What the replies of every round said besides arrays, as Flower's own strategies tell it: over all, by cluster."""

    def __init__(
        self,
        folder: RunFolder,
        form: "Form",
        engine: "PlainEngine",
        weight: str,
        aggregate: Mapping[type, Aggregate | None],
        evaluate_fn: Any,
    ) -> None:
        from flwr.serverapp.strategy import Result as FlowerResult
        from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

        self.folder, self.form, self.engine, self.weight, self.evaluate_fn = folder, form, engine, weight, evaluate_fn
        self.aggregate = {kind: function or aggregate_metricrecords for kind, function in aggregate.items()}
        self.overall = FlowerResult()
        self.clusters: dict[int, Any] = defaultdict(FlowerResult)

    def close_round(self, progress: Progress) -> None:
        saved = self.folder.last_checkpoint(arrays=self.evaluate_fn is not None)
        assert saved is not None
        members: dict[int, list[str]] = saved[1]["clusters"]["members"]
        for kind, name in ((Train, "train_metrics_clientapp"), (Evaluate, "evaluate_metrics_clientapp")):
            said = self.engine.said[kind]
            groups = [(self.overall, list(said)), *((self.clusters[k], members[k]) for k in members)]
            for result, clients in groups:
                records = [said[client] for client in clients if client in said]
                if records and progress.round > 0:
                    getattr(result, name)[progress.round] = self.aggregate[kind](records, self.weight)
            said.clear()
        if self.evaluate_fn is not None:
            self._evaluate(progress.round, members, saved[1]["clusters"]["models"])

    def _evaluate(self, round: int, members: Mapping[int, list[str]], models: Mapping[int, np.ndarray]) -> None:
        """Of every cluster's model, and their mean over clients."""
        from flwr.app import MetricRecord, RecordDict

        each = {cluster: self.evaluate_fn(round, self.form.record(models[cluster])) for cluster in members}
        found = {cluster: metrics for cluster, metrics in each.items() if metrics is not None}
        for cluster, metrics in found.items():
            self.clusters[cluster].evaluate_metrics_serverapp[round] = metrics
        if len(found) == 1:
            self.overall.evaluate_metrics_serverapp[round] = next(iter(found.values()))
        elif found:
            from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

            sized = [
                RecordDict({"metrics": MetricRecord({**metrics, "clients": len(members[cluster])})})
                for cluster, metrics in found.items()
            ]
            self.overall.evaluate_metrics_serverapp[round] = aggregate_metricrecords(sized, "clients")


class Found:
    """The clusters and their models; and what `start` of Flower's own strategies returns, under the same names."""

    def __init__(self, folder: RunFolder, form: "Form", method: Method, books: Books) -> None:
        self.folder, self._form, self._overall = folder, form, books.overall
        found = Result(folder, method=method).state_of_clusters
        self.clusters: dict[int, list[str]] = {k: list(clients) for k, clients in found.members.items()}
        self.cluster_results = {cluster: books.clusters[cluster] for cluster in self.clusters}
        for cluster, result in self.cluster_results.items():
            result.arrays = form.record(found.models[cluster])
        largest = max(self.clusters, key=lambda cluster: len(self.clusters[cluster]))
        books.overall.arrays = self.cluster_results[largest].arrays
        self.arrays: ArrayRecord = books.overall.arrays  # of the largest cluster
        self.train_metrics_clientapp: dict[int, MetricRecord] = books.overall.train_metrics_clientapp
        self.evaluate_metrics_clientapp: dict[int, MetricRecord] = books.overall.evaluate_metrics_clientapp
        self.evaluate_metrics_serverapp: dict[int, MetricRecord] = books.overall.evaluate_metrics_serverapp

    def __repr__(self) -> str:
        return repr(self._overall)

    def cluster_of(self, client: str) -> int:
        for cluster, clients in self.clusters.items():
            if client in clients:
                return cluster
        raise FedcladeError(f"the run has no client {client!r}")

    def arrays_for(self, client: str) -> "ArrayRecord":
        """The model of a client's cluster."""
        return self.cluster_results[self.cluster_of(client)].arrays

    @property
    def history(self) -> "pd.DataFrame":
        """A row for each round and client."""
        return self.folder.table("history")


# --- arrays as a vector -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Form:
    """A user's arrays as one vector: which key lies where, and of which type it is."""

    layout: Layout
    keys: tuple[str, ...]  # in the order of the layout
    types: tuple[np.dtype, ...]
    order: tuple[str, ...]  # in the user's order
    initial: np.ndarray

    @classmethod
    def of(cls, arrays: "ArrayRecord", head: str | None = None) -> "Form":
        values = {str(key): array.numpy() for key, array in arrays.items()}
        if not values:
            raise FedcladeError("initial_arrays is empty: give the arrays of the initial model")
        names = layer_names({key: value.shape for key, value in values.items()})
        statistics = [key for key, value in values.items() if key.endswith(STATISTICS) or value.dtype.kind != "f"]
        parameters = [key for key in values if key not in statistics]
        if head is not None:
            last = [key for key in parameters if head in (key, names[key].rpartition(".")[0])]
            if not last:
                raise FedcladeError(f"head is {head!r}, but the arrays are {listed(values)}")
            parameters = [key for key in parameters if key not in last] + last
        keys = (*parameters, *statistics)
        layout = Layout(
            tuple(names[key] for key in keys),
            tuple(tuple(values[key].shape) for key in keys),
            sum(prod(values[key].shape) for key in parameters),
        )
        vector = np.concatenate([values[key].ravel().astype(np.float32) for key in keys])
        return cls(layout, keys, tuple(values[key].dtype for key in keys), tuple(values), vector)

    def record(self, vector: np.ndarray) -> "ArrayRecord":
        """The arrays again, as the user's apps know them."""
        from flwr.app import Array, ArrayRecord

        tensors = dict(zip(self.keys, self.layout.tensors(vector).values(), strict=True))
        types = dict(zip(self.keys, self.types, strict=True))
        whole = {k: tensors[k] if types[k].kind == "f" else np.rint(tensors[k]) for k in self.order}
        return ArrayRecord({k: Array(np.ascontiguousarray(value.astype(types[k]))) for k, value in whole.items()})

    def keys_of(self, layers: Any) -> list[str]:
        """The keys of some layers."""
        place = self.layout.select(layers)
        chosen = np.zeros(self.layout.size, np.bool_)
        chosen[place] = True
        return [key for key, part in zip(self.keys, self.layout.slices.values(), strict=True) if chosen[part].any()]

    def vector(self, arrays: "ArrayRecord", layers: Any) -> np.ndarray:
        """Some layers out of what a client sent: all arrays, or those of these layers. Raises ValueError."""
        wanted = self.keys_of(layers)
        strange = set(map(str, arrays)) ^ set(self.keys)
        if strange and set(map(str, arrays)) != set(wanted):
            raise ValueError(f"keys {listed(sorted(strange), 5)} are missing or too many")
        places = dict(zip(self.keys, zip(self.layout.shapes, self.types, strict=True), strict=True))
        parts = []
        for key in wanted:
            array = arrays[key]
            shape, kind = places[key]
            if tuple(array.shape) != shape or not _fits(np.dtype(array.dtype), kind):  # known before it is read
                raise ValueError(f"{key} is {array.dtype} of shape {tuple(array.shape)}, not {kind} of {shape}")
            value = array.numpy()
            if value.shape != shape or not _fits(value.dtype, kind):
                raise ValueError(f"{key} is not what its description says")
            parts.append(value.ravel().astype(np.float32))
        return np.concatenate(parts)


def _fits(sent: np.dtype, expected: np.dtype) -> bool:
    """Floats of any size are taken."""
    return sent == expected or (sent.kind == expected.kind == "f")


def layer_names(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """Every array's name, `layer.weight` or `layer.bias`, by its key; mere numbers are paired by their shapes."""
    names: dict[str, str] = {}
    before = ""
    for key, shape in shapes.items():
        name = key.replace("/", ".")
        if "." in name:
            names[key] = f"{name.removesuffix('.kernel')}.weight" if name.endswith(".kernel") else name
        elif len(shape) == 1 and before and shape[0] in (shapes[before][0], shapes[before][-1]):
            names[before], names[key] = f"{before}.weight", f"{before}.bias"
        else:
            names[key] = name
        before = key if "." not in name and len(shape) > 1 else ""
    return names


# --- the engine -------------------------------------------------------------------------------------------------------


class PlainEngine:
    """Nodes that run a ClientApp of somebody else's."""

    has_strangers = True
    keeps_models = False
    input_shape: tuple[int, ...] = ()
    n_classes = 0
    training: Training | None = None
    metrics: tuple[Metric, ...] = (ACCURACY, LOSS)

    def __init__(
        self,
        exchange: Exchange,
        form: Form,
        keys: Keys,
        train_config: dict[str, Any],
        evaluate_config: dict[str, Any],
    ) -> None:
        self.exchange, self.form, self.keys = exchange, form, keys
        self.configs = {Train: train_config, Evaluate: evaluate_config}
        self.layout, self.initial = form.layout, form.initial
        self.network_of: Mapping[str, str] = {}
        self.clients: tuple[str, ...] = ()
        self.nodes: dict[str, int] = {}
        self.facts: Mapping[str, Any] = {"engine": "flower", "client_app": "plain"}
        self.said: dict[type, dict[str, RecordDict]] = {Train: {}, Evaluate: {}}  # the metrics of this round's replies
        exchange.largest = max(exchange.largest, 8 * form.initial.nbytes)

    def wait_for(self, count: int, wait: float) -> None:
        until = time.monotonic() + wait
        while len(self._look()) < count and time.monotonic() < until:
            time.sleep(0.3)
        if len(self.nodes) < count:
            raise FedcladeError(f"{len(self.nodes)} of {count} nodes have come in {wait:g} s: start more SuperNodes")
        if not self.clients:
            self.clients = tuple(sorted(self.nodes, key=natural_order))

    def _look(self) -> dict[str, int]:
        """Who is online. A node goes by the name its key was registered under, else by its number."""
        self.nodes = {_name(node, about): node for node, about in self.exchange.nodes().items()}
        return self.nodes

    def arrivals(self) -> tuple[str, ...]:
        fresh = tuple(sorted((name for name in self._look() if name not in self.clients), key=natural_order))
        self.clients = (*self.clients, *fresh)
        return fresh

    def answer(self, tasks: Mapping[str, Task], round: int) -> dict[str, Answer | Failure]:
        self._look()
        for task in tasks.values():
            refuse_if_unanswerable(task)
        several = {c: task for c, task in tasks.items() if isinstance(task, Train) and len(task.candidates) > 1}
        chosen = self._chosen(several, round)
        messages, answers = {}, {}
        shared: dict[int, ArrayRecord] = {}  # one record of arrays for all who are sent the same weights
        for client, task in tasks.items():
            if client not in self.nodes or isinstance(chosen.get(client), Failure):
                answers[client] = chosen.get(client, Failure("absent", "its node is not online"))
                continue
            weights: Any = getattr(task, "weights", None)
            if isinstance(task, Train):
                weights = task.candidates[chosen.get(client, 0)]
            if id(weights) not in shared:
                shared[id(weights)] = self.form.record(weights)
            messages[client] = self._message(client, task, shared[id(weights)], {"server-round": round})
        for client, reply in self.exchange.exchange(messages):
            answer = reply if isinstance(reply, Failure) else self._read(tasks[client], reply, chosen.get(client))
            answers[client] = answer
            if not isinstance(reply, Failure):
                self._note(client, tasks[client], answer, reply)
        return answers

    def _note(self, client: str, task: Task, answer: Answer | Failure, reply: "Message") -> None:
        """Keep the metrics of a good reply, but for those of models that a method only compares."""
        from flwr.app import RecordDict

        is_whole = isinstance(answer, Trained) and bool(np.isfinite(answer.weights).all())
        is_measured = isinstance(answer, Evaluated) and isinstance(task, Evaluate) and task.on == "test"
        if is_whole or is_measured:
            self.said[type(task)][client] = RecordDict(dict(reply.content.metric_records))

    def _chosen(self, tasks: Mapping[str, Train], round: int) -> dict[str, Any]:
        """Which of several models fits each client best: it evaluates them all, for it cannot choose by itself."""
        losses: dict[str, list[float]] = {client: [] for client in tasks}
        failed: dict[str, Failure] = {}
        for place in range(max((len(task.candidates) for task in tasks.values()), default=0)):
            looks = {c: Evaluate(task.candidates[place], on="train") for c, task in tasks.items() if c not in failed}
            for client, answer in self.answer(looks, round).items():
                if isinstance(answer, Evaluated) and np.isfinite(answer.loss):
                    losses[client].append(answer.loss)
                else:
                    failed[client] = answer if isinstance(answer, Failure) else Failure("not finite", "its loss")
        return {client: failed.get(client, int(np.argmin(losses[client] or [0]))) for client in tasks}

    def _message(self, client: str, task: Task, arrays: "ArrayRecord", more: Mapping[str, Any]) -> "Message":
        from flwr.app import ConfigRecord, Message, RecordDict

        config = {**self.configs[type(task)], **more}
        if isinstance(task, Train):
            config |= {"upload": self.form.keys_of(task.upload)} if task.upload is not None else {}
            config |= {"proximal-mu": task.proximal} if task.proximal else {}
        elif isinstance(task, Evaluate) and task.on == "train":
            config |= {"evaluate-on": "train"}
        content: RecordDict = RecordDict({self.keys.arrays: arrays, self.keys.config: ConfigRecord(config)})
        kind = "train" if isinstance(task, Train) else "evaluate"
        return Message(content, self.nodes[client], kind, ttl=self.exchange.timeout)

    def _read(self, task: Task, reply: "Message", chosen: int | None) -> Answer | Failure:
        failure = failure_of(reply)
        if failure is not None:
            return failure
        try:
            metrics = next(iter(reply.content.metric_records.values()))
            count = round(self.keys.scale * _number(metrics, self.keys.weight))
            loss = _number(metrics, "loss", 0.0 if isinstance(task, Train) else None)
            if not isinstance(task, Train):
                return Evaluated(loss, {"accuracy": _number(metrics, "acc")}, count)
            sent = self.form.vector(next(iter(reply.content.array_records.values())), task.upload)
            choice = chosen if isinstance(task.weights, tuple) else None
            return Trained(sent, count, int(_number(metrics, "num-steps", 1.0)), loss, choice)
        except StopIteration:
            return Failure("bad shape", "the reply has no arrays or no metrics")
        except Exception as error:  # a stranger may have written anything
            return Failure("bad shape", f"{error}".splitlines()[0][:300] if f"{error}" else type(error).__name__)

    def deliver(self, found: Found) -> None:
        """Tell every node at the end which cluster it is in, with its model: it may evaluate it, and may keep it."""
        self._look()
        messages = {}
        for cluster, clients in found.clusters.items():
            for client in clients:
                if client in self.nodes:
                    more = {"final": True, "cluster": cluster, "cluster-size": len(clients)}
                    messages[client] = self._message(client, Evaluate(), found.arrays_for(client), more)
        for _ in self.exchange.exchange(messages):
            pass

    def at_server(self, tasks: Sequence[Task], round: int) -> list[Answer | Failure]:
        raise FedcladeError("this method works at the server with a torch model, which a plain ServerApp does not have")

    def layout_of(self, client: str, through: Through = "") -> Layout:
        return self.layout

    def state_dict(self, weights: np.ndarray) -> Mapping[str, Any]:
        return {key: array.numpy() for key, array in self.form.record(weights).items()}

    def rewind(self, round: int) -> None:
        pass

    def remembered(self) -> Mapping[str, Mapping[str, int]]:
        return {}

    def check_memory(self, round: int, forget: bool) -> set[str]:
        return set()

    def remember(self, client: str, slot: str, vector: np.ndarray, round: int) -> None:
        pass

    def flush(self) -> None:
        pass

    def drift(self, rows_of: Mapping[str, str]) -> None:
        pass

    def close(self) -> None:
        pass


def refuse_if_unanswerable(task: Task) -> None:
    """Raise one line if a plain ClientApp cannot do this."""
    wants = {
        "statistics of its rows or predictions": not isinstance(task, Train | Evaluate),
        "a model that it keeps": bool(getattr(task, "start", "")) or getattr(task, "weights", 0) is None,
        "a part of its layers": getattr(task, "layers", None) is not None,
        "a part of its rows": getattr(task, "spare", 0.0) > 0 or getattr(task, "half", 0) > 0,
        "training in a way of its own": getattr(task, "training", None) is not None
        or any(getattr(task, name, None) is not None for name in ("centre", "linear", "then", "rows", "adapt")),
    }
    for what, wanted in wants.items():
        if wanted:
            raise FedcladeError(f"the method asks a client for {what}, which a plain ClientApp cannot answer")


def _name(node: int, about: Online) -> str:
    return about.name or f"node-{node}"


def _number(metrics: "MetricRecord", word: str, otherwise: float | None = None) -> float:
    """The metric of this name, or the first whose name holds the word."""
    names: Iterable[str] = [name for name in metrics if name == word] or [name for name in metrics if word in name]
    for name in names:
        value = metrics[name]
        return float(value[0] if isinstance(value, list) else value)
    if otherwise is None:
        raise ValueError(f"the reply has no metric {word!r}: it has {listed(metrics)}")
    return otherwise


__all__ = ["Clustered", "Found"]
