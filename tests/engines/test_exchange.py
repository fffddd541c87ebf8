"""Huge replies: what is read of one is limited, and the others still count; and what is sent amid a restart."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
from flwr.supercore.run import Run
from flwr.superlink.grid.http_grid import HttpGrid

from engines.grids import FakeGrid
from fedclade.engines.exchange import Exchange, failure_of


class FakeRuntime:
    """The SuperLink as Flower's own grid sees it, holding some replies."""

    def __init__(self, replies: dict[str, Any]) -> None:
        self.replies, self.read = replies, 0
        self.objects = {}
        for reply in replies.values():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            self.objects |= {number: part.deflate() for number, part in get_all_nested_objects(reply).items()}

    def PullMessages(self, request: Any) -> Any:  # noqa: N802
        found = [self.replies[number] for number in request.message_ids if number in self.replies]
        protos = [message_to_proto(remove_content_from_message(reply)) for reply in found]
        return PullAppMessagesResponse(messages_list=protos, message_object_trees=map(get_object_tree, found))

    def PullObject(self, request: Any) -> Any:  # noqa: N802
        content = self.objects[request.object_id]
        self.read += len(content)
        return PullObjectResponse(object_found=True, object_available=True, object_content=content)

    def ConfirmMessageReceived(self, request: Any) -> None:  # noqa: N802
        pass


def reply_of(megabytes: int, number: str) -> Any:
    asked = Message(RecordDict(), 7, "train")
    asked.metadata.__dict__["_message_id"] = number
    values = np.random.default_rng(megabytes).integers(0, 255, megabytes << 20, np.uint8)
    return Message(RecordDict({"arrays": ArrayRecord({"0": Array(values)})}), reply_to=asked)


def test_a_flood_of_huge_replies_is_not_read() -> None:
    FakeGrid()  # messages can be made
    replies = {f"huge-{k}": reply_of(60 + k, f"huge-{k}") for k in range(4)} | {"good": reply_of(1, "good")}
    grid, runtime = HttpGrid(token="t"), FakeRuntime(replies)
    grid._client = runtime  # type: ignore[assignment]
    grid._run = Run.create_empty(1)
    transport = Exchange(grid, largest=8 << 20)
    got = dict(transport.fetch(dict.fromkeys(replies, "")))
    assert set(got) == set(replies)
    for number, reply in got.items():
        failure = failure_of(reply)
        if number == "good":
            assert failure is None
        else:
            assert failure is not None
            assert "larger than 8 MB" in failure.detail
    assert runtime.read < 200 << 20  # of 247 MB; a few pieces are on their way when the limit is reached


def test_messages_are_sent_again_when_the_superlink_restarts_meanwhile() -> None:
    FakeGrid()  # messages can be made

    class Restarted:
        def __init__(self, times: int) -> None:
            self.times, self.pushed = times, []  # type: ignore[var-annotated]

        def push_messages(self, messages: list[Any]) -> list[str]:
            self.pushed.append(messages)
            if len(self.pushed) <= self.times:
                raise ObjectPushError("object", 1, "session")
            return [str(place) for place in range(len(messages))]

    messages = {name: Message(RecordDict(), node, "train", ttl=60) for node, name in enumerate("ab", start=1)}
    grid = Restarted(2)
    assert Exchange(grid).send(messages) == {"0": "a", "1": "b"}
    assert [message.metadata.dst_node_id for message in grid.pushed[-1]] == [1, 2]
    assert grid.pushed[-1][0].metadata.ttl == 60
    with pytest.raises(ObjectPushError):
        Exchange(Restarted(9)).send(messages)
