"""Run a federation from Python: `run`, `resume`, and the `Result` that both give."""

import importlib.metadata
import platform
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedclade.clients.memory import Memory
from fedclade.clients.tasks import LOCAL, Evaluate, Training
from fedclade.data import Federation, federation_of, fingerprint
from fedclade.errors import FedcladeError
from fedclade.methods import METHODS, Method
from fedclade.models.assigned import Networks, Spec, specs_of
from fedclade.rounds import Loop, Progress
from fedclade.runs.folder import RunFolder
from fedclade.settings import Settings, settings_from
from fedclade.tracking import named_trackers, tracking

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    from fedclade.ask import Engine

OWN_DATA, OWN_MODEL = "own", "own"  # what the record says of data or models given as Python objects


def run(
    data: Any = "digits",
    *,
    method: str | Mapping[str, Any] | Method = "fedavg",
    model: "str | Callable[..., nn.Module] | Sequence[str | Callable[..., nn.Module]] | None" = None,
    training: Training | Mapping[str, Any] | None = None,
    out: Path | str | None = None,
    on_round: Callable[[Progress], None] | None = None,
    track: str | Sequence[str] | None = None,
    **settings: Any,
) -> "Result":
    """Run a method on a federation and return its result.

    `data` and `model` may be names or Python objects (see `fedclade.data.federation_of` and `fedclade.models.make`).
    The other settings are those of the command line: split, clients, rounds, seed, workers, engine, ... Without `out`
    the run folder is temporary and goes away with the result. `track` names what else is told of every round:
    "tensorboard", "mlflow", "csv" (see `fedclade.tracking`).
    """
    trackers = named_trackers(track)
    if out is not None:
        RunFolder(out).unused()  # known now, not after reading large data
    named: dict[str, Any] = {"data": data if isinstance(data, str) else OWN_DATA}
    named["model"] = None if model is None else _model_name(specs_of(model))
    own_method = method if isinstance(method, Method) else None
    named["method"] = described(method) if isinstance(method, Method) else method
    if training is not None:
        named["training"] = training
    if own_method is not None and named["method"]["name"] not in METHODS:
        checked = settings_from({**named, **settings, "method": "fedavg"}).model_copy(
            update={"method": named["method"]}
        )
    else:
        checked = settings_from({**named, **settings})
    if checked.engine == "flower":
        return _on_real_processes(checked, out)
    federation = federation_of(data, checked.split, checked.clients, checked.seed, checked.test_view, checked.data_dir)
    federation = federation.limited(checked.rows, checked.seed)
    if isinstance(data, str) and checked.workers > 1:
        federation = federation.shared()
    chosen = own_method or checked.make_method()
    networks = _networks(model, chosen, federation)
    checked = checked.model_copy(update={"model": _model_name(networks.specs)})
    temporary = None if out is not None else tempfile.mkdtemp(prefix="fedclade-run-")
    folder = RunFolder.create(out if out is not None else Path(str(temporary)), record_of(checked, federation))
    try:
        result = _go(folder, checked, federation, networks, chosen, on_round, trackers)
    except FedcladeError:
        folder.discard_unbegun()
        raise
    if temporary is not None:
        weakref.finalize(result, shutil.rmtree, temporary, ignore_errors=True)
    return result


def _on_real_processes(settings: Settings, out: Path | str | None) -> "Result":
    """The same run on a SuperLink and SuperNodes of this machine, one for each client."""
    from fedclade.deploy import needs_flower

    needs_flower("the engine flower")
    from fedclade.deploy.local import run_on_trial

    if settings.data == OWN_DATA or settings.model == OWN_MODEL:
        raise FedcladeError("on real processes data and models go by names: give those, or use engine='local'")
    temporary = None if out is not None else tempfile.mkdtemp(prefix="fedclade-run-")
    result = Result(run_on_trial(settings, Path(out if out is not None else str(temporary))))
    if temporary is not None:
        weakref.finalize(result, shutil.rmtree, temporary, ignore_errors=True)
    return result


def resume(
    path: Path | str,
    *,
    rounds: int | None = None,
    workers: int | None = None,
    data_dir: Path | str | None = None,
    data: Any = None,
    model: "str | Callable[..., nn.Module] | Sequence[str | Callable[..., nn.Module]] | None" = None,
    method: Method | None = None,
    on_round: Callable[[Progress], None] | None = None,
    track: str | Sequence[str] | None = None,
) -> "Result":
    """Go on with a run where it stopped, or add rounds to one that has ended.

    Data, model and method that were given as Python objects must be given again, but for a method in a module.
    """
    trackers = named_trackers(track)
    folder = RunFolder.open(path)
    record = folder.settings
    changes = {"rounds": rounds, "workers": workers, "data_dir": data_dir}
    given = {name: value for name, value in changes.items() if value is not None}
    settings = settings_from_record({"settings": {**record["settings"], **given}})
    if settings.engine == "flower":
        raise FedcladeError(
            f"the clients of the run in {path} are on Flower nodes: go on with `flwr run` and that folder as `out`"
        )
    if data is None and settings.data == OWN_DATA:
        raise FedcladeError(
            f"the run in {path} was given its data in Python: go on with fedclade.resume(path, data=...)"
        )
    if model is None and settings.model == OWN_MODEL:
        raise FedcladeError(
            f"the run in {path} was given its model in Python: go on with fedclade.resume(path, model=...)"
        )
    federation = federation_of(
        data if data is not None else settings.data,
        settings.split,
        settings.clients,
        settings.seed,
        settings.test_view,
        settings.data_dir,
    )
    federation = federation.limited(settings.rows, settings.seed)
    if fingerprint(federation) != record["fingerprint"]:
        raise FedcladeError(f"the data differ from those that the run in {path} began with: give it the same ones")
    method = method or recorded_method(settings, path)
    networks = _networks(model or settings.model, method, federation)
    if rounds is not None:
        saved = folder.last_checkpoint()
        if saved is not None and saved[0] > rounds:
            raise FedcladeError(f"the run in {path} is past round {saved[0]} already: ask for more rounds than that")
        folder.update_settings({**record, "settings": settings.model_dump(mode="json")})
    return _go(folder, settings, federation, networks, method, on_round, trackers)


def load(path: Path | str) -> "Result":
    """The result of a run that has ended."""
    folder = RunFolder.open(path)
    if not folder.is_finished:
        raise FedcladeError(f"the run in {path} has not ended: go on with `fedclade resume {path}`")
    return Result(folder)


def settings_from_record(record: Mapping[str, Any]) -> Settings:
    values = dict(record.get("settings", {}))
    method = values.get("method")
    name = method.get("name") if isinstance(method, Mapping) else method
    if name not in METHODS:  # a person's own, which may be given again in Python
        return settings_from({**values, "method": "fedavg"}).model_copy(update={"method": method})
    return settings_from(values)


def recorded_method(settings: Settings, path: Path | str) -> Method:
    """The method of a run, by its recorded name."""
    if settings.method["name"] not in METHODS and ":" not in settings.method["name"]:
        raise FedcladeError(
            f"the run in {path} was given its method {settings.method['name']} in Python: give it again as method=..."
        )
    return settings.make_method()


def described(method: Method) -> dict[str, Any]:
    """A method as the record has it: by its name or, where it can be imported again, by `module:Class`."""
    kind = type(method)
    names = {known: name for name, known in METHODS.items()}
    is_found = kind.__module__ != "__main__" and getattr(sys.modules.get(kind.__module__), kind.__name__, None) is kind
    own = f"{kind.__module__}:{kind.__name__}" if is_found else kind.__name__
    return {"name": names.get(kind, own), **method.model_dump(mode="json")}


def _networks(model: Any, method: Method, federation: Federation) -> Networks:
    networks = method.networks(specs_of(model), federation.names, federation.input_shape, federation.n_classes)
    for factory in networks.factories.values():
        factory()  # a model that does not fit the data must be known now
    return networks


def _model_name(specs: Sequence[Spec]) -> str:
    return ",".join(specs) if all(isinstance(spec, str) for spec in specs) else OWN_MODEL  # type: ignore[arg-type]


def record_of(settings: Settings, federation: Federation) -> dict[str, Any]:
    """What settings.json holds: the settings with all defaults filled in, and what they met."""
    groups = federation.groups
    return {
        "settings": settings.model_dump(mode="json"),
        "split": federation.split,
        "clients": list(federation.names),
        "groups": groups,
        "classes": list(federation.classes),
        "label_counts": federation.label_counts().tolist(),
        "input_shape": list(federation.input_shape),
        "columns": list(federation.columns),
        "preprocessing": federation.preprocessing.model_dump(mode="json") if federation.preprocessing else None,
        "fingerprint": fingerprint(federation),
        **record_about(),
    }


def record_about() -> dict[str, Any]:
    """With what, where and when a run was begun."""
    packages = ("fedclade", "torch", "numpy", "scipy", "scikit-learn")
    versions = {name: importlib.metadata.version(name) for name in packages}
    return {
        "versions": {"python": platform.python_version(), **versions},
        "machine": {"system": platform.system(), "processor": platform.machine()},
        "command": sys.argv[1:] if Path(sys.argv[0]).name == "fedclade" else None,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _go(
    folder: RunFolder,
    settings: Settings,
    federation: Federation,
    networks: Networks,
    method: Method,
    on_round: Callable[[Progress], None] | None,
    trackers: Sequence[str],
) -> "Result":
    hear = on_round or (lambda progress: None)
    with folder, tracking(trackers, folder, settings, hear) as told:
        engine = make_engine(folder, settings, method.arrange(federation), networks)
        try:
            loop = Loop(
                method,
                engine,
                folder,
                federation.names,
                settings.training,
                settings.seed,
                settings.rounds,
                settings.evaluate_every,
                settings.evaluate_local_every,
                federation.groups,
                settings.events,
                settings.quorum,
                told,
            )
            about = {
                "method": settings.method["name"],
                "data": settings.data,
                "split": federation.split,
                "model": settings.model,
                "seed": settings.seed,
                "clients": len(federation),
                **engine.facts,
                "layout": engine.layout.to_json(),
            }
            loop.go(about)
        finally:
            engine.close()
    return Result(folder, networks, method)


def make_engine(folder: RunFolder, settings: Settings, federation: Federation, networks: Networks) -> "Engine":
    shared: dict[str, Any] = {"seed": settings.seed, "training": settings.training, "memory": folder.path / "clients"}
    if settings.engine == "flower-sim":
        from fedclade.engines.flower import FlowerSimulation

        return FlowerSimulation(federation, networks, workers=settings.workers, timeout=settings.timeout, **shared)
    from fedclade.engines.local import LocalEngine

    return LocalEngine(federation, networks, workers=settings.workers, timeout=settings.timeout, **shared)


class Result:
    """What a run found. It reads from the run folder, so it costs nothing until asked."""

    def __init__(self, folder: RunFolder, networks: Networks | None = None, method: Method | None = None) -> None:
        self._folder = folder
        self._networks = networks
        self._method = method
        self.summary: dict[str, Any] = folder.read_json("result.json")

    def __repr__(self) -> str:
        accuracy, found = self.summary["accuracy"]["mean"], self.summary["clusters"]["found"]
        share = "not measured" if accuracy is None else f"{accuracy:.3f}"
        return f"<Result of {self.summary['method']} on {self.summary['data']}: accuracy {share}, {found} clusters>"

    @property
    def folder(self) -> RunFolder:
        return self._folder

    @property
    def path(self) -> Path:
        return self._folder.path

    @property
    def accuracy(self) -> dict[str, Any]:
        """Mean, standard deviation and worst over clients, of the model that the server holds for each."""
        return dict(self.summary["accuracy"])

    @property
    def accuracy_local(self) -> dict[str, Any]:
        """The same of each client's own last trained model."""
        return dict(self.summary["accuracy_local"])

    @property
    def clusters(self) -> dict[int, list[str]]:
        """The clients of each cluster."""
        members = self._folder.read_json("clusters.json")["members"]
        return {int(cluster): list(clients) for cluster, clients in members.items()}

    @property
    def tree(self) -> list[dict[str, Any]]:
        """Every split of a cluster: its round, parent, children and reason."""
        return list(self._folder.read_json("clusters.json")["tree"])

    @property
    def history(self) -> "pd.DataFrame":
        """A row for each round and client."""
        return self._folder.table("history")

    @property
    def ledger(self) -> "pd.DataFrame":
        """Bytes by round, client, phase and direction."""
        return self._folder.table("ledger")

    def cluster_of(self, client: str) -> int:
        for cluster, clients in self.clusters.items():
            if client in clients:
                return cluster
        raise FedcladeError(f"the run has no client {client!r}")

    def model_for(self, client: str) -> "nn.Module":
        """The model that serves a client, as a torch module."""
        from fedclade.models.weights import load as load_weights

        task, _ = self._served(client)
        return load_weights(self._network(client, task.through), self.weights_for(client)).eval()

    def local_model_of(self, client: str) -> "nn.Module":
        """The client's own last trained model, as a torch module."""
        from fedclade.models.weights import load as load_weights

        return load_weights(self._network(client), self._kept(client, LOCAL)).eval()

    def weights_for(self, client: str) -> np.ndarray:
        """The weights of the model that serves a client: the server's, completed by what the client keeps."""
        from fedclade.models.weights import Layout, assembled

        task, model = self._served(client)
        if task.through:
            return assembled(self._network(client, task.through), own=self._kept(client, task.through), cluster=model)
        if not task.start:
            return np.array(model)
        kept = Memory(self.path / "clients").read(client, task.start)
        weights = np.array(model if kept is None else kept)
        if task.weights is not None:
            place = Layout.from_json(self.summary["layout"]).select(task.layers)
            weights[place] = task.weights[place]
        return weights

    def _served(self, client: str) -> tuple[Evaluate, np.ndarray]:
        """The task that evaluates what serves a client, and the server's weights in it."""
        from fedclade.methods import Clusters

        self.cluster_of(client)
        saved = self._folder.last_checkpoint()
        if saved is None:
            raise FedcladeError(f"{self.path} has no checkpoint: the models cannot be read")
        state = saved[1]
        members = {cluster: tuple(clients) for cluster, clients in state["members"].items()}
        clusters = Clusters(members, state["models"], notes=state["notes"])
        task = self._its_method().serve(clusters, client)
        return task, clusters.model_of(client) if task.weights is None else task.weights

    def _its_method(self) -> Method:
        return self._method or settings_from_record(self._folder.settings).make_method()

    def _kept(self, client: str, slot: str) -> np.ndarray:
        weights = Memory(self.path / "clients").read(client, slot)
        if weights is None and self.summary.get("engine") == "flower":
            raise FedcladeError(f"client {client!r} keeps its own model on its node: it does not travel")
        if weights is None:
            raise FedcladeError(f"client {client!r} has not trained in this run, so it has no model of its own")
        return weights

    def _network(self, client: str, through: str = "") -> "nn.Module":
        if self._networks is None:
            record = self._folder.settings
            model = record["settings"]["model"]
            if model == OWN_MODEL:
                raise FedcladeError(
                    "this run's model was given in Python: load the weights with result.weights_for(client)"
                )
            shape, n_classes = tuple(record["input_shape"]), len(record["classes"])
            self._networks = self._its_method().networks(specs_of(model), record["clients"], shape, n_classes)
        return self._networks.make(client, through)
