"""What is compared with what: a study is a grid of settings and seeds, and every cell of it an ordinary run."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedclade.errors import FedcladeError
from fedclade.runs.folder import RunFolder


class Cell(BaseModel):
    """One row of the table: a label, and the settings in which it differs from the others."""

    model_config = ConfigDict(frozen=True, extra="allow")

    label: str

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class Study(BaseModel):
    """What is compared with what."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str = "Comparison"
    seeds: tuple[int, ...] = Field(default=(0, 1, 2), min_length=1)
    target: float | None = None  # of the main metric: the table says after how many rounds and bytes it is reached
    settings: dict[str, Any] = Field(default_factory=dict)  # what all cells share
    cells: tuple[Cell, ...] = Field(min_length=1)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Study":
        from fedclade.settings import in_one_line, settings_from

        try:
            study = cls(**values)
        except ValidationError as error:
            raise FedcladeError(in_one_line(error, "study", cls.model_fields)) from None
        labels = [cell.label for cell in study.cells]
        if len(set(labels)) < len(labels):
            raise FedcladeError("study: two cells have the same label: give each its own")
        for cell in study.cells:  # what is wrong must be known before hours of work
            settings_from(study.settings_of(cell))
        return study

    def settings_of(self, cell: Cell) -> dict[str, Any]:
        from fedclade.settings import merged

        return merged(self.settings, cell.settings)

    def runs(self, out: Path) -> "list[PlannedRun]":
        return [
            PlannedRun(
                cell.label,
                seed,
                {**self.settings_of(cell), "seed": seed},
                out / _name(cell.label) / f"seed-{seed}",
            )
            for cell in self.cells
            for seed in self.seeds
        ]


@dataclass(frozen=True)
class PlannedRun:
    label: str
    seed: int
    settings: Mapping[str, Any]
    path: Path

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.path)

    @property
    def mark(self) -> str:
        return mark_of(self.settings)

    def check(self) -> None:
        """Refuse to take a run for this one that was made with other settings."""
        from fedclade.runs.record import changed_code
        from fedclade.settings import flat, settings_from

        if not (self.path / "settings.json").is_file():
            return
        made = self.folder.settings["settings"]
        asked = settings_from(self.settings).from_anywhere()
        if changed := changed_code(self.folder.settings, asked):
            raise FedcladeError(
                f"{self.path} was made with another text of {changed[0]}: delete it, or choose another --out"
            )
        if asked.is_open_ended:  # the run has settled it
            asked = asked.training_for(made["training"]["local_epochs"])
        wanted = asked.model_dump(mode="json", exclude={"workers", "data_dir", "timeout"})
        if wanted["model"] is None:  # the default, whose name is recorded
            wanted["model"] = made["model"]
        before, now = flat(made), flat(wanted)
        for name in now.keys() & before.keys():  # older runs may know fewer settings
            if now[name] != before[name]:
                raise FedcladeError(
                    f"{self.path} was made with {name} = {before[name]!r}, not {now[name]!r}: "
                    "delete it, or choose another --out"
                )


ELSEWHERE = {"workers", "data_dir", "engine", "timeout", "seed"}  # settings that do not change what an experiment is


def whole(settings: Mapping[str, Any]) -> dict[str, Any]:
    """All that makes up a run but its seed: checked settings, with defaults filled in."""
    from fedclade.settings import settings_from

    checked = settings_from(settings)
    return {name: value for name, value in checked.model_dump(mode="json").items() if name not in ELSEWHERE}


def mark_of(settings: Mapping[str, Any]) -> str:
    """A name for a run but for its seed: its method, and a hash of what tells it from a plain run of that method.

    Settings that are added to fedclade later do not change it.
    """
    from fedclade.settings import flat

    mine = flat(whole(settings))
    method = mine["method.name"]
    usual = flat(whole({"method": {"name": method}}))
    telling = {name: value for name, value in mine.items() if name == "method.name" or usual.get(name) != value}
    digest = hashlib.sha256(json.dumps(telling, sort_keys=True).encode()).hexdigest()
    return f"{method.rpartition(':')[2].lower()}-{digest[:12]}"


def _name(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9._=-]+", "-", label).strip("-.") or "cell"
