"""Flower's own simulation (on Ray): one virtual node a client, on this machine or on a Ray cluster."""

import os
import queue
import shutil
import tempfile
import threading
import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedclade.clients.memory import Memory
from fedclade.clients.objective import Classification, Objective
from fedclade.clients.runtime import ClientRuntime, load_runtime, save_runtime
from fedclade.clients.tasks import Failure, Training
from fedclade.data.federation import Federation
from fedclade.engines.engine import TransportEngine
from fedclade.engines.exchange import Exchange, quiet
from fedclade.engines.grid import HELLO, GridTransport, done, reply_with
from fedclade.engines.records import from_records
from fedclade.errors import FedcladeError
from fedclade.models.assigned import Networks

if TYPE_CHECKING:
    from flwr.app import Context


class SimulatedNodes:
    """Virtual nodes say themselves which client they are; all are there from the start, and stay."""

    def __init__(self, exchange: Exchange, clients: tuple[str, ...], memory: Memory) -> None:
        self.clients, self.memory = clients, memory
        self._nodes = self._meet(exchange)

    def _meet(self, exchange: Exchange) -> dict[str, int]:
        from flwr.app import Message, RecordDict

        nodes: dict[str, int] = {}
        for _ in range(600):
            strangers = [node for node in exchange.nodes() if node not in nodes.values()]
            hellos = {node: Message(RecordDict(), node, f"query.{HELLO}") for node in strangers}
            for _, reply in exchange.exchange(hellos):
                if not isinstance(reply, Failure) and not reply.has_error():
                    nodes[str(reply.content.config_records["hello"]["client"])] = reply.metadata.src_node_id
            if set(self.clients) <= set(nodes):
                return nodes
            time.sleep(0.1)
        raise FedcladeError(f"only {len(nodes)} of {len(self.clients)} clients are on the grid: start the other nodes")

    def look(self) -> None:
        pass

    def node_of(self, client: str) -> int | None:
        return self._nodes.get(client)

    def arrivals(self) -> tuple[str, ...]:
        return ()

    def header(self, client: str) -> Mapping[str, Any]:
        return {}

    def rewind(self, round: int) -> None:
        self.memory.forget_after(round)


def client_app(folder: Path) -> Any:
    """A Flower ClientApp whose node number n is the n-th client of the client runtime in a folder of this machine."""
    from flwr.app import ConfigRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    def name_of(context: Context) -> str:
        return _runtime(folder).federation.names[int(context.node_config["partition-id"])]

    @app.query(HELLO)
    def hello(message: Message, context: Context) -> Message:
        return Message(RecordDict({"hello": ConfigRecord({"client": name_of(context)})}), reply_to=message)

    def work(message: Message, context: Context) -> Message:
        return reply_with(done(_runtime(folder), name_of(context), *from_records(message.content)), message)

    app.train()(work)
    app.evaluate()(work)
    app.query()(work)
    return app


@lru_cache(maxsize=2)
def _runtime(folder: Path) -> ClientRuntime:
    import torch

    torch.set_num_threads(1)
    return load_runtime(folder)


class SimulatedTransport(GridTransport):
    """The grid of a simulation that it starts, and ends."""

    def __init__(
        self, runtime: ClientRuntime, workers: int = 1, timeout: float | None = None, address: str | None = None
    ) -> None:
        try:
            import ray  # noqa: F401
            from flwr.serverapp import ServerApp
            from flwr.simulation import run_simulation
        except ImportError:
            raise FedcladeError("the engine flower-sim needs Flower: pip install 'fedclade[flower-sim]'") from None
        import torch

        os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)
        cluster = address or os.environ.get("RAY_ADDRESS")
        if cluster:  # other machines cannot map what lies in this one's memory
            runtime.federation = replace(runtime.federation, x=np.array(runtime.federation.x))
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
                    num_supernodes=len(runtime.federation),
                    backend_config={
                        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
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
        exchange = Exchange(grid, timeout)
        nodes = SimulatedNodes(exchange, runtime.federation.names, runtime.memory)
        super().__init__("flower-sim", exchange, nodes, runtime, has_strangers=False)

    def close(self) -> None:
        import torch

        self._done.set()
        self._thread.join(timeout=60)
        shutil.rmtree(self._folder, ignore_errors=True)
        torch.set_num_threads(self._threads)


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
    """`workers` virtual nodes at work at a time; `address` is that of a Ray cluster that is there already."""
    runtime = ClientRuntime(federation, networks, Memory(memory.absolute()), seed, training, task, device)
    return TransportEngine(runtime, SimulatedTransport(runtime, workers, timeout, address))
