"""What a run folder says of how a run was begun: every setting as used, what they met, and with which versions."""

import hashlib
import importlib.metadata
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedclade.clients.objective import Metric, Objective, record_of
from fedclade.errors import FedcladeError, imported
from fedclade.methods import METHODS, Method, name_of
from fedclade.settings import Settings, settings_from

IN_PYTHON = "own"  # what the record says of data or models given as Python objects


def own_code(settings: Settings) -> dict[str, str]:
    """A mark of each file of a person's own that a method or model comes from: another text is another method."""
    names = [name_of(settings.method), *(settings.model or "").split(",")]
    own = {name.partition(":")[0]: name for name in names if ":" in name}
    files = {}
    for module, name in sorted(own.items()):
        if module.partition(".")[0] != "fedclade":  # of which the record has the version
            imported(name, "model")
            files[module] = getattr(sys.modules[module], "__file__", None)
    return {module: hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16] for module, file in files.items() if file}


def circumstances() -> dict[str, dict[str, Any]]:
    """What the bits of a run hang on beside its settings and data."""
    from fedclade.clients.batched.kernel import KERNEL

    packages = ("fedclade", "torch", "numpy", "scipy", "scikit-learn")
    return {
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in packages},
        },
        "machine": {
            "system": platform.system(),
            "processor": platform.machine(),
            "kernel": "none" if KERNEL is None else f"{KERNEL.lanes} lanes",
        },
    }


def changed_circumstances(record: Mapping[str, Any]) -> list[str]:
    """In what a run would go on otherwise than it began, in words."""
    return [
        f"{name} ({record[kind][name]}, now {now})"
        for kind, facts in circumstances().items()
        for name, now in facts.items()
        if record.get(kind, {}).get(name, now) != now
    ]


def changed_code(record: Mapping[str, Any], settings: Settings) -> list[str]:
    """The files of a person's own that read otherwise than when a run was begun."""
    known = record.get("code", {})
    return [name for name, mark in own_code(settings).items() if known.get(name, mark) != mark]


def run_record(
    settings: Settings,
    *,
    clients: Sequence[str],
    fingerprint: str,
    split: str = "own",
    groups: Mapping[str, int] | None = None,
    classes: Sequence[str] = (),
    input_shape: Sequence[int] = (),
    columns: Sequence[str] = (),
    metrics: Sequence[Metric] = (),
    task: Objective | None = None,
    **more: Any,
) -> dict[str, Any]:
    """What settings.json holds."""
    return {
        "settings": settings.model_dump(mode="json"),
        "task": record_of(task or settings.task),  # as all clients' labels made it
        "split": split,
        "clients": list(clients),
        "groups": None if groups is None else dict(groups),
        "classes": list(classes),
        "input_shape": list(input_shape),
        "columns": list(columns),
        "metrics": [asdict(metric) for metric in metrics or settings.task.measured],  # the main one first
        "fingerprint": fingerprint,
        "code": own_code(settings),
        **more,
        **circumstances(),
        "command": sys.argv[1:] if Path(sys.argv[0]).name == "fedclade" else None,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def recorded_settings(
    record: Mapping[str, Any], path: Path | str, method: Method | None = None, task: Any = None, **changes: Any
) -> Settings:
    """The settings of a run again, some of them changed. A method or task that cannot be imported must be given."""
    values = {**record.get("settings", {}), **{name: value for name, value in changes.items() if value is not None}}
    values["task"] = task or record.get("task", {"name": "classification"})
    if isinstance(values["task"], Mapping) and IN_PYTHON in (
        values["task"].get("loss"),
        *values["task"].get("metrics", ()),
    ):
        raise FedcladeError(f"the run in {path} was given its task in Python: give it again as task=...")
    told = values.get("method", {})
    name = told.get("name") if isinstance(told, Mapping) else told
    if method is None and isinstance(name, str) and name not in METHODS and ":" not in name:
        raise FedcladeError(f"the run in {path} was given its method {name} in Python: give it again as method=...")
    return settings_from({**values, **({} if method is None else {"method": method})})


def with_settings(record: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """A record with changed settings; its task stays as it was given."""
    changed = settings.model_dump(mode="json")
    return {**record, "settings": {**changed, "task": record["settings"]["task"]}}
