"""What goes wrong because of what a person gave us: one line that says what is wrong and what to do."""

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class FedcladeError(Exception):
    """An error for people. The command line prints its one line and exits with code 2."""


def listed(names: Iterable[object], limit: int = 20) -> str:
    """`a, b, c` of any iterable of names, shortened so that an error stays one line."""
    words = [str(name) for name in names]
    more = f", ... ({len(words) - limit} more)" if len(words) > limit else ""
    return ", ".join(words[:limit]) + more


def unknown(kind: str, name: str, known: Iterable[object]) -> FedcladeError:
    """The error for a name that is not among the known ones, with the nearest of them as a suggestion."""
    import difflib

    names = sorted(str(word) for word in known)
    near = difflib.get_close_matches(name, names, n=1)
    if near and len(names) > 40:  # too many to read: the near one must do
        return FedcladeError(f"unknown {kind} {name!r}: did you mean {near[0]!r}?")
    hint = f"did you mean {near[0]!r}? " if near else ""
    return FedcladeError(f"unknown {kind} {name!r}: {hint}choose one of {listed(names, 40)}")


def imported(path: str, kind: str) -> Any:
    """What `package.module:name` names; modules of the current folder are found too."""
    module, _, name = path.partition(":")
    if module.endswith(".py") or "/" in module:
        stem = Path(module).stem
        raise FedcladeError(f"{kind} {path!r} names a file: write {stem}:{name} in the folder that holds {stem}.py")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise FedcladeError(
            f"{kind} {path!r}: there is no module {error.name!r} in the current folder or on the path: go to the "
            "folder that holds it"
        ) from None
    except AttributeError:
        raise FedcladeError(f"{kind} {path!r}: the module {module!r} has no {name!r}") from None
    except Exception as error:
        raise FedcladeError(f"{kind} {path!r}: importing {module!r} raised {type(error).__name__}: {error}") from error


def needs_flower(what: str) -> None:
    """Raise one line on what to install unless Flower is there."""
    import importlib.util

    if importlib.util.find_spec("flwr") is None:
        raise FedcladeError(f"{what} needs Flower: pip install 'fedclade[flower]'")
