"""A federation of real processes on this machine: a SuperLink and some SuperNodes on loopback, for trying out.

They speak TLS, and nodes sign with keys that are registered, all made on the spot; `insecure` leaves both out. Whatever
was started is taken down at the end, also when something goes wrong.
"""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from fedclade.deploy.keys import make_certificates, make_node_key
from fedclade.deploy.project import init
from fedclade.errors import FedcladeError, needs_flower
from fedclade.runs.folder import RunFolder
from fedclade.settings import Settings

HERE = "127.0.0.1"
NAME = "trial"  # of the SuperLink in Flower's configuration
MOST_NODES = 30  # processes on one machine
STARTUP = 120.0  # seconds that a process may take to be ready, on a slow day


class Trial:
    """A SuperLink, the SuperExec that starts server apps for it, and SuperNodes, each in a process of its own."""

    def __init__(
        self, folder: Path, nodes: Sequence[Mapping[str, Any]], *, insecure: bool = False, patience: float = STARTUP
    ) -> None:
        needs_flower("a local deployment")
        self.folder, self.nodes, self.insecure, self.patience = folder.absolute(), list(nodes), insecure, patience
        self.processes: dict[str, subprocess.Popen[Any]] = {}
        self.port = free_port()
        self._ports = [free_port() for _ in nodes]
        home = self.folder / "flower"
        self.environment = os.environ | {
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
            "PYTHONUNBUFFERED": "1",
        }

    def __enter__(self) -> "Trial":
        try:
            self._prepare()
            self.start_superlink()
            self.start_superexec()
            with ThreadPoolExecutor(8) as hands:
                list(hands.map(self._admit_and_start, range(len(self.nodes))))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _admit_and_start(self, number: int) -> None:
        if not self.insecure:
            self.register(self.key(number), self.name(number))
        self.start_node(number)

    @property
    def address(self) -> str:
        return f"{HERE}:{self.port}"

    @property
    def _trust(self) -> list[str]:
        return ["--insecure"] if self.insecure else ["--root-certificates", str(self.folder / "keys" / "ca.crt")]

    @property
    def _secret(self) -> list[str]:
        return ["--superexec-auth-secret-file", str(self.folder / "secret")]

    def name(self, number: int) -> str:
        return str(self.nodes[number].get("name", f"node-{number}"))

    def key(self, number: int) -> Path:
        return self.folder / "keys" / f"node-{number}"

    def _prepare(self) -> None:
        keys = self.folder / "keys"
        (self.folder / "flower").mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        secret = os.open(self.folder / "secret", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.write(secret, secrets.token_hex(32).encode())
        os.close(secret)
        trust = "insecure = true"
        if not self.insecure:
            make_certificates(keys)
            for number, _ in enumerate(self.nodes):
                make_node_key(self.key(number))
            trust = f'root-certificates = "{keys / "ca.crt"}"'
        config = f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\naddress = "{self.address}"\n{trust}\n'
        (self.folder / "flower" / "config.toml").write_text(config)

    # Its processes

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a process in a group of its own, so that what it starts can be stopped with it."""
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self.environment, start_new_session=True
            )
        self.processes[name] = process
        return process

    def start_superlink(self) -> None:
        keys = self.folder / "keys"
        files = ["--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key"]
        secure = [word if word.startswith("--") else str(keys / word) for word in files]
        # A SuperExec of its own and a database on disk: then a run survives the SuperLink's death.
        self.start(
            "superlink",
            *("flower-superlink", "--host", HERE, "--port", str(self.port), "--isolation", "process"),
            *("--database", str(self.folder / "link.db"), *self._secret),
            *(["--insecure"] if self.insecure else [*secure, "--enable-supernode-auth"]),
        )
        self.wait_for(lambda: is_open(self.port), "the SuperLink", "superlink")

    def start_superexec(self) -> None:
        """What starts server apps."""
        words = "flower-superexec", "--runtime-api-address", self.address
        self.start("superexec", *words, *self._trust, *self._secret)

    def start_node(self, number: int) -> None:
        config = {"memory": str(self.folder / "memory"), **self.nodes[number]}
        signed = [] if self.insecure else ["--auth-supernode-private-key", str(self.key(number))]
        self.start(
            self.process_of(number),
            *("flower-supernode", "--superlink", self.address, "--port", str(self._ports[number])),
            *(*self._trust, *signed, "--node-config", " ".join(f"{k}={_quoted(v)}" for k, v in config.items())),
        )

    def process_of(self, number: int) -> str:
        return f"supernode-{number}"

    def add_node(self, config: Mapping[str, Any], *, registered_as: str | None = "") -> int:
        """One more node, while the others run; its key is registered under its name, another one, or not (None)."""
        self.nodes.append(config)
        self._ports.append(free_port())
        number = len(self.nodes) - 1
        if not self.insecure:
            make_node_key(self.key(number))
            if registered_as is not None:
                self.register(self.key(number), registered_as or self.name(number))
        self.start_node(number)
        return number

    def register(self, key: Path, name: str) -> None:
        done = self.flwr("supernode", "register", f"{key}.pub", NAME, "--name", name)
        if done.returncode:
            raise FedcladeError(f"node {name!r} could not be registered: {_last_line(done.stdout)}")

    def flwr(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["flwr", *words], env=self.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL, timeout=self.patience, check=False,
        )  # fmt: skip

    def kill(self, name: str) -> None:
        """As a power cut would: the process and all that it started."""
        process = self.processes.pop(name)
        _signal(process, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """Take all down, nodes first; whoever does not go by itself is killed."""
        running = list(reversed(self.processes.values()))
        for process in running:
            _signal(process, signal.SIGTERM)
        until = time.monotonic() + 10
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(until - time.monotonic(), 0.1))
        for process in running:
            _signal(process, signal.SIGKILL)
            process.wait()
        self.processes.clear()

    def stay(self) -> None:
        """Until Ctrl-C; a node that ends is started again, as a supervisor would."""
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                self.mend()
                time.sleep(2)

    def mend(self, *numbers: int) -> None:
        """Start nodes again that have ended: one that returns while its old self still counts as online exits."""
        for number in numbers or range(len(self.nodes)):
            process = self.processes.get(self.process_of(number))
            if process is not None and process.poll() is not None:
                self.start_node(number)

    def wait_for(self, ready: Callable[[], bool], what: str, process: str = "") -> None:
        until = time.monotonic() + self.patience
        while not ready():
            gone = process and self.processes[process].poll() is not None
            if gone or time.monotonic() > until:
                said = _last_line((self.folder / f"{process}.log").read_text()) if process else ""
                raise FedcladeError(f"{what} did not start: {said or f'not ready in {self.patience:g} s'}")
            time.sleep(0.2)

    # Runs

    def run(self, project: Path, config: Mapping[str, Any], *, show: bool = False) -> subprocess.Popen[str]:
        """`flwr run` of a project: a process that ends when the run has ended."""
        values = {"keys": not self.insecure, **config}
        text = " ".join(f"{name}={_quoted(value)}" for name, value in values.items())
        process = subprocess.Popen(
            ["flwr", "run", str(project), NAME, "--stream", "--run-config", text],
            env=self.environment, text=True, stdin=subprocess.DEVNULL, start_new_session=True,
            stdout=None if show else subprocess.PIPE, stderr=None if show else subprocess.STDOUT,
        )  # fmt: skip
        self.processes[f"run-{process.pid}"] = process
        return process


@contextlib.contextmanager
def ending_as_by_ctrl_c() -> Iterator[None]:
    """`kill`, a service manager and a closed terminal end the work as Ctrl-C does, so that all is taken down."""
    is_main = threading.current_thread() is threading.main_thread()  # others cannot have signals
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if is_main and hasattr(signal, name)]
    defaults = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]  # nohup stays in force
    for number in defaults:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in defaults:
            signal.signal(number, signal.SIG_DFL)


def free_port() -> int:
    with socket.socket() as one:
        one.bind((HERE, 0))
        return int(one.getsockname()[1])


def is_open(port: int) -> bool:
    with socket.socket() as one:
        one.settimeout(1)
        return one.connect_ex((HERE, port)) == 0


def _quoted(value: Any) -> str:
    """A value as Flower reads it in --node-config and --run-config."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    text = str(value)
    if '"' in text or "\n" in text:
        raise FedcladeError(f"{text!r} holds a quotation mark: Flower's configuration cannot carry it")
    return f'"{text}"'


def _signal(process: subprocess.Popen[Any], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def run_on_trial(settings: Settings, out: Path) -> RunFolder:
    """A run of `fedclade run` on real processes: a node for each client of the federation."""
    if settings.events:
        raise FedcladeError("on real nodes clients come and go by themselves: events are for --engine local")
    nodes = dealt_nodes(settings.data, settings.split, settings.clients, settings.seed, settings)
    if len(nodes) > MOST_NODES:
        raise FedcladeError(f"{len(nodes)} clients are too many processes for this machine: use --engine flower-sim")
    chosen = settings.model_dump(mode="json", exclude={"data", "split", "clients", "test_view", "data_dir", "events"})
    chosen = {name: value for name, value in chosen.items() if name not in ("engine", "workers")}
    tables = {"method": chosen.pop("method"), "training": chosen.pop("training")}
    values = {f"{table}.{name}": value for table, inner in tables.items() for name, value in inner.items()} | chosen
    words = [f"{name}={_toml(value)}" for name, value in values.items() if value is not None]
    with ending_as_by_ctrl_c(), tempfile.TemporaryDirectory(prefix="fedclade-up-") as work:
        init(Path(work) / "app")
        with Trial(Path(work) / "trial", nodes) as trial:
            config = {"out": str(out.absolute()), "clients": len(nodes), "set": " ".join(words)}
            trial.run(Path(work) / "app", config, show=True).wait()
    folder = RunFolder.open(out)
    if not folder.is_finished:
        raise FedcladeError(f"the run in {out} did not end: look above for the reason")
    return folder


def _toml(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value).replace(" ", "")
    if any(mark in text for mark in "'\"{"):
        raise FedcladeError(
            f"the setting {value!r} cannot travel by Flower's configuration: write it into pyproject.toml"
        )
    return text


def dealt_nodes(
    data: str, split: str | None, nodes: int | None, seed: int = 0, more: Settings | None = None
) -> list[dict[str, Any]]:
    """The node-config of nodes that share a data set, or of which each has a client of one folder."""
    from fedclade.data import federation_of
    from fedclade.data.own import path_of

    if data.startswith("folder:"):
        folder = path_of(data).absolute()
        names = federation_of(data).names
        if nodes is not None and len(names) < nodes:
            raise FedcladeError(f"{folder} has {len(names)} clients, not {nodes}")
        return [{"name": name, "data": f"folder:{folder}", "seed": seed} for name in names[:nodes]]
    view, place_of_data = (more.test_view, more.data_dir) if more is not None else (None, None)
    names = federation_of(data, split, nodes, seed, view, place_of_data).names
    asked = {"split": split, "clients": nodes, "test-view": view, "data-dir": place_of_data}
    shared = {"data": data, "seed": seed} | {name: value for name, value in asked.items() if value is not None}
    return [{"name": name, **shared, "partition-id": place} for place, name in enumerate(names)]


__all__ = ["NAME", "Trial", "dealt_nodes", "ending_as_by_ctrl_c", "free_port", "is_open", "run_on_trial"]
