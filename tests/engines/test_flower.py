"""The same methods on a Flower grid: the same weights, bit for bit, also when the run is stopped and resumed."""

from pathlib import Path

import numpy as np
import pytest

from fedclade.clients.messages import pack, unpack, whole
from fedclade.clients.tasks import Describe, Evaluate, Failure, Predict, Train, Trained, Training
from fedclade.codec import Packet
from fedclade.engines.local import local_engine
from fedclade.models.assigned import Networks
from fedclade.models.weights import Layout
from fedclade.rounds import Loop
from fedclade.runs.folder import RunFolder
from fedclade.runs.record import run_record
from fedclade.settings import settings_from
from synthetic import planted

TRAINING = Training(local_epochs=2, batch_size=8, learning_rate=0.05, momentum=0.5)


def same(a: object, b: object) -> bool:
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and np.array_equal(a, b)
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


@pytest.mark.parametrize(
    "message",
    [
        Train(np.arange(6, dtype=np.float32), upload="head", proximal=0.1, training=TRAINING),
        Train((np.zeros(6, np.float32), np.ones(6, np.float32))),
        Train(np.arange(6, dtype=np.float32), layers="b", start="own", upload="nothing"),
        Evaluate(np.arange(6, dtype=np.float32), on="train", adapt=TRAINING),
        Predict(start="own", rows=np.ones((2, 3), np.float32), output="b"),
        Evaluate(np.arange(6, dtype=np.float32), through=(("ann", np.ones(3, np.float32)), None)),
        Describe("rows", {"n": 3}),
        Trained(np.arange(2, dtype=np.float32), 5, 3, 0.5, 1),
        Failure("raised", "why"),
    ],
    ids=lambda message: type(message).__name__,
)
def test_messages_survive_the_wire(message: object) -> None:
    layout = Layout(("a.weight", "b.weight"), ((4,), (2,)), 6)
    packet = pack(message, layout)  # type: ignore[arg-type]
    back = unpack(Packet.from_bytes(packet.to_bytes()))
    assert type(back) is type(message)
    sent = message.__dict__ if not (isinstance(message, Train) and message.layers) else {}
    assert all(same(value, getattr(back, name)) for name, value in sent.items())
    if isinstance(message, Train) and message.layers:  # only that layer travels
        assert [array.tolist() for array in packet.arrays] == [[4, 5]]
        assert whole(back, layout, np.full(6, 9, np.float32)).weights.tolist() == [9, 9, 9, 9, 4, 5]  # type: ignore[union-attr]


def test_flower_and_local_agree_bit_for_bit(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    pytest.importorskip("ray")
    from fedclade.engines.simulation import simulated_engine

    federation = planted(n_clients=4)

    networks = Networks.shared("mlp", (8,), 4)
    shared = {"seed": 5, "training": TRAINING}
    engines = {
        "local": local_engine(federation, networks, memory=tmp_path / "local-memory", **shared),  # type: ignore[arg-type]
        "flower": simulated_engine(federation, networks, memory=tmp_path / "flower-memory", workers=2, **shared),  # type: ignore[arg-type]
    }
    try:
        for name, settings in (
            ("fedavg", {}),
            ("fedclust", {"n_clusters": 2}),
            ("ifca", {"n_clusters": 2}),
            ("fl-hc", {"halves": True, "warmup": 0}),
        ):
            states = []
            for kind, engine in engines.items():
                for rounds in (1, 3) if kind == "flower" else (3,):  # Flower's is stopped after a round and resumed
                    given = {
                        "model": "mlp",
                        "method": {"name": name, **settings},
                        "training": TRAINING,
                        "seed": 5,
                        "rounds": rounds,
                    }
                    if rounds < 3 or kind == "local":
                        record = run_record(settings_from(given), clients=federation.names, fingerprint="")
                        run = RunFolder.create(tmp_path / f"{name}-{kind}", record)
                    Loop(settings_from(given), engine, run, federation.names).go()
                states.append((run.last_checkpoint()[1]["clusters"], run.table("history")))  # type: ignore[index]
            (local, local_history), (flower, flower_history) = states
            assert local["members"] == flower["members"]
            assert all(np.array_equal(local["models"][k], flower["models"][k]) for k in local["models"])
            assert local_history["accuracy"].equals(flower_history["accuracy"])
        failed = engines["flower"].answer({"c0": Describe("secrets")}, 1)["c0"]
        assert isinstance(failed, Failure)
        assert failed.kind == "raised"
    finally:
        for engine in engines.values():
            engine.close()
