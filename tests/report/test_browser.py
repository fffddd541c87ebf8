"""What a reader does with a page, in a browser: open, hover, move the cut, filter, and watch a run go on."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from reader import METHODS, SETTINGS, Browser

import fedclade
from fedclade.report.making import make_report
from fedclade.report.watching import make_server
from fedclade.runs.folder import RunFolder


@pytest.fixture(scope="module")
def page(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page about all methods."""
    (path,) = make_report(list(runs.values()), tmp_path_factory.mktemp("page") / "report.html")
    return path.as_uri()


def test_all_figures_of_all_runs_are_drawn_without_an_error(browser: Browser, page: str) -> None:
    browser.open(page)
    for run in range(len(METHODS)):
        browser.run(
            "const select = document.querySelector('#runs select'); select.value = arguments[0]; select.onchange()", run
        )
        for section in browser.run(
            "return [...document.querySelectorAll('section:not([hidden])')].filter((s) => "
            "!s.querySelector('.figure').hidden).map((s) => s.id)"
        ):
            browser.show(section)
            words = browser.run("return document.querySelector(`#${arguments[0]} .words`).textContent", section)
            assert words.endswith(".")
    assert browser.errors() == []
    assert browser.run("return document.documentElement.scrollWidth <= window.innerWidth")


def test_moving_the_cut_changes_the_clusters(browser: Browser, page: str, runs: dict[str, Path]) -> None:
    browser.open(page)
    browser.show("dendrogram")
    result = fedclade.load(runs["fedclust"])
    assert browser.clusters_at_cut("dendrogram") == len(result.clusters)
    assert f"ARI {result.summary['clusters']['ari']:.3f}" in browser.text("#dendrogram output")
    browser.slide("dendrogram", 0)
    browser.until(lambda: browser.clusters_at_cut("dendrogram") == 8)
    browser.slide("dendrogram", 1e9)
    browser.until(lambda: browser.clusters_at_cut("dendrogram") == 1)
    assert "client-000" in browser.text("#dendrogram .cut li")


def test_moving_the_round_shows_who_was_together_then(browser: Browser, page: str) -> None:
    browser.open(page)
    browser.run("const select = document.querySelector('#runs select'); select.value = 1; select.onchange()")
    browser.show("splits")
    assert browser.clusters_at_cut("splits") == 2
    browser.slide("splits", 0)
    browser.until(lambda: browser.clusters_at_cut("splits") == 1)


def test_methods_can_be_filtered_and_views_chosen(browser: Browser, page: str) -> None:
    browser.open(page)
    browser.show("accuracy")
    assert {trace["method"] for trace in browser.traces("accuracy")} == set(METHODS)
    browser.find("#methods input[value=ifca]").click()
    hidden = {trace["method"] for trace in browser.traces("accuracy") if trace["visible"] is not True}
    assert hidden == {"ifca"}
    assert "ifca" not in browser.text("#overview .table")
    browser.show("inside")
    by_cluster = browser.traces("inside")
    browser.run("[...document.querySelectorAll('#inside button')].at(-1).click()")
    assert browser.traces("inside") != by_cluster


def test_hovering_shows_values(browser: Browser, page: str) -> None:
    browser.open(page)
    browser.show("accuracy")
    browser.run(
        "const figure = document.querySelector('#accuracy .figure');"
        "const curve = figure._fullData.findIndex((trace) => trace.name === 'fedclust');"
        "Plotly.Fx.hover(figure, [{curveNumber: curve, pointNumber: 3}])"
    )
    browser.until(lambda: "round 3: median" in browser.text("#accuracy .hoverlayer"))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A run of which not one round has ended, and the address at which it is watched."""
    run = tmp_path / "run"
    finished = fedclade.run(**{**SETTINGS, "rounds": 0}, method=METHODS["fedclust"])
    RunFolder.create(run, {**finished.folder.settings})
    server = make_server([run], port=0)
    assert server.server_address[0] == "127.0.0.1"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield run, f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_watched_run_shows_each_round_and_keeps_what_the_reader_chose(
    browser: Browser, served: tuple[Path, str]
) -> None:
    run, address = served
    browser.open(address)
    assert "not one round has ended yet" in browser.text("#status")
    fedclade.resume(run, rounds=2)
    browser.until(lambda: "ended after 2 rounds" in browser.text("#status"))
    browser.show("dendrogram")
    browser.slide("dendrogram", 0)
    browser.until(lambda: browser.clusters_at_cut("dendrogram") == 8)
    browser.show("inside")
    browser.run("[...document.querySelectorAll('#inside button')].at(-1).click()")
    browser.run("window.notReloaded = true")
    fedclade.resume(run, rounds=5)
    browser.until(lambda: "ended after 5 rounds" in browser.text("#status"))
    browser.until(lambda: max(trace["points"] for trace in browser.traces("inside")) == 6)
    assert browser.clusters_at_cut("dendrogram") == 8
    assert browser.text("#inside button[aria-pressed=true]") == "by client"
    assert browser.run("return window.notReloaded")
    assert browser.errors() == []
