"""`Clustered` with a ServerApp and a ClientApp that know nothing of fedclade's own, on Flower's simulation."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.deployed


def test_clustered_serves_somebody_elses_apps(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    pytest.importorskip("ray")
    from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    from fedclade.engines.exchange import quiet
    from fedclade.flower import Clustered
    from fedclade.methods import FedClust

    client, server = ClientApp(), ServerApp()
    kept, found = tmp_path / "kept", []
    kept.mkdir()

    def goal(context: Context) -> float:
        return 1.0 if int(context.node_config["partition-id"]) % 2 else -1.0

    @client.train()
    def train(message: Message, context: Context) -> Message:
        given = message.content.array_records["arrays"]["w"].numpy()
        arrays = ArrayRecord({"w": Array((given + (goal(context) - given) / 2).astype(np.float32))})
        metrics = MetricRecord({"train_loss": 0.5, "num-examples": 10})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @client.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        given = message.content.array_records["arrays"]["w"].numpy()
        config = message.content.config_records["config"]
        if config.get("final"):  # the one thing that an app may add: keep the model of its cluster
            np.save(kept / f"{context.node_config['partition-id']}-{config['cluster']}.npy", given)
        loss = float(np.mean((given - goal(context)) ** 2))
        metrics = MetricRecord({"loss": loss, "accuracy": 1 / (1 + loss), "num-examples": 5})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        initial = ArrayRecord({"w": Array(np.zeros((3, 2), np.float32))})
        strategy = Clustered(FedClust(n_clusters=2), fraction_train=1.0, min_available_nodes=4)
        found.append(strategy.start(grid=grid, initial_arrays=initial, num_rounds=3))

    quiet()
    config: Any = {"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 2, "log_to_driver": False}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        run_simulation(server, client, num_supernodes=4, backend_config=config)
    assert sorted(len(part) for part in found[0].clusters.values()) == [2, 2]
    models = {path.stem.split("-")[0]: np.load(path) for path in kept.iterdir()}
    assert {int(name): float(np.sign(model).mean()) for name, model in models.items()} == {0: -1, 1: 1, 2: -1, 3: 1}
