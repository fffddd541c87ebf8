"""Messages over a Flower grid: send them, wait for the replies, and never for longer or for more than was agreed."""

import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from fedclade.clients.tasks import Failure

if TYPE_CHECKING:
    from flwr.app import Message

K = TypeVar("K")

POLL = 0.02  # seconds between looks for replies in a simulation
SLOW_POLL = 0.2  # the same over a network
LARGEST = 256 << 20  # bytes of a reply that are read at most, unless the model itself is larger

# Flower's error codes, in our words
KINDS: dict[int, Any] = {3: "timed out", 5: "absent", 8: "died"}


@dataclass(frozen=True)
class Online:
    """What the grid itself knows of a node, whatever the node says."""

    key: str = ""  # its public key
    name: str = ""  # under which its key was registered


class Exchange:
    """One grid. Replies are matched by the message they answer, for some errors come from the SuperLink itself."""

    def __init__(self, grid: Any, timeout: float | None = None, largest: int = LARGEST) -> None:
        self.grid, self.timeout, self.largest = grid, timeout, largest
        self._left = largest
        self.is_remote = hasattr(grid, "get_nodes")
        if self.is_remote:
            self._limit_what_is_read()

    def nodes(self) -> "dict[int, Online]":
        """The nodes that are online."""
        if not self.is_remote:
            return {int(node): Online() for node in self.grid.get_node_ids()}
        return {int(node.node_id): Online(node.public_key.hex(), node.name) for node in self.grid.get_nodes()}

    def send(self, messages: "Mapping[K, Message]") -> dict[str, K]:
        """The id of every message that is under way, and whose it is."""
        if not messages:
            return {}
        numbers = list(self._pushed(list(messages.values())))
        return {number: key for number, key in zip(numbers, messages, strict=False) if number}

    def _pushed(self, messages: "list[Message]", attempts: int = 5) -> Iterable[str]:
        from flwr.supercore.inflatable import inflatable_utils

        interrupted = getattr(inflatable_utils, "ObjectPushError", ())  # the SuperLink was restarted meanwhile
        try:
            return self.grid.push_messages(messages)
        except interrupted:
            if attempts == 1:
                raise
            return self._pushed([anew(message) for message in messages], attempts - 1)

    def fetch(self, numbers: "Mapping[str, K]") -> "Iterator[tuple[str, Message]]":
        """Replies that have come. Over a network they are read one at a time, so that many huge ones do not add up."""
        for some in [[number] for number in numbers] if self.is_remote else [list(numbers)]:
            self._left = self.largest
            for reply in self.grid.pull_messages(some):
                if reply.metadata.reply_to_message_id in numbers:
                    yield reply.metadata.reply_to_message_id, reply

    def exchange(self, messages: "Mapping[K, Message]") -> "Iterator[tuple[K, Message | Failure]]":
        """Send messages and give the replies as they come; whoever does not answer in time has failed."""
        waiting = self.send(messages)
        under_way = set(waiting.values())
        for key in messages:
            if key not in under_way:
                yield key, Failure("absent", "the message could not be sent")
        began = time.monotonic()
        while waiting:
            for number, reply in self.fetch(dict(waiting)):
                yield waiting.pop(number), reply
            if self.timeout is not None and time.monotonic() - began > self.timeout:
                for key in waiting.values():
                    yield key, Failure("timed out", f"after {self.timeout:g} s")
                return
            if waiting:
                time.sleep(SLOW_POLL if self.is_remote else POLL)

    def _limit_what_is_read(self) -> None:
        """Stop reading a reply beyond the limit. Flower then reports it as unavailable, and the run goes on."""
        client = getattr(self.grid, "_runtime_client", None)
        read = getattr(client, "PullObject", None)
        if read is None:  # another version of Flower: replies are still read one at a time
            return
        from flwr.supercore.inflatable.inflatable_utils import ObjectPullError

        def limited(request: Any) -> Any:
            response = read(request)
            self._left -= len(response.object_content)
            if self._left < 0:
                raise ObjectPullError(request.object_id, f"the reply is larger than {self.largest >> 20} MB")
            return response

        client.PullObject = limited  # type: ignore[union-attr]


def anew(message: "Message") -> "Message":
    """The same message once more.

    Whoever got the first one works twice: with the same outcome, unless it goes on from a model that it keeps.
    """
    from flwr.app import Message

    about = message.metadata
    return Message(message.content, about.dst_node_id, about.message_type, ttl=about.ttl, group_id=about.group_id)


def failure_of(reply: "Message") -> Failure | None:
    """Why a reply is none, if so."""
    if not reply.has_error():
        return None
    lines = (reply.error.reason or "").strip().splitlines()
    said = re.search(r"<class '(?:[\w.]*\.)?(\w+)'>:<[\"'](.*)[\"']>", lines[-1]) if lines else None
    words = f"{said[1]}: {said[2]}" if said else lines[-1] if lines else ""
    return Failure(KINDS.get(int(reply.error.code), "raised"), words.removeprefix("FedcladeError: ")[:300])


def quiet() -> None:
    """What goes wrong with a client is in our own history."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
