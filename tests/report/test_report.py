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
from fedclade.clients.objective import ACCURACY
from fedclade.display import size_in_words
from fedclade.errors import FedcladeError
from fedclade.report.making import make_report
from fedclade.report.page import as_json, page_data, sections_of
from fedclade.report.reading import read_runs
from fedclade.report.sections import colour, mean_and_std, percent
from fedclade.report.trees import parts_by_round
from fedclade.result import Result
from fedclade.runs.folder import RunFolder

OWN_SECTIONS = {
    "fedclust": {"dendrogram", "matrix"},
    "hicfl": {"matrix", "splits"},
    "ifca": set(),
    "cfl": {"norms"},
    "fedsccs": {"dendrogram", "matrix", "selection"},
    "fedstack": {"bic", "matrix", "stacking"},
}
COMMON_SECTIONS = {"inside", "mapping", "clusters", "clients", "holdings", "failures", "settings"}


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
    result = fedclade.load(runs["fedclust"])
    sections = sections_of([result])
    header, row = sections["overview"].table
    assert header[3:7] == ["cluster model", "worst client", "locally trained model", "worst client"]
    cluster, local = result.accuracy, result.accuracy_local
    assert row[3:7] == [
        word for seen in (cluster, local) for word in (mean_and_std(seen, ACCURACY), percent(seen["worst"]))
    ]
    overview = dict(zip(header, row, strict=True))
    assert overview["clusters"] == str(len(result.clusters))
    assert overview["ARI"] == f"{result.summary['clusters']['ari']:.3f}"
    assert result.bytes == result.summary["bytes"]
    assert f"into {len(result.clusters)} clusters" in sections["0/dendrogram"].words
    phases = {name: [up, down] for name, up, down in sections["traffic"].table[1:]}
    assert phases["train"] == [size_in_words(result.sent[way, "train"].sum()) for way in ("up", "down")]


def test_one_statistic_is_told_in_words_tables_and_figures(runs: dict[str, Path]) -> None:
    result = fedclade.load(runs["ifca"])
    sections = sections_of([result])
    everything = " ".join(f"{section.words} {[view.words for view in section.views]}" for section in sections.values())
    assert "median" not in everything
    last = result.history[result.history["round"] == 6]["accuracy"].to_numpy()
    told = f"{100 * last.mean():.1f} ± {100 * last.std():.1f} %".replace(" ", "\N{NO-BREAK SPACE}")
    assert told in sections["accuracy"].words
    assert told in sections["overview"].table[1]
    assert told in sections["traffic"].words
    band, line = sections["accuracy"].views[0].figure["data"][:2]
    assert line["y"][-1] == pytest.approx(last.mean(), abs=1e-4)
    ends = {band["y"][6], band["y"][7]}  # at the last round: there and back
    assert sorted(ends) == pytest.approx([last.mean() - last.std(), last.mean() + last.std()], abs=2e-4)
    for cluster, part in result.clusters.items():
        mine = result.history[(result.history["round"] == 6) & result.history["client"].isin(part)]["accuracy"]
        row = next(row for row in sections["0/clusters"].table if row[0] == str(cluster))
        assert row[2] == mean_and_std({"mean": mine.mean(), "std": mine.std(ddof=0)}, ACCURACY)


def test_only_runs_of_the_same_experiment_are_ranked(runs: dict[str, Path], tmp_path: Path) -> None:
    other = {**SETTINGS, "split": "iid", "rounds": 2}
    fedclade.run(**other, method="fedavg", out=tmp_path / "fedavg")
    fedclade.run(**other, method="ifca", out=tmp_path / "ifca")
    together = read_runs([runs["ifca"], runs["cfl"], tmp_path / "fedavg", tmp_path / "ifca"])
    sections = sections_of(together)
    assert "2 experiments, which differ in split (label-groups:2, iid) and rounds (6, 2)" in sections["overview"].words
    assert sections["overview"].table[0][:2] == ["run", "split"]
    assert [row[:2] for row in sections["overview"].table[1:]] == [
        ["ifca", "label-groups:2"], ["cfl", "label-groups:2"], ["fedavg", "iid"], ["ifca", "iid"],
    ]  # fmt: skip
    first, second = re.split(r"(?=For split iid, rounds 2: )", sections["accuracy"].words)
    assert "fedavg" not in first
    assert "cfl" not in second
    for key in ("accuracy", "distribution", "traffic"):
        of = {view.choice["experiment"]: view.figure for view in sections[key].views}
        methods = {name: {trace["meta"]["method"] for trace in figure["data"]} for name, figure in of.items()}
        assert methods == {"split label-groups:2, rounds 6": {"ifca", "cfl"}, "split iid, rounds 2": {"fedavg", "ifca"}}
    assert page_data(together, sections)["runs"][3] == "ifca, split iid, rounds 2, seed 0"
    alike = sections_of(read_runs([runs["ifca"], runs["cfl"]]))
    assert "experiment" not in alike["overview"].words
    assert [view.choice for view in alike["accuracy"].views] == [{}]


def test_the_axis_of_a_tree_says_what_its_heights_are(runs: dict[str, Path]) -> None:
    axes = {}
    for method in ("fedclust", "fedsccs"):
        tree = sections_of([fedclade.load(runs[method])])["0/dendrogram"].tree
        assert tree is not None
        axes[method] = tree["axis"]
    assert axes == {"fedclust": "euclidean distance of last layers", "fedsccs": "height of a merge (ward linkage)"}


@pytest.mark.parametrize("method", ["fedclust", "fedsccs"])
def test_matrices_have_the_order_of_the_tree(runs: dict[str, Path], method: str) -> None:
    sections = sections_of([fedclade.load(runs[method])])
    tree, cells = sections["0/dendrogram"].tree, sections["0/matrix"].views[-1].figure["data"][0]
    assert tree is not None
    drawn = [tree["clients"][leaf] for leaf in tree["order"]]
    assert cells["y"] == cells["x"] == drawn
    record = fedclade.load(runs[method]).last_kept("proximity")
    there = [list(record["clients"]).index(name) for name in drawn]
    assert np.allclose(cells["z"], np.asarray(record["matrix"])[np.ix_(there, there)], atol=1e-2)
    position = {leaf: place for place, leaf in enumerate(tree["order"])}
    spans = {leaf: (place, place) for leaf, place in position.items()}
    for step, (left, right, _) in enumerate(tree["merges"]):  # what is merged lies side by side
        (a, b), (c, d) = sorted((spans[left], spans[right]))
        assert b + 1 == c
        spans[len(drawn) + step] = a, d


def test_splits_of_one_round_are_drawn_as_one(tmp_path: Path) -> None:
    branches = [
        {"round": 1, "parent": 9, "children": [10, 11], "rule": "agreement", "layer": "fc", "score": 0.875},
        {"round": 1, "parent": 11, "children": [0, 12], "rule": "agreement", "layer": "fc", "score": 0.875},
        {"round": 3, "parent": 12, "children": [1, 2], "rule": "agreement", "layer": "fc", "score": 0.5},
    ]
    run = Result.open(make_large_run(tmp_path / "run", n_clients=12, n_rounds=4, n_groups=3, tree=branches))
    assert parts_by_round(run) == {9: (1, [10, 0, 12]), 12: (3, [1, 2])}
    section = sections_of([run])["0/splits"]
    lines = {line["name"]: line for line in section.views[0].figure["data"]}
    assert "cluster 11" not in lines  # it lasted no time
    assert all(line["x"][0] < line["x"][1] for line in lines.values())
    assert {lines[f"cluster {k}"]["x"][0] for k in (10, 0, 12)} == {1}
    assert len({lines[f"cluster {k}"]["y"][0] for k in (10, 0, 12)}) == 3
    assert section.table[1] == ["1", "9", "10, 11", "rule agreement, layer fc, score 0.875"]


def test_the_evidence_is_that_of_the_rule_that_decided(tmp_path: Path) -> None:
    graphs = pytest.importorskip("plotly.graph_objects")
    by_stability = Result.open(make_large_run(tmp_path / "a", n_clients=12, n_rounds=4, n_groups=3))
    assert "0/stability" in sections_of([by_stability])
    split = {"round": 1, "parent": 9, "children": [0, 1], "rule": "agreement"}
    run = Result.open(make_large_run(tmp_path / "b", n_clients=12, n_rounds=4, n_groups=3, tree=[split]))
    rows = [
        {"cluster": 0, "layer": layer, "look": look, "agreement": value}
        for layer, look, value in (("conv", "whole", 0.1), ("fc", "whole", 0.9), ("fc", "units", 0.8))
    ]
    run.records = {**run.records, (3, "agreement"): {"rows": rows, "needed": 0.75}}
    sections = sections_of([run])
    assert "0/stability" not in sections
    section = sections["0/agreement"]
    assert "round 3, 2 of 3 pictures did" in section.words
    assert [view.choice["layer"] for view in section.views] == ["fc", "conv"]
    assert [line["y"] for line in section.views[0].figure["data"]] == [[0.9], [0.8]]
    graphs.Figure(section.views[0].figure)


def test_every_client_has_a_margin_and_its_data_beside_its_clusters(runs: dict[str, Path]) -> None:
    run = fedclade.load(runs["fedclust"])
    header, *rows = sections_of([Result.open(runs["fedclust"])])["0/clients"].table
    record = run.last_kept("proximity")
    distances, names = np.asarray(record["matrix"], float), list(record["clients"])
    for row in rows:
        told, me = dict(zip(header, row, strict=True)), names.index(row[0])
        means = {
            k: np.mean([distances[me, names.index(other)] for other in part if other != row[0]])
            for k, part in run.clusters.items()
        }
        near = means.pop(run.assignment[row[0]])
        assert float(told["margin"]) == pytest.approx(1 - near / min(means.values()), abs=0.006)
        counts = run.label_counts[row[0]]
        assert told["its labels"].startswith(f"{np.argmax(counts)} {100 * max(counts) / sum(counts):.0f}")
        whole = np.sum([run.label_counts[other] for other in run.clusters[run.assignment[row[0]]]], axis=0)
        assert told["its cluster's labels"].startswith(f"{np.argmax(whole)} {100 * max(whole) / sum(whole):.0f}")


def test_fedstack_says_when_its_clusters_are_the_architectures(tmp_path: Path) -> None:
    fedclade.run(
        "synthetic", clients=6, method={"name": "fedstack", "n_clusters": 2}, model=["ann", "cnn1d"], rounds=1,
        workers=1, out=tmp_path / "run",
    )  # fmt: skip
    section = sections_of([Result.open(tmp_path / "run")])["0/networks"]
    mixed = max(sum(int(word) > 0 for word in row[1:]) for row in section.table[1:])
    assert ("the clusters are the architectures" in section.words) == (mixed == 1)
    assert mixed == 1


def test_no_two_clusters_have_one_colour() -> None:
    assert len({colour(place) for place in range(1000)}) == 1000


def test_stacked_models_have_scores_by_class_and_cluster(runs: dict[str, Path]) -> None:
    section, run = sections_of([Result.open(runs["fedstack"])])["0/stacking"], fedclade.load(runs["fedstack"])
    header, *rows = section.table
    assert header == ["cluster", "class", "test rows", "precision", "recall", "F1"]
    for part in run.records[6, "stacking"]["clusters"]:
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
        assert {"cluster model", "locally trained model"} <= names
    by_client = sections["0/inside"].views[1].figure["data"]
    assert [len(trace["z"]) for trace in by_client] == [8, 8]
    assert [len(trace["x"]) for trace in by_client] == [7, 2]  # rounds measured


def test_runs_of_one_method_are_told_apart_by_what_differs(runs: dict[str, Path], tmp_path: Path) -> None:
    for number, changes in enumerate(({"threshold": 1.5}, {"threshold": 9.0}, {})):
        shutil.copytree(runs["fedclust"], tmp_path / "cell" / f"seed-{number}")
        folder = RunFolder(tmp_path / "cell" / f"seed-{number}")
        record = folder.settings
        record["settings"]["method"] |= changes
        record["settings"]["seed"] = number
        folder.update_settings(record)
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
        assert "locally trained models are not measured yet" in sections["accuracy"].words
        assert "nan" not in " ".join(section.words for section in sections.values())
        nothing.history = early.history.assign(accuracy=np.nan)
        assert "Nothing has been measured yet." in sections_of([nothing])["accuracy"].words


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
    pictures = re.findall(r"!\[(.*?)\]\((.*?)\)", summary)
    assert pictures
    for alternative, picture in pictures:
        assert alternative.endswith("as described above.")
        assert (page.parent / picture).stat().st_size < 300_000
    kinds = {path.suffix for path in (page.parent / "page-pictures").iterdir()}
    assert kinds == {".png", ".svg", ".pdf"}


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
    assert "settings.json" in said("report", tmp_path / "foreign")
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
    assert "checkpoints" in said("report", half)
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
