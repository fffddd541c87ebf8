"""Which runs can be compared: those whose clients face the same task."""

from collections.abc import Mapping, Sequence

from fedclade.result import Result

# Runs that differ in one of these are different experiments: which of them is better means nothing.
CONDITIONS = ("data", "label", "task", "split", "clients", "rows", "test_view", "rounds", "events")


def experiments(runs: Sequence[Result]) -> dict[str, list[Result]]:
    """The runs of each experiment, which is named by what tells it from the others: `split iid, rounds 20`."""
    differing = differences([conditions(run) for run in runs])
    together: dict[str, list[Result]] = {}
    for run in runs:
        together.setdefault(", ".join(f"{name} {conditions(run)[name]}" for name in differing), []).append(run)
    return together


def conditions(run: Result) -> dict[str, str]:
    label = (run.settings.get("data_options") or {}).get("label")  # of own tables: the column that is predicted
    known = {**run.settings, "label": label, "split": run.record["split"], "clients": len(run.record["clients"])}
    unsaid = {"label": "by default", "rows": "all", "test_view": "by default"}
    return {name.replace("_", " "): str(known.get(name) or unsaid.get(name, "none")) for name in CONDITIONS}


def differences(facts: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """The facts in which some differ from others, with their values in the order of appearance."""
    names = dict.fromkeys(name for mine in facts for name in mine)
    values = {name: list(dict.fromkeys(mine.get(name, "-") for mine in facts)) for name in names}
    return {name: known for name, known in values.items() if len(known) > 1}


def by_label(runs: Sequence[Result]) -> dict[str, list[Result]]:
    """Runs that differ in their seeds only, together."""
    together: dict[str, list[Result]] = {}
    for run in runs:
        together.setdefault(run.label, []).append(run)
    return together


def how_they_differ(runs: Sequence[Result]) -> str:
    """`rounds (30, 3) and split (iid, natural)`; nothing where all are of one experiment."""
    differing = differences([conditions(run) for run in runs])
    return " and ".join(f"{name} ({', '.join(values)})" for name, values in differing.items())


def trained_by_all(runs: Sequence[Result]) -> frozenset[str]:
    """The clients whose locally trained models can be compared: those that each run has trained, if it trains any."""
    trained = [frozenset(run.last(f"{run.metric.name}_local").index) for run in runs]
    return frozenset.intersection(*filter(None, trained)) if any(trained) else frozenset()
