"""The runs at a glance, every client, what failed, and the settings and versions by which a run can be made again."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from fedclade.display import counted, size_in_words, time_in_words
from fedclade.experiments import by_label, conditions, differences, experiments, how_they_differ
from fedclade.report.accuracy import title_of
from fedclade.report.margins import MEANING, margins
from fedclade.report.sections import Section, mean_and_std, value
from fedclade.result import MODELS, Result
from fedclade.settings import flat

MOST_FAILURES = 200  # rows
MOST_LABELS = 3  # of a client, and of its cluster


def headline(runs: Sequence[Result]) -> str:
    if len(runs) == 1:
        return f"{runs[0].method} on {runs[0].settings['data']}"
    data = list(dict.fromkeys(str(run.settings["data"]) for run in runs))
    return f"{counted(len(runs), 'run')} on {', '.join(data)}"


def progress(run: Result) -> str:
    """How far a run has come."""
    if run.state == "ended":
        return f"ended after {counted(run.round, 'round')}, {time_in_words(run.seconds)}"
    done = "not one round has ended yet" if run.round < 0 else f"round {run.round} of {run.rounds} has ended"
    return f"{'running' if run.state == 'running' else 'stopped'}: {done}"


def overview(runs: Sequence[Result]) -> Section:
    """A row for each run, with the scores of both models."""
    differing = differences([conditions(run) for run in runs])
    header = [
        "run", *(name for name in differing if name != "rounds"), "seed", "rounds", MODELS[""], "worst client",
        MODELS["_local"], "worst client", "clusters", "ARI", "up", "down", "failures", "time",
    ]  # fmt: skip
    rows = [_row(run, [conditions(run)[name] for name in differing if name != "rounds"], len(header)) for run in runs]
    first = runs[0]
    clients = counted(len(first.record["clients"]), "client")
    what = f"{clients}, split {first.record['split']}, model {first.settings['model']}, seed {first.seed}"
    words = f"{what}; {progress(first)}." if len(runs) == 1 else _together(runs)
    words += f" What is told of models is the {title_of(runs)}: means and standard deviations over clients."
    words += "".join(f" Remark: {remark}." for run in runs for remark in run.remarks)
    return Section("overview", "At a glance", words, table=[header, *rows])


def _together(runs: Sequence[Result]) -> str:
    states = Counter(run.state for run in runs)
    told = ", ".join(f"{number} {state}" for state, number in states.items())
    words = f"{counted(len(runs), 'run')} of {counted(len(by_label(runs)), 'method')} ({told})."
    if differing := how_they_differ(runs):
        words += (
            f" They are {counted(len(experiments(runs)), 'experiment')}, which differ in {differing}: only runs of the "
            "same one are ranked against each other."
        )
    return words


def _row(run: Result, conditions: Sequence[str], width: int) -> list[str]:
    rounds = str(run.round) if run.state == "ended" else f"{max(run.round, 0)} of {run.rounds}"
    start = [run.label, *conditions, str(run.seed), rounds]
    if run.round < 0:
        return start + ["-"] * (width - len(start))
    ari = run.agreement["ari"]
    return [
        *start,
        *(
            word
            for seen in (run.score, run.score_local)
            for word in (mean_and_std(seen, run.metric), value(seen["worst"], run.metric))
        ),
        str(len(run.clusters)),
        "-" if ari is None else f"{ari:.3f}",
        *map(size_in_words, run.bytes.values()),
        str(len(run.failures)),
        time_in_words(run.seconds),
    ]


def clients(run: Result) -> Section:
    """A row for each client: where it is and how sure that is, how well it does, and what it holds."""
    failed, measured = Counter(run.failures["client"]), [run.last(column) for column in run.models]
    groups, sure, held = run.groups, margins(run), _holdings(run)
    header = [
        "client", "cluster", *(["hidden group"] if groups else []), *MODELS.values(), *(["margin"] if sure else []),
        *(["its labels", "its cluster's labels"] if held else []), "failures",
    ]  # fmt: skip
    rows = [
        [
            client,
            str(run.assignment[client]),
            *([str(groups[client])] if groups else []),
            *(value(seen.get(client), run.metric) for seen in measured),
            *([f"{sure[client]:.2f}" if client in sure else "-"] if sure else []),
            *held.get(client, ()),
            str(failed[client]),
        ]
        for client in run.clients
    ]
    words = (
        f"{counted(len(rows), 'client')}, cluster by cluster, each with the {run.metric.words} that was measured last."
    )
    if sure:
        least = min(sure, key=lambda client: sure[client])
        words += f" {MEANING} The smallest is that of {least}: {sure[least]:.2f}."
    return Section("clients", "Every client", words, table=[header, *rows], folded=True)


def _holdings(run: Result) -> dict[str, tuple[str, str]]:
    """The most frequent labels of each client, and of its cluster."""
    counts = run.label_counts
    if counts is None:
        return {}
    classes = [str(name) for name in run.record["classes"]]
    sums = {k: np.sum([counts[client] for client in part], axis=0) for k, part in run.clusters.items()}
    return {
        client: (_most(counts[client], classes), _most(sums[run.assignment[client]], classes)) for client in run.clients
    }


def _most(counts: np.ndarray, classes: Sequence[str]) -> str:
    shares = np.asarray(counts, float) / max(float(np.sum(counts)), 1.0)
    first = [k for k in np.argsort(-shares, kind="stable")[:MOST_LABELS] if shares[k] > 0]
    return ", ".join(f"{classes[k]} {100 * shares[k]:.0f}\N{NO-BREAK SPACE}%" for k in first) or "-"


def failures(run: Result) -> Section:
    failed = run.failures
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


def settings(run: Result) -> Section:
    record = run.record
    rows = {name: "-" if value is None else str(value) for name, value in flat(run.settings).items()}
    rows |= {f"version of {name}": str(version) for name, version in record.get("versions", {}).items()}
    rows |= {name: str(value) for name, value in flat({"machine": record.get("machine", {})}).items()}
    rows |= {"data fingerprint": str(record["fingerprint"]), "started": str(record.get("started", "-"))}
    if record.get("command"):
        rows["command"] = " ".join(["fedclade", *map(str, record["command"])])
    version = record.get("versions", {}).get("fedclade", "?")
    words = f"Seed {run.seed}, fedclade {version}; begun {record.get('started', 'at an unknown time')}."
    table = [["setting", "value"], *([name, value] for name, value in rows.items() if name != "data_dir")]
    return Section("settings", "Settings and versions", words, table=table, folded=True)
