"""Figures of pages: every value where it belongs, and told in words; tables with the best in bold."""

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from fedclade.charts import dots, nice_ticks, scatter, standalone
from fedclade.tables import html_table, paragraph, to_latex

SVG = "{http://www.w3.org/2000/svg}"


def drawn(figure: str) -> ElementTree.Element:
    return ElementTree.fromstring(figure.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"'))[0]


def test_dots_lie_at_their_values() -> None:
    figure = drawn(dots({"a": [10.0, 30.0], "b & c": [20.0]}, "title", "axis", {"a": 40.0}))
    x = [float(circle.attrib["cx"]) for circle in figure.iter(f"{SVG}circle")]
    assert x[2] - x[0] == pytest.approx(x[1] - x[2], abs=0.2)  # 10, 20, 30
    beside = next(path for path in figure.iter(f"{SVG}path") if path.attrib["class"] == "beside")
    assert float(re.findall(r"[\d.]+", beside.attrib["d"])[0]) - x[1] == pytest.approx(x[2] - x[0], abs=0.2)
    assert figure.attrib["aria-label"] == "title. a: 20, beside 40; b & c: 20."


def test_figures_of_a_page_make_one_file() -> None:
    figures = [dots({"a": [1.0], "b < c": [2.0]}, f"title {k} & more", "axis", {"a": 3.0}) for k in range(2)]
    whole = ElementTree.fromstring(standalone(figures))
    assert [text.text for text in whole.findall(f"{SVG}text")] == ["title 0 & more", "title 1 & more"]
    first, second = whole.findall(f"{SVG}svg")
    assert float(second.attrib["y"]) >= float(first.attrib["y"]) + float(first.attrib["height"])
    assert float(whole.attrib["viewBox"].split()[-1]) == float(second.attrib["y"]) + float(second.attrib["height"])
    assert len(list(whole.iter(f"{SVG}circle"))) == 4


def test_points_have_labels_that_do_not_cover_each_other() -> None:
    figure = drawn(scatter({f"method {k}": (5.0, 50.0) for k in range(4)}, "title", "x", "y"))
    lines = [float(text.attrib["y"]) for text in figure.iter(f"{SVG}text") if (text.text or "").startswith("method")]
    assert len(set(lines)) == 4
    assert min(b - a for a, b in pairwise(sorted(lines))) >= 12


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (61.2, 98.4), (5.0, 5.0), (-0.3, 0.001), (0.0, 12345.0)])
def test_ticks_are_few_round_and_around_the_values(low: float, high: float) -> None:
    ticks = nice_ticks(low, high)
    assert ticks[0] <= low
    assert ticks[-1] >= high
    assert 3 <= len(ticks) <= 8
    assert len({round(b - a, 9) for a, b in pairwise(ticks)}) == 1


def test_tables_for_papers_and_pages() -> None:
    rows = [["method", "accuracy"], ["a_b", "90.1 ± 0.2"], ["c", "91.0 ± 0.1"]]
    assert r"c & \textbf{91.0 $\pm$ 0.1} \\" in to_latex(rows, [(1, 1)])
    assert r"a\_b & 90.1 $\pm$ 0.2 \\" in to_latex(rows, [(1, 1)])
    assert '<th scope="col">accuracy</th>' in html_table(rows, "name")
    assert paragraph("`a` < b") == "<p><code>a</code> &lt; b</p>"
