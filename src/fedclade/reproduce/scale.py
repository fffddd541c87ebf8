"""Settings in layers: what a paper says, what an item, a row or a column adds, and what a scale cuts.

A layer is a table of settings as in a TOML file. Beside those, `methods` may hold settings by the method's name: they
count only where that method runs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedclade.compare.study import whole
from fedclade.errors import unknown
from fedclade.settings import flat

Layer = Mapping[str, Any]

SCALES = ("smoke", "small", "full")


@dataclass(frozen=True)
class Scale:
    """How much of a paper's experiment is run."""

    seeds: tuple[int, ...]
    fits: tuple[str, ...] | None = None  # the data sets that are small enough; None: all of them
    instead: Layer = field(default_factory=dict)  # what a column becomes where not one of an item's columns fits
    most_columns: int | None = None
    settings: Layer = field(default_factory=dict)  # what every run is cut to


@dataclass(frozen=True)
class Cut:
    """Some of an item only, as a person asked for it: some rows and columns, the first seeds, fewer rounds."""

    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    seeds: int | None = None
    rounds: int | None = None

    def keeps(self, row: str, column: str) -> bool:
        return (not self.rows or row in self.rows) and (not self.columns or column in self.columns)

    def check(self, rows: Iterable[str], columns: Iterable[str]) -> None:
        """Names that nothing has are told, with the nearest."""
        for kind, asked, known in (("row", self.rows, list(rows)), ("column", self.columns, list(columns))):
            for name in asked:
                if name not in known:
                    raise unknown(kind, name, known)

    def of_rounds(self, settings: Layer) -> dict[str, Any]:
        return dict(settings) if self.rounds is None else {**settings, "rounds": min(self.rounds, settings["rounds"])}


def participation(share: float) -> dict[str, Any]:
    """So large a share of the clients takes part in a round."""
    return {"participation": share}


def participation_in(settings: Layer) -> float:
    return float(settings.get("participation", 1.0))


def merged(*layers: Layer) -> dict[str, Any]:
    """One table of several: later layers win, tables inside are merged alike."""
    whole: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            both = isinstance(value, Mapping) and isinstance(whole.get(name), Mapping)
            whole[name] = merged(whole[name], value) if both else value
    return whole


def combined(layers: Sequence[Layer]) -> dict[str, Any]:
    """The settings of one run, with what the layers say of its method put in."""
    name = merged(*layers)["method"]["name"]
    resolved = []
    for layer in layers:
        special = layer.get("methods", {}).get(name, {})
        plain = {key: value for key, value in layer.items() if key != "methods"}
        resolved.append(merged(plain, {"method": special}) if special else plain)
    whole = merged(*resolved)
    clients, wanted = whole.get("clients"), whole["method"].get("n_clusters")
    if clients and isinstance(wanted, int) and wanted > clients:  # a scale that cuts the clients cuts the clusters
        whole["method"] = {**whole["method"], "n_clusters": clients}
    return whole


def differences(pairs: Iterable[tuple[Layer, Layer]]) -> list[str]:
    """In which settings runs differ from the paper's, as `rounds 30 (paper: 200)`; pairs are (the paper's, ours)."""
    seen: dict[str, dict[str, None]] = {}
    for theirs, ours in pairs:
        plain, cut = flat(whole(theirs)), flat(whole(ours))
        for name in (name for name in cut if cut[name] != plain[name]):
            words = f"{_word(name, cut[name])} (paper: {_word(name, plain[name])})"
            seen.setdefault(name, {})[words] = None
    return [f"{name} {', '.join(words)}" for name, words in seen.items()]


def settings_table(given: Mapping[tuple[str, str], Layer]) -> list[list[str]]:
    """A table of the settings of cells (row, column): what all have, what a column or a row has, and what is left."""
    if not given:
        return []
    left = {cell: flat(settings) for cell, settings in given.items()}
    table = [["runs", "settings"]]

    def take(runs: str, cells: Sequence[tuple[str, str]]) -> None:
        shared = {
            name: value
            for name, value in left[cells[0]].items()
            if all(name in left[cell] and left[cell][name] == value for cell in cells)
        }
        if shared:
            table.append([runs, ", ".join(f"{name} {_word(name, value)}" for name, value in shared.items())])
        for cell in cells:
            left[cell] = {name: value for name, value in left[cell].items() if name not in shared}

    take("all", list(left))
    for place in (1, 0):
        for name in dict.fromkeys(cell[place] for cell in left):
            take(name, [cell for cell in left if cell[place] == name])
    for cell in left:
        take(", ".join(word for word in cell if word), [cell])
    return table


def _word(name: str, value: Any) -> str:
    if isinstance(value, list | tuple):
        return " and ".join(_word(name, each) for each in value) or "none"
    if isinstance(value, Mapping):
        return " ".join(f"{key} {_word(key, inner)}" for key, inner in value.items() if inner)
    return ("all" if name in ("rows", "clients") else "none") if value is None else str(value)
