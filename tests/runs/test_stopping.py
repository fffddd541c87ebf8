"""A run that is to stop early does so by rows that nobody trains on, and ends as if that had been its last round."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedclade
from fedclade.data.federation import Federation
from fedclade.errors import FedcladeError
from fedclade.runs.folder import RunFolder
from fedclade.serving import FineTune, Pick, Serving
from harness import contents
from synthetic import planted

STOP = {"patience": 3, "min_delta": 0.01, "held": 0.2}
SETTINGS = {
    "model": "mlp",
    "workers": 1,
    "rounds": 40,
    "training": {"local_epochs": 2, "batch_size": 8, "learning_rate": 0.05},
    "stop": STOP,
}
EASY = planted(n_clients=6, n_groups=1, rows=60)  # learnt in a few rounds


def run(out: Path, data: Federation = EASY, **more: object) -> fedclade.Result:
    return fedclade.run(data, out=out, **{**SETTINGS, "method": "fedavg", **more})


def test_a_run_ends_some_rounds_after_its_models_are_best(tmp_path: Path) -> None:
    result = run(tmp_path)
    seen = {number: kept["score"] for number, kept in result.kept("validation").items()}
    best, best_round = -1.0, 0
    for number, score in sorted(seen.items()):  # the rule, by hand
        if score > best + STOP["min_delta"]:
            best, best_round = score, number
        last = number
        if number - best_round >= STOP["patience"]:
            break
    assert result.round == last + 1 < 40
    assert max(seen) == last
    assert result.history["round"].max() == result.round
    assert result.accuracy["clients"] == 6
    assert any("stopped early" in remark for remark in result.remarks)
    assert set(result.ledger["phase"]) >= {"train", "validate"}  # what it costs is counted


def test_it_may_wait_for_every_cluster(tmp_path: Path) -> None:
    """One cluster learns for as long as it may, the other has noise for labels and stops at once."""
    data = planted(n_clients=6, n_groups=2, rows=60)
    y = data.y.copy()
    for client in data.clients:
        if client.group == 1:
            y[client.train] = np.random.default_rng(0).permutation(y[client.train])
    stop = {**STOP, "patience": 2, "each_cluster": True}
    result = run(tmp_path, replace(data, y=y), method={"name": "ifca", "n_clusters": 2}, stop=stop)
    best, rose = {}, 0
    for number, kept in sorted(result.kept("validation").items()):  # the rule, by hand
        better = {k: mean for k, mean in kept["means"].items() if mean > best.get(k, -1.0) + STOP["min_delta"]}
        best, rose = best | better, number if better else rose
        assert kept["best_round"] == rose
        assert (kept["ends"] is not None) == (number - rose >= 2)
    assert result.round == number + 1 < 40
    assert len(kept["means"]) == 2
    assert len({n for n, kept in result.kept("validation").items() if kept["best_round"] == n}) > 1


def test_test_rows_decide_nothing(tmp_path: Path) -> None:
    y = EASY.y.copy()
    for client in EASY.clients:
        y[client.test] = (y[client.test] + 1) % 4
    wrong = run(tmp_path / "wrong", replace(EASY, y=y))
    assert wrong.accuracy["mean"] < 0.5
    assert wrong.round == run(tmp_path / "right").round


@pytest.mark.parametrize("method", ["clade", "ditto"])
def test_stopped_and_resumed_it_ends_alike(tmp_path: Path, method: str) -> None:
    whole = run(tmp_path / "whole", method=method)
    assert whole.round < 40
    broken = run(tmp_path / "broken", method=method)
    RunFolder(broken.path).rewind(broken.round - 1)  # after it was decided, before the last round
    again = fedclade.resume(broken.path, data=EASY)
    assert contents(again.path) == contents(whole.path)
    assert again.round == whole.round


def test_what_serves_clients_is_still_made(tmp_path: Path) -> None:
    tuned = run(tmp_path / "tuned", serving="fine-tune")
    assert tuned.served("c0").start == "served"
    picked = run(tmp_path / "picked", serving="pick")
    assert set(picked.state_of_clusters.choices) == {f"c{k}" for k in range(6)}


def test_the_last_round_leaves_room_for_what_is_to_come() -> None:
    assert Serving().last_round(7) == FineTune().last_round(7) == 8
    pick = Pick()
    for now in range(1, 60):
        last = pick.last_round(now)
        assert now < pick.judged_after(last) < last or last <= 2


def test_more_rounds_can_be_asked_for_afterwards(tmp_path: Path) -> None:
    early = run(tmp_path, rounds=30)
    more = fedclade.resume(tmp_path, rounds=early.round + 2, data=EASY)
    assert more.round == early.round + 2


def test_wrong_settings_are_one_line() -> None:
    with pytest.raises(FedcladeError, match="did you mean 'patience'"):
        fedclade.run("digits", stop={"patienc": 3})
    with pytest.raises(FedcladeError, match=r"stop.held = 1.5 is wrong"):
        fedclade.run("digits", stop={"held": 1.5})


def test_a_regression_stops_where_its_error_no_longer_falls(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(8, 80, 4)).astype(np.float32)
    data = {f"c{k}": (x[k], x[k] @ np.array([1.0, -2.0, 0.5, 0.0]) + 3) for k in range(8)}
    result = fedclade.run(data, task="regression", out=tmp_path, **{**SETTINGS, "method": "fedavg", "rounds": 60})
    scores = [kept["score"] for _, kept in sorted(result.kept("validation").items())]
    assert result.round < 60
    assert scores[-1] < scores[0]
