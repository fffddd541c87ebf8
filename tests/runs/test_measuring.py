"""Locally trained models are measured when they, or the rows they are tested on, have changed: not again and again."""

from pathlib import Path

import pandas as pd
import pytest

import fedclade
from synthetic import planted

DATA = planted(n_clients=9, rows=40)
EVENTS = [{"round": 3, "drift": ["c1", "c2"]}, {"round": 4, "leave": ["c0"]}]
SETTINGS = {
    "model": "mlp",
    "workers": 1,
    "participation": 0.34,
    "events": EVENTS,
    "training": {"local_epochs": 2, "batch_size": 8, "learning_rate": 0.05},
}


def run(out: Path, method: str, seed: int, rounds: int, every: int) -> fedclade.Result:
    chosen = {**SETTINGS, "method": method, "seed": seed, "rounds": rounds, "evaluate_local_every": every}
    return fedclade.run(DATA, out=out, **chosen)


def local_scores(result: fedclade.Result, round: int) -> pd.DataFrame:
    history = result.history
    return history[history["round"] == round].set_index("client")[["accuracy_local", "loss_local"]]


@pytest.mark.parametrize("method", ["fedavg", "fedclust", "ditto"])
@pytest.mark.parametrize("seed", [0, 1])
def test_what_is_known_is_what_measuring_all_again_would_say(tmp_path: Path, method: str, seed: int) -> None:
    last = 5
    often = run(tmp_path / "often", method, seed, last, 1)
    stopped = run(tmp_path / "stopped", method, seed, 3, 1)
    resumed = fedclade.resume(stopped.path, rounds=last, data=DATA)
    for rounds in range(1, last + 1):
        once = run(tmp_path / f"once-{rounds}", method, seed, rounds, 0)  # nothing is measured before its last round
        pd.testing.assert_frame_equal(local_scores(often, rounds), local_scores(once, rounds))
        pd.testing.assert_frame_equal(local_scores(resumed, rounds), local_scores(once, rounds))


def test_only_those_are_asked_whose_model_or_rows_have_changed(tmp_path: Path) -> None:
    result = run(tmp_path, "fedavg", 0, 5, 1)
    history, ledger = result.history, result.ledger
    measured = ledger[(ledger["phase"] == "measure") & (ledger["direction"] == "up")].groupby("round").size()
    served = history.groupby("round").size()  # everybody tells of the cluster model
    trained = history[history["trained"]].groupby("round")["client"].agg(set)
    before: set[str] = set()
    for round in range(1, 6):
        before |= trained[round]
        drifted = before & {"c1", "c2"} if round == 3 else set()
        assert measured[round] - served[round] == len(trained[round] | drifted)
