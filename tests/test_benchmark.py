"""The benchmark: what it runs, how it ranks, and the page it writes from nothing but a table of runs."""

from pathlib import Path

import pandas as pd
import pytest

from fedclade.benchmark import Benchmark, mean_ranks, read_known, studies
from fedclade.benchmark.page import document, verdicts
from fedclade.compare import Study
from fedclade.errors import FedcladeError
from fedclade.methods import METHODS


def made(accuracies: dict[str, list[float]]) -> pd.DataFrame:
    """Methods' accuracies, a setting each."""
    more = {"seed": 0, "up MB": 2.0, "clusters": 1, "ARI": None, "seconds": 1.0}
    return pd.DataFrame(
        [
            {"setting": f"s{place}", "method": name, "accuracy": value, "worst tenth": value - 0.1, **more}
            for name, values in accuracies.items()
            for place, value in enumerate(values)
        ]
    )


def test_there_is_enough_to_run_and_settings_are_right() -> None:
    every = studies()
    assert len(every) >= 16
    labels = {cell.label for cell in every["mnist-iid"].cells}
    assert labels >= {*METHODS} - {"centralized", "random"} | {"fedavg + pick", "clade, half the bytes"}
    only = studies(["mnist-iid"], ["clade", "fedavg"], 2)
    assert [cell.label for cell in only["mnist-iid"].cells] == ["clade", "fedavg"]
    assert only["mnist-iid"].seeds == (0, 1)
    with pytest.raises(FedcladeError, match="setting"):
        studies(["mnist-iidd"])
    with pytest.raises(FedcladeError, match="method"):
        studies(methods=["fedavgg"])


def test_ranks_and_critical_differences_by_hand() -> None:
    table = made({"clade": [0.9, 0.8, 0.7], "fedavg": [0.8, 0.9, 0.6], "local": [0.7, 0.7, 0.5]})
    ranks, least = mean_ranks(table)
    assert dict(ranks) == pytest.approx({"clade": 4 / 3, "fedavg": 5 / 3, "local": 3.0})
    assert least == pytest.approx(2.343 * (3 * 4 / (6 * 3)) ** 0.5, abs=0.01)  # Nemenyi's q for 3 methods, 5 %


def test_the_page_says_where_the_method_of_the_house_stands() -> None:
    table = made({"clade": [0.9, 0.8, 0.7], "fedavg": [0.903, 0.9, 0.6], "local": [0.7, 0.7, 0.5]})
    first, worst, floor = verdicts(table)
    assert "in 2 of 3" in first
    assert "s1, 10.0 points, fedavg leads" in first
    assert "in 3 of 3" in worst
    assert "in 1 of 3" in floor
    page = document(table)
    assert page.count("\n## s") == 3
    assert "| clade | 90.0 ± 0.0 | 80.0 |" in page


def test_nothing_has_ended_yet(tmp_path: Path) -> None:
    with pytest.raises(FedcladeError, match="no run of the benchmark"):
        Benchmark(studies(["mnist-iid"], ["clade"], 1), tmp_path).table()


def test_what_is_known_from_another_machine_is_not_run_again(tmp_path: Path) -> None:
    cells = [{"label": name, "method": name} for name in ("fedavg", "local")]
    shared = {"data": "digits", "clients": 4, "rounds": 1, "workers": 1, "evaluate_every": 0}
    study = Study.of({"title": "digits", "seeds": (0,), "settings": shared, "cells": cells})
    first = Benchmark({"digits": study}, tmp_path / "here")
    first.go(1)
    first.table().to_csv(tmp_path / "known.csv", index=False)
    told = read_known(tmp_path / "known.csv")
    second = Benchmark({"digits": study}, tmp_path / "there", told)
    assert not second.runs()
    second.go(1)
    assert not list((tmp_path / "there").rglob("result.json"))
    pd.testing.assert_frame_equal(second.table()[first.table().columns], first.table())
    fewer = Study.of({"title": "digits", "seeds": (0,), "settings": shared, "cells": cells[:1]})
    third = Benchmark({"digits": fewer}, tmp_path / "there", told)
    assert list(third.table()["method"]) == ["fedavg"]
    assert sorted(third.everything()["method"]) == ["fedavg", "local"]  # what is known is not lost
    changed = Study.of({"title": "digits", "seeds": (0,), "settings": {**shared, "rounds": 2}, "cells": cells})
    assert len(Benchmark({"digits": changed}, tmp_path / "there", told).runs()) == 2  # other settings, other runs
    (tmp_path / "odd.csv").write_text("a,b\n1,2\n")
    with pytest.raises(FedcladeError, match="no table of a benchmark"):
        read_known(tmp_path / "odd.csv")
