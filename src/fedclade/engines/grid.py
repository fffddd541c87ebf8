"""Clients on a Flower grid: the same tasks and the same runtime, with Flower's messages in between.

A simulation and a deployment differ in how nodes are found (`NodeDirectory`), and in nothing else.
"""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fedclade.clients.memory import Memory
from fedclade.clients.messages import pack, unpack
from fedclade.clients.runtime import ClientRuntime
from fedclade.clients.tasks import Answer, Evaluate, Failure, Task, Train, Trained
from fedclade.codec import Packet
from fedclade.engines.exchange import Exchange, failure_of
from fedclade.engines.records import array_record, from_records, to_records
from fedclade.errors import FedcladeError

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, Message, RecordDict

LOST = (
    "what this node remembered of the run is lost: put {folder} back from a copy, or start the node with forget=true "
    "in its node-config to go on from the cluster model"
)
HELLO = "fedclade_hello"  # a query: a node tells which client it is


class NodeDirectory(Protocol):
    """Who the clients are, and on which node each of them is now."""

    @property
    def clients(self) -> tuple[str, ...]: ...

    def look(self) -> None:
        """See who is online."""

    def node_of(self, client: str) -> int | None:
        """The node of a client, if it is online."""

    def arrivals(self) -> tuple[str, ...]:
        """Clients that have come since the last look, and fit the run."""

    def header(self, client: str) -> Mapping[str, Any]:
        """What a node must be told with every task, besides the task."""

    def rewind(self, round: int) -> None:
        """Nodes must go back to what they remembered at the end of a round."""


class GridTransport:
    """A grid whose nodes run fedclade's client app."""

    def __init__(
        self,
        name: str,
        exchange: Exchange,
        directory: NodeDirectory,
        runtime: ClientRuntime,
        has_strangers: bool,
        marks: Memory | None = None,  # of what nodes keep where the server cannot see it
    ) -> None:
        self.name, self.exchange, self.directory, self.runtime = name, exchange, directory, runtime
        self.has_strangers, self.marks = has_strangers, marks
        exchange.largest = max(exchange.largest, 8 * runtime.initial.nbytes)

    @property
    def clients(self) -> tuple[str, ...]:
        return self.directory.clients

    def deliver(self, tasks: Mapping[str, Task], round: int) -> dict[str, Answer | Failure]:
        from flwr.app import Message

        self.directory.look()
        kept = self._kept()
        answers: dict[str, Answer | Failure] = {}
        parcels, messages = Parcels(), {}
        for client, task in tasks.items():
            node = self.directory.node_of(client)
            if node is None:
                answers[client] = Failure("absent", "its node is not online")
                continue
            packet = pack(task, self.runtime.network(client, getattr(task, "through", "")).layout)
            about = {"round": round, "client": client, "kept": kept.get(client, [])}
            records = parcels.records(packet, {**self.directory.header(client), **about})
            messages[client] = Message(records, node, kind_of(task), ttl=self.exchange.timeout)
        for client, reply in self.exchange.exchange(messages):
            sent = messages[client].metadata.dst_node_id
            answers[client] = reply if isinstance(reply, Failure) else read_answer(reply, sent)
        self._mark({client: tasks[client] for client, answer in answers.items() if isinstance(answer, Trained)}, round)
        return answers

    def _kept(self) -> dict[str, list[str]]:
        """The slots that each node must have filled: one whose memory is lost then notices."""
        kept: dict[str, list[str]] = {}
        for slot, clients in sorted(self.marks.known().items()) if self.marks else ():
            for client in clients:
                kept.setdefault(client, []).append(slot)
        return kept

    def _mark(self, trained: Mapping[str, Task], round: int) -> None:
        nothing = np.empty(0, np.float32)
        slots = [(client, slot, nothing) for client, task in trained.items() for slot in saved_by(task)]
        if self.marks and slots:
            self.marks.write_all(slots, round)

    def at_server(self, tasks: Sequence[Task], round: int) -> list[Answer | Failure]:
        return self.runtime.at_server(tasks, round)

    def arrivals(self) -> tuple[str, ...]:
        return self.directory.arrivals()

    def rewind(self, round: int) -> None:
        self.directory.rewind(round)
        if self.marks:
            self.marks.forget_after(round)

    def drift(self, rows_of: Mapping[str, str]) -> None:
        if rows_of:
            raise FedcladeError("on Flower data change where they lie, not by an event of the run: use --engine local")

    def close(self) -> None:
        if self.marks:
            self.marks.close()


class Parcels:
    """Messages of one exchange: clients that are sent the same arrays share one record of them."""

    def __init__(self) -> None:
        self._records: dict[tuple[Any, ...], ArrayRecord] = {}
        self._held: list[Any] = []  # what is known by its place in memory must stay there

    def records(self, packet: Packet, about: Mapping[str, Any]) -> "RecordDict":
        from flwr.app import ConfigRecord, RecordDict

        self._held.append(packet)
        mark = tuple(_place_of(array) for array in packet.arrays)
        if mark not in self._records:
            self._records[mark] = array_record(packet.arrays)
        text = json.dumps({"task": packet.header, **about})
        return RecordDict({"arrays": self._records[mark], "message": ConfigRecord({"json": text})})


def _place_of(array: np.ndarray) -> tuple[Any, ...]:
    return array.__array_interface__["data"][0], array.shape, array.strides, array.dtype.str


def kind_of(task: Task) -> str:
    """The type of the Flower message that carries a task."""
    return "train" if isinstance(task, Train) else "evaluate" if isinstance(task, Evaluate) else "query"


def read_answer(reply: "Message", node: int) -> Answer | Failure:
    """What a reply says, or why it says nothing."""
    failure = failure_of(reply)
    if failure is not None:
        return failure
    if reply.metadata.src_node_id != node:
        return Failure("refused", "another node answered in its place")
    try:
        header, arrays = from_records(reply.content)
        answer = unpack(Packet(header["answer"], arrays))
    except Exception as error:  # a stranger may have written anything
        return Failure("bad shape", f"{type(error).__name__}: {error}".splitlines()[0][:300])
    return answer if isinstance(answer, Answer | Failure) else Failure("bad shape", "sent what is no answer")


def saved_by(task: Task | None) -> set[str]:
    """The slots of a client's memory that a task fills."""
    return {slot for slot in (task.save, *saved_by(task.then)) if slot} if isinstance(task, Train) else set()


def read_by(task: Task | None) -> set[str]:
    """The slots of a client's memory that a task goes on from."""
    named = (getattr(task, name, "") for name in ("start", "through"))
    slots = {slot for slot in named if slot and isinstance(slot, str)}  # networks that come along are no slots
    return slots | read_by(task.then) if isinstance(task, Train) else slots


def done(
    runtime: ClientRuntime, client: str, header: Mapping[str, Any], arrays: list[np.ndarray], forget: bool = False
) -> Packet:
    """A node's side: do the task that came, and pack its answer.

    A node that has lost what the task goes on from says so; told to `forget`, it goes on from the model that was sent.
    """
    answer: Answer | Failure
    try:
        task = runtime.received(client, Packet(header["task"], arrays))
    except (KeyError, TypeError, ValueError) as error:
        answer = Failure("refused", f"this is no task ({type(error).__name__}: {error})"[:300])
        return pack(answer, runtime.layout)
    kept = set(header.get("kept", ())) & read_by(task)
    lost = sorted(slot for slot in kept if runtime.memory.read(client, slot) is None)
    if lost and not forget:
        answer = Failure("refused", LOST.format(folder=runtime.memory.folder))
        return pack(answer, runtime.layout)
    whole = [weights for weights in getattr(task, "candidates", ()) if weights.shape == runtime.initial.shape]
    if lost and whole:
        runtime.memory.write_all([(client, slot, whole[0]) for slot in lost], int(header["round"]))
    return pack(runtime.perform({client: task}, int(header["round"]))[client], runtime.layout)


def reply_with(packet: Packet, message: "Message") -> "Message":
    from flwr.app import Message

    return Message(to_records({"answer": packet.header}, packet.arrays), reply_to=message)
