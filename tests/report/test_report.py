"""A report tells what a run found: in figures that Plotly accepts, in words with the run's numbers, in one file."""

import re
import shutil
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from made import make_large_run
from reader import SETTINGS
from typer.testing import CliRunner

import fedclade
from fedclade.cli import app
from fedclade.errors import FedcladeError
from fedclade.report.making import make_report
from fedclade.report.page import as_json, page_data, sections_of
from fedclade.report.reading import read_runs
from fedclade.report.sections import percent
from fedclade.result import Result

OWN_SECTIONS = {
    "fedclust": {"dendrogram", "matrix"},
    "hicfl": {"matrix", "stability", "splits"},
    "ifca": set(),
    "cfl": {"norms"},
    "fedsccs": {"dendrogram", "matrix", "selection"},
    "fedstack": {"bic", "matrix", "stacking"},
}
COMMON_SECTIONS = {"inside", "mapping", "clusters", "holdings", "failures", "settings"}


@pytest.mark.parametrize("method", OWN_SECTIONS)
def test_every_method_has_its_sections_with_words_and_valid_figures(runs: dict[str, Path], method: str) -> None:
    graphs = pytest.importorskip("plotly.graph_objects")
    sections = sections_of(read_runs([runs[method]]))
    of_run = {key.partition("/")[2] for key in sections if "/" in key}
    assert of_run >= COMMON_SECTIONS | OWN_SECTIONS[method]
    assert {"overview", "accuracy", "distribution", "traffic"} <= set(sections)
    for section in sections.values():
        assert re.search(r"[A-Za-z].*\.$", section.words), section.id
        for view in section.views:
            graphs.Figure(view.figure)  # raises where a name or a value is wrong


def test_words_hold_the_numbers_of_the_run(runs: dict[str, Path]) -> None:
    result, run = fedclade.load(runs["fedclust"]), Result.open(runs["fedclust"])
    sections = sections_of([run])
    overview = dict(zip(*sections["overview"].table, strict=True))
    assert overview["server's model"] == percent(result.accuracy["mean"])
    assert overview["worst client"] == percent(result.accuracy["worst"])
    assert overview["own model"] == percent(result.accuracy_local["mean"])
    assert overview["clusters"] == str(len(result.clusters))
    assert overview["ARI"] == f"{result.summary['clusters']['ari']:.3f}"
    assert percent(run.last("accuracy").median()) in sections["accuracy"].words
    assert run.bytes == result.summary["bytes"]
    tree = sections["0/dendrogram"].tree
    assert tree is not None
    assert f"cut into {len(result.clusters)} clusters" in sections["0/dendrogram"].words


def test_stacked_models_have_scores_by_class_and_cluster(runs: dict[str, Path]) -> None:
    section, run = sections_of([Result.open(runs["fedstack"])])["0/stacking"], fedclade.load(runs["fedstack"])
    header, *rows = section.table
    assert header == ["cluster", "class", "test rows", "precision", "recall", "F1"]
    for part in run.folder.records()[6, "stacking"]["clusters"]:
        whole, *single = [row for row in rows if row[0] == str(part["number"])]
        scores = part["cluster"]
        assert whole[1:] == [
            "all",
            str(scores["confusion"].sum()),
            *(percent(scores[n]) for n in ("precision", "recall", "f1")),
        ]
        assert whole[4] == percent(scores["balanced_accuracy"])
        assert [row[1] for row in single] == [str(label) for label in scores["by_class"]["class"]]  # digits
        assert [row[5] for row in single] == [percent(value) for value in scores["by_class"]["f1"]]


def test_both_evaluation_modes_are_in_every_picture_of_accuracy(runs: dict[str, Path]) -> None:
    sections = sections_of(read_runs([runs["hicfl"]]))
    for key in ("accuracy", "traffic"):
        names = {trace.get("name") for trace in sections[key].views[0].figure["data"]}
        assert {"server's model", "client's own last model"} <= names
    by_client = sections["0/inside"].views[1].figure["data"]
    assert [len(trace["z"]) for trace in by_client] == [8, 8]
    assert [len(trace["x"]) for trace in by_client] == [7, 2]  # rounds measured


def test_runs_of_one_method_are_told_apart_by_what_differs(runs: dict[str, Path], tmp_path: Path) -> None:
    import json

    for number, changes in enumerate(({"threshold": 1.5}, {"threshold": 9.0}, {})):
        shutil.copytree(runs["fedclust"], tmp_path / "cell" / f"seed-{number}")
        path = tmp_path / "cell" / f"seed-{number}" / "settings.json"
        record = json.loads(path.read_text())
        record["settings"]["method"] |= changes
        record["settings"]["seed"] = number
        path.write_text(json.dumps(record))
    told = read_runs([tmp_path, runs["ifca"]])
    assert [run.label for run in told] == ["fedclust, threshold=1.5", "fedclust, threshold=9.0", "fedclust", "ifca"]
    assert [run.label for run in read_runs([runs["fedclust"], runs["fedclust"]])] == ["fedclust", "fedclust"]


def test_what_is_not_measured_yet_is_left_out(runs: dict[str, Path]) -> None:
    for path in (runs["hicfl"], runs["fedclust"]):
        early, nothing = Result.open(path), Result.open(path)
        early.history = early.history.assign(accuracy_local=np.nan)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            sections = sections_of([early])
            as_json(page_data([early], sections))  # raises on what JSON has no word for
        assert "own models are not measured yet" in sections["accuracy"].words
        assert "nan" not in " ".join(section.words for section in sections.values())
        nothing.history = early.history.assign(accuracy=np.nan)
        assert "No accuracy has been measured yet." in sections_of([nothing])["accuracy"].words


def test_clients_may_come_go_and_change(tmp_path: Path) -> None:
    events = [{"round": 2, "join": 2}, {"round": 3, "leave": 1, "drift": 2}]
    fedclade.run(**{**SETTINGS, "rounds": 4}, method="fedclust", events=events, out=tmp_path / "run")
    sections = sections_of([Result.open(tmp_path / "run")])
    assert sections["0/clusters"].words.startswith("7 clients")
    tree = sections["0/splits"].tree
    assert tree is not None
    assert tree["steps"]["0"].count(-1) == 2  # not there yet
    assert {row[1] for row in sections["0/placements"].table[1:]} >= {"client-006", "client-007"}


def test_the_command_writes_page_summary_and_pictures(runs: dict[str, Path], tmp_path: Path) -> None:
    page = tmp_path / "new" / "page.html"
    done = CliRunner().invoke(app, ["report", str(runs["fedclust"]), "--out", str(page), "--markdown", "--pictures"])
    assert done.exit_code == 0, done.output
    html = page.read_text()
    assert not re.search(r"""(src|href)=["'](?!data:)""", html)  # it needs no other file and no network
    summary = page.with_suffix(".md").read_text()
    assert "## The dendrogram and its cut" in summary
    for picture in re.findall(r"\]\((.*?)\)", summary):
        assert (page.parent / picture).stat().st_size < 300_000
    kinds = {path.suffix for path in (page.parent / "page-pictures").iterdir()}
    assert kinds == {".png", ".svg"}


def test_what_is_no_run_gives_one_line(runs: dict[str, Path], tmp_path: Path) -> None:
    def said(*words: object) -> str:
        done = CliRunner().invoke(app, [str(word) for word in words])
        assert done.exit_code == 2
        assert len(done.output.strip().splitlines()) == 1, done.output
        return str(done.output)

    assert "no run folder" in said("report", tmp_path / "nowhere")
    assert "no run folder" in said("watch", tmp_path)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "settings.json").write_text('{"editor": "vim"}')
    assert "it lacks" in said("report", tmp_path / "foreign")
    (tmp_path / "foreign" / "settings.json").write_text('{"settings": ')
    assert "damaged" in said("watch", tmp_path / "foreign")
    half = shutil.copytree(runs["hicfl"], tmp_path / "half")
    for name in ("history.parquet", "ledger.parquet"):
        (half / name).unlink()
    assert "no history" in said("report", half)
    shutil.rmtree(half)
    half = shutil.copytree(runs["fedclust"], tmp_path / "half")
    (half / "history.parquet").write_bytes(b"PAR1 and no more")
    assert "damaged" in said("report", half)
    (half / "result.json").unlink()
    shutil.rmtree(half / "checkpoints")
    assert "not one round" in said("report", half)
    assert "must end in .html" in said("report", runs["ifca"], "--out", tmp_path / "page.pdf")


def test_a_run_that_was_stopped_can_be_reported(runs: dict[str, Path], tmp_path: Path) -> None:
    half = shutil.copytree(runs["hicfl"], tmp_path / "half")
    (half / "result.json").unlink()
    run = Result.open(half)
    assert (run.state, run.round, len(run.tree)) == ("stopped", 6, len(fedclade.load(runs["hicfl"]).tree))
    assert "stopped: round 6 of 6" in sections_of([run])["overview"].words


def test_without_plotly_it_says_what_to_install(runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(FedcladeError, match=r"pip install 'fedclade\[report\]'"):
        make_report([runs["ifca"]])


def test_a_run_of_1000_clients_and_200_rounds_gives_a_page_below_8_megabytes(tmp_path: Path) -> None:
    make_large_run(tmp_path / "large")
    (page,) = make_report([tmp_path / "large"], tmp_path / "large.html")
    assert page.stat().st_size < 8_000_000
