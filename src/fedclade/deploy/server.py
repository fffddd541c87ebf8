"""The server of a real federation: fedclade's loop inside Flower's server app.

Settings come from the app's run config (`[tool.flwr.app.config]`, `flwr run --run-config`), under the names of the
command line. Where the run folder `out` holds a run that has not ended, it goes on.
"""

import shlex
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedclade.assembly import (
    check_labels,
    check_number_of_clusters,
    go,
    long_enough,
    make_networks,
    model_name,
)
from fedclade.clients.memory import Memory
from fedclade.clients.runtime import ClientRuntime
from fedclade.data import Preprocessing
from fedclade.deploy.agreement import agreed_on
from fedclade.engines.brief import Brief, recipes_of
from fedclade.engines.engine import TransportEngine
from fedclade.engines.exchange import Exchange
from fedclade.engines.grid import GridTransport
from fedclade.engines.registry import (
    NodeRegistry,
    RegisteredNodes,
    agreed,
    deliver_models,
    leave_out_the_odd,
    server_rows,
    whoever_comes,
)
from fedclade.errors import FedcladeError, listed
from fedclade.methods import name_of
from fedclade.models.assigned import Networks
from fedclade.models.weights import Layout
from fedclade.result import Result
from fedclade.rounds import Progress
from fedclade.runs.folder import RunFolder
from fedclade.runs.record import IN_PYTHON, recorded_settings, run_record, with_settings
from fedclade.settings import Settings, merged, read_toml, settings_from, with_assignments

OWN_KEYS = {"out", "wait", "keys", "set", "config"}  # of the run config, besides the settings of a run
NOT_HERE = ("data", "split", "test_view", "data_dir", "events", "workers", "engine")  # where rows lie, nodes say


def server_app() -> Any:
    """The Flower ServerApp of a federation."""
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp

    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            serve(grid, context.run_config)
        except FedcladeError as error:
            raise error.with_traceback(None) from None  # one line says it all

    return app


def serve(grid: Any, config: Mapping[str, Any]) -> RunFolder:
    """Run a federation on a grid, from its start or from where its run folder stands."""
    import torch

    torch.set_num_threads(1)
    settings = settings_of(config)
    name = f"{name_of(settings.method)}-{settings.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    out = Path(str(config.get("out") or f"runs/{name}"))
    print(f"run folder: {out.absolute()}", flush=True)
    told = settings.reading.model_dump(mode="json")
    check_labels(settings)
    registry = NodeRegistry(Exchange(grid, settings.timeout), keys=bool(config.get("keys", True)), options=told)
    is_old = (out / "settings.json").is_file()
    folder = RunFolder.open(out) if is_old else RunFolder(out).unused()
    if is_old:
        settings = _as_begun(folder, settings)
        registry.bound = dict(folder.settings["nodes"])
    wanted = len(_clients_of(folder)) if is_old else settings.clients or 2
    whoever_comes(registry, wanted, float(config.get("wait", 60)))
    if settings.method.about.sends == "raw rows":
        raise FedcladeError(f"method {name_of(settings.method)!r} needs all rows in one place: nodes keep theirs")
    if not is_old:
        folder = _begin(out, settings, registry)
        settings = recorded_settings(folder.settings, out)
    _go(folder, settings, registry)
    return folder


def settings_of(config: Mapping[str, Any]) -> Settings:
    """The settings of a run from Flower's flat run config.

    The file `config` beats them, and `set` beats all, as for `fedclade run`.
    """
    values: dict[str, Any] = {}
    for name, value in config.items():
        if name in OWN_KEYS or value == "":
            continue
        table, keys = values, name.replace("-", "_").split(".")
        for key in keys[:-1]:
            table = table.setdefault(key, {})
        table[keys[-1]] = value
    if config.get("config"):
        values = merged(values, read_toml(Path(str(config["config"]))))
    values = with_assignments(values, shlex.split(str(config.get("set", ""))))
    for name in NOT_HERE:
        if name in values:
            raise FedcladeError(f"setting {name!r} has no meaning for real nodes: each says by itself what data it has")
    return settings_from({**values, "data": "nodes", "engine": "flower", "workers": 1})


def _begin(out: Path, settings: Settings, registry: NodeRegistry) -> RunFolder:
    leave_out_the_odd(registry)
    options, most = settings.reading, settings.max_samples
    reports = whoever_comes(registry, 0, 0)
    agreed(reports, options.labels or "classes")
    preprocessing, task, size = agreed_on(registry, reports, options, settings.task, most)
    reports = whoever_comes(registry, 0, 0)  # without those whose statistics made no sense
    classes = agreed(reports, options.labels or "classes")
    features = preprocessing.features if preprocessing is not None else ()
    shape = (len(features), *reports[0].input_shape[1:]) if features else reports[0].input_shape
    clients = [report.client for report in reports]
    settings, said = long_enough(settings, [min(report.rows, settings.rows or report.rows) for report in reports])
    for remark in said:
        print(f"note: {remark}", flush=True)
    check_number_of_clusters(settings.method, len(clients))
    networks = make_networks(settings, settings.model, clients, shape, len(classes))
    if model_name(networks.specs) == IN_PYTHON:
        raise FedcladeError("the model cannot travel: name it as my_module:make_net")
    groups = {report.client: report.group for report in reports if report.group is not None}
    record = run_record(
        settings.model_copy(update={"model": model_name(networks.specs)}),
        clients=clients,
        fingerprint=uuid.uuid4().hex[:12],  # nodes know the run by it
        groups=groups if len(groups) == len(reports) else None,
        classes=classes,
        input_shape=shape,
        columns=features if reports[0].columns else (),
        preprocessing=preprocessing and preprocessing.model_dump(mode="json"),
        remarks=said,
        task=task,
        statistics={"bytes": size},  # what nodes told for it, before the first round
        nodes=dict(registry.bound),
    )
    return RunFolder.create(out, record)


def _as_begun(folder: RunFolder, settings: Settings) -> Settings:
    """The settings that a run began with; only the number of rounds and the time limit may change."""
    begun = recorded_settings(folder.settings, folder.path)
    if begun.engine != "flower":
        raise FedcladeError(f"{folder.path} holds a run that was not on Flower nodes: choose another `out`")
    now = begun.model_copy(update={"rounds": settings.rounds, "timeout": settings.timeout})
    asked = settings.training_for(begun.training.local_epochs) if settings.is_open_ended else settings
    ours, theirs = with_settings(folder.settings, now)["settings"], asked.model_dump(mode="json")
    free = {"clients"} | ({"model"} if settings.model is None else set())
    changed = [name for name in ours if name not in free and ours[name] != theirs[name]]
    if changed:
        raise FedcladeError(
            f"{folder.path} holds a run with another {listed(changed)}: choose another `out`, or go on with the same"
        )
    last = folder.last_round
    if last is not None and last > now.rounds:
        raise FedcladeError(f"the run in {folder.path} is past round {last} already: ask for more rounds than that")
    folder.update_settings(with_settings(folder.settings, now))
    return now


def _clients_of(folder: RunFolder) -> list[str]:
    """Who took part at the last checkpoint: those who began, and those who came later, in that order."""
    saved = folder.last_checkpoint(arrays=False)
    later = saved[1]["arrivals"] if saved is not None else {}
    late = [name for number in sorted(later, key=int) for name in later[number]]
    return [*(name for name in folder.settings["clients"] if name not in late), *late]


def _go(folder: RunFolder, settings: Settings, registry: NodeRegistry) -> None:
    record = folder.settings

    def closed(progress: Progress) -> None:
        _tell(progress)
        if folder.settings["nodes"] != registry.bound:  # the names of those who came late belong to their keys too
            folder.update_settings({**folder.settings, "nodes": dict(registry.bound)})

    go(
        folder,
        settings,
        lambda: _engine(folder, settings, registry),
        record["clients"],
        groups=record["groups"],
        about={"split": record["split"]},
        on_round=closed,
    )
    _deliver(registry, folder)


def _engine(folder: RunFolder, settings: Settings, registry: NodeRegistry) -> TransportEngine:
    """Real nodes, and a runtime without rows for what the server works out by itself."""
    record, clients = folder.settings, tuple(_clients_of(folder))
    shape, classes = tuple(record["input_shape"]), tuple(record["classes"])

    def networks_for(names: Sequence[str]) -> Networks:
        return make_networks(settings, settings.model, names, shape, len(classes))

    def joined(names: tuple[str, ...]) -> Mapping[str, str]:
        runtime.networks = networks_for(names)  # those of the others stay as they are
        return runtime.networks.of

    like = next(iter(registry.known.values()))
    networks = networks_for(clients)
    runtime = ClientRuntime(
        server_rows(shape, classes, like.dtype),
        networks,
        Memory(folder.path / "clients"),
        settings.seed,
        settings.pace,
        settings.task,
        settings.device,
    )
    brief = Brief(
        run=record["fingerprint"],
        session=uuid.uuid4().hex[:12],
        since=-1,
        seed=settings.seed,
        training=settings.pace,
        classes=classes,
        task=settings.task,
        options=settings.reading,
        preprocessing=record["preprocessing"] and Preprocessing.model_validate(record["preprocessing"]),
        rows=settings.rows,
        recipes=recipes_of(networks),
        network="",
    )
    nodes = RegisteredNodes(registry, clients, brief, like, joined, networks.of)
    marks = Memory(folder.path / "nodes")
    return TransportEngine(runtime, GridTransport("flower", registry.exchange, nodes, runtime, True, marks))


def _tell(progress: Progress) -> None:
    score = "" if progress.score is None else f", {progress.metric.words} {progress.metric.written(progress.score)}"
    failures = f", failures {progress.failures}" if progress.failures else ""
    clusters = f"{progress.clusters} cluster{'s' if progress.clusters != 1 else ''}"
    print(f"round {progress.round} of {progress.rounds}: {clusters}{score}{failures}", flush=True)


def _deliver(registry: NodeRegistry, folder: RunFolder) -> None:
    """Every node gets its cluster's model, and is told how that and what it keeps itself serve it; who is where, and
    which node was refused, is written down."""
    result = Result(folder)
    clusters, layout = result.state_of_clusters, result.layout
    tensors = {
        client: layout.tensors(model)
        for cluster, model in clusters.models.items()
        for client in clusters.members.get(cluster, ())
    }
    for members in clusters.members.values():
        through = result.served(members[0]).through
        if not isinstance(through, str):  # networks that serve all of them go along
            module = result.network_of(members[0])
            tensors |= dict.fromkeys(members, Layout.of(module).tensors(result.weights_for(members[0])))
    served = {client: result.served(client) for client in clusters.cluster_of}
    own = {
        client: {
            "slot": task.start,
            "layers": list(task.layers) if isinstance(task.layers, tuple) else task.layers,
            "sent": task.weights is not None,
            "n_parameters": layout.n_parameters,
        }
        for client, task in served.items()
        if task.start and not task.through
    }
    for client, task in served.items():
        if task.weights is not None and not task.start and not task.through:  # the server has a model for each
            tensors[client] = layout.tensors(task.weights)
    missed = deliver_models(registry, folder.settings["fingerprint"], clusters.members, tensors, own)
    if missed:
        print(f"did not get their model: {listed(missed)}", flush=True)
    known = {name: str(report.node) for name, report in registry.known.items()}
    refused = {str(node): name for node, name in registry.refused.items()}
    folder.write_json("nodes.json", {"nodes": known, "refused": refused, "missed": missed})


__all__ = ["serve", "server_app", "settings_of"]
