"""What a person sees of a run: its progress, and what came of it."""

import os
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    import pandas as pd

    from fedclade.compare.study import PlannedRun
    from fedclade.result import Result
    from fedclade.rounds import Progress

PLAIN_WIDTH = 160  # of what goes to a file or another program
WIDE = 100  # columns of a terminal that has room for the traffic beside the progress of a run
LARGEST_GRID = 12  # clusters or groups that a who-is-where table shows


def make_console(stderr: bool = False) -> Console:
    """Standard output, on which text is just text: a client may be called `[red]` or `:smile:`. Progress: stderr."""
    measured = (sys.stderr if stderr else sys.stdout).isatty() or "COLUMNS" in os.environ
    width = None if measured else PLAIN_WIDTH
    return Console(markup=False, highlight=False, emoji=False, width=width, stderr=stderr)


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


# --- progress ---------------------------------------------------------------------------------------------------------


class RoundsDisplay:
    """Shows each round as it ends: in a live bar on a terminal, as a line elsewhere. A run calls it with a Progress."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self.console = console
        self.score: float | None = None  # the last that was measured
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
        self.score = progress.score if progress.score is not None else self.score
        self.failures += progress.failures
        if self.bar is None:
            self.console.print(self._line(progress, progress.score))
            return
        left = "left" if progress.round < progress.rounds else ""
        line = self._line(progress, self.score)
        self.bar.update(self.task, description=line, total=progress.rounds, completed=progress.round, left=left)

    def _line(self, progress: "Progress", score: float | None) -> str:
        facts = [
            f"round {progress.round}/{progress.rounds}",
            f"{progress.metric.words} {progress.metric.written(score)}",
            f"clusters {progress.clusters}",
            f"up {size_in_words(progress.bytes_up)}",
            f"down {size_in_words(progress.bytes_down)}",
        ]
        if self.bar is not None and self.console.width < WIDE:
            facts = facts[:3]  # so that the time left is seen
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


def outcome(result: "Result") -> RenderableType:
    """What a run found; of one that has not ended, how far it has come and how to go on."""
    from fedclade.result import readable

    with readable(result.path):
        return Group(*_outcome(result))


def _outcome(result: "Result") -> list[RenderableType]:
    if result.round < 0:
        return [_headline(result), Text(f"not one of {result.rounds} rounds has ended yet; {_what_next(result)}")]
    under_way = f" of {result.rounds} have ended; {_what_next(result)}"
    facts = {
        "other metrics": _other_metrics(result),
        "clusters": _agreement(result),
        "rounds": f"{result.round}{'' if result.state == 'ended' else under_way}",
        "traffic": ", ".join(f"{size_in_words(count)} {way}" for way, count in result.bytes.items()),
        "failures": _failures(result.failures),
        "time": time_in_words(result.seconds),
        "run": str(result.path),
    }
    if result.remarks:
        facts["remarks"] = "; ".join(result.remarks)
    grid = Table.grid(padding=(0, 2))
    for name, words in facts.items():
        grid.add_row(Text(name, style="dim"), Text(words, overflow="fold"))
    scores, where, warning = _score_table(result), _who_is_where(result), _nobody_trained(result)
    remarks = [Text(f"data: {remark}", style="dim") for remark in result.record.get("remarks", ())]
    verdict = [Text(), Text(result.verdict, style="bold")] if result.verdict else []
    return [_headline(result), Text(), scores, Text(), grid, *where, *remarks, *warning, *verdict]


def _headline(result: "Result") -> Text:
    settings, record = result.settings, result.record
    words = f"{result.method} on {settings['data']} ({record['split']}): {counted(len(record['clients']), 'client')}"
    return Text(f"{words}, model {settings['model']}, seed {result.seed}", style="bold")


def _what_next(result: "Result") -> str:
    if result.state == "running":
        return "it is running now"
    if result.settings.get("engine") == "flower":
        return "go on with: flwr run, and this folder as `out`"
    return f"go on with: fedclade resume {shlex.quote(str(result.path))}"


def _other_metrics(result: "Result") -> str:
    """Of the cluster models, all but the main one."""
    others = [metric for metric in result.metrics.values() if metric.name != result.metric.name]
    seen = {metric: metric.over_clients(result.last(metric.name))["mean"] for metric in others}
    return ", ".join(f"{metric.words} {metric.written(mean)}" for metric, mean in seen.items())


def _score_table(result: "Result") -> Table:
    metric = result.metric
    table = make_table(metric.words, "mean", "std", "worst", "worst client", right=("mean", "std", "worst"))
    for column, name in result.models.items():
        seen = result.last(column)
        worst = str(seen.idxmin() if metric.higher else seen.idxmax()) if len(seen) else ""
        if 0 < len(seen) < len(result.clients):  # only those who have trained have a locally trained model
            worst += f" ({len(seen)} of {len(result.clients)} clients measured)"
        summary = metric.over_clients(seen)
        table.add_row(name, *(metric.written(summary[what]) for what in ("mean", "std", "worst")), worst)
    return table


def _agreement(result: "Result") -> str:
    found, agreement = f"{len(result.clusters)} found", result.agreement
    if not result.groups:
        return f"{found} (hidden groups are not known)"
    hidden = counted(len(set(result.groups.values())), "hidden group")
    return f"{found}, {hidden}: ARI {agreement['ari']:.3f}, NMI {agreement['nmi']:.3f}"


def _failures(failed: "pd.DataFrame") -> str:
    if not len(failed):
        return "none"
    last = failed.iloc[-1]
    return f"{len(failed)}; the last: {last['client']} in round {last['round']}, {last['failure']}"


def _nobody_trained(result: "Result") -> list[RenderableType]:
    """A warning where every training failed: the models are those that the run began with."""
    if result.history["trained"].any() or not len(result.failures):
        return []
    why = result.failures["failure"].iloc[-1]
    cure = "lower training.learning_rate" if "not finite" in why else "mend the clients or the training settings"
    return [Text(), Text(f"nobody trained in any round ({why}): {cure}, and run again", style="bold")]


def _who_is_where(result: "Result") -> list[RenderableType]:
    """How many clients of each hidden group are in each cluster, where that is known and small enough to read."""
    groups, clusters = result.groups, result.clusters
    hidden = sorted(set(groups.values())) if groups else []
    if groups is None or len(clusters) < 2 or max(len(hidden), len(clusters)) > LARGEST_GRID:
        return []
    columns = [f"group {group}" for group in hidden]
    table = make_table("clients of", *columns, right=columns)
    for cluster, clients in clusters.items():
        held = Counter(groups[client] for client in clients)
        table.add_row(f"cluster {cluster}", *(str(held[group] or ".") for group in hidden))
    return [Text(), table]
