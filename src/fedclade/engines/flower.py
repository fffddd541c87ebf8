"""Clients on a Flower grid: the same methods, tasks and client runtime, with Flower's messages in between.

`FlowerEngine` works on any grid. `FlowerSimulation` starts Flower's own simulation (on Ray) and works on its grid.
"""

import json
import os
import queue
import shutil
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedclade.clients.memory import Memory
from fedclade.clients.runtime import ClientRuntime, load_runtime, save_runtime
from fedclade.clients.tasks import SERVER, Answer, Evaluate, Failure, Task, Train, Training
from fedclade.clients.wire import decode, encode
from fedclade.data.federation import Federation
from fedclade.engines.records import array_record, from_records, place_of, to_records
from fedclade.engines.transport import GridTransport, failure_of, quiet
from fedclade.errors import FedcladeError
from fedclade.models.assigned import Networks, as_networks
from fedclade.models.weights import Layout

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, Context, Message, RecordDict
    from torch import nn

HELLO = "query.fedclade_hello"  # a node tells which client it is


class Parcels:
    """Messages of one exchange: clients that are sent the same weights share one record of arrays."""

    def __init__(self) -> None:
        self._records: dict[tuple[Any, ...], ArrayRecord] = {}
        self._held: list[Any] = []  # what has been seen by its id must stay

    def packed(self, task: Task, layout: Layout) -> tuple[dict[str, Any], list[np.ndarray]]:
        self._held.append(task)
        return encode(task, layout)

    def records(self, header: Mapping[str, Any], arrays: list[np.ndarray]) -> "RecordDict":
        from flwr.app import ConfigRecord, RecordDict

        self._held.append(arrays)
        mark = tuple(place_of(array) for array in arrays)
        if mark not in self._records:
            self._records[mark] = array_record(arrays)
        return RecordDict({"arrays": self._records[mark], "message": ConfigRecord({"json": json.dumps(header)})})


def kind_of(task: Task) -> str:
    """The type of the Flower message that carries a task."""
    return "train" if isinstance(task, Train) else "evaluate" if isinstance(task, Evaluate) else "query"


def read_answer(reply: "Message", layout: Layout) -> Answer | Failure:
    """What a reply says, or why it says nothing."""
    failure = failure_of(reply)
    if failure is not None:
        return failure
    try:
        answer = decode(*from_records(reply.content), layout)
    except Exception as error:  # a stranger may have written anything
        return Failure("bad shape", f"{type(error).__name__}: {error}".splitlines()[0][:300])
    return answer if not isinstance(answer, Task) else Failure("bad shape", "sent a task back")


class FlowerEngine:
    """A grid whose nodes run fedclade's client app."""

    has_strangers = False
    keeps_models = True

    def __init__(self, grid: Any, runtime: ClientRuntime, timeout: float | None = None) -> None:
        self.transport, self.runtime = GridTransport(grid, timeout), runtime
        self.layout, self.initial = runtime.layout, runtime.initial
        self.network_of = runtime.networks.of
        self.clients = runtime.federation.names
        self.input_shape, self.n_classes = runtime.federation.input_shape, runtime.federation.n_classes
        self.facts: Mapping[str, Any] = {"engine": "flower", **runtime.facts}
        self.nodes = self._meet()

    def _meet(self) -> dict[str, int]:
        """Which node is which client: nodes say so themselves."""
        from flwr.app import Message, RecordDict

        expected = set(self.clients) - {SERVER}
        nodes: dict[str, int] = {}
        for _ in range(600):
            strangers = [node for node in self.transport.nodes() if node not in nodes.values()]
            for _, reply in self.transport.exchange({node: Message(RecordDict(), node, HELLO) for node in strangers}):
                if not isinstance(reply, Failure) and not reply.has_error():
                    nodes[str(reply.content.config_records["hello"]["client"])] = reply.metadata.src_node_id
            if expected <= set(nodes):
                return nodes
            time.sleep(0.1)
        raise FedcladeError(f"only {len(nodes)} of {len(expected)} clients are on the grid: start the other nodes")

    def answer(self, tasks: Mapping[str, Task], round: int) -> dict[str, Answer | Failure]:
        from flwr.app import Message

        own = {client: task for client, task in tasks.items() if client == SERVER}
        answers = self.runtime.perform(own, round) if own else {}
        parcels, messages = Parcels(), {}
        for client, task in tasks.items():
            if client != SERVER:
                header, arrays = parcels.packed(task, self.layout_of(client, getattr(task, "through", "")))
                records = parcels.records({**header, "round": round}, arrays)
                messages[client] = Message(records, self.nodes[client], kind_of(task))
        for client, reply in self.transport.exchange(messages):
            answers[client] = reply if isinstance(reply, Failure) else read_answer(reply, self.layout)
        return answers

    def at_server(self, tasks: Sequence[Task], round: int) -> list[Answer | Failure]:
        return [self.runtime.perform({SERVER: task}, round)[SERVER] for task in tasks]

    def layout_of(self, client: str, through: str = "") -> Layout:
        return self.runtime.network(client, through).layout

    def rewind(self, round: int) -> None:
        self.runtime.memory.forget_after(round)

    def drift(self, rows_of: Mapping[str, str]) -> None:
        if rows_of:
            raise FedcladeError("on Flower data change where they lie, not by an event of the run: use --engine local")

    def close(self) -> None:
        pass


def client_app(folder: Path) -> Any:
    """A Flower ClientApp whose node number n is the n-th client of the client runtime in a folder of this machine."""
    from flwr.app import ConfigRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    def name_of(context: Context) -> str:
        return _runtime(folder).federation.names[int(context.node_config["partition-id"])]

    @app.query("fedclade_hello")
    def hello(message: Message, context: Context) -> Message:
        return Message(RecordDict({"hello": ConfigRecord({"client": name_of(context)})}), reply_to=message)

    def work(message: Message, context: Context) -> Message:
        runtime = _runtime(folder)
        header, arrays = from_records(message.content)
        client = name_of(context)
        task = decode(header, arrays, runtime.network(client, header.get("through", "")).layout)
        answer = runtime.perform({client: task}, int(header["round"]))[client]  # type: ignore[dict-item]
        return Message(to_records(*encode(answer, runtime.layout)), reply_to=message)

    app.train()(work)
    app.evaluate()(work)
    app.query()(work)
    return app


@lru_cache(maxsize=2)
def _runtime(folder: Path) -> ClientRuntime:
    import torch

    torch.set_num_threads(1)
    return load_runtime(folder)


class FlowerSimulation(FlowerEngine):
    """Flower's simulation on this machine: one virtual node a client, `workers` of them at work at a time."""

    def __init__(
        self,
        federation: Federation,
        networks: "Networks | Callable[[], nn.Module]",
        *,
        seed: int,
        training: Training,
        memory: Path,
        workers: int = 1,
        timeout: float | None = None,
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
        cluster = os.environ.get("RAY_ADDRESS")
        if cluster:  # other machines cannot map what lies in this one's memory
            federation = replace(federation, x=np.array(federation.x))
        runtime = ClientRuntime(federation, as_networks(networks), Memory(memory.absolute()), seed, training)
        self._folder = Path(tempfile.mkdtemp(prefix="fedclade-"))
        save_runtime(runtime, self._folder)
        # A cluster knows by itself how many hands it has.
        started: Any = {"log_to_driver": False}
        started |= {} if cluster else {"num_cpus": workers, "include_dashboard": False}
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
                    num_supernodes=len([name for name in federation.names if name != SERVER]),
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
        super().__init__(grid, runtime, timeout)
        self.facts = {**self.facts, "engine": "flower-sim"}

    def close(self) -> None:
        import torch

        self._done.set()
        self._thread.join(timeout=60)
        shutil.rmtree(self._folder, ignore_errors=True)
        torch.set_num_threads(self._threads)
