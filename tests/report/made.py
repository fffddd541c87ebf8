"""A large run that nobody trained: its folder is written through the same door as a real one's."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedclade.clustering.hierarchy import agglomerate
from fedclade.runs import packing
from fedclade.runs.folder import RunFolder


def make_large_run(
    path: Path,
    n_clients: int = 1000,
    n_rounds: int = 200,
    n_groups: int = 8,
    tree: Sequence[Mapping[str, object]] = (),
) -> Path:
    """Clients in groups, with noise in all that is measured: noise is what packs worst."""
    random = np.random.default_rng(0)
    clients = [f"client-{number:04d}" for number in range(n_clients)]
    groups = np.arange(n_clients) % n_groups
    folder = RunFolder.create(path, _record(clients, groups, random))
    state = {"clusters": {"tree": []}, "seconds": 1.0, "bytes": {"up": 0, "down": 0}}
    tables = {"history": _history(clients, groups, n_rounds, random), "ledger": _ledger(clients, n_rounds)}
    places = random.normal(size=(n_groups, 8))[groups] * 2 + random.normal(size=(n_clients, 8))
    distances = np.sqrt(((places[:, None] - places[None]) ** 2).sum(-1))
    labels, merged = agglomerate(distances, "average", n_clusters=n_groups)
    records = {
        "proximity": {"matrix": distances.astype(np.float32), "clients": clients, "measure": "made distance"},
        "dendrogram": {"merges": merged.merges, "clients": clients, "linkage": "average", "labels": labels},
    }
    for number in range(0, n_rounds, max(n_rounds // 20, 1)):
        values = random.random((n_clients, 4))
        shown = {"clients": clients, "clusters": groups.tolist(), "layers": list("abcd"), "values": values}
        noise = random.random((n_clients, n_clients)).astype(np.float32) if number < n_rounds // 5 else None
        test = {"cluster": 0, "layer": "d", "look": "whole", "clients": clients, "labels": groups, "matrix": noise}
        tests = {"similarity": {"tests": [test]}} if noise is not None else {}
        folder.write_round(number, state, {}, {"stability": {**shown, "epsilon": 0.1}, **tests})
    folder.write_round(n_rounds, state, {}, records)
    for name, rows in tables.items():
        packing.save_table(path / f"{name}.parquet", packing.table_of(rows))
    result = {"rounds": n_rounds, "seconds": 1.0}
    folder.finish(result, {"members": {}, "tree": list(tree)}, {})
    return path


def _record(clients: list[str], groups: np.ndarray, random: np.random.Generator) -> dict[str, object]:
    return {
        "settings": {"data": "made", "model": "none", "method": {"name": "fedclust"}, "seed": 0, "rounds": 200},
        "split": "made",
        "clients": clients,
        "groups": dict(zip(clients, groups.tolist(), strict=True)),
        "classes": [str(label) for label in range(100)],
        "label_counts": random.integers(0, 50, (len(clients), 100)).tolist(),
        "input_shape": [1],
        "fingerprint": "0",
        "versions": {"fedclade": "0"},
    }


def _history(
    clients: list[str], groups: np.ndarray, n_rounds: int, random: np.random.Generator
) -> list[dict[str, object]]:
    """Now and then a client is in another cluster, so that the partition changes in every round."""
    rows: list[dict[str, object]] = []
    for number in range(n_rounds + 1):
        homes = np.where(random.random(len(clients)) < 0.02, random.integers(0, groups.max() + 1, len(clients)), groups)
        accuracy, local = random.random((2, len(clients))).round(4)
        rows += [
            {
                "round": number, "client": client, "cluster": home, "accuracy": a, "failure": "",
                "accuracy_local": b if number % 10 == 0 else np.nan,
            }
            for client, home, a, b in zip(clients, homes.tolist(), accuracy.tolist(), local.tolist(), strict=True)
        ]  # fmt: skip
    return rows


def _ledger(clients: list[str], n_rounds: int) -> list[dict[str, object]]:
    return [
        {"round": number, "client": client, "phase": "train", "direction": direction, "bytes": 1000}
        for number in range(1, n_rounds + 1)
        for client in clients
        for direction in ("up", "down")
    ]
