"""An engine: clients that a transport reaches, and the server's own work.

Engines differ only in their transport: this process and its workers (`local`), or a Flower grid (`grid`). A result does
not depend on which one it is: every random stream is named by client and round, a client's numbers do not depend on who
trains beside it, and rows are evaluated in chunks of a fixed size.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from fedclade.clients.runtime import ClientRuntime
from fedclade.clients.tasks import Answer, Failure, Task, Training
from fedclade.models.assigned import Through
from fedclade.models.weights import Layout, state_of


class Transport(Protocol):
    """How tasks reach clients and answers come back."""

    name: str
    has_strangers: bool

    @property
    def clients(self) -> tuple[str, ...]: ...

    def deliver(self, tasks: Mapping[str, Task], round: int) -> Mapping[str, Answer | Failure]: ...

    def at_server(self, tasks: Sequence[Task], round: int) -> Sequence[Answer | Failure]: ...

    def arrivals(self) -> tuple[str, ...]: ...

    def rewind(self, round: int) -> None: ...

    def drift(self, rows_of: Mapping[str, str]) -> None: ...

    def close(self) -> None: ...


class TransportEngine:
    """Clients that run fedclade's runtime, wherever they are."""

    keeps_models = True

    def __init__(self, runtime: ClientRuntime, transport: Transport) -> None:
        self.runtime, self.transport = runtime, transport
        self.has_strangers = transport.has_strangers
        self.layout: Layout = runtime.layout
        self.initial: np.ndarray = runtime.initial
        self.input_shape, self.n_classes = runtime.federation.input_shape, runtime.federation.n_classes
        self.training: Training | None = runtime.training
        self.metrics = runtime.objective.measured
        self.facts: Mapping[str, Any] = {"engine": transport.name, **runtime.facts}

    @property
    def clients(self) -> tuple[str, ...]:
        return self.transport.clients

    @property
    def network_of(self) -> Mapping[str, str]:
        return self.runtime.networks.of

    def layout_of(self, client: str, through: Through = "") -> Layout:
        return self.runtime.network(client, through).layout

    def answer(self, tasks: Mapping[str, Task], round: int) -> dict[str, Answer | Failure]:
        answers = self.transport.deliver(tasks, round)
        return {client: answers.get(client, Failure("absent")) for client in tasks}

    def at_server(self, tasks: Sequence[Task], round: int) -> Sequence[Answer | Failure]:
        return self.transport.at_server(tasks, round)

    def state_dict(self, weights: np.ndarray) -> Mapping[str, Any]:
        return state_of(self.runtime.networks.factories[""](), weights)

    def arrivals(self) -> tuple[str, ...]:
        return self.transport.arrivals()

    def rewind(self, round: int) -> None:
        self.transport.rewind(round)

    def remembered(self) -> Mapping[str, Mapping[str, int]]:
        return self.runtime.memory.known()

    def check_memory(self, round: int, forget: bool) -> set[str]:
        memory = self.runtime.memory
        if forget:
            memory.forget_damaged()
        return {client for client, _, number in memory.check() if number <= round}

    def remember(self, client: str, slot: str, vector: np.ndarray, round: int) -> None:
        self.runtime.memory.write(client, slot, vector, round)

    def flush(self) -> None:
        self.runtime.memory.flush()

    def drift(self, rows_of: Mapping[str, str]) -> None:
        self.transport.drift(rows_of)

    def close(self) -> None:
        self.transport.close()
        self.runtime.memory.close()
