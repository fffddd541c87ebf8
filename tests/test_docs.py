"""Every code block of the README and the documentation is run, and the site can be built and needs no network.

A page is a story in a folder of its own: its blocks run in their order, in this process. Runs are cut to one round, for
what matters is that every word of them is understood. Blocks that are indented are for a shell; whatever is no command
is fenced, and says so.
"""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import fedclade
from fedclade.cli import app
from fedclade.compare import Study
from fedclade.compare.running import run_cell
from fedclade.compare.study import PlannedRun
from fedclade.data.options import DataOptions
from fedclade.reproduce.catalogue import item_named
from fedclade.settings import read_toml, settings_from
from synthetic import write_mnist

ROOT = Path(__file__).parent.parent
PAGES = [
    *("README.md", "CONTRIBUTING.md"),
    *sorted(str(path.relative_to(ROOT)) for folder in ("docs", "examples") for path in (ROOT / folder).rglob("*.md")),
]

# Runs that a page speaks of without making them.
PREMADE = {"README.md": ("a", "b", "c"), "docs/systems.md": ("study-1",)}

# Commands of others: what of them can be checked without running them.
OTHERS = {"source", "pip", "export", "ssh-keygen", "flwr", "ray", "jupyter", "FUZZED=10000",
          "flower-superlink", "flower-supernode", "flower-superexec"}  # fmt: skip

# Our own commands that are not run here, and why.
NOT_RUN = {
    "fedclade watch": "it serves until Ctrl-C (tests/report runs it)",
    "fedclade deploy up": "it starts Flower's processes (make test-flower runs it)",
    "fedclade deploy rotate": "it needs a deployed run (make test-flower runs it)",
    "fedclade show runs/first": "the run of a real federation",
    "fedclade benchmark": "minutes on real data (tests/test_benchmark.py runs one)",
}

# What there is not here, or not so much of.
SMALLER = {"/shared/runs/large": "shared/runs/large", "1000": "20"}

# Data that are too much to write for one command: it must fail for want of them, and of nothing else.
NO_FILES = {
    "motionsense": "data get",
    "drug-reviews": "data get",
    "folder:example-hospitals/tables": "there is no such folder",  # the example before it makes them
    "folder:example-characters/texts": "there is no such folder",
}


def blocks(path: Path) -> Iterator[tuple[str, str]]:
    """Kind and text of the code blocks of a page."""
    text = path.read_text(encoding="utf-8") + "\n"
    fenced = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    indented = re.compile(r"(?<=\n\n)(?:    .*\n|\n(?=    ))+")
    found = [(match.start(), match[1], match[2]) for match in fenced.finditer(text)]
    rest = fenced.sub(lambda match: re.sub(r"[^\n]", "x", match[0]), text)
    lists = re.compile(r"^(- |\d+\. ).*\n(?:(?:  .*)?\n)*", re.MULTILINE)  # what hangs under an item is no code
    rest = lists.sub(lambda match: re.sub(r"[^\n]", "x", match[0]), rest)
    found += [(match.start(), "shell", re.sub(r"^    ", "", match[0], flags=re.M)) for match in indented.finditer(rest)]
    for _, kind, body in sorted(found):
        yield kind, body


@pytest.fixture(scope="module")
def a_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("premade") / "run"
    fedclade.run("digits", split="label-groups:4", clients=8, method="fedclust", rounds=1, workers=1, out=path)
    return path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The world that the pages speak of."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("FEDCLADE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FEDCLADE_MIRROR", "http://127.0.0.1:9")
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0})  # one core: no processes to start
    monkeypatch.setattr("fedclade.compare.running.run_all", one_by_one)
    for seed, name in enumerate(("mnist", "fashion-mnist")):
        write_mnist(tmp_path / "data" / name, 600 + seed, 200)
    random = np.random.default_rng(0)
    for folder, label in {"my-data": "y", "hospitals": "label", "hospital-files": "y", "homes": "price"}.items():
        (tmp_path / folder).mkdir()
        for k in range(4):
            table(random, label, f"town-{k}").drop(columns="hospital").to_csv(folder_file(folder, k), index=False)
    pd.concat([table(random, "diagnosis", f"h{k}") for k in range(4)]).to_parquet("patients.parquet")
    table(random, "price", "town-1").drop(columns=["price", "hospital"]).to_csv("new.csv", index=False)
    for name in ("studies", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    yield tmp_path
    for name in ("my_module", "mine"):
        sys.modules.pop(name, None)


def one_by_one(runs: Iterable[PlannedRun], workers: int) -> Iterator[tuple[PlannedRun, str | None]]:
    """In this process, which has imported everything already."""
    return ((run, run_cell(dict(run.settings), str(run.path))) for run in runs)


def folder_file(folder: str, k: int) -> Path:
    return Path(folder) / f"town-{k}.csv"


def table(random: np.random.Generator, label: str, hospital: str) -> pd.DataFrame:
    rows = pd.DataFrame(random.normal(size=(40, 3)), columns=["age", "size", "dose"])
    return rows.assign(hospital=hospital, **{label: (rows["age"] > 0).astype(int)})


@pytest.mark.parametrize("page", PAGES)
def test_code_of_a_page(page: str, here: Path, a_run: Path) -> None:
    for name in PREMADE.get(page, ()):
        shutil.copytree(a_run, here / "runs" / name)
    told = list(blocks(ROOT / page))
    for text in [text for kind, text in told if kind == "toml"][:1]:
        (here / "study.toml").write_text(text)
    names = namespace()
    for kind, text in told:
        if kind == "python":
            run_python(text, names, here)
        elif kind == "shell":
            for line in commands(text):
                run_command(line)
        elif kind == "toml":
            settings_from(tomllib.loads(text))
        else:
            assert kind in ("text", "ini"), f"{page}: what is a block of {kind!r}?"


def namespace() -> dict[str, Any]:
    """What the pages' Python takes for given."""
    random = np.random.default_rng(0)
    rows = lambda: (random.random((20, 1, 8, 8), np.float32), np.arange(20) % 4)  # noqa: E731
    (x, y), (x1, y1), (x2, y2) = rows(), rows(), rows()
    frame = pd.concat([table(random, "diagnosis", name) for name in ("a", "b")])
    federation_of = fedclade.federation_of
    return {**locals(), "fedclade": fedclade, "DataOptions": DataOptions}


def run_python(text: str, names: dict[str, Any], here: Path) -> None:
    if "(Method):" in text:  # the page goes on to name it on the command line
        (here / ("mine.py" if text.startswith("# mine.py") else "my_module.py")).write_text(text)
    if "safe_open" in text:
        settings = {"data": "mnist", "clients": 2, "model": "lenet5", "method": "fedavg", "rounds": 0, "workers": 1}
        fedclade.run(**settings, out="lenet")
        shutil.copy("lenet/models/cluster-0.safetensors", "cluster-0.safetensors")
    if "grid=grid" in text and "def main" not in text:
        text = text.partition(".start(")[0]  # a grid is a federation (make test-flower has some)
    exec(compile(text, "page", "exec", dont_inherit=True), names)


def commands(text: str) -> Iterator[list[str]]:
    for line in text.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            yield words


def run_command(words: list[str]) -> None:
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), words
    elif words[0] == "python":
        assert (ROOT / words[1]).is_file(), words
    elif words[0] == "fedclade":
        run_ours(words[1:])
    else:
        assert words[0] in OTHERS, f"{words[0]!r} is no command: fence what is none, and say what it is"


def run_ours(words: Sequence[str]) -> None:
    line = " ".join(["fedclade", *words])
    if any(line.startswith(left_out) for left_out in NOT_RUN):
        assert invoke([*words[: 2 if words[0] == "deploy" else 1], "--help"]).exit_code == 0
        return
    if words[0] == "reproduce" and words[1] != "list":
        paper, item = item_named(words[1])
        scale = words[words.index("--scale") + 1]
        cells, _ = item.planned(paper.settings, paper.scales[scale], scale)
        given = dict(row=set(), column=set())
        for option, value in zip(words[2::2], words[3::2], strict=True):
            assert option in ("--scale", "--row", "--column", "--seeds"), words
            given.get(option.removeprefix("--"), set()).add(value)
        assert given["row"] <= {cell.row for cell in cells}, words
        assert given["column"] <= {cell.column for cell in cells}, words
        return  # tests/reproduce makes them all
    if words[0] == "compare" and words[1].endswith(".toml"):
        Study.of(read_toml(Path(words[1])))
        return  # an hour
    short = {"run": ["--rounds", "1", "--workers", "1", "--engine", "local", "--set", "rows=60", "--set",
                     "engine_address="], "compare": ["--rounds", "1", "--seeds", "1", "--workers", "1"]}  # fmt: skip
    result = invoke([SMALLER.get(word, word) for word in words] + short.get(words[0], []))
    if lacking := [why for name, why in NO_FILES.items() if name in words]:
        assert result.exit_code == 2
        assert lacking[0] in result.stderr, result.output
    else:
        assert result.exit_code == 0, (line, result.output, result.stderr, result.exception)


def invoke(words: Sequence[str]) -> Any:
    return CliRunner().invoke(app, list(words))


def test_blocks_are_found_as_readers_see_them(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "a\n\n    one\n    two \\\n        more\n\n    three\n\ntext\n\n"
        "- item\n\n    words of it\n\n```toml\nx = 1\n```\n"
    )
    assert list(blocks(page)) == [("shell", "one\ntwo \\\n    more\n\nthree\n"), ("toml", "x = 1\n")]


def test_the_site_is_built_and_needs_no_network(tmp_path: Path) -> None:
    pytest.importorskip("mkdocstrings")
    pytest.importorskip("material")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert built.returncode == 0, built.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"""<(?:script|img|link)[^>]+(?:src|href)=["']?(?:https?:)?//""", text), page
    methods = (tmp_path / "site" / "reference" / "methods.html").read_text(encoding="utf-8")
    for name, kind in fedclade.methods.METHODS.items():
        assert f'id="{name}"' in methods
        assert kind.about.formula
        assert kind.about.use
