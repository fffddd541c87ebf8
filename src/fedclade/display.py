"""What a person sees of a run: its progress, and what came of it."""

import os
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedclade.errors import FedcladeError

if TYPE_CHECKING:
    import pandas as pd

    from fedclade.compare import PlannedRun
    from fedclade.rounds import Progress
    from fedclade.runs.folder import RunFolder

PLAIN_WIDTH = 160  # of what goes to a file or another program
LARGEST_GRID = 12  # clusters or groups that a who-is-where table shows


def make_console() -> Console:
    """Standard output, on which text is just text: a client may be called `[red]` or `:smile:`."""
    measured = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(markup=False, highlight=False, emoji=False, width=None if measured else PLAIN_WIDTH)


def make_table(*columns: str, right: Sequence[str] = ()) -> Table:
    """An empty table in the house's plain style; the columns named in `right` hold numbers."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


# --- words ------------------------------------------------------------------------------------------------------------


def size_in_words(count: float) -> str:
    """`1.2 MB`"""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


def time_in_words(seconds: float) -> str:
    """`4.2 s`, `3 min 12 s`, `2 h 5 min`"""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def counted(number: int, word: str) -> str:
    """`1 cluster`, `4 clusters`"""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


# --- progress ---------------------------------------------------------------------------------------------------------


class RoundsDisplay:
    """Shows each round as it ends: in a live bar on a terminal, as a line elsewhere. A run calls it with a Progress."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self.console = console
        self.accuracy: float | None = None  # the last that was measured
        self.failures = 0
        self.bar: Bar | None = None
        if console.is_interactive:
            bar = BarColumn(min(max(console.width - 80, 4), 24))  # what the words leave of the line
            words, left = TextColumn("{task.description}"), TextColumn("{task.fields[left]}")
            self.bar = Bar(SpinnerColumn(), words, bar, TimeRemainingColumn(compact=True), left, console=console)
            self.task = self.bar.add_task("getting ready", total=None, left="")

    def __enter__(self) -> "RoundsDisplay":
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()

    def __call__(self, progress: "Progress") -> None:
        self.accuracy = progress.accuracy if progress.accuracy is not None else self.accuracy
        self.failures += progress.failures
        if self.bar is None:
            self.console.print(self._line(progress, progress.accuracy))
            return
        left = "left" if progress.round < progress.rounds else ""
        line = self._line(progress, self.accuracy)
        self.bar.update(self.task, description=line, total=progress.rounds, completed=progress.round, left=left)

    def _line(self, progress: "Progress", accuracy: float | None) -> str:
        facts = [
            f"round {progress.round}/{progress.rounds}",
            f"accuracy {share(accuracy)}",
            f"clusters {progress.clusters}",
            f"up {size_in_words(progress.bytes_up)}",
            f"down {size_in_words(progress.bytes_down)}",
        ]
        return "  ".join([*facts, f"failures {self.failures}"] if self.failures else facts)


class StudyDisplay:
    """Shows a study: how many of its runs have ended and how far the others are, read from their folders.

    Live on a terminal; elsewhere only a line for each run that ends.
    """

    def __init__(self, console: Console, runs: "Sequence[PlannedRun]") -> None:
        from rich.live import Live

        self.console = console
        self.runs = runs
        self.done = sum(run.folder.is_finished for run in runs)
        self.live = Live(get_renderable=self._state, console=console, refresh_per_second=2, transient=True)

    def __enter__(self) -> "StudyDisplay":
        if self.console.is_interactive:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.stop()

    def __call__(self, run: "PlannedRun", failure: str | None) -> None:
        self.done += 1
        line = f"{self.done}/{len(self.runs)}  {run.label}, seed {run.seed}: {failure or 'done'}"
        self.console.print(line, soft_wrap=True)

    def _state(self) -> RenderableType:
        from rich.progress_bar import ProgressBar

        lines = make_table("under way", "round", "")
        for run in self.runs:
            if run.folder.is_finished or not run.folder.is_running:
                continue
            rounds = int(run.folder.settings["settings"]["rounds"])
            done = run.folder.last_round or 0
            lines.add_row(f"{run.label}, seed {run.seed}", f"{done}/{rounds}", ProgressBar(rounds or 1, done, width=24))
        whole = Table.grid(padding=(0, 1))
        whole.add_row(ProgressBar(len(self.runs), self.done, width=40), f"{self.done} of {len(self.runs)} runs done")
        return Group(lines, whole)


# --- outcome ----------------------------------------------------------------------------------------------------------


def outcome(folder: "RunFolder") -> RenderableType:
    """What a run found; of one that has not ended, how far it has come and how to go on."""
    record = folder.settings
    try:
        parts = _ended(folder, record) if folder.is_finished else _under_way(folder, record)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FedcladeError(f"{folder.path}: the files of this run are damaged ({error!r}); run it again") from error
    return Group(*parts)


def _ended(folder: "RunFolder", record: Mapping[str, Any]) -> list[RenderableType]:
    from fedclade.events import hidden_groups

    result, members = folder.read_json("result.json"), folder.read_json("clusters.json")["members"]
    history = folder.table("history")
    groups = hidden_groups(record, result["rounds"])
    facts = {
        "clusters": _agreement(result["clusters"], groups),
        "rounds": str(result["rounds"]),
        "traffic": _traffic(result["bytes"]),
        "failures": _failures(history),
        "time": time_in_words(result["seconds"]),
        "run": str(folder.path),
    }
    accuracy = _accuracy_table(result["accuracy"], result["accuracy_local"], history)
    where, warning = _who_is_where(members, groups), _nobody_trained(history)
    return [_headline(record), Text(), accuracy, Text(), _facts(facts), *where, *warning]


def _under_way(folder: "RunFolder", record: Mapping[str, Any]) -> list[RenderableType]:
    from fedclade.events import hidden_groups

    rounds, resume = record["settings"]["rounds"], f"go on with: fedclade resume {shlex.quote(str(folder.path))}"
    if record["settings"].get("engine") == "flower":
        resume = "go on with: flwr run, and this folder as `out`"
    what_next = "it is running now" if folder.is_running else resume
    saved = folder.last_checkpoint()
    if saved is None:
        return [_headline(record), Text(f"not one of {rounds} rounds has ended yet; {what_next}")]
    number, state = saved
    history = folder.table("history")
    members = {str(cluster): clients for cluster, clients in state["members"].items()}
    facts = {
        "clusters": counted(len(members), "cluster"),
        "rounds": f"{number} of {rounds} have ended; {what_next}",
        "traffic": _traffic(state["bytes"]),
        "failures": _failures(history),
        "time": time_in_words(state["seconds"]),
        "run": str(folder.path),
    }
    served, own = (_spread(_last_seen(history, column)) for column in ("accuracy", "accuracy_local"))
    accuracy, groups = _accuracy_table(served, own, history), hidden_groups(record, number)
    return [_headline(record), Text(), accuracy, Text(), _facts(facts), *_who_is_where(members, groups)]


def _headline(record: Mapping[str, Any]) -> Text:
    settings = record["settings"]
    clients = counted(len(record["clients"]), "client")
    words = f"{settings['method']['name']} on {settings['data']} ({record['split']}): "
    return Text(f"{words}{clients}, model {settings['model']}, seed {settings['seed']}", style="bold")


def _facts(facts: Mapping[str, str]) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, words in facts.items():
        table.add_row(Text(name, style="dim"), Text(words, overflow="fold"))
    return table


def _accuracy_table(served: Mapping[str, Any], own: Mapping[str, Any], history: "pd.DataFrame") -> Table:
    n_present = len(_present(history))
    table = make_table("accuracy", "mean", "std", "worst", "worst client", right=("mean", "std", "worst"))
    for name, spread, column in (("served models", served, "accuracy"), ("clients' own", own, "accuracy_local")):
        seen = _last_seen(history, column)
        worst = str(seen.idxmin()) if len(seen) else ""
        if 0 < len(seen) < n_present:  # only those who have trained have a model of their own
            worst += f" ({len(seen)} of {n_present} clients measured)"
        table.add_row(name, share(spread["mean"]), share(spread["std"]), share(spread["worst"]), worst)
    return table


def _last_seen(history: "pd.DataFrame", column: str) -> "pd.Series":
    """The last accuracy that was measured of each client that is still there."""
    seen = history[history["client"].isin(_present(history))].dropna(subset=[column])
    return seen.groupby("client")[column].last()


def _present(history: "pd.DataFrame") -> "pd.Series":
    return history.loc[history["round"] == history["round"].max(), "client"]


def _spread(values: "pd.Series") -> dict[str, float | None]:
    if not len(values):
        return {"mean": None, "std": None, "worst": None}
    return {"mean": float(values.mean()), "std": float(values.std(ddof=0)), "worst": float(values.min())}


def _agreement(clusters: Mapping[str, Any], groups: Mapping[str, int] | None) -> str:
    found = f"{clusters['found']} found"
    if groups is None or clusters["ari"] is None:
        return f"{found} (hidden groups are not known)"
    hidden = counted(len(set(groups.values())), "hidden group")
    return f"{found}, {hidden}: ARI {clusters['ari']:.3f}, NMI {clusters['nmi']:.3f}"


def _traffic(bytes: Mapping[str, int]) -> str:
    return f"{size_in_words(bytes['up'])} up, {size_in_words(bytes['down'])} down"


def _failures(history: "pd.DataFrame") -> str:
    failed = history[history["failure"] != ""]
    if not len(failed):
        return "none"
    last = failed.iloc[-1]
    return f"{len(failed)}; the last: {last['client']} in round {last['round']}, {last['failure']}"


def _nobody_trained(history: "pd.DataFrame") -> list[RenderableType]:
    """A warning where every training failed: the models are those that the run began with."""
    failed = history[history["failure"] != ""]
    if history["trained"].any() or not len(failed):
        return []
    why = failed["failure"].iloc[-1]
    cure = "lower training.learning_rate" if "not finite" in why else "mend the clients or the training settings"
    return [Text(), Text(f"nobody trained in any round ({why}): {cure}, and run again", style="bold")]


def _who_is_where(members: Mapping[str, Sequence[str]], groups: Mapping[str, int] | None) -> list[RenderableType]:
    """How many clients of each hidden group are in each cluster, where that is known and small enough to read."""
    hidden = sorted(set(groups.values())) if groups else []
    if groups is None or len(members) < 2 or max(len(hidden), len(members)) > LARGEST_GRID:
        return []
    columns = [f"group {group}" for group in hidden]
    table = make_table("clients of", *columns, right=columns)
    for cluster, clients in members.items():
        held = Counter(groups[client] for client in clients)
        table.add_row(f"cluster {cluster}", *(str(held[group] or ".") for group in hidden))
    return [Text(), table]
