"""A Flower grid in this process: nodes are functions that answer messages at once."""

from collections.abc import Callable, Iterable
from typing import Any

Node = Callable[[Any], Any]  # a message to a reply (None: it never answers)


class NodeInfo:
    def __init__(self, node_id: int, key: str = "", name: str = "") -> None:
        self.node_id, self.public_key, self.name = node_id, key.encode(), name


class FakeGrid:
    """Behaves like the grid of a deployment, whose nodes can be added, taken away and replaced at any time."""

    def __init__(self) -> None:
        from flwr.supercore.task_identity import TaskIdentity

        TaskIdentity._task_id = TaskIdentity._run_id = TaskIdentity._node_id = (
            1  # a message can only be made inside a run
        )
        self.nodes: dict[int, tuple[NodeInfo, Node]] = {}
        self.replies: dict[str, Any] = {}
        self.sent: list[Any] = []
        self.count = 0

    def add(self, node_id: int, answer: Node, key: str = "", name: str = "") -> None:
        self.nodes[node_id] = (NodeInfo(node_id, key, name), answer)

    def get_nodes(self) -> list[NodeInfo]:
        return [info for info, _ in self.nodes.values()]

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        numbers = []
        for message in messages:
            self.count += 1
            number = f"m{self.count}"
            self.sent.append(message)
            message.metadata.__dict__["_message_id"] = number
            message.metadata.__dict__["_src_node_id"] = 1
            node = message.metadata.dst_node_id
            reply = self.nodes[node][1](message) if node in self.nodes else None
            if reply is not None:
                self.replies[number] = reply
            numbers.append(number)
        return numbers

    def pull_messages(self, numbers: Iterable[str]) -> list[Any]:
        return [self.replies.pop(number) for number in numbers if number in self.replies]
