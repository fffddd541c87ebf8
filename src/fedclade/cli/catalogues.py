"""`fedclade methods`, `models` and `splits`: what there is to choose from."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedclade.cli import options
from fedclade.cli.machine import print_json
from fedclade.display import make_console, make_table
from fedclade.meanings import meanings

if TYPE_CHECKING:
    from pydantic import BaseModel

    from fedclade.methods import Method


def methods(
    name: Annotated[str | None, typer.Argument(help="Show this one's settings; also my_module:MyMethod.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Try it: resumed, with workers, clients that fail, join and leave.")
    ] = False,
    json: options.Json = False,
) -> None:
    """List the methods, or the settings of one."""
    from fedclade.methods import METHODS, method_class

    if check:
        _checked(name)
        return
    if json and name is not None:
        print_json([asdict(setting) for setting in meanings(method_class(name))])
        return
    if json:
        print_json([{"name": known, **asdict(kind.about)} for known, kind in METHODS.items()])
        return
    if name is not None:
        _show_method(name, method_class(name))
        return
    table = make_table("method", "what it does", "finds", "timing", "sends", "newcomers", "paper")
    for known, kind in METHODS.items():
        about = kind.about
        newcomers = "yes" if about.newcomers else "no"
        table.add_row(known, about.summary, about.finds, about.timing, about.sends, newcomers, about.paper)
    console = make_console()
    console.print(table)
    console.print("\nThe settings of one: fedclade methods NAME")


def _checked(name: str | None) -> None:
    from fedclade.checking import check
    from fedclade.errors import FedcladeError

    if name is None:
        raise FedcladeError("--check tries one method: name it, as in fedclade methods my_module:MyMethod --check")
    console, faults = make_console(), 0
    for told, wrong in check(name):
        console.print(f"{told}: {wrong or 'works'}", soft_wrap=True, markup=False)
        faults += wrong is not None
    if faults:
        raise typer.Exit(1)


def models() -> None:
    """List the networks."""
    from fedclade.models import models as known

    table = make_table("model", "what it is", "takes", "paper")
    for model in known().values():
        table.add_row(model.name, model.description, model.wants, model.paper)
    console = make_console()
    console.print(table)
    console.print("\nYour own: --model my_module:make_net, a function that takes input_shape and n_classes")


def splits() -> None:
    """List the ways to deal a data set out to clients."""
    from fedclade.data.partition import TEST_VIEWS
    from fedclade.data.partition import splits as known

    table = make_table("split", "example", "what each client gets", "paper")
    for split in known().values():
        table.add_row(split.syntax, split.example, split.description, split.paper)
    views = make_table("test view", "on what a client is tested")
    for name, description in TEST_VIEWS.items():
        views.add_row(name, description)
    console = make_console()
    console.print(table)
    console.print()
    console.print(views)


def _show_method(name: str, kind: "type[Method]") -> None:
    from fedclade.clients.tasks import Training

    console = make_console()
    if about := getattr(kind, "about", None):
        console.print(f"{name}: {about.summary} ({about.paper})")
        told = {"idea": about.formula, "use it": about.use, "sends": about.sends}
        for word, words in told.items():
            if words:
                console.print(f"{word}: {words}", markup=False)
        console.print()
    console.print(_settings_table("method", kind))
    console.print()
    console.print(_settings_table("training", Training))
    console.print(
        f"\nTo change some: fedclade run --method {name} --set training.learning_rate=0.1 --set training.momentum=0"
    )


def _settings_table(prefix: str, kind: "type[BaseModel]") -> Any:
    table = make_table("setting", "value", "default", "meaning")
    for setting in meanings(kind):
        default = "none" if setting.default is None else str(setting.default)
        table.add_row(f"{prefix}.{setting.name}", setting.allowed, default, setting.meaning)
    return table
