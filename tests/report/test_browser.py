"""What a reader does with a page, in a browser: open, hover, move the cut, filter, and watch a run go on."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from made import make_large_run
from reader import METHODS, SETTINGS, Browser

import fedclade
from fedclade.report.making import make_report
from fedclade.report.watching import make_server
from fedclade.runs.folder import RunFolder

HOME, RIGHT = "\ue011", "\ue014"  # the keys, as WebDriver has them


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
            figure = browser.find(f"#{section} .figure")
            assert figure.get_attribute("role") == "img"
            assert words in figure.get_attribute("aria-label")
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


def test_the_cut_moves_merge_by_merge_also_by_keys(browser: Browser, page: str) -> None:
    browser.open(page)
    browser.show("dendrogram")
    slider = browser.find("#dendrogram .cut input")
    slider.send_keys(HOME)
    for merges in range(8):  # of 8 clients
        browser.until(lambda merges=merges: browser.clusters_at_cut("dendrogram") == 8 - merges)
        assert slider.get_attribute("aria-valuetext") == browser.text("#dendrogram output")
        assert f"after {merges} of 7 merges" in slider.get_attribute("aria-valuetext")
        slider.send_keys(RIGHT)


def test_legends_lie_below_figures_and_turn_lines_off(browser: Browser, page: str) -> None:
    browser.open(page)
    browser.show("accuracy")
    figure, legend = browser.find("#accuracy .figure").rect, browser.find("#accuracy .legend").rect
    assert legend["y"] >= figure["y"] + figure["height"]
    button = browser.find("#accuracy .legend button")
    name = button.text
    button.click()
    hidden = [trace["name"] for trace in browser.traces("accuracy") if trace["visible"] is False and trace["name"]]
    assert hidden == [name]
    assert browser.find("#accuracy .legend button").get_attribute("aria-pressed") == "false"


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page about 300 clients in 60 clusters."""
    folder = tmp_path_factory.mktemp("large")
    (path,) = make_report([make_large_run(folder / "run", 300, 20, 60)], folder / "report.html")
    return path.as_uri()


def test_many_clients_keep_their_names_leaves_and_colours(browser: Browser, large: str) -> None:
    browser.open(large)
    browser.show("dendrogram")
    names = "return [...document.querySelectorAll('#dendrogram .xtick text')].map((tick) => tick.textContent)"
    browser.until(lambda: browser.run(names))
    shown = browser.run(names)
    assert 20 < len(shown) < 100  # as many as there is room for
    figure = "document.querySelector('#dendrogram .figure')"
    low, high = browser.run(f"return {figure}._fullLayout.xaxis.range")
    assert low <= -0.5
    assert high >= 299.5
    browser.run(f"Plotly.relayout({figure}, {{'xaxis.range': [99.5, 109.5]}})")
    browser.until(lambda: len(browser.run(names)) == 10)  # close by, all of them
    tints = browser.run(f"return {figure}.data.map((trace) => trace.line.color)")
    assert len(tints) == len(set(tints))
    for section in ("inside", "splits", "holdings"):
        browser.show(section)
        if section != "splits":
            browser.run(f"[...document.querySelectorAll('#{section} .controls button')].at(-1).click()")
        rows = f"return [...document.querySelectorAll('#{section} .ytick')].map((tick) => tick.textContent)"
        browser.until(lambda rows=rows: any("client-" in name for name in browser.run(rows)))
    assert browser.errors() == []


def test_a_client_can_be_found_and_sections_reached(browser: Browser, large: str) -> None:
    browser.open(large)
    titles = browser.run("return [...document.querySelectorAll('section:not([hidden]) h2')].map((h) => h.textContent)")
    links = browser.run("return [...document.querySelectorAll('#contents a')].map((a) => [a.textContent, a.hash])")
    assert [text for text, _ in links] == titles
    assert all(browser.run("return document.querySelector(arguments[0]) !== null", hash) for _, hash in links)
    browser.find("#search input").send_keys("client-0123")
    assert "cluster 3, hidden group 3, cluster model" in browser.text("#found")
    browser.show("dendrogram")
    assert browser.text("#dendrogram .cut li mark") == "client-0123"
    browser.show("splits")
    browser.until(lambda: browser.run("return document.querySelector('#splits .figure').layout.shapes.length") == 2)
    browser.run("document.querySelector('#clients details').open = true")
    assert browser.text("#clients tr.found td") == "client-0123"
    browser.find("#clients .filter input").send_keys("client-000")
    assert browser.run("return document.querySelectorAll('#clients tbody tr:not([hidden])').length") == 10


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
    browser.run("[...document.querySelectorAll('#inside .controls button')].at(-1).click()")
    assert browser.traces("inside") != by_cluster


def test_hovering_shows_values(browser: Browser, page: str) -> None:
    browser.open(page)
    browser.show("accuracy")
    browser.run(
        "const figure = document.querySelector('#accuracy .figure');"
        "const curve = figure._fullData.findIndex((trace) => trace.name === 'fedclust');"
        "Plotly.Fx.hover(figure, [{curveNumber: curve, pointNumber: 3}])"
    )
    browser.until(lambda: "round 3: mean" in browser.text("#accuracy .hoverlayer"))


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
    browser.run("[...document.querySelectorAll('#inside .controls button')].at(-1).click()")
    browser.run("window.notReloaded = true")
    fedclade.resume(run, rounds=5)
    browser.until(lambda: "ended after 5 rounds" in browser.text("#status"))
    browser.until(lambda: max(trace["points"] for trace in browser.traces("inside")) == 6)
    assert browser.clusters_at_cut("dendrogram") == 8
    assert browser.text("#inside button[aria-pressed=true]") == "by client"
    assert browser.run("return window.notReloaded")
    assert browser.errors() == []
