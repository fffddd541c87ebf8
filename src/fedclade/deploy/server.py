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

from fedclade.api import OWN_MODEL, record_about, settings_from_record
from fedclade.clients.memory import Memory
from fedclade.deploy.brief import Brief, recipes_of
from fedclade.engines.deployed import DeployedEngine, NodeRegistry, agreed, whoever_comes
from fedclade.engines.transport import GridTransport
from fedclade.errors import FedcladeError, listed
from fedclade.files import write_json
from fedclade.methods import Method
from fedclade.models.assigned import Networks, specs_of
from fedclade.rounds import Loop, Progress
from fedclade.runs.folder import RunFolder
from fedclade.settings import Settings, settings_from, with_assignments

OWN_KEYS = {"out", "wait", "keys", "set"}  # of the run config, besides the settings of a run
NOT_HERE = ("data", "split", "test_view", "data_dir", "events", "workers", "engine")  # where rows lie, nodes say


def server_app() -> Any:
    """The Flower ServerApp of a federation."""
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp

    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(grid, context.run_config)

    return app


def serve(grid: Any, config: Mapping[str, Any]) -> RunFolder:
    """Run a federation on a grid, from its start or from where its run folder stands."""
    import torch

    torch.set_num_threads(1)
    settings = settings_of(config)
    name = f"{settings.method['name']}-{settings.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    out = Path(str(config.get("out") or f"runs/{name}"))
    print(f"run folder: {out.absolute()}", flush=True)
    registry = NodeRegistry(GridTransport(grid, settings.timeout), keys=bool(config.get("keys", True)))
    is_old = (out / "settings.json").is_file()
    folder = RunFolder.open(out) if is_old else RunFolder(out).unused()
    if is_old:
        settings = _as_begun(folder, settings)
        registry.bound = dict(folder.settings["nodes"])
    wanted = len(_clients_of(folder)) if is_old else settings.clients or 2
    whoever_comes(registry, wanted, float(config.get("wait", 60)))
    method = settings.make_method()
    if type(method).arrange is not Method.arrange:
        raise FedcladeError(f"method {settings.method['name']!r} needs all rows in one place: nodes keep theirs")
    if not is_old:
        folder = _begin(out, settings, method, registry)
    _go(folder, settings, method, registry)
    return folder


def settings_of(config: Mapping[str, Any]) -> Settings:
    """The settings of a run from Flower's flat run config; `set` holds more of them, as for `fedclade run --set`."""
    values: dict[str, Any] = {}
    for name, value in config.items():
        if name in OWN_KEYS or value == "":
            continue
        table, keys = values, name.replace("-", "_").split(".")
        for key in keys[:-1]:
            table = table.setdefault(key, {})
        table[keys[-1]] = value
    values = with_assignments(values, shlex.split(str(config.get("set", ""))))
    for name in NOT_HERE:
        if name in values:
            raise FedcladeError(f"setting {name!r} has no meaning for real nodes: each says by itself what data it has")
    return settings_from({**values, "data": "nodes", "engine": "flower", "workers": 1})


def _begin(out: Path, settings: Settings, method: Method, registry: NodeRegistry) -> RunFolder:
    reports = whoever_comes(registry, 0, 0)
    shape, classes, columns = agreed(reports)
    networks = _networks(settings, method, [report.client for report in reports], shape, len(classes))
    if not all(isinstance(spec, str) for spec in networks.specs):
        raise FedcladeError(f"the model {OWN_MODEL!r} cannot travel: name it as my_module:make_net")
    named = settings.model_copy(update={"model": ",".join(map(str, networks.specs))})
    groups = {report.client: report.group for report in reports}
    record = {
        "settings": named.model_dump(mode="json"),
        "split": "own",
        "clients": list(groups),
        "groups": None if None in groups.values() else groups,
        "classes": list(classes),
        "input_shape": list(shape),
        "columns": list(columns),
        "fingerprint": uuid.uuid4().hex[:12],  # nodes know the run by it
        "nodes": dict(registry.bound),
        **record_about(),
    }
    return RunFolder.create(out, record)


def _as_begun(folder: RunFolder, settings: Settings) -> Settings:
    """The settings that a run began with; only the number of rounds and the time limit may change."""
    begun = settings_from_record(folder.settings)
    if begun.engine != "flower":
        raise FedcladeError(f"{folder.path} holds a run that was not on Flower nodes: choose another `out`")
    now = begun.model_copy(update={"rounds": settings.rounds, "timeout": settings.timeout})
    ours, theirs = now.model_dump(mode="json"), settings.model_dump(mode="json")
    free = {"clients"} | ({"model"} if settings.model is None else set())
    changed = [name for name in ours if name not in free and ours[name] != theirs[name]]
    if changed:
        raise FedcladeError(
            f"{folder.path} holds a run with another {listed(changed)}: choose another `out`, or go on with the same"
        )
    saved = folder.last_checkpoint()
    if saved is not None and saved[0] > now.rounds:
        raise FedcladeError(f"the run in {folder.path} is past round {saved[0]} already: ask for more rounds than that")
    folder.update_settings({**folder.settings, "settings": now.model_dump(mode="json")})
    return now


def _clients_of(folder: RunFolder) -> list[str]:
    """Who took part at the last checkpoint: those who began, and those who came later, in that order."""
    saved = folder.last_checkpoint()
    later = saved[1].get("arrivals", {}) if saved is not None else {}
    late = [name for number in sorted(later, key=int) for name in later[number]]
    return [*(name for name in folder.settings["clients"] if name not in late), *late]


def _networks(
    settings: Settings, method: Method, clients: Sequence[str], shape: tuple[int, ...], n_classes: int
) -> Networks:
    networks = method.networks(specs_of(settings.model), clients, shape, n_classes)
    for factory in networks.factories.values():
        factory()  # a model that does not fit the rows must be known now
    return networks


def _go(folder: RunFolder, settings: Settings, method: Method, registry: NodeRegistry) -> None:
    record = folder.settings
    shape, classes = tuple(record["input_shape"]), tuple(record["classes"])
    begun, everyone = record["clients"], _clients_of(folder)
    session = uuid.uuid4().hex[:12]

    def networks_for(clients: Sequence[str]) -> Networks:
        return _networks(settings, method, clients, shape, len(classes))

    def closed(progress: Progress) -> None:
        _tell(progress)
        if folder.settings["nodes"] != registry.bound:  # the names of those who came late belong to their keys too
            folder.update_settings({**folder.settings, "nodes": dict(registry.bound)})

    recipes = recipes_of(networks_for(everyone))
    brief = Brief(
        run=record["fingerprint"],
        session=session,
        since=-1,
        seed=settings.seed,
        training=settings.training,
        classes=classes,
        columns=tuple(record.get("columns", ())),
        rows=settings.rows,
        recipes=recipes,
        network="",
    )
    with folder:
        engine = DeployedEngine(registry, everyone, classes, networks_for, brief, Memory(folder.path / "clients"))
        loop = Loop(
            method,
            engine,
            folder,
            tuple(begun),
            settings.training,
            settings.seed,
            settings.rounds,
            settings.evaluate_every,
            settings.evaluate_local_every,
            record["groups"],
            quorum=settings.quorum,
            on_round=closed,
        )
        about = {
            "method": settings.method["name"],
            "data": settings.data,
            "split": "own",
            "model": settings.model,
            "seed": settings.seed,
            "clients": len(begun),
            **engine.facts,
            "layout": engine.layout.to_json(),
        }
        loop.go(about)
        _deliver(engine, folder)


def _tell(progress: Progress) -> None:
    accuracy = "" if progress.accuracy is None else f", accuracy {progress.accuracy:.3f}"
    failures = f", failures {progress.failures}" if progress.failures else ""
    clusters = f"{progress.clusters} cluster{'s' if progress.clusters != 1 else ''}"
    print(f"round {progress.round} of {progress.rounds}: {clusters}{accuracy}{failures}", flush=True)


def _deliver(engine: DeployedEngine, folder: RunFolder) -> None:
    """Every node gets its cluster's model; who is where, and which node was refused, is written down."""
    saved = folder.last_checkpoint()
    assert saved is not None
    missed = engine.deliver(saved[1]["members"], saved[1]["models"])
    if missed:
        print(f"did not get their model: {listed(missed)}", flush=True)
    known = {name: str(report.node) for name, report in engine.registry.known.items()}
    refused = {str(node): name for node, name in engine.registry.refused.items()}
    write_json(folder.path / "nodes.json", {"nodes": known, "refused": refused, "missed": missed})


__all__ = ["serve", "server_app", "settings_of"]
