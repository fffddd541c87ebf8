"""Reference pages of the documentation, made from the code at build time, so that nothing is said twice.

A hook of MkDocs (`make docs`): methods from their `About`, docstrings and settings, settings from their comments,
commands from their help, the Python interface from its docstrings.
"""

import inspect
from collections.abc import Iterator
from textwrap import fill
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pydantic import BaseModel

import fedclade
from fedclade.aggregation import AGGREGATIONS
from fedclade.cli import app
from fedclade.clients.objective import OBJECTIVES
from fedclade.clients.tasks import Training
from fedclade.data.options import DataOptions
from fedclade.events import Event
from fedclade.meanings import meanings
from fedclade.methods import METHODS
from fedclade.serving import SERVINGS
from fedclade.settings import Settings
from fedclade.updates import UPDATE_STEPS


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name, make in {"methods": methods, "settings": settings, "commands": commands, "python": python}.items():
        files.append(File.generated(config, f"reference/{name}.md", content="\n".join(make())))
    return files


def methods() -> Iterator[str]:
    yield "# Methods\n"
    yield (
        "All methods run under equal conditions: the same data, local training, participation and aggregation. "
        "[Which method?](../which-method.md) helps to choose. In the formulas *i* and *j* are clients, *k* a cluster, "
        "*w* a client's weights, *W* a server's, *u* an update, *h* a last layer and *L* a loss.\n"
    )
    yield "| method | what it does | finds | sends |\n|---|---|---|---|"
    for name, kind in METHODS.items():
        yield f"| [{name}](#{name}) | {kind.about.summary} | {kind.about.finds} | {kind.about.sends} |"
    for name, kind in METHODS.items():
        yield from method(name, kind)


def method(name: str, kind: Any) -> Iterator[str]:
    about = kind.about
    yield f"\n## {name}\n\n{about.summary[0].upper()}{about.summary[1:]}.\n\n{indented(fill(about.formula, 88))}\n"
    yield f"- **Use it** {about.use}."
    yield f"- **Paper:** {about.paper}" if about.paper not in ("-", "ours") else "- **Paper:** none"
    yield f"- **Finds:** {about.finds}, {about.timing}. **Sends:** {about.sends}."
    yield f"- **Newcomers:** {'are placed' if about.newcomers else 'get no model'}."
    if about.needs_labels:
        yield "- **Labels:** it needs classes: other tasks are refused."
    yield f'\n??? note "More on {kind.__name__}"\n'
    yield indented(inspect.getdoc(inspect.getmodule(kind)) or "")
    if kind.model_fields:
        yield ""
        yield from table(kind, "method.")


def settings() -> Iterator[str]:
    yield "# Settings\n"
    yield (
        "The same names everywhere: `--set NAME=VALUE` on the command line, in a TOML file, and in Python. "
        "`fedclade config` prints them all as a TOML file.\n"
    )
    yield "## Of a run\n"
    yield from table(Settings)
    for words, prefix, kind in (
        ("Training", "training.", Training),
        ("Reading your own data", "data.", DataOptions),
        ("Events", "", Event),
    ):
        yield f"\n## {words}\n"
        yield from table(kind, prefix)
    for words, prefix, known in (
        ("Tasks", "task", OBJECTIVES),
        ("Aggregation", "aggregation", AGGREGATIONS),
        ("Serving", "serving", SERVINGS),
        ("Steps that updates go through", "updates", UPDATE_STEPS),
    ):
        yield f"\n## {words}\n"
        for name, kind in known.items():
            doc = (inspect.getdoc(kind) if "__doc__" in vars(kind) else None) or inspect.getdoc(inspect.getmodule(kind))
            yield f"\n### {prefix} = {name}\n\n{(doc or '').split(chr(10) * 2)[0]}\n"
            if kind.model_fields:
                yield from table(kind, f"{prefix}.")


def table(kind: type[BaseModel], prefix: str = "") -> Iterator[str]:
    yield "| setting | value | default | meaning |\n|---|---|---|---|"
    for setting in meanings(kind):
        default = "" if setting.default is None else f"`{short(setting.default)}`"
        cells = (f"`{prefix}{setting.name}`", setting.allowed, default, setting.meaning)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def short(value: Any) -> str:
    """A default in a cell: of settings inside settings their name will do."""
    return type(value).__name__ if isinstance(value, BaseModel) else str(value)


def commands() -> Iterator[str]:
    yield "# Commands\n\nExit codes: 0 done, 2 wrong input (one line says what), 130 stopped by Ctrl-C.\n"
    yield from command(typer.main.get_command(app), "fedclade", 2)


def command(found: Any, path: str, level: int, parent: Any = None) -> Iterator[str]:
    context = found.make_context(path, [], parent=parent, resilient_parsing=True)
    context.max_content_width = 100
    yield f"\n{'#' * level} {path}\n\n```text\n{found.get_help(context).strip()}\n```"
    for name, inner in getattr(found, "commands", {}).items():
        yield from command(inner, f"{path} {name}", level + (level == 2), context)


def python() -> Iterator[str]:
    yield "# Python\n\nEverything here is imported from `fedclade`, and typed (`py.typed`).\n"
    for words, names in {
        "Runs": ("run", "resume", "load", "Result"),
        "Clients that come later": ("place", "Placed", "predict", "export"),
        "Data": ("federation_of", "Federation", "Client", "Dataset"),
        "Methods": ("Method", "About", "Clusters", "RoundContext", "Placement"),
        "What clients can be asked": ("Train", "Evaluate", "Predict", "Describe", "Training"),
        "Errors": ("FedcladeError",),
    }.items():
        yield f"\n## {words}\n"
        for name in names:
            yield f"::: {getattr(fedclade, name).__module__}.{name}\n"
    yield "\n## Flower\n\n::: fedclade.flower.Clustered\n"


def indented(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.splitlines())
