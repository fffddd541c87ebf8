"""`fedclade demo`: hidden groups found in half a minute, on data that needs no download."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fedclade.cli.runs import default_folder, stopping_cleanly
from fedclade.display import RoundsDisplay, make_console, outcome

if TYPE_CHECKING:
    from fedclade.api import Result

SETTINGS: dict[str, Any] = {
    "data": "digits",
    "split": "label-groups:4",
    "clients": 20,
    "model": "mlp",
    "rounds": 10,
    "training": {"local_epochs": 2, "batch_size": 16, "learning_rate": 0.1, "momentum": 0.5},
    "workers": 1,  # so little work that starting processes would take longer
}


def demo() -> None:
    """Find hidden groups among 20 clients: takes seconds, needs no download."""
    console = make_console()
    folder = default_folder("demo")
    console.print("1,797 handwritten digits are dealt to 20 clients in 4 hidden groups: one group writes only 0 to 2,")
    console.print("the next 3 to 5, then 6 and 7, then 8 and 9. Nobody tells the server.\n")
    console.print("First FedAvg, one model for everybody:")
    shared = _run("fedavg", folder, console)
    console.print("\nThen FedClust, which looks for groups and trains a model for each:")
    clustered = _run("fedclust", folder, console)
    console.print()
    console.print(outcome(clustered))
    console.print()
    console.print(_in_words(shared, clustered))
    console.print(_what_next(clustered.path), soft_wrap=True)


def _run(method: str, folder: Path, console: Console) -> "Result":
    from fedclade import api

    with stopping_cleanly(folder / method), RoundsDisplay(console) as display:
        return api.run(**SETTINGS, method=method, out=folder / method, on_round=display)


def _in_words(shared: "Result", clustered: "Result") -> str:
    found, agreement = len(clustered.clusters), clustered.agreement["ari"]
    how_well = "exactly the hidden ones" if agreement == 1 else f"agreement with the hidden ones {agreement:.2f} of 1"
    before, after = shared.accuracy["mean"], clustered.accuracy["mean"]
    return (
        f"From the last layers of the clients' first models the server found {found} groups: {how_well}.\n"
        f"After the same {clustered.rounds} rounds a client's digits are read right {after:.0%} of the time "
        f"by its group's model, {before:.0%} by the shared one.\n"
    )


def _what_next(path: Path) -> str:
    commands = {
        f"fedclade report {path}": "a page with pictures of it",
        f"fedclade show {path}": "this table again",
        "fedclade data show --data digits --split label-groups:4": "who holds which digits",
        "fedclade run --split label-groups:4 --method ifca --rounds 20 --set training.learning_rate=0.2": "by ifca",
        "fedclade methods": "all methods",
        "fedclade run --help": "everything you can choose",
    }
    width = max(map(len, commands))
    return "\n".join(["What to try next:", *(f"  {command:<{width}}  {why}" for command, why in commands.items())])
