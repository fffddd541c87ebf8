"""Run a federation from Python: `run`, `resume`, `load`, and the `Result` that they give."""

import shutil
import tempfile
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedclade.assembly import (
    check_number_of_clusters,
    check_task,
    fitted,
    go,
    long_enough,
    make_engine,
    make_federation,
    make_networks,
    model_name,
)
from fedclade.clients.tasks import Training
from fedclade.data import Federation, fingerprint
from fedclade.errors import FedcladeError, listed
from fedclade.methods import Method, method_class
from fedclade.models.assigned import Networks, specs_of
from fedclade.result import BASELINES, Result
from fedclade.rounds import Progress
from fedclade.runs.folder import RunFolder
from fedclade.runs.record import (
    IN_PYTHON,
    changed_circumstances,
    changed_code,
    recorded_settings,
    run_record,
    with_settings,
)
from fedclade.settings import Settings, settings_from
from fedclade.tracking import named_trackers

if TYPE_CHECKING:
    from torch import nn


def run(
    data: Any = "digits",
    *,
    method: str | Mapping[str, Any] | Method | None = None,
    model: "str | Callable[..., nn.Module] | Sequence[str | Callable[..., nn.Module]] | None" = None,
    training: Training | Mapping[str, Any] | None = None,
    out: Path | str | None = None,
    on_round: Callable[[Progress], None] | None = None,
    track: str | Sequence[str] | None = None,
    **settings: Any,
) -> Result:
    """Run a method on a federation and return its result.

    `data` and `model` may be names or Python objects (see `fedclade.data.federation_of` and `fedclade.models.make`).
    The other settings are those of the command line: split, clients, rounds, seed, workers, engine, ... Without `out`
    the run folder is temporary and goes away with the result. `track` names what else is told of every round:
    "tensorboard", "mlflow", "wandb", "csv" (see `fedclade.tracking`).
    """
    trackers = named_trackers(track)
    if out is not None:
        RunFolder(out).unused()  # known now, not after reading large data
    is_named = isinstance(data, str) or (isinstance(data, Mapping) and isinstance(data.get("name"), str))
    named: dict[str, Any] = {"data": data if is_named else IN_PYTHON}
    if method is not None:
        named["method"] = method
    named["model"] = None if model is None else model_name(specs_of(model))
    if training is not None:
        named["training"] = training
    checked = settings_from({**named, **settings})
    temporary = None if out is not None else tempfile.mkdtemp(prefix="fedclade-run-")
    place = Path(out if out is not None else str(temporary))
    try:
        result = _begun(place, checked, checked.data if is_named else data, model, on_round, trackers)
    except BaseException:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        raise
    if temporary is not None:
        weakref.finalize(result, shutil.rmtree, temporary, ignore_errors=True)
    return result


def _begun(
    out: Path,
    settings: Settings,
    data: Any,
    model: Any,
    on_round: Callable[[Progress], None] | None,
    trackers: Sequence[str],
) -> Result:
    if settings.engine == "flower":
        if settings.baselines:
            raise FedcladeError("on real processes run the baselines, fedavg and local, by themselves")
        return _on_real_processes(settings, out)
    federation = make_federation(settings, data)
    settings, said = long_enough(settings, [len(client.train) for client in federation.clients])
    check_number_of_clusters(settings.method, len(federation))
    if isinstance(data, str) and settings.workers > 1:
        federation = federation.shared()
    said += [
        f"the event of round {event.round} comes after the last round, {settings.rounds}: who would join then is absent"
        for event in settings.events
        if event.round > settings.rounds
    ]
    networks = make_networks(settings, model, federation.names, federation.input_shape, federation.n_classes)
    ready = fitted(settings, federation)
    check_task(ready, federation, networks)
    settings = settings.model_copy(update={"model": model_name(networks.specs)}).from_anywhere()
    counts = federation.label_counts()
    record = run_record(
        settings,
        clients=federation.names,
        fingerprint=fingerprint(federation),
        split=federation.split,
        groups=federation.groups,
        classes=federation.classes,
        input_shape=federation.input_shape,
        columns=federation.columns,
        label_counts=None if counts is None else counts.tolist(),
        preprocessing=federation.preprocessing.model_dump(mode="json") if federation.preprocessing else None,
        remarks=[*federation.remarks, *said],
        task=ready.task,
    )
    folder = RunFolder.create(out, record)
    folder.write_held_out(federation.held_out)
    try:
        ready = settings.model_copy(update={"task": ready.task})
        return _gone(folder, ready, federation, networks, on_round, trackers)
    except FedcladeError:
        folder.discard_unbegun()
        raise


def _gone(
    folder: RunFolder,
    settings: Settings,
    federation: Federation,
    networks: Networks,
    on_round: Callable[[Progress], None] | None,
    trackers: Sequence[str],
    forget_memory: bool = False,
) -> Result:
    go(
        folder,
        settings,
        partial(make_engine, folder, settings, federation, networks),
        federation.names,
        groups=federation.groups,
        about={"split": federation.split},
        on_round=on_round,
        trackers=trackers,
        forget_memory=forget_memory,
    )
    if settings.baselines:
        _run_baselines(folder, settings, federation, networks, forget_memory)
    return Result(folder, networks, settings.method)


def _run_baselines(
    folder: RunFolder, settings: Settings, federation: Federation, networks: Networks, forget_memory: bool
) -> None:
    """One model for all, and every client alone, on the same rows with the same settings."""
    for name in BASELINES:
        beside = settings.model_copy(update={"method": method_class(name)(), "baselines": False})
        record = with_settings({**folder.settings, "label_counts": None}, beside)
        place = folder.path / "baselines" / name
        is_begun = (place / "settings.json").is_file()
        run = RunFolder.open(place) if is_begun else RunFolder.create(place, record)
        if run.is_finished and run.settings["settings"]["rounds"] == settings.rounds:
            continue
        if is_begun:
            with run:
                run.update_settings(record)
        shape = federation.input_shape
        nets = make_networks(beside, list(networks.specs[:1]), federation.names, shape, federation.n_classes)
        _gone(run, beside, federation, nets, None, (), forget_memory)


def _on_real_processes(settings: Settings, out: Path) -> Result:
    """The same run on a SuperLink and SuperNodes of this machine, one for each client."""
    from fedclade.errors import needs_flower

    needs_flower("the engine flower")
    from fedclade.deploy.local import run_on_trial

    if IN_PYTHON in (settings.data, settings.model):
        raise FedcladeError("on real processes data and models go by names: give those, or use engine='local'")
    return Result(run_on_trial(settings, out))


def resume(
    path: Path | str,
    *,
    rounds: int | None = None,
    workers: int | None = None,
    data_dir: Path | str | None = None,
    data: Any = None,
    model: "str | Callable[..., nn.Module] | Sequence[str | Callable[..., nn.Module]] | None" = None,
    method: Method | None = None,
    task: Any = None,
    forget_memory: bool = False,
    on_round: Callable[[Progress], None] | None = None,
    track: str | Sequence[str] | None = None,
) -> Result:
    """Go on with a run where it stopped, or add rounds to one that has ended.

    Data, model, method and task that were given as Python objects must be given again, but for those in a module.
    `forget_memory` goes on although what clients remember is lost: they begin again from their cluster's model.
    """
    trackers = named_trackers(track)
    folder = RunFolder.open(path)
    record = folder.settings
    settings = recorded_settings(record, path, method, task, rounds=rounds, workers=workers, data_dir=data_dir)
    if settings.engine == "flower":
        from fedclade.deploy.local import resume_on_trial

        return Result(resume_on_trial(settings, folder.path))
    for what, given, named in (("data", data, settings.data), ("model", model, settings.model)):
        if given is None and named == IN_PYTHON:
            raise FedcladeError(
                f"the run in {path} was given its {what} in Python: go on with fedclade.resume(path, {what}=...)"
            )
    federation = make_federation(settings, data)
    if fingerprint(federation) != record["fingerprint"]:
        raise FedcladeError(f"the data differ from those that the run in {path} began with: give it the same ones")
    if changed := [*changed_code(record, settings), *changed_circumstances(record)]:
        warnings.warn(
            f"since the run in {path} began, {listed(changed)} changed: it may end with other bits than if unbroken",
            stacklevel=2,
        )
    spec = model or settings.model
    networks = make_networks(settings, spec, federation.names, federation.input_shape, federation.n_classes)
    last = folder.last_round
    if last is not None and last > settings.rounds:
        raise FedcladeError(f"the run in {path} is past round {last} already: ask for more rounds than that")
    if rounds is not None:
        with folder:
            folder.update_settings(with_settings(record, settings))
    return _gone(folder, settings, federation, networks, on_round, trackers, forget_memory)


def load(path: Path | str) -> Result:
    """The result of a run that has ended."""
    folder = RunFolder.open(path)
    if not folder.is_finished:
        raise FedcladeError(f"the run in {path} has not ended: go on with `fedclade resume {path}`")
    return Result(folder)


__all__ = ["Result", "load", "resume", "run"]
