"""The page of runs that are under way, served to this machine only; it asks for what has changed and shows it."""

import json
from collections.abc import Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fedclade.errors import FedcladeError
from fedclade.report.page import as_json, html_page, page_data, sections_of
from fedclade.report.reading import read_runs, run_folders
from fedclade.report.sections import need_plotly

HERE = "127.0.0.1"
PAUSE = 1000  # milliseconds between two questions of the page


class Watched:
    """The runs as last read, each section with the version in which it changed last."""

    def __init__(self, paths: Sequence[Path | str]) -> None:
        self.paths = paths
        self.version = 0
        self.seen: Any = None  # of the folders, when they were last read
        self.texts: dict[str, str] = {}  # by section
        self.changed: dict[str, int] = {}
        self.facts: dict[str, Any] = {}
        self.lock = Lock()
        self.look()

    def look(self) -> None:
        """Read the runs again if a round or a run has ended since."""
        with self.lock:
            now = self._traces()
            if now == self.seen:
                return
            self.runs = read_runs(self.paths)
            facts = page_data(self.runs, sections_of(self.runs))
            texts = {key: as_json(section) for key, section in facts.pop("sections").items()}
            self.version += 1
            fresh = {key for key in {*texts, *self.texts} if texts.get(key) != self.texts.get(key)}
            self.changed |= dict.fromkeys(fresh, self.version)
            self.texts, self.facts, self.seen = texts, facts, now

    def _traces(self) -> Any:
        """What changes when a round or a run ends, begins or stops; cheap to look at."""
        from fedclade.runs.folder import RunFolder

        folders = [RunFolder(folder) for path in self.paths for folder in run_folders(Path(path))]
        return [
            (
                folder.path,
                folder.is_finished,
                folder.is_running,
                sorted(p.name for p in folder.path.glob("checkpoints/*")),
            )
            for folder in folders
        ]

    def changes(self, since: int) -> dict[str, Any]:
        """What a page that knows the state of an older version must change; a section that is gone is None."""
        with self.lock:
            keys = [key for key, version in self.changed.items() if version > since]
            sections = {key: json.loads(self.texts[key]) if key in self.texts else None for key in keys}
            return {**self.facts, "live": True, "pause": PAUSE, "version": self.version, "sections": sections}

    def page(self) -> str:
        return html_page(self.runs, self.changes(since=0))


def make_server(paths: Sequence[Path | str], port: int) -> ThreadingHTTPServer:
    """A server of the page and of its changes; `serve_forever` starts it."""
    need_plotly()
    watched = Watched(paths)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            if url.path == "/":
                watched.look()
                self._answer("text/html; charset=utf-8", watched.page())
            elif url.path == "/changes":
                with suppress(FedcladeError):  # the run may just put its files in order: the next look will see them
                    watched.look()
                since = parse_qs(url.query).get("since", ["0"])[0]
                self._answer("application/json", as_json(watched.changes(int(since) if since.isdecimal() else 0)))
            else:
                self.send_error(404)

        def _answer(self, kind: str, text: str) -> None:
            body = text.encode()
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            with suppress(BrokenPipeError, ConnectionResetError):  # the reader may have closed the page
                self.wfile.write(body)

        def log_message(self, format: str, *words: Any) -> None:
            """Nothing: a line for every second of watching helps nobody."""

    try:
        return ThreadingHTTPServer((HERE, port), Handler)
    except OSError as error:
        raise FedcladeError(f"cannot serve on port {port}: {error.strerror or error}; choose another --port") from error
