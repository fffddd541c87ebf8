"""All sections of some runs, and the HTML page that holds them with everything it needs to be read from a disk."""

import base64
import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from fedclade import __version__
from fedclade.experiments import by_label
from fedclade.report import accuracy, evidence, extras, facts, groups, matrices, members, traffic, trees
from fedclade.report.reading import names_of
from fedclade.report.sections import Section, colour
from fedclade.result import Result, readable

ORDER = (
    "overview", "accuracy", "distribution", "traffic", "inside", "splits", "dendrogram", "matrix", "mapping",
    "clusters", "groups", "serving", "clients", "placements", "networks", "holdings", "agreement", "stability", "norms",
    "bic", "selection",
    "stacking", "failures", "settings",
)  # fmt: skip

SCRIPTS = ("page", "tables", "cuts", "figures", "live")  # they are one, in this order


def sections_of(runs: Sequence[Result]) -> dict[str, Section]:
    """By key: the id of those about all runs, `place/id` of those about one."""
    begun = [run for run in runs if run.round >= 0]
    sections = {"overview": facts.overview(runs)}
    if begun:
        together = (accuracy.by_round, accuracy.distribution, traffic.traffic)
        sections |= {section.id: section for section in (_made(build, begun) for build in together) if section}
    for place, run in enumerate(runs):
        mine = [_made(build, run) for build in _builders(run, len(runs))]
        sections |= {f"{place}/{section.id}": section for section in mine if section is not None}
    return sections


def _builders(run: Result, n_runs: int) -> list[Callable[[Result], Section | None]]:
    """What is told of one run; many runs share the room of a page."""
    if run.round < 0:
        return [facts.settings]
    return [
        lambda run: accuracy.inside(run, accuracy.MOST_CELLS // n_runs),
        trees.splits,
        trees.dendrogram,
        lambda run: matrices.matrices(run, matrices.MOST_CELLS // n_runs),
        members.mapping,
        members.clusters,
        groups.groups,
        groups.serving,
        facts.clients,
        members.placements,
        members.networks,
        members.holdings,
        evidence.agreement,
        evidence.stability,
        evidence.norms,
        evidence.bic,
        extras.selection,
        extras.stacking,
        facts.failures,
        facts.settings,
    ]


def _made(build: Callable[[Any], Section | None], of: Any) -> Section | None:
    with readable(", ".join(str(run.path) for run in (of if isinstance(of, Sequence) else [of]))):
        return build(of)


def page_data(runs: Sequence[Result], sections: Mapping[str, Section]) -> dict[str, Any]:
    """What the page's script works with."""
    under_way = [run for run in runs if run.state != "ended"]
    state = "ended" if not under_way else "running" if any(r.state == "running" for r in under_way) else "stopped"
    status = facts.progress(runs[0]) if len(runs) == 1 else f"{len(runs) - len(under_way)} of {len(runs)} runs ended"
    return {
        "state": state,
        "status": status,
        "order": ORDER,
        "colours": [colour(k) for k in range(max(len(runs), *(len(run.record["clients"]) for run in runs)))],
        "methods": list(by_label(runs)),
        "runs": names_of(runs),
        "sections": {key: section_data(section) for key, section in sections.items()},
    }


def section_data(section: Section) -> dict[str, Any]:
    views = [{"figure": view.figure, "words": view.words, "choice": view.choice} for view in section.views]
    return {**vars(section), "views": views}


def as_json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def html_page(runs: Sequence[Result], data: Mapping[str, Any]) -> str:
    """One file that needs no other: the script, Plotly's and the data are inside, the large ones packed."""
    from plotly.offline import get_plotlyjs

    parts = {
        "title": escape(facts.headline(runs)),
        "style": _part("page.css"),
        "footer": f"Made by fedclade {escape(__version__)}. Figures can be zoomed, hovered over and saved.",
        "script": "\n".join(_part(f"{name}.js") for name in SCRIPTS),
        "plotly": packed(get_plotlyjs()),
        "data": packed(as_json(data)),
    }
    page = _part("page.html")
    for name, text in parts.items():
        page = page.replace(f"[[{name}]]", text)
    return page


def packed(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


def _part(name: str) -> str:
    return (files("fedclade.report") / "assets" / name).read_text(encoding="utf-8")
