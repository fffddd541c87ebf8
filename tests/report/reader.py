"""A reader of pages: the runs that they are about, and a browser with what a reader does in it."""

import time
from collections.abc import Callable
from typing import Any

SETTINGS: dict[str, Any] = {
    "data": "digits",
    "split": "label-groups:2",
    "clients": 8,
    "rows": 40,
    "model": "mlp",
    "rounds": 6,
    "workers": 1,
    "evaluate_local_every": 3,
    "training": {"learning_rate": 0.1},
}
METHODS: dict[str, Any] = {
    "fedclust": {"name": "fedclust"},
    "hicfl": "hicfl",
    "ifca": {"name": "ifca", "n_clusters": 2},
    "cfl": "cfl",
    "fedsccs": {"name": "fedsccs", "warmup": 2, "n_clusters": 2},
    "fedstack": "fedstack",
}


class Browser:
    """A headless Chromium, and what a reader does with it."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, address: str) -> None:
        self.driver.get(address)
        self.until(lambda: self.run("return document.documentElement.dataset.ready") == "yes")

    def run(self, script: str, *values: Any) -> Any:
        return self.driver.execute_script(script, *values)

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def text(self, selector: str) -> str:
        return str(self.run("return document.querySelector(arguments[0]).textContent", selector))

    def show(self, section: str) -> None:
        """Scroll to a section and wait for its figure."""
        self.run("document.getElementById(arguments[0]).scrollIntoView({block: 'center'})", section)
        self.until(lambda: self.run(f"return document.querySelector('#{section} .main-svg') !== null"))

    def traces(self, section: str) -> list[dict[str, Any]]:
        """What Plotly has drawn in a section: names, visibility and numbers of points."""
        return self.run(
            "return document.querySelector(`#${arguments[0]} .figure`).data.map((trace) => "
            "({name: trace.name, visible: trace.visible, method: trace.meta?.method, points: trace.x?.length}))",
            section,
        )

    def slide(self, section: str, value: float) -> None:
        self.run(
            "const slider = document.querySelector(`#${arguments[0]} .cut input`); slider.value = arguments[1];"
            "slider.dispatchEvent(new Event('input'))",
            section,
            value,
        )

    def clusters_at_cut(self, section: str) -> int:
        return int(self.run("return document.querySelector(`#${arguments[0]} output`).dataset.clusters", section))

    def errors(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]

    def until(self, holds: Callable[[], Any], seconds: float = 30) -> None:
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, "the page did not get there in time"
            time.sleep(0.05)
