"""The runs at a glance, what failed, and the settings and versions by which a run can be made again."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedclade.clustering.scores import adjusted_rand
from fedclade.display import counted, size_in_words, time_in_words
from fedclade.report.reading import Run
from fedclade.report.sections import Section, percent

MOST_FAILURES = 200  # rows


def headline(runs: Sequence[Run]) -> str:
    if len(runs) == 1:
        return f"{runs[0].method} on {runs[0].settings['data']}"
    data = list(dict.fromkeys(str(run.settings["data"]) for run in runs))
    return f"{counted(len(runs), 'run')} on {', '.join(data)}"


def progress(run: Run) -> str:
    """How far a run has come."""
    if run.state == "ended":
        return f"ended after {counted(run.round, 'round')}, {time_in_words(run.seconds)}"
    done = "not one round has ended yet" if run.round < 0 else f"round {run.round} of {run.rounds} has ended"
    return f"{'running' if run.state == 'running' else 'stopped'}: {done}"


def overview(runs: Sequence[Run]) -> Section:
    """A row for each run, with both accuracies."""
    header = [
        "run", "seed", "rounds", "server's model", "worst client", "own model", "own, worst", "clusters", "ARI", "up",
        "down", "failures", "time",
    ]  # fmt: skip
    rows = [_row(run) for run in runs]
    first = runs[0]
    clients = counted(len(first.record["clients"]), "client")
    what = f"{clients}, split {first.record['split']}, model {first.settings['model']}, seed {first.seed}"
    words = f"{what}; {progress(first)}." if len(runs) == 1 else _together(runs)
    return Section("overview", "At a glance", f"{words} Accuracies are means over clients.", table=[header, *rows])


def _together(runs: Sequence[Run]) -> str:
    states = Counter(run.state for run in runs)
    methods = len({run.label for run in runs})
    told = ", ".join(f"{number} {state}" for state, number in states.items())
    return f"{counted(len(runs), 'run')} of {counted(methods, 'method')} ({told})."


def _row(run: Run) -> list[str]:
    if run.round < 0:
        return [run.label, str(run.seed), f"0 of {run.rounds}", *["-"] * 9, "-"]
    served, own = run.last("accuracy"), run.last("accuracy_local")
    rounds = str(run.round) if run.state == "ended" else f"{run.round} of {run.rounds}"
    ari = "-"
    if run.groups is not None:
        found = np.array([run.cluster_of[client] for client in run.clients])
        ari = f"{adjusted_rand(np.array([run.groups[client] for client in run.clients]), found):.3f}"
    up, down = run.traffic.iloc[-1]
    accuracies = [percent(served.mean()), percent(served.min()), percent(own.mean()), percent(own.min())]
    sent = [size_in_words(up), size_in_words(down)]
    failed = int((run.history["failure"] != "").sum())
    return [
        run.label,
        str(run.seed),
        rounds,
        *accuracies,
        str(len(run.members)),
        ari,
        *sent,
        str(failed),
        time_in_words(run.seconds),
    ]


def failures(run: Run) -> Section:
    failed = run.history[run.history["failure"] != ""]
    if not len(failed):
        return Section("failures", "Failures", "No client failed.")
    kinds = Counter(str(words).rpartition(": ")[2] for words in failed["failure"])
    told = ", ".join(f"{kind} ({number})" for kind, number in kinds.most_common(5))
    clients, worst = failed["client"].nunique(), failed["client"].mode()[0]
    words = f"{counted(clients, 'client')} failed {counted(len(failed), 'time')}: {told}. Most often it was {worst}."
    shown = failed.tail(MOST_FAILURES)
    if len(shown) < len(failed):
        words += f" The last {len(shown)} are listed."
    rows = [[str(row.round), str(row.client), str(row.failure)] for row in shown.itertuples()]
    return Section("failures", "Failures", words, table=[["round", "client", "what failed"], *rows], folded=True)


def settings(run: Run) -> Section:
    record = run.record
    rows = _flat(run.settings)
    rows |= {f"version of {name}": str(version) for name, version in record.get("versions", {}).items()}
    rows |= _flat({"machine": record.get("machine", {})})
    rows |= {"data fingerprint": str(record["fingerprint"]), "started": str(record.get("started", "-"))}
    if record.get("command"):
        rows["command"] = " ".join(["fedclade", *map(str, record["command"])])
    version = record.get("versions", {}).get("fedclade", "?")
    words = f"Seed {run.seed}, fedclade {version}; begun {record.get('started', 'at an unknown time')}."
    table = [["setting", "value"], *([name, value] for name, value in rows.items() if name != "data_dir")]
    return Section("settings", "Settings and versions", words, table=table, folded=True)


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """{"method": {"name": "fedavg"}} as {"method.name": "fedavg"}"""
    flat: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = "-" if value is None else str(value)
    return flat
