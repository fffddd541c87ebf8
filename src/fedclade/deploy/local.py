"""A federation of real processes on this machine: a SuperLink and some SuperNodes on loopback, for trying out.

They speak TLS, and nodes sign with keys that are registered; `insecure` leaves both out. Whatever was started is taken
down at the end, also when something goes wrong.
"""

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from fedclade.deploy.keys import make_certificates, make_node_key
from fedclade.deploy.project import init
from fedclade.deploy.server import NOT_HERE
from fedclade.errors import FedcladeError, needs_flower
from fedclade.files import safe_name, write_json
from fedclade.runs.folder import RunFolder
from fedclade.settings import Settings

HERE = "127.0.0.1"
NAME = "trial"  # of the SuperLink in Flower's configuration
MOST_NODES = 30  # processes on one machine
STARTUP = 120.0  # seconds that a process may take to be ready, on a slow day
STAYS = {"keys", "memory", "trial.json", ".lock"}  # of a trial's folder, from one start to the next
# Reads numbers of process groups until its input closes, then ends them all.
WATCHDOG = """
while read group; do groups="$groups -$group"; done
[ -z "$groups" ] || { kill -s TERM -- $groups; sleep 3; kill -s KILL -- $groups; }
"""


class Trial:
    """A SuperLink, the SuperExec that starts server apps for it, and SuperNodes, each in a process of its own.

    The nodes' keys and what they remember stay in the folder, so that a run can go on; all else is new at each start.
    """

    def __init__(
        self, folder: Path, nodes: Sequence[Mapping[str, Any]], *, insecure: bool = False, patience: float = STARTUP
    ) -> None:
        needs_flower("a local deployment")
        self.folder, self.nodes, self.insecure, self.patience = folder.absolute(), list(nodes), insecure, patience
        self.processes: dict[str, subprocess.Popen[Any]] = {}
        self.port = free_port()
        self._ports = [free_port() for _ in nodes]
        self._keys = [self.name(number) for number, _ in enumerate(nodes)]  # under which each is registered
        self._unregistered: set[int] = set()
        self.environment = os.environ | {
            "FLWR_HOME": str(self.folder / "flower"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
            "PYTHONUNBUFFERED": "1",
        }

    def __enter__(self) -> "Trial":
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        self._held = RunFolder(self.folder).__enter__()
        try:
            self._clear()
            self._watch()
            self._prepare()
            self.start_superlink()
            self.start_superexec()
            with ThreadPoolExecutor(8) as hands:
                list(hands.map(self._admit_and_start, range(len(self.nodes))))
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if kind is None:  # else the logs may tell why
            self._clear()
        self._held.__exit__(kind, error, trace)

    def _clear(self) -> None:
        """Take away what was of one start only; one that was killed could not."""
        for path in self.folder.iterdir():
            if path.is_dir() and path.name not in STAYS:
                shutil.rmtree(path, ignore_errors=True)
            elif path.is_file() and path.name not in STAYS:
                path.unlink(missing_ok=True)

    def _watch(self) -> None:
        """Have a small process end all others when this one ends without having done so, even by SIGKILL."""
        self._watchdog = subprocess.Popen(
            ["sh", "-c", WATCHDOG], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True, text=True,
        )  # fmt: skip

    def _admit_and_start(self, number: int) -> None:
        if not self.insecure:
            self.register(self.key(number), self._keys[number])
        self.start_node(number)

    @property
    def address(self) -> str:
        return f"{HERE}:{self.port}"

    @property
    def _certificates(self) -> Path:
        return self.folder / "certificates"

    @property
    def _trust(self) -> list[str]:
        return ["--insecure"] if self.insecure else ["--root-certificates", str(self._certificates / "ca.crt")]

    @property
    def _secret(self) -> list[str]:
        return ["--superexec-auth-secret-file", str(self.folder / "secret")]

    def name(self, number: int) -> str:
        return str(self.nodes[number].get("name", f"node-{number}"))

    def key(self, number: int) -> Path:
        """A node's private key, which is made when it is first wanted."""
        path = self.folder / "keys" / safe_name(self._keys[number])
        if not path.is_file():
            make_node_key(path)
        return path

    def _prepare(self) -> None:
        (self.folder / "flower").mkdir()
        secret = os.open(self.folder / "secret", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.write(secret, secrets.token_hex(32).encode())
        os.close(secret)
        trust = "insecure = true"
        if not self.insecure:
            make_certificates(self._certificates)
            trust = f'root-certificates = "{self._certificates / "ca.crt"}"'
        config = f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\naddress = "{self.address}"\n{trust}\n'
        (self.folder / "flower" / "config.toml").write_text(config)

    # Its processes

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a process in a group of its own, so that what it starts can be stopped with it."""
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self.environment, start_new_session=True
            )
        self._started(name, process)
        return process

    def _started(self, name: str, process: subprocess.Popen[Any]) -> None:
        self.processes[name] = process
        assert self._watchdog.stdin is not None
        self._watchdog.stdin.write(f"{process.pid}\n")
        self._watchdog.stdin.flush()

    def start_superlink(self) -> None:
        files = ["--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key"]
        secure = [word if word.startswith("--") else str(self._certificates / word) for word in files]
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
        """One more node, while the others run.

        Its key is registered under its own name, under another one, or not at all (None); where that name is another
        node's, it starts with a copy of that node's key.
        """
        self.nodes.append(config)
        self._ports.append(free_port())
        number = len(self.nodes) - 1
        is_copy = registered_as in self._keys
        self._keys.append(registered_as or self.name(number))
        if registered_as is None:
            self._unregistered.add(number)
        if is_copy or registered_as is None:
            self.start_node(number)
        else:
            self._admit_and_start(number)
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
        self._watchdog.kill()
        self._watchdog.wait()

    def stay(self, say: Callable[[str], None] = print) -> None:
        """Until Ctrl-C; a node that ends is started again, as a supervisor would."""
        said: set[str] = set()
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                for why in {*self.mend()} - said:
                    said.add(why)
                    say(why)
                time.sleep(2)

    def mend(self, *numbers: int) -> list[str]:
        """Start nodes again that have ended; returns why each of them did."""
        reasons = []
        for number in numbers or range(len(self.nodes)):
            process = self.processes.get(self.process_of(number))
            if process is not None and process.poll() is not None:
                reasons.append(self.why_ended(number))
                self.start_node(number)
        return reasons

    def why_ended(self, number: int) -> str:
        """Flower has one text for keys that it does not know and for those in use."""
        log, name = (self.folder / f"{self.process_of(number)}.log").read_text(errors="replace"), self.name(number)
        if "Failed to activate SuperNode" not in log[-2000:]:
            return f"node {name!r} ended: {_last_line(log) or 'it was killed'}"
        if number in self._unregistered:
            return f"node {name!r} was turned away: its key is not registered (`flwr supernode register`)"
        return (
            f"node {name!r} was turned away: its key is in use, by a copy elsewhere or by its old self, "
            "which counts as online for a minute"
        )

    def wait_for(self, ready: Callable[[], bool], what: str, process: str = "") -> None:
        until = time.monotonic() + self.patience
        while not ready():
            gone = process and self.processes[process].poll() is not None
            if gone or time.monotonic() > until:
                said = _last_line((self.folder / f"{process}.log").read_text()) if process else ""
                raise FedcladeError(f"{what} did not start: {said or f'not ready in {self.patience:g} s'}")
            time.sleep(0.2)

    # Runs

    @property
    def about(self) -> str:
        trust = "plain text, no keys" if self.insecure else "TLS and node keys"
        return f"a SuperLink and {len(self.nodes)} SuperNodes are up on {self.address} ({trust})"

    def finish(self, run: subprocess.Popen[Any], out: Path) -> None:
        """Wait for the end of a run, which leaves its result in a folder; raise one line on why it has none."""
        while run.poll() is None:
            for name in ("superlink", "superexec"):
                if self.processes[name].poll() is not None:
                    raise FedcladeError(f"the {name} died: {_last_line((self.folder / f'{name}.log').read_text())}")
            time.sleep(0.3)
        if not (out / "result.json").is_file():
            go_on = f"; go on with `fedclade resume {out}`" if (out / "settings.json").is_file() else ""
            raise FedcladeError(f"the run did not end: {self._fate()}{go_on}")

    def _fate(self) -> str:
        """What Flower says of how a run ended."""
        with contextlib.suppress(subprocess.TimeoutExpired, ValueError, KeyError):
            runs = json.loads(self.flwr("list", NAME, "--format", "json").stdout)["runs"]
            for run in runs:
                return (
                    str(run["status-details"] or "").strip().splitlines()[-1:][0]
                    or f"its server app is {run['status']}"
                )
        return "Flower did not take it; look above"

    def run(self, project: Path, config: Mapping[str, Any], *, show: bool = False) -> subprocess.Popen[str]:
        """`flwr run` of a project: a process that ends when the run has ended."""
        values = {"keys": not self.insecure, **config}
        text = " ".join(f"{name}={_quoted(value)}" for name, value in values.items())
        process = subprocess.Popen(
            ["flwr", "run", str(project), NAME, "--stream", "--run-config", text],
            env=self.environment, text=True, stdin=subprocess.DEVNULL, start_new_session=True,
            stdout=None if show else subprocess.PIPE, stderr=None if show else subprocess.STDOUT,
        )  # fmt: skip
        self._started(f"run-{process.pid}", process)
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


def home_of(out: Path) -> Path:
    """Where the nodes of a run that goes on this machine have their keys and what they remember."""
    return out.with_name(f"{out.name}.nodes")


def run_on_trial(settings: Settings, out: Path) -> RunFolder:
    """A run of `fedclade run` on real processes: a node for each client of the federation."""
    if settings.events:
        raise FedcladeError("on real nodes clients come and go by themselves: events are for --engine local")
    nodes = dealt_nodes(settings.data, settings.split, settings.clients, settings.seed, settings)
    if len(nodes) > MOST_NODES:
        raise FedcladeError(f"{len(nodes)} clients are too many processes for this machine: use --engine flower-sim")
    return run_here(out, nodes, settings=settings)


def resume_on_trial(settings: Settings, out: Path) -> RunFolder:
    """Go on with a run whose nodes were processes of this machine: with the same keys and memories."""
    plan = home_of(out) / "trial.json"
    if not plan.is_file():
        raise FedcladeError(
            f"the nodes of the run in {out} are elsewhere: go on with "
            f"`flwr run PROJECT SUPERLINK --stream --run-config 'out=\"{out.absolute()}\" rounds={settings.rounds}'`"
        )
    told = json.loads(plan.read_text(encoding="utf-8"))
    project = Path(told["project"]) if told["project"] else None
    return run_here(out, told["nodes"], project=project, insecure=told["insecure"], settings=settings)


def run_here(
    out: Path,
    nodes: Sequence[Mapping[str, Any]],
    *,
    project: Path | None = None,  # None: one as `fedclade deploy init` makes it
    insecure: bool = False,
    settings: Settings | None = None,  # None: those of the project
    assignments: str = "",
    say: Callable[[str], None] = print,
) -> RunFolder:
    """`flwr run` on nodes of this machine, from its start or from where its folder stands."""
    needs_flower("a local deployment")
    import tomli_w  # comes with Flower

    with ending_as_by_ctrl_c(), Trial(home_of(out), nodes, insecure=insecure) as trial:
        plan = {"nodes": list(nodes), "project": project and str(project.absolute()), "insecure": insecure}
        write_json(trial.folder / "trial.json", plan)
        say(trial.about)
        config: dict[str, Any] = {"out": str(out.absolute()), "clients": len(nodes), "set": assignments}
        if settings is not None:
            config["config"] = str(trial.folder / "settings.toml")
            chosen = settings.model_dump(mode="json", exclude={"clients", *NOT_HERE})
            Path(config["config"]).write_text(tomli_w.dumps(_given(chosen)), encoding="utf-8")
        if project is None:
            init(trial.folder / "app")
        trial.finish(trial.run(project or trial.folder / "app", config, show=True), out)
    return RunFolder.open(out)


def _given(table: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is None: TOML has no word for it."""
    known = {name: value for name, value in table.items() if value is not None}
    return {name: _given(value) if isinstance(value, Mapping) else value for name, value in known.items()}


def dealt_nodes(
    data: str, split: str | None, nodes: int | None, seed: int = 0, more: Settings | None = None
) -> list[dict[str, Any]]:
    """The node-config of nodes that share a data set, or of which each has a client of one folder."""
    from fedclade.data import federation_of
    from fedclade.data.own import path_of

    if data.startswith("folder:"):
        folder = path_of(data).absolute()
        names = federation_of(data, options=more.data_options if more is not None else None).names
        if nodes is not None and len(names) < nodes:
            raise FedcladeError(f"{folder} has {len(names)} clients, not {nodes}")
        return [{"name": name, "data": f"folder:{folder}", "seed": seed} for name in names[:nodes]]
    view, place_of_data = (more.test_view, more.data_dir) if more is not None else (None, None)
    names = federation_of(data, split, nodes, seed, view, place_of_data).names
    asked = {"split": split, "clients": nodes, "test-view": view, "data-dir": place_of_data}
    shared = {"data": data, "seed": seed} | {name: value for name, value in asked.items() if value is not None}
    return [{"name": name, **shared, "partition-id": place} for place, name in enumerate(names)]


__all__ = [
    "NAME", "Trial", "dealt_nodes", "ending_as_by_ctrl_c", "free_port", "home_of", "is_open", "resume_on_trial",
    "run_here", "run_on_trial",
]  # fmt: skip
