"""Small real runs of several methods, and a browser to look at their pages."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from reader import METHODS, SETTINGS, Browser

import fedclade


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Run folders by method."""
    root = tmp_path_factory.mktemp("runs")
    for name, method in METHODS.items():
        settings = {**SETTINGS, "model": None} if name == "fedstack" else SETTINGS
        fedclade.run(**settings, method=method, out=root / name)
    return {name: root / name for name in METHODS}


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("chromium and its driver are not installed")
    options = selenium.ChromeOptions()
    options.binary_location = chromium
    for switch in (
        "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
        "--window-size=1200,900", f"--user-data-dir={tmp_path_factory.mktemp('profile')}",
    ):  # fmt: skip
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = selenium.ChromeService(driver)
    started = selenium.Chrome(options=options, service=service)
    try:
        yield Browser(started)
    finally:
        started.quit()
