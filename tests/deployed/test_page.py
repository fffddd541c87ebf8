"""The commands of docs/deploy.md as they stand there, each machine in a network namespace of its own."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from fedclade import api
from synthetic import planted

pytestmark = pytest.mark.deployed

PAGE = Path(__file__).parents[2] / "docs" / "deploy.md"
HOST = "10.77.0.1"
PATIENCE = 300.0


def commands(section: str) -> list[str]:
    """The lines of a section's code blocks; a backslash joins two of them."""
    text = PAGE.read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    fenced = re.sub(r"```ini\n(.*?)```", lambda block: re.sub("(?m)^", "    ", block[1]), text, flags=re.DOTALL)
    lines = re.findall(r"^    (.+)$", fenced.replace("\\\n", " "), re.MULTILINE)
    return [re.sub(r"\s{2,}#.*", "", line) for line in lines]


class Machines:
    """A server and owners of data, each in a network namespace of its own."""

    def __init__(self, folder: Path, owners: list[str]) -> None:
        self.folder, self.tag, self.running = folder, f"fc{os.getpid()}", []  # type: ignore[var-annotated]
        self.names = ["server", *owners]

    def space(self, name: str) -> str:
        return f"{self.tag}-{name}"

    def __enter__(self) -> "Machines":
        for name in self.names:
            (self.folder / name).mkdir()
            ip("netns", "add", self.space(name))
            ip("-n", self.space(name), "link", "set", "lo", "up")
        server = self.space("server")
        ip("-n", server, "link", "add", "bridge", "type", "bridge")
        ip("-n", server, "addr", "add", f"{HOST}/24", "dev", "bridge")
        ip("-n", server, "link", "set", "bridge", "up")
        for number, name in enumerate(self.names[1:], start=2):
            ip("-n", server, "link", "add", f"to{number}", "type", "veth", "peer", "eth0", "netns", self.space(name))
            ip("-n", server, "link", "set", f"to{number}", "master", "bridge", "up")
            ip("-n", self.space(name), "addr", "add", f"10.77.0.{number}/24", "dev", "eth0")
            ip("-n", self.space(name), "link", "set", "eth0", "up")
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.running:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for name in self.names:
            subprocess.run(["ip", "netns", "del", self.space(name)], check=False, capture_output=True)

    def start(self, name: str, command: str) -> subprocess.Popen[bytes]:
        home, log = self.folder / name, (self.folder / f"{name}.log").open("ab")
        environment = {word: value for word, value in os.environ.items() if not word.startswith("FLWR_")} | {
            "HOME": str(home),
            "XDG_CACHE_HOME": str(home / "cache"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
        }
        words = ["ip", "netns", "exec", self.space(name), "sh", "-c", command]
        return subprocess.Popen(
            words, cwd=home, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )

    def stay(self, name: str, command: str) -> None:
        self.running.append(self.start(name, command))

    def do(self, name: str, command: str) -> None:
        code = self.start(name, command).wait(PATIENCE)
        assert code == 0, f"{command}: {(self.folder / f'{name}.log').read_text()[-3000:]}"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    pytest.importorskip("flwr")
    if not (shutil.which("ip") and shutil.which("ssh-keygen")):
        pytest.skip("needs ip and ssh-keygen")
    try:
        with Machines(tmp_path, ["anna", "bob"]) as made:
            yield made
    except (subprocess.CalledProcessError, PermissionError):
        pytest.skip("this system allows no network namespaces")


def until(what: str, happened: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < end, what
        time.sleep(0.5)


def test_the_page_works_as_written(machines: Machines, tmp_path: Path) -> None:
    federation = planted(n_clients=2)
    for owner, client in zip(("anna", "bob"), federation.clients, strict=True):
        (tmp_path / owner / "rows").mkdir()
        rows = np.concatenate([client.train, client.test])
        np.savez(tmp_path / owner / "rows" / f"{owner}.npz", x=federation.x[rows], y=federation.y[rows])
    home = tmp_path / "server"
    lines = [line.replace("HOST", HOST).replace("/home/me", str(home)) for line in commands("On real machines")]
    first = {line.split()[0]: line for line in reversed(lines)}
    variable, superlink, supernode = first["export"], first["flower-superlink"], first["flower-supernode"]
    registering = next(line for line in lines if line.startswith("flwr supernode register"))

    machines.do("server", next(line for line in lines if line.startswith("fedclade deploy certificates")))
    machines.stay("server", f"{variable}; exec {superlink}")
    (home / ".flwr").mkdir()
    start = next(place for place, line in enumerate(lines) if line.startswith("[superlink"))
    (home / ".flwr" / "config.toml").write_text("\n".join(lines[start : start + 3]))
    until("the SuperLink is up", lambda: "Uvicorn running" in (tmp_path / "server.log").read_text())
    for owner in ("anna", "bob"):
        machines.do(owner, first["ssh-keygen"].replace("anna", owner))
        shutil.copy(tmp_path / owner / f"{owner}-key.pub", home)
        shutil.copy(home / "ca.crt", tmp_path / owner)
        machines.do("server", registering.replace("anna", owner))
        where = supernode.replace("anna", owner).replace(f"/srv/{owner}", str(tmp_path / owner / "rows"))
        machines.stay(owner, f"exec {where}")
    machines.do("server", next(line for line in lines if line.startswith("fedclade deploy init")))
    run = first["flwr"] if first["flwr"].startswith("flwr run") else next(x for x in lines if x.startswith("flwr run"))
    machines.do("server", re.sub("rounds=\\d+ clients=\\d+", "rounds=1 clients=2", run))
    machines.do("server", next(line for line in lines if line.startswith("fedclade show")))
    found = api.load(home / "runs" / "first")
    assert sorted(client for part in found.clusters.values() for client in part) == ["anna", "bob"]
    assert (found.history["failure"] == "").all()
    rotation = shlex.split(next(line for line in lines if line.startswith("fedclade deploy rotate")))
    machines.do("anna", first["ssh-keygen"].replace("anna-key", "anna-new"))
    shutil.copy(tmp_path / "anna" / "anna-new.pub", home)
    machines.do("server", shlex.join(rotation))
