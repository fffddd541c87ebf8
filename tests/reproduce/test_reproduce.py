"""Every table and figure is made at smoke scale; numbers stand beside the paper's; runs are shared and not repeated."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from fedclade.cli import app
from fedclade.compare import PlannedRun
from fedclade.compare.study import mark_of
from fedclade.data.partition.allocation import Allocation, Request
from fedclade.data.partition.registry import parsed
from fedclade.errors import FedcladeError
from fedclade.randomness import stream
from fedclade.reproduce import reproduce
from fedclade.reproduce.catalogue import as_markdown, items
from fedclade.reproduce.finished import (
    Finished,
    megabits,
    of_everybody,
    over_clusters,
    rounds_of_everybody_to,
    rounds_to,
)
from fedclade.reproduce.item import Experiment
from fedclade.reproduce.kinds import Grid, Listing
from fedclade.reproduce.layers import most_stable, most_stable_watched, told_apart
from fedclade.reproduce.making import Listener, _fewer_seeds
from fedclade.reproduce.numbers import stated
from fedclade.reproduce.page import Line, Page
from fedclade.reproduce.papers.fedclust import PACFLS
from fedclade.reproduce.scale import Cut, settings_table
from fedclade.runs.folder import RunFolder

ALL = items()
CAN_BE_MADE = [name for name, (_, item) in ALL.items() if not item.why_not]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reproduce")


@pytest.mark.parametrize("name", CAN_BE_MADE)
def test_every_item_can_be_made_at_smoke_scale(name: str, out: Path) -> None:
    page = reproduce(name, "smoke", out, workers=1)
    assert page.failures == 0, page.notes
    header, *rows = page.table()
    assert rows
    assert all(len(row) == len(header) for row in rows)
    assert any(word not in ("-", "") for row in rows for word in row[len(page.headings) :])
    folder = out / name.replace("/", "-") / "smoke"
    text = (folder / "table.md").read_text()
    assert text.startswith("# ")
    assert str(out) not in text
    assert (folder / "table.csv").read_text().count("\n") > 1
    _, item = ALL[name]
    if isinstance(item, Experiment) and item.kind == "figure":
        assert ElementTree.parse(folder / "figure.svg").getroot().tag.endswith("svg")


def test_items_share_runs_and_nothing_is_run_twice(out: Path) -> None:
    plans: list[tuple[int, int]] = []
    ended: list[PlannedRun] = []
    listener = Listener(lambda runs, done: plans.append((runs, done)), lambda run, failure: ended.append(run))
    reproduce("fedclust/table1", "smoke", out, workers=1)
    for name in ("fedclust/table1", "fedclust/table4", "fedclust/fig3"):
        reproduce(name, "smoke", out, workers=1, listener=listener)
    assert all(runs == done for runs, done in plans)
    assert not ended


def test_some_rows_columns_and_rounds_of_an_item(tmp_path: Path) -> None:
    cut = Cut(rows=("FedAvg", "IFCA"), columns=("CIFAR-10",), seeds=1, rounds=1)
    page = reproduce("fedclust/table1", "smoke", tmp_path, cut=cut, workers=1)
    assert [line.words[0] for line in page.lines] == ["FedAvg", "IFCA"]
    assert "--row FedAvg --row IFCA --column CIFAR-10 --seeds 1 --rounds 1`" in page.markdown()
    assert any("rounds 1 (paper: 200)" in note for note in page.notes)
    assert any(note.startswith("Not asked for") and "PACFL" in note for note in page.notes)
    with pytest.raises(FedcladeError, match="did you mean 'FedAvg'"):
        reproduce("fedclust/table1", "smoke", tmp_path, cut=Cut(rows=("FedAvgs",)))


def test_a_table_grows_from_the_numbers_of_runs_made_elsewhere(tmp_path: Path) -> None:
    first = reproduce("fedclust/table1", "smoke", tmp_path / "a", cut=Cut(rows=("FedAvg",)), workers=1)
    known = tmp_path / "a/fedclust-table1/smoke/runs.csv"
    ended: list[str] = []
    more = reproduce(
        "fedclust/table1",
        "smoke",
        tmp_path / "b",
        cut=Cut(rows=("FedAvg", "IFCA")),
        known=known,
        workers=1,
        listener=Listener(run=lambda run, failure: ended.append(run.label)),
    )
    assert len(ended) == 1
    assert ended[0].startswith("IFCA")
    assert dict(more.lines[0].ours) == dict(first.lines[0].ours)  # FedAvg's numbers
    assert [record["row"] for record in more.runs] == ["FedAvg", "IFCA"]
    there = reproduce("fedclust/table1", "smoke", tmp_path / "b", only_finished=True)
    assert [line.words[0] for line in there.lines] == ["IFCA"]
    (missing,) = [note for note in there.notes if note.startswith("Not run so far")]
    assert "FedAvg" in missing
    assert "IFCA" not in missing
    both = tmp_path / "b/fedclust-table1/smoke/runs.csv"
    more.publish(both)
    some = reproduce("fedclust/table1", "smoke", tmp_path / "c", cut=Cut(rows=("IFCA",)), known=both, workers=1)
    assert [line.words[0] for line in some.lines] == ["IFCA"]
    assert [record["row"] for record in some.runs] == ["FedAvg", "IFCA"]  # still known, though not asked for
    (tmp_path / "odd.csv").write_text("a,b\n1,2\n")
    with pytest.raises(FedcladeError, match=r"no runs.csv"):
        reproduce("fedclust/table1", "smoke", tmp_path / "b", known=tmp_path / "odd.csv")


def test_a_page_elsewhere_has_its_figure_its_runs_and_their_settings(tmp_path: Path) -> None:
    target = tmp_path / "docs/table.md"
    cut = Cut(rows=("IFCA", "CFL"), rounds=1)
    page = reproduce("fedclust/table1", "smoke", tmp_path / "runs", cut=cut, workers=1, publish=target)
    text = target.read_text()
    assert f"![{page.title}" in text
    assert "](table.svg)" in text
    assert "| IFCA | method.name ifca, method.n_clusters 2 |" in text
    assert ElementTree.parse(target.with_suffix(".svg")).getroot().tag.endswith("svg")
    table = pd.read_csv(target.with_suffix(".csv"))
    assert set(table["row"]) == {"IFCA", "CFL"}
    assert (table["CPU seconds"] >= 0).all()


def page_of(name: str, measures: dict[str, dict[str, float]]) -> Page:
    """Two rows by two columns with two seeds each; the paper has numbers of some."""
    lines = [
        Line(
            (row, column),
            {measure: [1.0 + k, 2.0 + k] for measure in measures},
            {measure: told[row + column] for measure, told in measures.items() if row + column in told},
        )
        for k, row in enumerate(("one", "two"))
        for column in ("A", "B")
    ]
    return Page(name, "title", "paper.", "full", (0, 1), ("row", "data"), dict.fromkeys(measures, 1), lines)


def test_a_figure_has_a_part_for_each_column_and_measure_of_the_paper() -> None:
    def parts(page: Page) -> list[tuple[str, int, int]]:
        svg = "{http://www.w3.org/2000/svg}"
        root = ElementTree.fromstring(page.figure())
        titles = [text.text or "" for text in root.findall(f"{svg}text")]
        figures = root.findall(f"{svg}svg")
        beside = [sum(path.get("class") == "beside" for path in figure.iter(f"{svg}path")) for figure in figures]
        return [
            (title, len(list(figure.iter(f"{svg}circle"))), diamonds)
            for title, figure, diamonds in zip(titles, figures, beside, strict=True)
        ]

    ours = "our seeds (dots, their mean a bar)"
    both = f"{ours} and the paper's number (diamonds)"
    numbers = page_of("p/table9", {"mine": {"oneA": 1.5, "oneB": 2.5, "twoB": 3.5}, "other": {}})
    assert parts(numbers) == [(f"A: {both}", 4, 1), (f"B: {both}", 4, 2)]
    assert parts(page_of("p/fig9", {"mine": {}, "other": {}})) == [(f"A: {ours}", 4, 0), (f"B: {ours}", 4, 0)]
    assert page_of("p/table9", {"mine": {}}).figure() == ""


def test_settings_are_told_once() -> None:
    cells = {
        (row, column): {"rounds": 5, "data": column, "method": {"name": row, "k": k}}
        for row, k in (("a", 1), ("b", 2))
        for column in ("x", "y")
    }
    cells["b", "y"]["method"] = {"name": "b", "k": 3}
    assert settings_table(cells) == [
        ["runs", "settings"],
        ["all", "rounds 5"],
        ["x", "data x"],
        ["y", "data y"],
        ["a", "method.name a, method.k 1"],
        ["b", "method.name b"],
        ["b, x", "method.k 2"],
        ["b, y", "method.k 3"],
    ]
    assert settings_table({}) == []


def test_a_run_that_was_stopped_goes_on(out: Path) -> None:
    page = reproduce("adacfl/table3", "smoke", out, workers=1)
    _, item = ALL["adacfl/table3"]
    assert isinstance(item, Experiment)
    (stopped,) = [path.parent for path in (out / "runs").glob(f"{first_run('adacfl/table3')}/seed-0/result.json")]
    RunFolder(stopped).rewind(1)
    again = reproduce("adacfl/table3", "smoke", out, workers=1)
    assert again.table() == page.table()


def first_run(name: str) -> str:
    paper, item = ALL[name]
    cells, _ = item.planned(paper.settings, paper.scales["smoke"], "smoke")
    return mark_of(cells[0].settings)


def test_the_full_scale_is_the_papers_setting() -> None:
    for name in CAN_BE_MADE:
        paper, item = ALL[name]
        cells, left_out = item.planned(paper.settings, paper.scales["full"], "full")
        assert not left_out, name
        assert all(cell.settings == cell.papers for cell in cells), name
        assert all(mark_of(cell.settings) for cell in cells), name  # the settings are valid


def test_the_small_scale_needs_only_data_that_are_small() -> None:
    for name in CAN_BE_MADE:
        paper, item = ALL[name]
        cells, _ = item.planned(paper.settings, paper.scales["small"], "small")
        for cell in cells:
            assert str(cell.settings["data"]).split(":")[0] in ("mnist", "fashion-mnist", "motionsense"), name
            assert mark_of(cell.settings), name


def test_every_number_of_a_paper_has_its_cell() -> None:
    for name, (paper, item) in ALL.items():
        if isinstance(item, Grid):
            cells, _ = item.planned(paper.settings, paper.scales["full"], "full")
            known = {(cell.row, cell.column) for cell in cells}
            for measure in item.measures:
                assert set(measure.paper) <= known, (name, set(measure.paper) - known)
        if isinstance(item, Listing):
            assert {words[0] for words in item.paper} <= set(item.rows), name
            assert {words[-1] for words in item.paper} <= set(item.places), name


def test_the_rounds_that_adacfl_is_said_to_save_are_those_of_its_numbers() -> None:
    rounds = stated("adacfl", "table2.rounds")
    columns = {column for _, column in rounds}
    times = {
        other: np.mean([rounds[other, column] / rounds["AdaCFL", column] for column in columns])
        for other in ("FedAvg", "FMTL", "IFCA")
    }
    (said,) = [note for note in ALL["adacfl/table2"][1].notes if "6.26" in note]
    told = [float(number) for number in re.findall(r"\d\.\d\d", said)]
    assert told == [6.26, *np.round([*times.values(), np.mean([*times.values()])], 2)]


def test_the_papers_numbers_are_found_by_row_and_column() -> None:
    skew = stated("fedclust", "table4", {"FedClust": ("ours", "also ours")})
    assert skew["IFCA", "CIFAR-100"] == 43
    assert skew["ours", "FMNIST"] == skew["also ours", "FMNIST"] == 7
    assert ("FedAvg", "CIFAR-10") not in skew  # it has none
    assert not any(row == "FedClust" for row, _ in skew)
    assert stated("hicfl", "table4.after")["Non-IID-2, beta 0.7", "CIFAR10"] == 98
    assert stated("fedstack", "table2")["agglomerative", "2", "walking"] == 0.92
    assert stated("fedstack", "table3")["FL+HC", "all", "F1"] == 0.83
    table = ALL["fedstack/table3"][1]
    assert isinstance(table, Listing)  # whichever way the paper is read, its numbers are there
    assert {words[0] for words in table.paper} >= {"K-means", "K-means, aligned", "FL+HC"}
    sccs = [stated("fedsccs", name) for name in ("fig5", "fig6")]
    assert sccs[0]["FedAvg", "random rows"] == sccs[1]["FedAvg", "random rows"] == 71.34  # one and the same run
    assert max(sccs[1], key=sccs[1].__getitem__) == ("FedSCCS, one at random", "random rows")


def test_counts_are_those_of_the_papers_but_for_the_one_that_cannot_be(tmp_path: Path) -> None:
    ours = {(line.words, line.ours["weights"][0]) for line in reproduce("hicfl/table1", out=tmp_path).lines}
    papers = {(line.words, line.paper["weights"]) for line in reproduce("hicfl/table1", out=tmp_path).lines}
    assert ours == papers
    wrong = [row for row in reproduce("adacfl/table1", out=tmp_path).table()[1:] if row[-1] != "+0"]
    assert wrong == [["FmnistCNN", "fc1", "5,120", "8,000", "-2,880"]]


def test_megabits_follow_the_formula_of_the_paper(out: Path) -> None:
    reproduce("fedclust/table5", "smoke", out, workers=1)
    run = Finished.open(out / "runs" / first_run("fedclust/table5") / "seed-0")  # FedAvg's
    share, numbers = run.record["settings"]["participation"], run.summary["layout"]["n_parameters"]
    assert megabits(rounds_to(0.0, "accuracy_local"))(run) == pytest.approx(1 * share * 2 * numbers * 32 / 1e6)


def test_clients_that_have_not_trained_yet_count_with_the_initial_model(out: Path) -> None:
    reproduce("fedclust/table4", "smoke", out, workers=1)
    run = Finished.open(out / "runs" / first_run("fedclust/table4") / "seed-0")
    has = {row.client: row.accuracy for row in run.history[run.history["round"] == 0].itertuples()}
    expected = []
    for round in range(1, run.round + 1):
        for row in run.history[run.history["round"] == round].itertuples():
            if not np.isnan(row.accuracy_local):
                has[row.client] = row.accuracy_local
        expected.append(np.mean(list(has.values())))
    means = of_everybody(run)
    np.testing.assert_allclose(means, expected)
    assert run.by_round("accuracy_local")["clients"][1] < len(has)  # else nothing has been tested
    assert rounds_of_everybody_to(expected[1])(run) == 1 + int(expected[0] < expected[1])
    assert rounds_of_everybody_to(1.01)(run) is None


def test_the_sweep_of_fedclust_goes_from_one_cluster_to_everybody_alone(out: Path) -> None:
    lines = reproduce("fedclust/fig4", "smoke", out, workers=1).lines
    assert [line.ours["clusters"] for line in lines] == [[1], [2], [4], [8], [16], [32], [40]]
    thresholds = [line.ours["threshold from"][0] for line in lines]
    assert thresholds == sorted(thresholds, reverse=True)
    assert thresholds[-1] == 0


def test_the_page_of_all_items_is_current() -> None:
    page = Path(__file__).parents[2] / "docs" / "reproduce.md"
    assert page.read_text() == as_markdown(), "make it again: fedclade reproduce list --markdown > docs/reproduce.md"


def test_wrong_names_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(FedcladeError, match="did you mean 'fedclust/table1'"):
        reproduce("fedclust/tabel1", out=tmp_path)
    with pytest.raises(FedcladeError, match="private"):
        reproduce("hicfl/fig15", out=tmp_path)
    with pytest.raises(FedcladeError, match="unknown scale"):
        reproduce("hicfl/table1", "tiny", out=tmp_path)


def test_the_command_line(tmp_path: Path) -> None:
    listed = CliRunner().invoke(app, ["reproduce", "list"])
    assert listed.exit_code == 0
    assert "fedclust/table5" in listed.stdout
    assert "private" in listed.stdout
    made = CliRunner().invoke(app, ["reproduce", "adacfl/table1", "--scale", "smoke", "--out", str(tmp_path)])
    assert made.exit_code == 0
    assert "25,000" in made.stdout
    wrong = CliRunner().invoke(app, ["reproduce", "nothing"])
    assert wrong.exit_code == 2


def test_a_papers_number_stands_beside_ours_of_the_same_kind(out: Path) -> None:
    page = reproduce("fedclust/table1", "smoke", out, workers=1)
    beside = {line.words[0]: set(line.paper) for line in page.lines}
    for name in ("FedAvg", "FedProx", "FedNova", "CFL"):
        assert beside[name] == {"cluster model, %"}
    for name in ("Local", "LG", "IFCA", *PACFLS, "FedClust, the paper's K"):
        assert beside[name] == {"locally trained model, %"}
    assert len({line.ours["clients trained"][0] for line in page.lines}) == 1


def test_a_mean_over_clusters_counts_each_once(out: Path) -> None:
    reproduce("hicfl/table2", "smoke", out, workers=1)
    runs = [Finished.open(path.parent) for path in (out / "runs").glob("ifca-*/seed-0/result.json")]
    several = [run for run in runs if len(run.clusters) > 1]
    assert several
    for run in several:
        last = run.last("accuracy")
        expected = [sum(last[client] for client in part) / len(part) for part in run.clusters.values()]
        assert over_clusters(run) == pytest.approx(sum(expected) / len(expected))


def test_a_page_names_what_has_fewer_seeds_than_the_rest() -> None:
    seeds = {
        ("A", "x"): (0, 1),
        ("B", "x"): (0,),
        ("A", "y"): (0,),
        ("B", "y"): (0,),
        ("A", "z"): (0, 1),
        ("B", "z"): (0, 1),
    }
    records = [{"row": row, "column": column, "seed": seed} for (row, column), of in seeds.items() for seed in of]
    assert _fewer_seeds(records) == ["x: B (seed 0)", "y: all rows (seed 0)"]


def test_before_and_after_are_told_by_the_papers_own_sign() -> None:
    """Two groups of two; from round 6 on all are steady, from round 8 on a split by signs tells them apart."""

    def of(rounds: range) -> Finished:
        one_side = np.ones((4, 4))
        lost = np.outer([1, 1, 1, -1], [1, 1, 1, -1])  # c stands with a and b
        apart = np.outer([1, 1, -1, -1], [1, 1, -1, -1])
        kept = {
            round: {
                "clients": list("abcd"),
                "stability": np.full((4, 1), 0.5 if round < 6 else 0.001),
                "cosine": np.stack([one_side if round < 7 else lost if round < 8 else apart]),
            }
            for round in rounds
        }
        watched = SimpleNamespace(
            settings={"training": {"learning_rate": 0.1}},
            record={"groups": {"a": 0, "b": 0, "c": 1, "d": 1}},
            kept=lambda name: {**kept, 1: {"clients": list("abcd")}},  # round 1 has no stability yet
        )
        return cast(Finished, watched)

    run = of(range(3, 13))
    assert told_apart("before", run) == pytest.approx((4 * 0.5 + 0.75) / 5)  # the window is steady from round 8 on
    assert told_apart("after", run) == 1.0
    assert most_stable_watched(run) == 4
    never = of(range(3, 6))
    assert told_apart("before", never) == 0.5
    assert told_apart("after", never) is None
    assert most_stable_watched(never) == 0


def test_hicfls_table_4_is_of_twenty_clients_in_two_groups() -> None:
    paper, item = ALL["hicfl/table4"]
    cells, _ = item.planned(paper.settings, paper.scales["full"], "full")
    assert [cell.row for cell in cells] == ["Non-IID-1", "Non-IID-2, beta 0.5", "Non-IID-2, beta 0.7", "Non-IID-3"]
    for cell in cells:
        assert (cell.settings["clients"], cell.settings["rounds"], cell.settings["data"]) == (20, 20, "cifar10")
        split = dealt(cell.settings["split"], 20, "cifar10", 0)
        assert split.group is not None
        assert np.bincount(split.group).tolist() == [10, 10]


def dealt(spec: str, clients: int, data: str, seed: int) -> Allocation:
    """What a split gives the clients of a data set, of which its numbers of rows are enough to know."""
    split, numbers = parsed(spec)
    assert split.allocate is not None
    return split.allocate(Request(SIZES[data], clients, data == "cifar10", stream(seed, "split")), *numbers)


SIZES = {  # training rows of each label
    "mnist": np.array([5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]),
    "fashion-mnist": np.full(10, 6000),
    "cifar10": np.full(10, 5000),
}
GREY, CIFAR = ("mnist", "fashion-mnist"), ("cifar10",)


@pytest.mark.parametrize(
    ("name", "fewest", "most", "spec", "clients", "data"),
    [
        ("", 480, 9200, "non-iid-1", 20, GREY),
        ("", 410, 7600, "non-iid-1", 20, CIFAR),
        ("", 900, 5800, "non-iid-3", 20, GREY),
        ("", 780, 4400, "non-iid-3", 20, CIFAR),
        ("table4", 500, 4700, "non-iid-1:1:2", 20, CIFAR),
        ("table4", 430, 1400, "non-iid-2:0.5:1:2", 20, CIFAR),
        ("table4", 330, 1000, "non-iid-2:0.7:1:2", 20, CIFAR),
        ("table4", 750, 4800, "non-iid-3:1:2", 20, CIFAR),
        ("fig1", 1800, 9600, "label-groups:2:1", 10, CIFAR),
        ("fig2", 1900, 7800, "non-iid-3:1:2", 10, CIFAR),
    ],
)
def test_hicfls_notes_tell_how_many_rows_clients_have(
    name: str, fewest: int, most: int, spec: str, clients: int, data: tuple[str, ...]
) -> None:
    paper, item = ALL[f"hicfl/{name or 'table2'}"]
    assert f"{fewest:,} to {most:,}" in " ".join(item.notes if name else paper.notes)
    rows = np.concatenate([dealt(spec, clients, each, seed).counts.sum(axis=1) for each in data for seed in range(5)])
    assert [float(f"{number:.2g}") for number in (rows.min(), rows.max())] == [fewest, most]


def test_hicfls_notes_tell_what_non_iid_2_leaves_to_clients() -> None:
    notes = " ".join(ALL["hicfl/table2"][0].notes)
    for told, mean, data in (("some 1,350 rows", 1350, GREY), ("(CIFAR10: 1,100)", 1100, CIFAR)):
        assert told in notes
        counts = [dealt("non-iid-2:0.7", 20, each, seed).counts for each in data for seed in range(5)]
        assert np.concatenate(counts).sum(axis=1).mean() == pytest.approx(mean, rel=0.03)
    for sizes in SIZES.values():
        assert sizes[:4].sum() < 0.7 * 20 * 2000  # rows of the dominant labels: an average of 2,000 is impossible


def test_clients_that_are_stable_at_once_are_counted_layer_by_layer() -> None:
    calm, restless = 0.04, 0.06  # of rate 0.1 the threshold is 0.05
    rounds = {
        5: {"values": np.array([[calm, restless], [restless, calm], [np.nan, calm]])},
        6: {"values": np.array([[calm, restless], [restless, restless], [calm, calm]])},
    }
    settings = {"training": {"learning_rate": 0.1}}
    assert most_stable(cast(Finished, SimpleNamespace(settings=settings, kept=lambda name: rounds))) == 2
    assert most_stable(cast(Finished, SimpleNamespace(settings=settings, kept=lambda name: {}))) is None
