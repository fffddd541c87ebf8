"""A node's worker: does the tasks, and stays for the next one.

Flower starts a process for every message, and loading torch takes most of its life. So that process only carries the
message: the work is done by a worker that stays while a run goes on, reached by a socket that no other user can open.
It ends by itself when nothing comes any more. Where it does not start, the work is done on the spot.
"""

import contextlib
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedclade.deploy.node import memory_folder, own_rows, with_classes, with_columns
from fedclade.errors import FedcladeError

if TYPE_CHECKING:
    from fedclade.clients.memory import Memory
    from fedclade.deploy.brief import Brief

KEPT_RUNS = 5  # of which a node remembers its own models
DAY = 86400.0
LONGEST_ADDRESS = 90  # of a socket; systems allow little more than 100
IDLE = 300.0  # seconds without a task after which a worker ends
STARTUP = 180.0  # seconds that it may take to start, on a slow day

Parcel = tuple[dict[str, Any], list[np.ndarray]]


def perform(config: Mapping[str, Any], header: Mapping[str, Any], arrays: list[np.ndarray]) -> Parcel:
    """Do a task on the node's own rows; its answer, as it travels."""
    from fedclade.clients.runtime import ClientRuntime
    from fedclade.clients.tasks import Failure, Task
    from fedclade.clients.wire import decode, encode
    from fedclade.deploy.brief import Brief

    brief = Brief.from_json(header["brief"])
    rows = with_columns(own_rows(config), brief.columns)
    client = header["client"]  # the name that the server knows it by
    federation = with_classes(rows, brief.classes, client).limited(brief.rows, brief.seed)
    memory = remembered(memory_folder(config, brief.run, client), brief)
    runtime = ClientRuntime(federation, brief.networks(client), memory, brief.seed, brief.training)
    task = decode(header, arrays, runtime.network(client, header.get("through", "")).layout)
    answer: Any = Failure("refused", "this is no task")
    if isinstance(task, Task):
        answer = runtime.perform({client: task}, int(header["round"]))[client]
    return encode(answer, runtime.layout)


def remembered(folder: Path, brief: "Brief") -> "Memory":
    """What the node knows of a run; after a restart of the server, what it knew at the server's last checkpoint."""
    from fedclade.clients.memory import Memory
    from fedclade.files import write_atomically

    memory, mark = Memory(folder), folder / "session"
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
        worker.send_bytes(packed({"config": dict(config), "task": header}, arrays))
        try:
            answer, values = unpacked(worker.recv_bytes())
        except (EOFError, ConnectionError):
            raise FedcladeError("the worker died over this task") from None
    if "error" in answer:
        raise FedcladeError(answer["error"])
    return answer, values


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
            header, arrays = unpacked(carrier.recv_bytes())
            answer = perform(header["config"], header["task"], arrays)
        except (EOFError, ConnectionError):
            return  # the carrier was killed
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}, []
        with contextlib.suppress(ConnectionError):
            carrier.send_bytes(packed(*answer))


def packed(header: Mapping[str, Any], arrays: list[np.ndarray]) -> bytes:
    file = io.BytesIO()
    named: dict[str, Any] = {str(place): array for place, array in enumerate(arrays)}
    np.savez(file, header=np.frombuffer(json.dumps(header).encode(), np.uint8), **named)
    return file.getvalue()


def unpacked(content: bytes) -> Parcel:
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        header = json.loads(file["header"].tobytes())
        return header, [file[str(place)] for place in range(len(file.files) - 1)]


if __name__ == "__main__":
    serve(sys.argv[1])
