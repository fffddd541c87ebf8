"""Clients on real nodes: each holds its own rows, may be slow or gone, may come late, and may lie about who it is."""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from fedclade.clients.tasks import SERVER, Failure
from fedclade.data.federation import Client, Federation, natural_order
from fedclade.data.own import column_order
from fedclade.engines.brief import Brief
from fedclade.engines.exchange import Exchange, Online, failure_of
from fedclade.engines.grid import HELLO
from fedclade.engines.records import to_records
from fedclade.errors import FedcladeError, listed

if TYPE_CHECKING:
    from flwr.app import Message

MODEL = "fedclade_model"  # a query: a node is given its cluster's model
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
    columns: Mapping[str, Any] = field(default_factory=dict)  # of a table: its columns, and what each holds
    scaling: str = "none"  # how its owner's kind of data are scaled
    group: int | None = None
    rows: int = 0  # that it trains on


@dataclass
class NodeRegistry:
    """Which node is which client. Nodes say so themselves, for a node's number changes when it restarts.

    With `keys`, a node goes by the name its key was registered under; where there is none, a name belongs for ever to
    the key that used it first. Whoever else claims it is refused. Without keys a name passes to a newer node once the
    one before is gone.
    """

    exchange: Exchange
    keys: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)  # how nodes read their data
    known: dict[str, Report] = field(default_factory=dict)
    bound: dict[str, str] = field(default_factory=dict)  # the key of each name, also from before a restart
    refused: dict[int, str] = field(default_factory=dict)  # the name that each claimed
    reasons: list[str] = field(default_factory=list)  # why nodes were refused
    _asked: dict[str, tuple[int, float]] = field(default_factory=dict)  # hellos under way, and since when
    _later: dict[int, float] = field(default_factory=dict)  # when to ask a node again that could not answer
    online: dict[int, Online] = field(default_factory=dict)

    def look(self) -> None:
        """See who is online, greet nodes that are new, and admit those who have answered since: nothing waits."""
        now = time.monotonic()
        self.online = self.exchange.nodes()
        busy = {node for node, _ in self._asked.values()} | {report.node for report in self.known.values()}
        strangers = [node for node in self.online if node not in busy and node not in self.refused]
        hellos = {
            node: query(HELLO, node, {"options": self.options}, PATIENCE)
            for node in strangers
            if self._later.get(node, 0.0) <= now
        }
        self._asked |= {number: (node, now) for number, node in self.exchange.send(hellos).items()}
        for number, reply in list(self.exchange.fetch(dict(self._asked))):
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
            told = told_in(reply)
            shape, classes = tuple(map(int, told["input_shape"])), tuple(map(str, told["classes"]))
            columns, scaling = {str(name): str(kind) for name, kind in told["columns"].items()}, str(told["scaling"])
            group, rows = None if told["group"] is None else int(told["group"]), int(told["rows"])
            if (
                not 0 < prod(shape) <= LARGEST_ROW
                or told["dtype"] not in ("uint8", "float32", "int32")
                or len(classes) > 10**5
                or rows < 0
            ):
                raise ValueError(f"{rows} rows of shape {shape} and type {told['dtype']}, {len(classes)} classes")
            if columns and (len(columns),) != shape:
                raise ValueError(f"{len(columns)} names of columns for rows of shape {shape}")
            online = self.online.get(node, Online())
            mark = f"key-{sha256(online.key.encode()).hexdigest()[:12]}" if self.keys and online.key else f"node-{node}"
            name = str(told["client"])[:200] or (online.name if self.keys else "") or mark
            return Report(name, node, online.key, shape, str(told["dtype"]), classes, columns, scaling, group, rows)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            print(f"node {node} cannot take part: its greeting makes no sense ({error!r})", flush=True)
            return None

    def _admit(self, report: Report) -> None:
        """Let a node speak under the name it gives, unless that belongs to another."""
        why = self._why_refused(report)
        if why:
            self.refused[report.node] = report.client
            self.reasons.append(why)
            print(f"node {report.node} is refused: {why}", flush=True)
            return
        self.bound[report.client] = report.key
        self.known[report.client] = report

    def leave_out(self, client: str, why: str) -> None:
        """Go on without a client that is known, and say why."""
        self.refused[self.known.pop(client).node] = client
        self.reasons.append(why)
        print(f"{client!r} is left out: {why}", flush=True)

    def _why_refused(self, report: Report) -> str:
        name, owner, before = report.client, self.bound.get(report.client), self.known.get(report.client)
        if name == SERVER:
            return f"no client can be called {name!r}"
        if not self.keys:
            is_taken = before is not None and before.node != report.node and before.node in self.online
            return f"the name {name!r} belongs to another, which is online" if is_taken else ""
        if not report.key:
            return f"{name!r} has no key: start it with one, or run with keys=false where nobody can lie"
        registered = self.online.get(report.node, Online()).name
        if registered and registered != name:
            return f"the name {name!r} belongs to another: its key was registered as {registered!r}"
        if owner is not None and owner != report.key:
            return f"the name {name!r} belongs to another key: if this is a new one, `fedclade deploy rotate` takes it"
        return ""

    def node_of(self, client: str) -> int | None:
        """The node of a client, if it is online."""
        report = self.known.get(client)
        return report.node if report is not None and report.node in self.online else None


def query(what: str, node: int, asked: Mapping[str, Any], ttl: float | None) -> "Message":
    """A question to a node besides tasks."""
    from flwr.app import ConfigRecord, Message, RecordDict

    return Message(RecordDict({"asked": ConfigRecord({"json": json.dumps(asked)})}), node, f"query.{what}", ttl=ttl)


def told_in(reply: "Message") -> Any:
    """What a node told. Raises KeyError or ValueError where it told nothing."""
    return json.loads(str(reply.content.config_records["told"]["json"]))


def leave_out_the_odd(registry: NodeRegistry) -> None:
    """Go on without nodes whose rows are unlike those of most nodes, so that one cannot keep a run from beginning."""

    def kind(report: Report) -> Any:
        return report.input_shape, report.dtype, frozenset(report.columns)

    most, number = Counter(kind(report) for report in registry.known.values()).most_common(1)[0]
    if number <= len(registry.known) / 2:
        return  # nobody can say who is odd: `agreed` names two
    for report in [report for report in registry.known.values() if kind(report) != most]:
        registry.leave_out(report.client, f"its rows (shape {report.input_shape}) or columns are unlike most nodes'")


def agreed(reports: Sequence[Report], labels: str = "classes") -> tuple[str, ...]:
    """The classes of nodes whose rows are alike, or one line that names whose are not."""
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
        if bool(report.columns) != bool(first.columns):
            table, arrays = (report, first) if report.columns else (first, report)
            raise FedcladeError(f"{table.client!r} has a table, but {arrays.client!r} arrays: all nodes need the same")
        if report.columns:  # of the same names; their order may differ
            column_order(
                list(report.columns), list(first.columns), f"the table of {report.client!r}", repr(first.client)
            )
        if labels != "classes" and report.classes != first.classes:
            raise FedcladeError(
                f"the labels of {report.client!r} are {listed(report.classes)}, those of {first.client!r} "
                f"{listed(first.classes)}: all nodes need the same"
            )
    return _all_classes(reports)


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


@dataclass
class RegisteredNodes:
    """The nodes of a deployment as a run sees them: those who fit it, and what they must be told."""

    registry: NodeRegistry
    clients: tuple[str, ...]
    brief: Brief
    like: Report  # whose rows all others' must be like
    on_join: Callable[[tuple[str, ...]], Mapping[str, str]]  # told who takes part now; gives the networks of some
    networks: Mapping[str, str] = field(default_factory=dict)
    _unfit: set[str] = field(default_factory=set)  # came late with rows of another kind

    def look(self) -> None:
        self.registry.look()

    def node_of(self, client: str) -> int | None:
        return self.registry.node_of(client)

    def header(self, client: str) -> Mapping[str, Any]:
        return {"brief": replace(self.brief, network=self.networks.get(client, "")).to_json()}

    def rewind(self, round: int) -> None:
        """Nodes go back by themselves: every brief says since when."""
        self.brief = replace(self.brief, since=round)

    def arrivals(self) -> tuple[str, ...]:
        self.registry.look()
        known = {*self.clients, *self._unfit}
        fresh = [report for name, report in self.registry.known.items() if name not in known]
        names = []
        for report in sorted(fresh, key=lambda report: natural_order(report.client)):
            if self._fits(report):
                names.append(report.client)
            else:
                print(f"{report.client!r} cannot join: its rows, columns or labels are unlike the run's", flush=True)
                self._unfit.add(report.client)
        if names:
            self.clients = (*self.clients, *names)
            self.networks = self.on_join(self.clients)
        return tuple(names)

    def _fits(self, report: Report) -> bool:
        known = self.brief.preprocessing
        columns = not report.columns or (known is not None and set(report.columns) == set(known.columns))
        is_like = report.input_shape == self.like.input_shape and report.dtype == self.like.dtype
        return columns and is_like and set(report.classes) <= set(self.brief.classes)


def deliver_models(
    registry: NodeRegistry,
    run: str,
    members: Mapping[int, Sequence[str]],
    tensors: Mapping[str, Mapping[str, np.ndarray]],
    own: Mapping[str, Mapping[str, Any]],
) -> list[str]:
    """Give every node the model that the server has for it; returns who did not get it.

    `own` says of those who are served by what they keep themselves how the two go together.
    """
    from flwr.app import Message

    registry.look()
    messages, missed = {}, []
    for cluster, clients in members.items():
        about = {"run": run, "cluster": cluster, "members": len(clients)}
        for client in clients:
            node = registry.node_of(client)
            if node is None:
                missed.append(client)
                continue
            told = {**about, "client": client, "names": list(tensors[client]), "own": dict(own.get(client, {}))}
            records = to_records(told, list(tensors[client].values()))
            messages[client] = Message(records, node, f"query.{MODEL}", ttl=registry.exchange.timeout)
    for client, reply in registry.exchange.exchange(messages):
        if isinstance(reply, Failure) or reply.has_error():
            missed.append(client)
    return sorted(missed, key=natural_order)


def whoever_comes(registry: NodeRegistry, wanted: int, wait: float) -> list[Report]:
    """Wait until so many clients are there; after a while, begin with those who are."""
    began = time.monotonic()
    while len(registry.known) < wanted and time.monotonic() - began < wait:
        registry.look()
        time.sleep(0.5)
    if not registry.known and registry.reasons:
        raise FedcladeError(f"all {len(registry.refused)} nodes that came were refused: {registry.reasons[0]}")
    if not registry.known:
        raise FedcladeError(f"no node has come in {wait:g} s: start SuperNodes, or give `wait` more seconds")
    if len(registry.known) < wanted:
        print(f"beginning with {len(registry.known)} of {wanted} clients: {listed(registry.known)}", flush=True)
    return sorted(registry.known.values(), key=lambda report: natural_order(report.client))
