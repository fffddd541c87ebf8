"""A node's worker: does the tasks, and stays for the next one.

Flower starts a process for every message, and loading torch takes most of its life. So that process only carries the
message: the work is done by a worker that stays while a run goes on, reached by a socket that no other user can open.
It ends by itself when nothing comes any more. Where it does not start, the work is done on the spot.
"""

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import lru_cache
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedclade.codec import Packet
from fedclade.deploy.node import memory_folder, own_rows, with_classes
from fedclade.errors import FedcladeError

if TYPE_CHECKING:
    from fedclade.clients.memory import Memory
    from fedclade.clients.runtime import ClientRuntime
    from fedclade.engines.brief import Brief

KEPT_RUNS = 5  # of which a node remembers its own models
DAY = 86400.0
LONGEST_ADDRESS = 90  # of a socket; systems allow little more than 100
IDLE = 300.0  # seconds without a task after which a worker ends
STARTUP = 180.0  # seconds that it may take to start, on a slow day

Parcel = tuple[dict[str, Any], list[np.ndarray]]


def perform(config: Mapping[str, Any], header: Mapping[str, Any], arrays: list[np.ndarray]) -> Parcel:
    """Do a task on the node's own rows; its answer, as it travels."""
    from fedclade.engines.brief import Brief
    from fedclade.engines.grid import done

    brief = Brief.from_json(header["brief"])
    client = str(header["client"])  # the name that the server knows it by
    told = json.dumps(dict(config), sort_keys=True), json.dumps(header["brief"], sort_keys=True)
    runtime = _runtime_of(*told, client, changed(config))
    runtime.memory = remembered(memory_folder(config, brief.run, client), brief)
    packet = done(runtime, client, header, arrays, bool(config.get("forget", False)))
    return {"answer": packet.header}, packet.arrays


@lru_cache(maxsize=2)
def _runtime_of(config: str, brief: str, client: str, changed: str) -> "ClientRuntime":
    """The node's rows and networks, kept from task to task until the files of its rows change."""
    from fedclade.clients.memory import Memory
    from fedclade.clients.runtime import ClientRuntime
    from fedclade.engines.brief import Brief

    settings, told = json.loads(config), Brief.from_json(json.loads(brief))
    rows = own_rows(settings, told.options, told.preprocessing)
    federation = with_classes(rows, told.classes, client).limited(told.rows, told.seed)
    memory = Memory(memory_folder(settings, told.run, client))
    device = str(settings.get("device", "cpu"))  # a node says itself where its network runs
    return ClientRuntime(federation, told.networks(client), memory, told.seed, told.training, told.task, device)


def changed(config: Mapping[str, Any]) -> str:
    """When the files of a node's rows were last changed, where they are files."""
    kind, _, path = str(config.get("data", "")).partition(":")
    files = sorted(Path(path).expanduser().rglob("*")) if kind == "folder" else []
    return json.dumps([[str(file), file.stat().st_mtime_ns, file.stat().st_size] for file in files if file.is_file()])


@lru_cache(maxsize=8)
def _memory_at(folder: Path) -> "Memory":
    from fedclade.clients.memory import Memory

    return Memory(folder)


def remembered(folder: Path, brief: "Brief") -> "Memory":
    """What the node knows of a run; after a restart of the server, what it knew at the server's last checkpoint."""
    from fedclade.files import write_atomically

    memory, mark = _memory_at(folder), folder / "session"
    if not memory.path.is_file():  # it may have been open and was deleted: what is written there would be lost
        memory.close()
    if not mark.is_file():
        _forget_old_runs(folder.parent.parent)
    if not mark.is_file() or mark.read_text() != brief.session:
        memory.forget_after(brief.since)
        write_atomically(mark, lambda part: part.write_text(brief.session), flush=False)
    return memory


def _forget_old_runs(place: Path) -> None:
    runs = [run for run in place.glob("*") if any(run.glob("*/session"))]  # only what we made
    for old in sorted(runs, key=lambda run: run.stat().st_mtime)[: -KEPT_RUNS or None]:
        shutil.rmtree(old, ignore_errors=True)


# --- the two ends of the socket ---------------------------------------------------------------------------------------


def hand_over(config: Mapping[str, Any], header: Mapping[str, Any], arrays: list[np.ndarray]) -> Parcel:
    """Let the worker of this node and run do a task; start it if there is none."""
    brief = header["brief"]
    # What Flower tells a node comes in any order.
    about = [brief["run"], brief["session"], header["client"], sorted(sys.path), os.getcwd(), dict(config)]
    mark = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:24]
    worker = _connected(str(private_folder() / f"{mark}.sock")) if os.name == "posix" else None
    if worker is None:
        return perform(config, header, arrays)
    with worker:
        worker.send_bytes(Packet({"config": dict(config), "task": header}, arrays).to_bytes())
        try:
            came = Packet.from_bytes(worker.recv_bytes())
        except (EOFError, ConnectionError):
            raise FedcladeError("the worker died over this task") from None
    if "error" in came.header:
        raise FedcladeError(came.header["error"])
    return came.header, came.arrays


def _connected(address: str) -> Connection | None:
    """A line to the worker at an address, which is started if it is not there; None if it does not start."""
    if len(address) > LONGEST_ADDRESS:
        return None
    until, started = time.monotonic() + STARTUP, None
    while time.monotonic() < until:
        try:
            return Client(address, "AF_UNIX")
        except OSError:
            if started is None:
                command = [sys.executable, "-m", "fedclade.deploy.worker", address]
                silent: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
                path = os.pathsep.join(folder for folder in sys.path if folder)
                started = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": path}, **silent)
            elif started.poll() is not None:
                return None
            time.sleep(0.1)
    return None


def private_folder() -> Path:
    """A folder for sockets that only this user can enter."""
    folder = Path(tempfile.gettempdir()) / f"fedclade-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    about = folder.lstat()
    if folder.is_symlink() or about.st_uid != os.getuid() or about.st_mode & 0o077:
        raise FedcladeError(f"{folder} can be opened by others: remove it")
    return folder


def serve(address: str) -> None:
    """Do what comes until nothing comes any more."""
    import torch

    torch.set_num_threads(1)
    for old in Path(address).parent.glob("*.sock"):  # of workers that were killed
        if time.time() - old.stat().st_mtime > DAY:
            old.unlink(missing_ok=True)
    own = f"{address}.{os.getpid()}"
    listener = Listener(own, "AF_UNIX")
    os.replace(own, address)  # only now can it be found, so whoever finds it is heard
    listener._listener._socket.settimeout(IDLE)  # type: ignore[attr-defined]
    with contextlib.suppress(TimeoutError):
        while True:
            _do_one(listener.accept())
    Path(address).unlink(missing_ok=True)
    os._exit(0)  # the listener would look for its first name


def _do_one(carrier: Connection) -> None:
    with carrier:
        try:
            came = Packet.from_bytes(carrier.recv_bytes())
            answer = perform(came.header["config"], came.header["task"], came.arrays)
        except (EOFError, ConnectionError):
            return  # the carrier was killed
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}, []
        with contextlib.suppress(ConnectionError):
            carrier.send_bytes(Packet(*answer).to_bytes())


if __name__ == "__main__":
    serve(sys.argv[1])
