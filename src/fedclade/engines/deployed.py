"""Clients on real nodes: each holds its own rows, may be slow or gone, may come late, and may lie about who it is."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from fedclade.clients.memory import Memory
from fedclade.clients.runtime import ClientRuntime
from fedclade.clients.tasks import SERVER, Answer, Failure, Predict, Predicted, Task
from fedclade.data.federation import Client, Federation, natural_order
from fedclade.data.own import column_order
from fedclade.deploy.brief import Brief
from fedclade.engines.flower import Parcels, kind_of, read_answer
from fedclade.engines.records import to_records
from fedclade.engines.transport import GridTransport, Online, failure_of
from fedclade.errors import FedcladeError, listed
from fedclade.models.assigned import Networks
from fedclade.models.weights import Layout

if TYPE_CHECKING:
    from flwr.app import Message

HELLO, MODEL = "query.fedclade_hello", "query.fedclade_model"
PATIENCE = 600.0  # seconds that a node may take to say who it is
LARGEST_ROW = 2**28  # numbers in a row that a node may claim to have
AGAIN = 15.0  # seconds after which a node that could not say it is asked again


@dataclass(frozen=True)
class Report:
    """What a node says of itself."""

    client: str
    node: int
    key: str
    input_shape: tuple[int, ...]
    dtype: str
    classes: tuple[str, ...]
    columns: tuple[str, ...] = ()  # the names of its features, where a table gave them
    group: int | None = None


@dataclass
class NodeRegistry:
    """Which node is which client. Nodes say so themselves, for a node's number changes when it restarts.

    With `keys`, a node goes by the name its key was registered under; where there is none, a name belongs for ever to
    the key that used it first. Whoever else claims it is refused. Without keys a name passes to a newer node once the
    one before is gone.
    """

    transport: GridTransport
    keys: bool = True
    known: dict[str, Report] = field(default_factory=dict)
    bound: dict[str, str] = field(default_factory=dict)  # the key of each name, also from before a restart
    refused: dict[int, str] = field(default_factory=dict)
    _asked: dict[str, tuple[int, float]] = field(default_factory=dict)  # hellos under way, and since when
    _later: dict[int, float] = field(default_factory=dict)  # when to ask a node again that could not answer
    online: dict[int, Online] = field(default_factory=dict)

    def look(self) -> None:
        """See who is online, greet nodes that are new, and admit those who have answered since: nothing waits."""
        from flwr.app import Message, RecordDict

        now = time.monotonic()
        self.online = self.transport.nodes()
        busy = {node for node, _ in self._asked.values()} | {report.node for report in self.known.values()}
        strangers = [node for node in self.online if node not in busy and node not in self.refused]
        hellos = {
            node: Message(RecordDict(), node, HELLO, ttl=PATIENCE)
            for node in strangers
            if self._later.get(node, 0.0) <= now
        }
        self._asked |= {number: (node, now) for number, node in self.transport.send(hellos).items()}
        for number, reply in list(self.transport.fetch(dict(self._asked))):
            node, _ = self._asked.pop(number)
            report = self._read(node, reply)
            if report is None:
                self._later[node] = now + AGAIN
            else:
                self._admit(report)
        self._asked = {number: (node, since) for number, (node, since) in self._asked.items() if now - since < PATIENCE}

    def _read(self, node: int, reply: "Message") -> Report | None:
        if reply.has_error():
            reason = failure_of(reply)
            print(f"node {node} cannot take part: {reason}", flush=True)
            return None
        try:
            told = json.loads(str(reply.content.config_records["hello"]["json"]))
            shape, classes = tuple(map(int, told["input_shape"])), tuple(map(str, told["classes"]))
            columns = tuple(map(str, told["columns"]))
            group = None if told["group"] is None else int(told["group"])
            if not 0 < prod(shape) <= LARGEST_ROW or told["dtype"] not in ("uint8", "float32") or len(classes) > 10**5:
                raise ValueError(f"rows of shape {shape} and type {told['dtype']}, {len(classes)} classes")
            if columns and (len(set(columns)),) != shape:
                raise ValueError(f"{len(set(columns))} names of columns for rows of shape {shape}")
            online = self.online.get(node, Online())
            mark = f"key-{sha256(online.key.encode()).hexdigest()[:12]}" if self.keys and online.key else f"node-{node}"
            name = str(told["client"])[:200] or (online.name if self.keys else "") or mark
            return Report(name, node, online.key, shape, str(told["dtype"]), classes, columns, group)
        except (KeyError, TypeError, ValueError) as error:
            print(f"node {node} cannot take part: its greeting makes no sense ({error!r})", flush=True)
            return None

    def _admit(self, report: Report) -> None:
        """Let a node speak under the name it gives, unless that belongs to another."""
        owner, before = self.bound.get(report.client), self.known.get(report.client)
        taken = report.client == SERVER
        if self.keys:
            registered = self.online.get(report.node, Online()).name
            taken |= bool(registered) and registered != report.client
            taken |= not report.key or (owner is not None and owner != report.key)
        else:
            taken |= before is not None and before.node != report.node and before.node in self.online
        if taken:
            self.refused[report.node] = report.client
            print(f"node {report.node} is refused: the name {report.client!r} belongs to another", flush=True)
            return
        self.bound[report.client] = report.key
        self.known[report.client] = report

    def node_of(self, client: str) -> int | None:
        """The node of a client, if it is online."""
        report = self.known.get(client)
        return report.node if report is not None and report.node in self.online else None


def agreed(reports: Sequence[Report]) -> tuple[tuple[int, ...], tuple[str, ...], tuple[str, ...]]:
    """The shape of rows, the classes and the columns that nodes agree on, or one line that names who does not."""
    first = reports[0]
    for report in reports:
        for what, mine, theirs in (
            ("shape", report.input_shape, first.input_shape),
            ("type", report.dtype, first.dtype),
        ):
            if mine != theirs:
                raise FedcladeError(
                    f"the rows of {report.client!r} have {what} {mine}, those of {first.client!r} {theirs}: "
                    "all nodes need the same"
                )
    tables = [report for report in reports if report.columns]
    columns = tables[0].columns if tables else ()
    for report in tables:  # of the same names; their order may differ
        column_order(report.columns, columns, f"the table of {report.client!r}", repr(tables[0].client))
    return first.input_shape, _all_classes(reports), columns


def _all_classes(reports: Sequence[Report]) -> tuple[str, ...]:
    found = {name for report in reports for name in report.classes}
    if all(set(report.classes) == found for report in reports):
        return reports[0].classes
    are_numbers = all(name.lstrip("-").isdecimal() for name in found)
    return tuple(sorted(found, key=int) if are_numbers else sorted(found))


def server_rows(input_shape: tuple[int, ...], classes: tuple[str, ...], dtype: str = "float32") -> Federation:
    """The server holds no rows; it works on those that come with a task. One row of zeros stands for them."""
    row = np.zeros(1, np.int32)
    rows = np.zeros((1, *input_shape), dtype)
    return Federation(rows, np.zeros(1, np.int64), (Client(SERVER, row, row),), classes, "nodes", "own")


class DeployedEngine:
    """A grid of real nodes that run `fedclade.deploy.node`."""

    has_strangers = True
    keeps_models = True

    def __init__(
        self,
        registry: NodeRegistry,
        clients: Sequence[str],
        classes: tuple[str, ...],
        networks_for: Callable[[Sequence[str]], Networks],
        brief: Brief,
        memory: Memory,
    ) -> None:
        self.registry, self.transport, self.brief = registry, registry.transport, brief
        self.clients = tuple(clients)
        self._unfit: set[str] = set()  # came late with rows of another kind
        first = next(report for report in registry.known.values())
        self.input_shape, self.dtype, self.n_classes = first.input_shape, first.dtype, len(classes)
        self._networks_for = networks_for
        federation = server_rows(first.input_shape, classes, first.dtype)
        self.runtime = ClientRuntime(federation, networks_for(self.clients), memory, brief.seed, brief.training)
        self.layout, self.initial = self.runtime.layout, self.runtime.initial
        self.transport.largest = max(self.transport.largest, 8 * self.initial.nbytes)
        self.network_of: Mapping[str, str] = self.runtime.networks.of
        self.facts: Mapping[str, Any] = {"engine": "flower", **self.runtime.facts}

    def arrivals(self) -> tuple[str, ...]:
        """Clients that have come late and fit the run; they take part from now on."""
        self.registry.look()
        fresh = [report for name, report in self.registry.known.items() if name not in {*self.clients, *self._unfit}]
        names = []
        for report in sorted(fresh, key=lambda report: natural_order(report.client)):
            strange = bool(set(report.classes) - set(self.brief.classes))
            if report.columns and self.brief.columns:
                strange |= set(report.columns) != set(self.brief.columns)
            if report.input_shape != self.input_shape or report.dtype != self.dtype or strange:
                print(f"{report.client!r} cannot join: its rows, columns or labels are unlike the run's", flush=True)
                self._unfit.add(report.client)
                continue
            names.append(report.client)
        self.clients = (*self.clients, *names)
        if names:
            self.runtime.networks = self._networks_for(self.clients)  # those of the others stay as they are
            self.network_of = self.runtime.networks.of
        return tuple(names)

    def answer(self, tasks: Mapping[str, Task], round: int) -> dict[str, Answer | Failure]:
        from flwr.app import Message

        own = {client: task for client, task in tasks.items() if client == SERVER}
        answers = self.runtime.perform(own, round) if own else {}
        self.registry.look()
        parcels, messages = Parcels(), {}
        for client, task in tasks.items():
            node = self.registry.node_of(client)
            if client == SERVER:
                continue
            if node is None:
                answers[client] = Failure("absent", "its node is not online")
                continue
            header, arrays = parcels.packed(task, self.layout_of(client, getattr(task, "through", "")))
            brief = replace(self.brief, network=self.network_of.get(client, ""))
            records = parcels.records({**header, "round": round, "client": client, "brief": brief.to_json()}, arrays)
            messages[client] = Message(records, node, kind_of(task), ttl=self.transport.timeout)
        for client, reply in self.transport.exchange(messages):
            sent = messages[client].metadata.dst_node_id
            answers[client] = reply if isinstance(reply, Failure) else self._read(tasks[client], sent, reply)
        return answers

    def _read(self, task: Task, node: int, reply: "Message") -> Answer | Failure:
        if not reply.has_error() and reply.metadata.src_node_id != node:
            return Failure("refused", "another node answered in its place")
        answer = read_answer(reply, self.layout)
        if isinstance(task, Predict) and isinstance(answer, Predicted):
            wanted = len(answer.labels) if task.rows is None else len(task.rows)
            if answer.values.ndim != 2 or len(answer.values) != wanted:
                return Failure("bad shape", f"sent {answer.values.shape} predictions for {wanted} rows")
        return answer

    def at_server(self, tasks: Sequence[Task], round: int) -> list[Answer | Failure]:
        return [self.runtime.perform({SERVER: task}, round)[SERVER] for task in tasks]

    def layout_of(self, client: str, through: str = "") -> Layout:
        return self.runtime.network(client, through).layout

    def rewind(self, round: int) -> None:
        """Nodes go back by themselves: every brief says since when."""
        self.brief = replace(self.brief, since=round)

    def drift(self, rows_of: Mapping[str, str]) -> None:
        if rows_of:
            raise FedcladeError("on Flower data change where they lie, not by an event of the run: use --engine local")

    def deliver(self, members: Mapping[int, Sequence[str]], models: Mapping[int, np.ndarray]) -> list[str]:
        """Give every node its cluster's model to keep; returns who did not get it."""
        from flwr.app import Message

        self.registry.look()
        messages, missed = {}, []
        for cluster, clients in members.items():
            tensors = self.layout.tensors(models[cluster])
            about = {"run": self.brief.run, "cluster": cluster, "members": len(clients), "names": list(tensors)}
            for client in clients:
                node = self.registry.node_of(client)
                if node is None:
                    missed.append(client)
                    continue
                records = to_records({**about, "client": client}, list(tensors.values()))
                messages[client] = Message(records, node, MODEL, ttl=self.transport.timeout)
        for client, reply in self.transport.exchange(messages):
            if isinstance(reply, Failure) or reply.has_error():
                missed.append(client)
        return sorted(missed, key=natural_order)

    def close(self) -> None:
        pass


def whoever_comes(registry: NodeRegistry, wanted: int, wait: float) -> list[Report]:
    """Wait until so many clients are there; after a while, begin with those who are."""
    began = time.monotonic()
    while len(registry.known) < wanted and time.monotonic() - began < wait:
        registry.look()
        time.sleep(0.5)
    if not registry.known:
        raise FedcladeError(f"no node has come in {wait:g} s: start SuperNodes, or give `wait` more seconds")
    if len(registry.known) < wanted:
        print(f"beginning with {len(registry.known)} of {wanted} clients: {listed(registry.known)}", flush=True)
    return sorted(registry.known.values(), key=lambda report: natural_order(report.client))


__all__ = ["DeployedEngine", "NodeRegistry", "Report", "agreed", "whoever_comes"]
