"""`fedclade methods`, `models` and `splits`: what there is to choose from."""

import inspect
import re
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer

from fedclade.display import make_console, make_table

if TYPE_CHECKING:
    from pydantic import BaseModel

    from fedclade.methods import Method


def methods(
    name: Annotated[str | None, typer.Argument(help="Show this one's settings; also my_module:MyMethod.")] = None,
) -> None:
    """List the methods, or the settings of one."""
    from fedclade.methods import METHODS, method_class

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
        console.print(f"{name}: {about.summary} ({about.paper})\n")
    console.print(_settings_table("method", kind))
    console.print()
    console.print(_settings_table("training", Training))
    console.print(
        f"\nTo change some: fedclade run --method {name} --set training.learning_rate=0.1 --set training.momentum=0"
    )


def _settings_table(prefix: str, kind: "type[BaseModel]") -> Any:
    table = make_table("setting", "value", "default", "meaning")
    for name, field in kind.model_fields.items():
        default = "none" if field.default is None else str(field.default)
        allowed = _allowed(field.annotation, field.metadata)
        table.add_row(f"{prefix}.{name}", allowed, default, field.description or _comment(kind, name))
    return table


def _allowed(annotation: Any, limits: Any = ()) -> str:
    """The values that a setting may take, in words."""
    kind = get_origin(annotation)
    if kind is Annotated:
        inner, *details = get_args(annotation)
        return _allowed(inner, [limit for detail in details for limit in getattr(detail, "metadata", [detail])])
    if kind in (Union, UnionType):
        return " or ".join(_allowed(option) for option in get_args(annotation))
    if kind is Literal:
        return " | ".join(str(value) for value in get_args(annotation))
    words = {int: "whole number", float: "number", str: "text", bool: "true or false", NoneType: "none"}
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    pairs = [(limit, name) for limit in limits for name in signs if hasattr(limit, name)]
    bounds = ", ".join(f"{signs[name]} {getattr(limit, name):g}" for limit, name in pairs)
    return f"{words.get(annotation, getattr(annotation, '__name__', str(annotation)))} {bounds}".strip()


def _comment(kind: type, name: str) -> str:
    """The comment beside a setting where it is defined, so that it need not be written twice."""
    for owner in kind.__mro__:
        if name in inspect.get_annotations(owner):
            try:
                source = inspect.getsource(owner)
            except (OSError, TypeError):  # defined in a notebook, or without a file
                return ""
            found = re.search(rf"^\s+{name}:.*?#\s*(.+)$", source, re.MULTILINE)
            return found.group(1) if found else ""
    return ""
