"""Pages can be used by everybody: axe-core finds nothing serious in them, light and dark, wide and narrow."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from reader import Browser

from fedclade.benchmark.page import html_document
from fedclade.compare import Study, compare
from fedclade.report.making import make_report
from fedclade.reproduce import reproduce

SETTINGS = {"data": "digits", "split": "label-groups:2", "clients": 4, "rounds": 1, "model": "mlp", "rows": 40}


def axe() -> str:
    package = pytest.importorskip("axe_core_python", reason="axe-core-python is not installed")
    return (Path(package.__file__).parent / "axe.min.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def pages(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    (report,) = make_report(list(runs.values()), folder / "report.html")
    cells = [{"label": name, "method": name} for name in ("fedavg", "fedclust")]
    comparison = compare(Study.of({"seeds": (0, 1), "settings": SETTINGS, "cells": cells}), folder / "study", workers=1)
    comparison.write()
    reproduce("fedclust/table1", "smoke", folder / "papers", workers=1)
    (folder / "benchmark.html").write_text(html_document(benchmark_table()), encoding="utf-8")
    return {
        "report": report,
        "compare": folder / "study" / "table.html",
        "reproduce": folder / "papers" / "fedclust-table1" / "smoke" / "page.html",
        "benchmark": folder / "benchmark.html",
    }


def benchmark_table() -> pd.DataFrame:
    rows: list[dict[str, Any]] = [
        {"setting": setting, "method": method, "seed": seed, "accuracy": 0.5 + 0.1 * place + 0.01 * seed}
        for setting in ("one", "two")
        for place, method in enumerate(("fedavg", "local", "clade"))
        for seed in (0, 1)
    ]
    return pd.DataFrame(rows).assign(**{"worst tenth": 0.4, "up MB": 3.0, "clusters": 2, "ARI": 1.0, "seconds": 1.0})


@pytest.mark.parametrize("page", ["report", "compare", "reproduce", "benchmark"])
def test_nothing_serious_is_found(browser: Browser, pages: dict[str, Path], page: str) -> None:
    script = axe()
    for scheme, width in (("light", 1200), ("dark", 390)):
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        theme = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", theme)
        try:
            if page == "report":
                browser.open(pages[page].as_uri())
                browser.show("accuracy")
            else:
                browser.driver.get(pages[page].as_uri())
                assert browser.run("return document.querySelectorAll('figure svg[role=img][aria-label]').length") > 0
            browser.run(script)
            # Inside a figure nothing is read but its label, which says what it shows.
            found = browser.driver.execute_async_script(
                "axe.run({exclude: ['.figure']}).then(arguments[arguments.length - 1])"
            )
            named = [(one["impact"], one["id"], one["nodes"][0]["html"]) for one in found["violations"]]
            assert [one for one in named if one[0] in ("serious", "critical")] == [], (scheme, width)
            assert browser.run("return document.documentElement.scrollWidth <= window.innerWidth")
        finally:
            browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
            browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
