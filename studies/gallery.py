"""The pictures of docs/gallery.md: `python studies/gallery.py` runs five methods, makes their page and takes pictures of it.

It needs chromium and its driver, and `pip install 'fedclade[report]' selenium`.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver

import fedclade
from fedclade.compare import Study, compare
from fedclade.report.making import make_report

OUT = Path(__file__).parent.parent / "docs" / "gallery"
SETTINGS: dict[str, Any] = {
    "data": "digits",
    "split": "label-groups:4",
    "clients": 20,
    "rounds": 15,
    "evaluate_local_every": 5,
    "training": {"learning_rate": 0.1},
}
METHODS: dict[str, Any] = {
    "fedclust": {"name": "fedclust"},
    "agreement": "agreement",
    "ifca": {"name": "ifca", "n_clusters": 3},
    "fedavg": "fedavg",
    "cfl": "cfl",
}
CELLS = [{"label": name, "method": method} for name, method in METHODS.items()]
CUT = "const s = document.querySelector('#dendrogram .cut input'); s.value = 14; s.dispatchEvent(new Event('input'))"
BY_CLIENT = "[...document.querySelectorAll('#inside .controls button')].at(-1).click()"

# name of the picture: the run in detail, the section, the width, the theme, what is done before
PICTURES = {
    "methods": ("fedclust", "accuracy", 1000, "light", ""),
    "distribution": ("fedclust", "distribution", 1000, "light", ""),
    "traffic": ("fedclust", "traffic", 1000, "dark", ""),
    "clients": ("ifca", "inside", 1000, "light", BY_CLIENT),
    "dendrogram": ("fedclust", "dendrogram", 1000, "light", CUT),
    "splits": ("agreement", "splits", 1000, "dark", ""),
    "matrix": ("agreement", "matrix", 1000, "light", ""),
    "mapping": ("ifca", "mapping", 1000, "light", ""),
    "norms": ("cfl", "norms", 1000, "dark", ""),
    "phone": ("fedclust", "dendrogram", 390, "dark", ""),
}


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, method in METHODS.items():
            fedclade.run(**SETTINGS, method=method, out=Path(folder) / name)
        study = Study.of({"title": "A comparison", "seeds": (0, 1, 2), "settings": SETTINGS, "cells": CELLS})
        compare(study, Path(folder) / "study").write()
        (page,) = make_report([Path(folder) / name for name in METHODS], Path(folder) / "report.html")
        with browser() as driver:
            for name, wanted in PICTURES.items():
                (OUT / f"{name}.png").write_bytes(picture(driver, page, *wanted))
                print(OUT / f"{name}.png", file=sys.stderr)
            (OUT / "compare.png").write_bytes(whole(driver, Path(folder) / "study" / "table.html"))


def picture(driver: Any, page: Path, run: str, section: str, width: int, theme: str, before: str) -> bytes:
    """One section of the page, as a reader sees it."""
    screen = {"width": width, "height": 1200, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    scheme = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", scheme)
    driver.get(page.as_uri())
    wait(driver, "return document.documentElement.dataset.ready === 'yes'")
    choose = "const s = document.querySelector('#runs select'); s.value = arguments[0]; s.onchange()"
    driver.execute_script(choose, list(METHODS).index(run))
    driver.execute_script(f"document.getElementById('{section}').scrollIntoView()")
    wait(driver, f"return document.querySelector('#{section} .main-svg') !== null")
    driver.execute_script(before)
    time.sleep(1)  # figures fade in
    return bytes(driver.find_element("id", section).screenshot_as_png)


def whole(driver: Any, page: Path) -> bytes:
    """A page from top to bottom."""
    screen = {"width": 1000, "height": 1700, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    driver.get(page.as_uri())
    return bytes(driver.find_element("tag name", "main").screenshot_as_png)


def wait(driver: Any, script: str) -> None:
    end = time.monotonic() + 60
    while not driver.execute_script(script):
        if time.monotonic() > end:
            raise SystemExit("the page did not open in a minute")
        time.sleep(0.05)


@contextmanager
def browser() -> Iterator[Any]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        raise SystemExit("the pictures need chromium and its driver: apt-get install chromium chromium-driver")
    with tempfile.TemporaryDirectory() as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        for switch in (
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
            "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
            f"--user-data-dir={profile}",
        ):  # fmt: skip
            options.add_argument(switch)
        started = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
        try:
            yield started
        finally:
            started.quit()


if __name__ == "__main__":
    main()
