"""What every setting means, which values it takes and what it is by default: for help, tables and config files.

The meaning of a setting is its description, or the comment beside it where it is defined, so that it is written once.
"""

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

if TYPE_CHECKING:
    from pydantic import BaseModel


@dataclass(frozen=True)
class Meaning:
    """A setting in words."""

    name: str
    allowed: str
    default: Any
    meaning: str


def meanings(kind: "type[BaseModel]") -> Iterator[Meaning]:
    """Of all settings of a class, in their order."""
    for name, field in kind.model_fields.items():
        default = field.get_default(call_default_factory=True)
        words = field.description or _comment(kind, name)
        yield Meaning(name, _allowed(field.annotation, field.metadata), default, words)


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
