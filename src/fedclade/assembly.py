"""One place that makes a run from its settings: federation, networks, engine, loop. Every way in comes through here."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedclade.clients.objective import label_statistics
from fedclade.data import Federation, federation_of
from fedclade.errors import FedcladeError
from fedclade.methods import Method, name_of
from fedclade.models.assigned import Networks, Spec, specs_of
from fedclade.rounds import Loop, Progress
from fedclade.runs.folder import RunFolder
from fedclade.runs.record import IN_PYTHON
from fedclade.settings import Settings
from fedclade.tracking import tracking

if TYPE_CHECKING:
    from fedclade.ask import Engine


FEW_STEPS, ENOUGH_STEPS = 100, 200  # of a client in a run: with fewer, networks have hardly begun to learn
MOST_EPOCHS = 20  # in a round, where a run chooses
FEW_CLIENTS = 5_000  # of whom the locally trained models are kept unless a run says otherwise


def make_federation(settings: Settings, data: Any = None) -> Federation:
    """The clients of a run; `data` are those that were given in Python."""
    federation = federation_of(
        settings.data if data is None else data,
        settings.split,
        settings.clients,
        settings.seed,
        settings.test_view,
        settings.data_dir,
        options=settings.reading,
    )
    return federation.limited(settings.rows, settings.seed)


def fitted(settings: Settings, federation: Federation) -> Settings:
    """The settings with the task as all clients' labels make it."""
    if federation.labels != "numbers":
        return settings
    told = [label_statistics(federation.y[client.train]) for client in federation.clients]
    return settings.model_copy(update={"task": settings.task.fitted(told)})


def long_enough(settings: Settings, rows: Sequence[int]) -> tuple[Settings, list[str]]:
    """The settings with as many epochs as clients' numbers of rows ask for, where nobody has said how long they train.

    Two epochs of few rows are so few steps that networks would hardly begin to learn. What is done is said.
    """
    if not settings.is_open_ended or settings.method.about.sends == "raw rows" or not rows:
        return settings, []
    training, usual = settings.training, round(float(np.median(rows)))
    by_one_epoch = settings.rounds * settings.participation * max(training.steps_an_epoch(usual), 1)
    steps, epochs = by_one_epoch * training.local_epochs, min(math.ceil(ENOUGH_STEPS / by_one_epoch), MOST_EPOCHS)
    if steps >= FEW_STEPS:
        return settings, []
    said = (
        f"few rows ({usual}, the median): clients go through them {epochs} times a round, not {training.local_epochs}, "
        f"for {by_one_epoch * epochs:.0f} steps in place of {steps:.0f} (training.local_epochs sets another number)"
    )
    return settings.training_for(epochs), [said]


def make_networks(
    settings: Settings, model: Any, clients: Sequence[str], input_shape: tuple[int, ...], n_classes: int
) -> Networks:
    """The networks of a run. A model that does not fit the rows is known now."""
    specs = specs_of(model) or specs_of(settings.task.default_model)
    networks = settings.method.networks(specs, clients, input_shape, n_classes)
    for factory in networks.factories.values():
        factory()
    return networks


def check_task(settings: Settings, federation: Federation, networks: Networks) -> None:
    """Make sure that a method can do with the task's labels, and a task with the network's outputs."""
    check_labels(settings)
    if networks.of:
        return
    import torch

    from fedclade.clients.networks import PlainNetwork

    x, y = (torch.from_numpy(np.array(rows[:2])) for rows in (federation.x, federation.y))
    task, network = settings.task, PlainNetwork(networks.factories[""](), settings.task)
    try:
        with torch.no_grad():
            outputs = network.module.eval()(network.inputs(x)).float()
            losses = task.losses(outputs, y)
            task.measure(losses.numpy(), task.notes(outputs).numpy(), y.numpy())
        task.row_weights(federation.y[:2], federation.classes)
    except FedcladeError:
        raise
    except Exception as error:  # a person's own network, loss or metric
        told = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        raise FedcladeError(f"task {task.name} does not work with this model and these labels ({told})") from error


def check_labels(settings: Settings) -> None:
    """Methods that look at classes cannot do without."""
    about = getattr(settings.method, "about", None)  # a person's own method may say nothing of itself
    if about is not None and about.needs_labels and not settings.task.has_classes:
        name = name_of(settings.method)
        raise FedcladeError(f"method {name!r} looks at class labels, which task {settings.task.name!r} does not have")


def model_name(specs: Sequence[Spec]) -> str:
    """What a record says of the models that were named."""
    return ",".join(specs) if all(isinstance(spec, str) for spec in specs) else IN_PYTHON  # type: ignore[arg-type]


def check_number_of_clusters(method: Method, n_clients: int) -> None:
    """More clusters than clients were asked for by mistake; a default that is too large gives one to each."""
    wanted = getattr(method, "n_clusters", None)
    if isinstance(wanted, int) and wanted > n_clients and "n_clusters" in method.model_fields_set:
        raise FedcladeError(f"n_clusters is {wanted}, but there are {n_clients} clients: ask for at most so many")


def make_engine(folder: RunFolder, settings: Settings, federation: Federation, networks: Networks) -> "Engine":
    shared: dict[str, Any] = {
        "seed": settings.seed,
        "training": settings.pace,
        "memory": folder.path / "clients",
        "task": settings.task,
        "device": settings.device,
        "workers": settings.workers,
        "timeout": settings.timeout,
    }
    if settings.engine == "flower-sim":
        from fedclade.engines.simulation import simulated_engine

        return keeping(settings, simulated_engine(federation, networks, **shared, address=settings.engine_address))
    from fedclade.engines.local import local_engine

    return keeping(settings, local_engine(federation, networks, **shared))


def keeping(settings: Settings, engine: "Engine") -> "Engine":
    """The models that very many clients trained would fill the disk, and one measurement is all they serve for."""
    few = len(engine.clients) <= FEW_CLIENTS
    engine.keeps_models = few if settings.keep_local is None else settings.keep_local
    return engine


def go(
    folder: RunFolder,
    settings: Settings,
    make: Callable[[], "Engine"],
    clients: Sequence[str],
    *,
    groups: Mapping[str, int] | None = None,
    about: Mapping[str, Any] | None = None,
    on_round: Callable[[Progress], None] | None = None,
    trackers: Sequence[str] = (),
    forget_memory: bool = False,
) -> None:
    """Run a run to its end, from wherever its folder stands; `make` makes the engine once the folder is held."""
    hear = on_round or (lambda progress: None)
    with folder, tracking(trackers, folder, settings, hear) as told:
        engine = make()
        try:
            Loop(settings, engine, folder, tuple(clients), groups, about, told, forget_memory).go()
        finally:
            engine.close()
