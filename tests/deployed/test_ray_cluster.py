"""A Ray cluster that is there already: here two raylets of this machine."""

from pathlib import Path

import numpy as np
import pytest
from torch import nn

import fedclade
from fedclade.settings import settings_from

pytestmark = pytest.mark.deployed


def test_both_raylets_work_and_the_bits_are_those_of_one_process(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    seen = tmp_path / "raylets"
    seen.mkdir()

    class Telling(nn.Sequential):
        """Tells where it is trained."""

        def __init__(self, input_shape: tuple[int, ...], n_classes: int) -> None:
            super().__init__(nn.Flatten(), nn.Linear(int(np.prod(input_shape)), n_classes))

        def forward(self, rows):  # type: ignore[no-untyped-def]
            import ray

            if ray.is_initialized():
                (seen / ray.get_runtime_context().get_node_id()).touch()
            return super().forward(rows)

    given = {"clients": 8, "rounds": 2, "model": Telling, "seed": 1}
    alone = fedclade.run("digits", workers=1, **given)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        engine = {"name": "flower-sim", "address": cluster.address}
        joined = fedclade.run("digits", engine=engine, workers=2, out=tmp_path / "run", **given)
    finally:
        cluster.shutdown()
    name = alone.clusters[0][0]
    assert np.array_equal(alone.weights_for(name), joined.weights_for(name))
    assert len(list(seen.iterdir())) == 2


def test_the_address_is_a_setting_of_the_engine() -> None:
    settings = settings_from({"engine": {"name": "flower-sim", "address": "10.0.0.1:6379"}})
    assert (settings.engine, settings.engine_address) == ("flower-sim", "10.0.0.1:6379")
    with pytest.raises(fedclade.FedcladeError, match=r"engine\.adress"):
        settings_from({"engine": {"name": "flower-sim", "adress": "10.0.0.1:6379"}})
