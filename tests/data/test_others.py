"""Data sets of Hugging Face, flwr-datasets and torchvision, made in memory; rows mapped from a file."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fedclade
from expect import refused
from fedclade.data import Client, DataOptions, Federation, federation_of


def pictures(n: int = 40) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.integers(0, 256, (n, 8, 8), dtype=np.uint8), np.arange(n) % 4


class Vision:
    """As torchvision's: images, targets and classes."""

    def __init__(self, n: int, as_list: bool) -> None:
        self.data, y = pictures(n)
        self.targets: Any = y.tolist() if as_list else y
        self.classes = ["a", "b", "c", "d"]

    def __getitem__(self, row: int) -> Any:
        return self.data[row], self.targets[row]

    def __len__(self) -> int:
        return len(self.data)


@pytest.mark.parametrize("as_list", [True, False])
def test_torchvision(as_list: bool) -> None:
    found = federation_of((Vision(40, as_list), Vision(20, as_list)), "label-groups:2", 4, test_view="label-support")
    assert found.input_shape == (1, 8, 8)
    assert found.classes == ("a", "b", "c", "d")
    assert all(client.test.min() >= 40 for client in found.clients)
    assert len(federation_of(Vision(40, as_list), "iid", 5)) == 5


def hugging_face() -> Any:
    return pytest.importorskip("datasets")


def test_hugging_face_images_and_features() -> None:
    hf = hugging_face()
    x, y = pictures()
    features = hf.Features(
        {"image": hf.Array2D((8, 8), "uint8"), "label": hf.ClassLabel(names=["cat", "dog", "owl", "fox"])}
    )
    data = hf.Dataset.from_dict({"image": list(x), "label": y.tolist()}, features=features).with_format("numpy")
    found = federation_of(data, "label-groups:2", 4)
    assert found.classes == ("cat", "dog", "owl", "fox")
    assert np.array_equal(found.x[:, 0], x)
    both = hf.DatasetDict({"train": data, "test": data.select(range(8))})
    assert len(federation_of(both, "iid", 2, test_view="proportional").x) == 48
    table = hf.Dataset.from_dict({"a": np.arange(20.0), "who": ["x", "y"] * 10, "y": [0, 1, 1, 0] * 5})
    apart = federation_of(table, options=DataOptions(client="who"))
    assert apart.names == ("x", "y")
    assert apart.columns == ("a",)
    refused(lambda: federation_of(table, "iid", 2), "column 'who'", "data.client")
    refused(lambda: federation_of(table, options=DataOptions(label="z")), "data.label is 'z'")


def test_partitions_of_flwr_datasets() -> None:
    hf = hugging_face()
    data = hf.Dataset.from_dict({"a": np.arange(60.0), "b": ["u", "v"] * 30, "label": [0, 1, 2] * 20})

    class Partitioner:
        num_partitions = 3

        def load_partition(self, number: int) -> Any:
            return data.shard(3, number)

    found = federation_of(Partitioner())
    assert found.names == ("client-0", "client-1", "client-2")
    assert found.columns == ("a", "b=u", "b=v")
    whole = SimpleNamespace(partitioners={"train": Partitioner()}, load_partition=Partitioner().load_partition)
    assert federation_of(whole).names == found.names
    result = fedclade.run(Partitioner(), rounds=1, workers=1)
    assert not len(result.failures)


def test_rows_mapped_from_a_file_are_not_copied(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = np.memmap(tmp_path / "rows.raw", np.float32, "w+", shape=(90, 6))
    rows[:] = random.normal(size=rows.shape)
    y = (np.asarray(rows)[:, 0] > 0).astype(np.int64)
    places = np.arange(90, dtype=np.int32).reshape(3, 30)
    clients = tuple(Client(f"c{k}", held[:20], held[20:]) for k, held in enumerate(places))
    federation = Federation(rows, y, clients, ("low", "high"))
    assert np.shares_memory(federation_of(federation).x, rows)
    one, two = (fedclade.run(federation, rounds=2, workers=workers, model="mlp") for workers in (1, 2))
    assert np.array_equal(one.weights_for("c0"), two.weights_for("c0"))
