"""Flower's own simulation (on Ray), on this machine or on a Ray cluster.

A virtual node is a hand that does work for many clients: a message for each client would cost more than its training.
"""

import os
import queue
import shutil
import socket
import tempfile
import threading
import time
import warnings
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedclade.clients.memory import Memory
from fedclade.clients.objective import Classification, Objective
from fedclade.clients.runtime import ClientRuntime, load_runtime, save_runtime
from fedclade.clients.tasks import Failure, Training
from fedclade.codec import Packet, decode, encode
from fedclade.data.federation import Federation
from fedclade.engines.engine import TransportEngine
from fedclade.engines.exchange import Exchange, failure_of, quiet
from fedclade.engines.local import LocalTransport
from fedclade.engines.pool import Work, one_by_one
from fedclade.engines.records import from_records, to_records
from fedclade.errors import FedcladeError
from fedclade.models.assigned import Networks

if TYPE_CHECKING:
    from flwr.app import Context, Message


PATIENCE = 5.0  # seconds in which a cluster's address must answer
HANDS = 64  # virtual nodes at most: each does one piece of work at a time, for many clients


def client_app(folder: Path) -> Any:
    """A Flower ClientApp that does pieces of work with the client runtime in a folder."""
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.query()
    def work(message: Message, context: Context) -> Message:
        header, arrays = from_records(message.content)
        asked, round = decode(Packet(header["work"], arrays))
        result = encode(asked.do(_runtime(folder), round))
        return Message(to_records({"result": result.header}, result.arrays), reply_to=message)

    return app


@lru_cache(maxsize=2)
def _runtime(folder: Path) -> ClientRuntime:
    import torch

    torch.set_num_threads(1)
    return load_runtime(folder)


class SimulatedHands:
    """The virtual nodes of a simulation that it starts, and ends."""

    def __init__(self, runtime: ClientRuntime, workers: int, timeout: float | None, address: str | None) -> None:
        try:
            import ray  # noqa: F401
            from flwr.serverapp import ServerApp
            from flwr.simulation import run_simulation
        except ImportError:
            raise FedcladeError("the engine flower-sim needs Flower: pip install 'fedclade[flower-sim]'") from None
        os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        cluster = address or os.environ.get("RAY_ADDRESS")
        if cluster:
            check_answers(cluster)
            # Other machines cannot map what lies in this one's memory.
            runtime.federation = replace(runtime.federation, x=np.array(runtime.federation.x))
        is_on_gpu = runtime.x.device.type == "cuda"
        self._folder = Path(tempfile.mkdtemp(prefix="fedclade-"))
        save_runtime(runtime, self._folder)
        # A cluster knows by itself how many hands it has.
        started: Any = {"log_to_driver": False}
        started |= {"address": cluster} if cluster else {"num_cpus": workers, "include_dashboard": False}
        grids: queue.Queue[Any] = queue.Queue()
        self._done = threading.Event()
        server = ServerApp()

        @server.main()
        def main(grid: Any, context: "Context") -> None:
            grids.put(grid)
            self._done.wait()

        quiet()

        def simulate() -> None:
            try:
                warnings.simplefilter("ignore", FutureWarning)
                run_simulation(
                    server_app=server,
                    client_app=client_app(self._folder),
                    num_supernodes=min(HANDS, len(runtime.federation)),
                    backend_config={
                        "client_resources": {"num_cpus": 1, "num_gpus": float(is_on_gpu)},
                        "init_args": started,
                    },
                )
            except BaseException as error:
                grids.put(error)

        self._thread = threading.Thread(target=simulate, daemon=True)
        self._thread.start()
        grid = grids.get()
        if isinstance(grid, BaseException):
            raise FedcladeError(f"Flower's simulation did not start: {grid}") from grid
        self.exchange = Exchange(grid, timeout)
        while not (nodes := list(self.exchange.nodes())):
            time.sleep(0.05)
        self.nodes = nodes

    def run(self, works: list[Work], round: int) -> list[Any]:
        from flwr.app import Message

        messages = {}
        for number, work in enumerate(works):
            packet = encode([work, round])
            records = to_records({"work": packet.header}, packet.arrays)
            node = self.nodes[number % len(self.nodes)]
            messages[number] = Message(records, node, "query", ttl=self.exchange.timeout)
        results: list[Any] = [None] * len(works)
        for number, reply in self.exchange.exchange(messages):
            results[number] = reply if isinstance(reply, Failure) else failure_of(reply) or self._read(reply)
        for number, result in enumerate(results):
            if isinstance(result, Failure) and result.kind == "died" and len(works[number].tasks) > 1:
                results[number] = one_by_one(self, works[number], round)
        return results

    def _read(self, reply: "Message") -> Any:
        header, arrays = from_records(reply.content)
        return decode(Packet(header["result"], arrays))

    def close(self) -> None:
        self._done.set()
        self._thread.join(timeout=60)
        shutil.rmtree(self._folder, ignore_errors=True)


def check_answers(cluster: str) -> None:
    """Raise where nobody listens at a cluster's address: Ray itself would wait a minute before it gave up."""
    if cluster in ("auto", "local"):
        return
    host, _, port = cluster.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise FedcladeError(f"{cluster!r} is no address of a Ray cluster: give engine.address as host:port")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        begin = f"start one by `ray start --head --port {port}`"
        raise FedcladeError(f"no Ray cluster answers at {cluster} ({why}): {begin}, or mend engine.address") from None


def simulated_engine(
    federation: Federation,
    networks: Networks,
    *,
    seed: int,
    training: Training,
    memory: Path,
    task: Objective = Classification(),  # noqa: B008  (it never changes)
    device: str = "cpu",
    workers: int = 1,
    timeout: float | None = None,
    address: str | None = None,
) -> TransportEngine:
    """`workers` pieces of work at a time; `address` is that of a Ray cluster that is there already."""
    runtime = ClientRuntime(federation, networks, Memory(memory.absolute()), seed, training, task, device)
    hands = SimulatedHands(runtime, workers, timeout, address)
    return TransportEngine(runtime, LocalTransport(runtime, workers, timeout, hands))
