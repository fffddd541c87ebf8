"""The one reader of runs, on a folder whose numbers are written down by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedclade.errors import FedcladeError
from fedclade.result import Result
from fedclade.runs.folder import RunFolder

RECORD: dict[str, Any] = {
    "settings": {"method": {"name": "fedclust"}, "data": "made", "seed": 3, "rounds": 3, "events": []},
    "split": "made",
    "clients": list("abcd"),
    "groups": {"a": 0, "b": 0, "c": 1, "d": 1},
    "classes": ["x", "y"],
    "input_shape": [1],
    "fingerprint": "0",
}
# By round: the clusters of a, b, c and d; their accuracies; those of their locally trained models.
ROUNDS: list[tuple[list[int], list[float], list[float | None]]] = [
    ([0, 0, 0, 0], [0.1, 0.1, 0.1, 0.1], [None] * 4),
    ([1, 2, 2, 2], [0.2, 0.4, 0.6, 0.8], [None] * 4),
    ([1, 1, 2, 2], [0.3, 0.5, 0.7, 0.9], [0.5, None, 0.7, None]),
    ([4, 4, 3, 3], [0.4, 0.6, 0.8, 1.0], [None] * 4),  # the same two parts under other names
]


def write(folder: RunFolder, number: int) -> None:
    clusters, accuracy, local = ROUNDS[number]
    history = [
        {
            "round": number, "client": name, "cluster": k, "accuracy": a, "accuracy_local": np.nan if b is None else b,
            "trained": number > 0, "failure": "train: too late" if (number, name) == (2, "d") else "",
        }
        for name, k, a, b in zip("abcd", clusters, accuracy, local, strict=True)
    ]  # fmt: skip
    sent = [("train", "down", 100), ("train", "up", 30), ("describe", "up", 7), ("measure", "down", 9999)]
    ledger = [
        {"round": number, "client": "a", "phase": phase, "direction": way, "bytes": count}
        for phase, way, count in (sent if number else sent[-1:])
    ]
    state = {
        "seconds": 1.5 * number,
        "cpu_seconds": 2.0 * number,
        "clusters": {"tree": [{"round": 1}] if number else []},
    }
    folder.write_round(number, state, {"history": history, "ledger": ledger}, {"curve": {"at": number}})


def made(path: Path, n_rounds: int) -> RunFolder:
    folder = RunFolder.create(path, RECORD)
    for number in range(n_rounds):
        write(folder, number)
    return folder


@pytest.fixture(params=[True, False], ids=["ended", "stopped"])
def result(tmp_path: Path, request: pytest.FixtureRequest) -> Result:
    folder = made(tmp_path / "run", 4)
    if request.param:
        folder.finish({"rounds": 3, "seconds": 4.5, "cpu_seconds": 6.0}, {"members": {}, "tree": [{"round": 1}]}, {})
    assert Result.open(folder.path).state == ("ended" if request.param else "stopped")
    return Result.open(folder.path)


def test_accuracies_are_summed_up_over_clients(result: Result) -> None:
    assert result.accuracy == pytest.approx({"mean": 0.7, "std": 0.05**0.5, "worst": 0.4, "clients": 4})
    assert result.accuracy_local == pytest.approx({"mean": 0.6, "std": 0.1, "worst": 0.5, "clients": 2})
    rounds = result.by_round("accuracy")
    assert rounds.index.tolist() == [0, 1, 2, 3]
    assert rounds["mean"].tolist() == pytest.approx([0.1, 0.5, 0.6, 0.7])
    assert rounds["std"].tolist() == pytest.approx([0.0, 0.05**0.5, 0.05**0.5, 0.05**0.5])
    assert result.by_round("accuracy_local").loc[2].tolist() == pytest.approx([0.6, 0.1, 0.5, 2])
    assert (result.first_reaching(0.55), result.first_reaching(0.95)) == (2, None)
    assert result.first_reaching(0.55, "accuracy_local") == 2


def test_clusters_agreement_and_the_last_change(result: Result) -> None:
    assert result.clusters == {3: ["c", "d"], 4: ["a", "b"]}
    assert result.cluster_of("a") == 4
    assert result.agreement == {"ari": 1.0, "nmi": 1.0}
    assert list(result.assignments) == [0, 1, 2, 3]
    assert result.last_change == 2  # new names are no change
    with pytest.raises(FedcladeError, match="no client 'e'"):
        result.cluster_of("e")


def test_traffic_is_told_by_round_direction_and_phase_without_our_own_measuring(result: Result) -> None:
    assert result.bytes == {"up": 111, "down": 300}
    assert result.traffic["up"].tolist() == [0, 37, 74, 111]
    assert result.sent["up"].loc[2].to_dict() == {"train": 30, "describe": 7}


def test_what_failed_what_was_kept_and_how_long_it_took(result: Result) -> None:
    assert result.failures[["round", "client"]].to_numpy().tolist() == [[2, "d"]]
    assert result.kept("curve") == {number: {"at": number} for number in range(4)}
    assert result.last_kept("curve") == {"at": 3}
    assert result.last_kept("nothing") is None
    assert (result.round, result.seconds, result.cpu_seconds, len(result.tree)) == (3, 4.5, 6.0, 1)
    assert "fedclust on made: accuracy 0.700, 2 clusters" in repr(result)


def test_only_whole_rounds_of_a_run_under_way_count(tmp_path: Path) -> None:
    folder = made(tmp_path / "run", 3)
    write(folder, 3)
    (folder.path / "checkpoints" / "000003.safetensors").unlink()  # its last step did not happen
    with folder:
        result = Result.open(folder.path)
        assert (result.state, result.round) == ("running", 2)
    assert result.accuracy["mean"] == pytest.approx(0.6)
    assert result.bytes == {"up": 74, "down": 200}
    assert max(result.kept("curve")) == 2


def test_before_the_first_round_there_is_nothing_to_tell(tmp_path: Path) -> None:
    result = Result(made(tmp_path / "run", 0))
    assert (result.state, result.round, result.clusters, result.clients) == ("stopped", -1, {}, [])
    assert result.accuracy == {"mean": None, "std": None, "worst": None, "clients": 0}
    assert result.bytes == {"up": 0, "down": 0}
    assert result.agreement == {"ari": None, "nmi": None}
    assert (len(result.failures), len(result.by_round("accuracy")), result.first_reaching(0.0)) == (0, 0, None)


def test_groups_are_unknown_where_somebody_came_of_whom_nothing_is_known(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", {**RECORD, "groups": {"a": 0, "b": 1, "c": 1}})
    write(folder, 0)
    assert Result(folder).groups is None
    assert Result(folder).agreement["ari"] is None
