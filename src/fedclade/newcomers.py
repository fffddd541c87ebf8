"""Newcomers after a run has ended: which cluster a new client joins, why, and the model it gets."""

import functools
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedclade.api import load
from fedclade.ask import Ask
from fedclade.assembly import make_networks
from fedclade.clients.objective import Metric
from fedclade.clients.tasks import LOCAL, Evaluate, Train
from fedclade.data import Preprocessing, federation_of
from fedclade.data.own.files import KINDS, stem_of
from fedclade.data.own.prepared import prepared
from fedclade.data.preprocessing import Number
from fedclade.data.sources import sources
from fedclade.engines.engine import TransportEngine
from fedclade.engines.local import local_engine
from fedclade.errors import FedcladeError, listed
from fedclade.files import safe_name, write_atomically, write_json
from fedclade.methods import Clusters, Method, Placement, RoundContext
from fedclade.methods.clade import ROOM
from fedclade.models.weights import Layout
from fedclade.result import Result
from fedclade.runs.packing import save_tensors
from fedclade.runs.record import IN_PYTHON, recorded_settings
from fedclade.settings import Settings

if TYPE_CHECKING:
    from torch import nn

RECOGNISED = 0.9  # of the members: where fewer would be placed where they are, a newcomer's place is doubtful
UNCLEAR = 0.1  # how much nearer its cluster must be than the next, as a share


@dataclass(frozen=True)
class Placed:
    """A newcomer's place."""

    client: str
    cluster: int | None  # None: it fits no cluster and would found its own
    distances: Mapping[int, float]  # to every cluster
    measure: str  # what the distances are
    limit: float | None  # who is farther than this from every cluster founds its own (None: nobody does)
    confidence: float | None  # how much nearer the cluster is than the next, 0 to 1, where the method says so
    metric: Metric  # the main one of the task
    score: float | None  # of the cluster's model on the newcomer's test rows, by that metric
    score_personalised: float | None  # after some epochs on the newcomer's own rows
    warning: str  # why its place is doubtful; empty where it is not
    weights: np.ndarray  # of the personalised model, or of the cluster's where none was asked for
    make: "Callable[[], nn.Module]"

    @property
    def model(self) -> "nn.Module":
        """The newcomer's model, as a torch module."""
        from fedclade.models.weights import load

        return load(self.make(), self.weights).eval()


def place(
    path: Path | str,
    data: Any,
    *,
    split: str | None = None,
    clients: int | None = None,
    personalise: int = 5,
    data_dir: Path | str | None = None,
    model: "str | Callable[..., nn.Module] | Sequence[str | Callable[..., nn.Module]] | None" = None,
    method: Method | None = None,
    task: Any = None,
    save: bool = True,
) -> dict[str, Placed]:
    """Place new clients in the clusters of a run that has ended.

    `data` are the newcomers, in any form that a run takes. Each gets its cluster's model and trains it for
    `personalise` epochs on its own rows (0: it takes the model as it is). `model` is needed where the run was given its
    model in Python, and where newcomers choose their own (FedStack). With `save`, the outcome and the models are kept
    in the run folder, under `placements/`.
    """
    result = load(path)
    record = result.record
    settings = recorded_settings(record, path, method, task)
    result = Result(result.folder, method=settings.method)
    spec = model or settings.model
    if spec is None or (spec == IN_PYTHON and model is None):
        raise FedcladeError(
            f"the run in {path} was given its model in Python: give it again as fedclade.place(..., model=...)"
        )
    is_known = isinstance(data, str) and data.partition(":")[0] in sources()
    as_they_are = settings.reading.model_copy(update={"scaling": "none"})  # what was done is in the run's preprocessing
    newcomers = federation_of(
        data,
        split,
        clients,
        settings.seed,
        settings.test_view if is_known else None,
        data_dir or settings.data_dir,
        record["classes"],
        settings.reading if is_known else as_they_are,
        _preprocessing(record),
    )
    for remark in newcomers.remarks:
        warnings.warn(remark, stacklevel=2)
    if list(newcomers.input_shape) != record["input_shape"]:
        raise FedcladeError(
            f"the newcomers' rows have shape {newcomers.input_shape}, those of the run {tuple(record['input_shape'])}: "
            "give rows of that shape"
        )
    if list(newcomers.classes) != record["classes"]:
        raise FedcladeError(
            f"the newcomers' classes ({_shortly(newcomers.classes)}) are not the run's ({_shortly(record['classes'])})"
        )
    kind = newcomers.input_shape, len(record["classes"])
    networks = make_networks(settings, spec, newcomers.names, *kind)
    if model is not None and settings.model not in (None, IN_PYTHON):  # the run's own may serve those who bring others
        known = make_networks(settings, settings.model, newcomers.names, *kind)
        networks = replace(networks, factories={**known.factories, **networks.factories})
    clusters = result.state_of_clusters
    with tempfile.TemporaryDirectory() as memory:
        engine = local_engine(
            newcomers,
            networks,
            seed=settings.seed,
            training=settings.training.unhurried,
            memory=Path(memory),
            task=settings.task,
        )
        try:
            _check_fit(clusters, engine)
            placed = _placed(settings, clusters, engine, result, personalise)
        finally:
            engine.close()
    if save:
        for one in placed.values():
            _keep(result.path / "placements", one, Layout.of(one.make()).tensors(one.weights))
    return placed


def place_unlabelled(path: Path | str, rows: Mapping[str, Any], *, method: Method | None = None) -> dict[str, Placed]:
    """Place new clients of which only rows are known, not labels, in the clusters of a run of `clade` or `flux`.

    `rows` holds an array, a DataFrame or the path of a file for each newcomer, as the clients of the run gave theirs:
    what was done with their rows (scaling, missing values, texts) is done with these.
    """
    from fedclade.clients.describe import sketch
    from fedclade.clients.runtime import Rows, features
    from fedclade.data.federation import Client, Federation
    from fedclade.methods.base import PlacesUnlabelled

    result = load(path)
    record = result.record
    settings = recorded_settings(record, path, method)
    if not isinstance(settings.method, PlacesUnlabelled):
        name = record["settings"]["method"]["name"]
        raise FedcladeError(
            f"the run in {path} is of method {name}: only clade and flux place newcomers without labels"
        )
    shape = tuple(record["input_shape"])
    known = record.get("preprocessing")
    rows = {client: prepared(own, known, settings.reading, f"newcomer {client!r}") for client, own in rows.items()}
    for client, own in rows.items():
        if tuple(own.shape[1:]) != shape or not len(own):
            raise FedcladeError(f"{client}: its rows have shape {own.shape}, those of the run (n, {shape}): give such")
    x = np.concatenate(list(rows.values()))
    ends = np.cumsum([len(own) for own in rows.values()])
    places = [np.arange(end - len(own), end, dtype=np.int32) for own, end in zip(rows.values(), ends, strict=True)]
    clients = tuple(Client(name, place, place) for name, place in zip(rows, places, strict=True))
    newcomers = Federation(x, np.zeros(len(x), np.int64), clients, tuple(record["classes"]))
    networks = make_networks(settings, settings.model, newcomers.names, shape, len(record["classes"]))
    clusters = result.state_of_clusters
    with tempfile.TemporaryDirectory() as memory:
        engine = local_engine(newcomers, networks, seed=settings.seed, training=settings.training, memory=Path(memory))
        try:
            _check_fit(clusters, engine)
            runtime, size = engine.runtime, settings.method.size
            through = settings.method.looks_through(clusters, engine.initial)
            told = {}
            for name, place in zip(rows, places, strict=True):
                seen = features(runtime.built[""], through, Rows(runtime.x, runtime.y, place))
                own = x[place].reshape(len(place), -1)
                told[name] = {"input": sketch(own, size), "features": sketch(seen, size)}
            placements = settings.method.place_unlabelled(clusters, told)
        finally:
            engine.close()
    return {
        client: Placed(
            client,
            placed.cluster,
            placed.distances,
            placed.measure,
            placed.limit,
            placed.confidence,
            result.metric,
            None,
            None,
            doubt(placed, {}),
            engine.initial if placed.cluster is None else clusters.models[placed.cluster],
            functools.partial(networks.make, client, ""),
        )
        for client, placed in placements.items()
    }


def unlabelled_rows(folder: Path) -> dict[str, Any]:
    """The rows of each newcomer: an array of a .npy file, or the path of a file as clients of a run have them."""
    found = sorted(path for path in folder.glob("*") if path.name.lower().endswith((".npy", *KINDS)))
    if not found:
        raise FedcladeError(f"{folder} holds no file of rows: give one for each newcomer ({listed(('.npy', *KINDS))})")
    rows: dict[str, Any] = {}
    for path in found:
        is_array = path.suffix.lower() == ".npy"
        name = path.stem if is_array else stem_of(path)
        if name in rows:
            raise FedcladeError(f"{folder}: newcomer {name!r} has more than one file: keep one of them")
        rows[name] = path
        if not is_array:
            continue
        try:
            rows[name] = np.load(path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise FedcladeError(f"cannot read {path} ({error}): give an array of rows") from None
    return rows


def _preprocessing(record: Mapping[str, Any]) -> Preprocessing | None:
    """What made the features of a run; of a run on nodes, at least the order of its columns."""
    if record.get("preprocessing"):
        return Preprocessing.model_validate(record["preprocessing"])
    columns = record.get("columns")
    return Preprocessing(numbers=tuple(Number(name=name) for name in columns)) if columns else None


def _shortly(classes: Sequence[str]) -> str:
    return ", ".join(map(str, classes[:5])) + (f", ... {len(classes)} in all" if len(classes) > 5 else "")


def _check_fit(clusters: Clusters, engine: TransportEngine) -> None:
    held = {len(weights) for weights in clusters.models.values()}
    if held != {engine.layout.size}:
        raise FedcladeError(
            f"the clusters' models have {held.pop()} weights, this one {engine.layout.size}: leave `model` out, "
            "or give the one of the run"
        )


def _placed(
    settings: Settings, clusters: Clusters, engine: TransportEngine, result: Result, personalise: int
) -> dict[str, Placed]:
    method, ask = settings.method, Ask(engine)
    ask.round = result.round + 1
    training = settings.training.unhurried
    context = RoundContext(
        engine.clients,
        engine.initial,
        engine.layout,
        training,
        settings.seed,
        ask.round,
        input_shape=engine.input_shape,
        n_classes=engine.n_classes,
        metric=engine.metrics[0],
        network_of=engine.network_of,
    )
    placements = method.place(clusters, context, ask)
    lost = [client for client in engine.clients if client not in placements]
    if lost:
        why = next(
            (failure["failure"] for failure in ask.failures if failure["client"] == lost[0]), "it did not answer"
        )
        raise FedcladeError(f"client {lost[0]!r} cannot be placed: {why}")
    assigned = clusters
    for client, placement in placements.items():
        assigned = assigned.joined(client, placement.cluster, engine.initial)
    tasks = {client: method.served(assigned, client) for client in engine.clients}
    served = ask(tasks, phase="measure")
    starts = {client: engine.runtime.served_weights(client, task) for client, task in tasks.items()}
    longer = training.model_copy(update={"local_epochs": personalise})
    # One with a network of its own has trained it to be placed, and the cluster's only reads what that puts out.
    learners = [client for client, task in tasks.items() if personalise and not task.through]
    trained = ask({client: Train(starts[client], training=longer, save=LOCAL) for client in learners})
    local = ask(Evaluate(start=LOCAL), to=list(trained), phase="measure")
    return {
        client: Placed(
            client,
            placement.cluster,
            placement.distances,
            placement.measure,
            placement.limit if placement.limit is not None and np.isfinite(placement.limit) else None,
            placement.confidence,
            engine.metrics[0],
            served[client].score if client in served else None,
            local[client].score if client in local else None,
            doubt(placement, members_at_home(result, placement.measure)),
            trained[client].weights if client in trained else starts[client],
            functools.partial(engine.runtime.networks.make, client, tasks[client].through),
        )
        for client, placement in placements.items()
    }


def members_at_home(result: Result, measure: str) -> dict[int, float]:
    """How far the farthest member of each cluster is from it, where that is known in the measure of a placement."""
    if measure == "training loss":
        losses = result.last("loss")
        return {k: float(losses.reindex(part).max()) for k, part in result.clusters.items()}
    record = result.last_kept("at_home")
    return {} if record is None else dict(zip(map(int, record["clusters"]), map(float, record["far"]), strict=True))


def doubt(placement: Placement, at_home: Mapping[int, float]) -> str:
    """Why a newcomer's place is doubtful: it fits no cluster, is farther than members are, or on a border."""
    if placement.cluster is None:
        return "it fits no cluster: it is unlike everybody, or its rows are noise"
    near = placement.distances.get(placement.cluster)
    others = [far for cluster, far in placement.distances.items() if cluster != placement.cluster]
    if near is None or placement.measure == "dice":
        return ""
    farthest = at_home.get(placement.cluster)
    is_far = farthest is not None and np.isfinite(farthest) and near > ROOM * farthest
    is_unclear = bool(others) and near > (1 - UNCLEAR) * min(others)
    words = []
    if placement.at_home is not None and placement.at_home < RECOGNISED:
        words.append(
            f"this hardly tells the clusters apart: only {100 * placement.at_home:.0f} % of the members would be "
            "placed where they are"
        )
    if is_far:
        words.append(
            f"it is farther from cluster {placement.cluster} ({near:.3g}) than its members are ({farthest:.3g})"
        )
    if is_unclear:
        words.append(f"the next cluster is about as near ({min(others):.3g} to {near:.3g})")
    if is_far and is_unclear:
        words.append("it is unlike everybody, or its rows are noise")
    return "; ".join(words)


def _keep(folder: Path, placed: Placed, tensors: Mapping[str, np.ndarray]) -> None:
    name = safe_name(placed.client)
    whole = {key: np.ascontiguousarray(tensor) for key, tensor in tensors.items()}
    write_atomically(folder / f"{name}.safetensors", lambda part: save_tensors(part, whole))
    about = {
        "client": placed.client,
        "cluster": placed.cluster,
        "distances": {str(cluster): float(far) for cluster, far in placed.distances.items()},
        "measure": placed.measure,
        "limit": placed.limit,
        "confidence": placed.confidence,
        "warning": placed.warning,
        "metric": placed.metric.name,
        "score": placed.score,
        "score_personalised": placed.score_personalised,
    }
    write_json(folder / f"{name}.json", about)
