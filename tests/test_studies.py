"""The studies behind pages of the documentation still run: on digits, which need no download."""

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "studies"))
    return importlib.import_module


@pytest.fixture
def automatic(study: Callable[[str], ModuleType]) -> ModuleType:
    return study("automatic")


def test_the_automatic_number_is_judged_in_every_way(automatic: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [("digits", "label-groups:2"), ("digits", "iid")]
    monkeypatch.setattr(automatic, "SETTINGS", cases)
    rows = [automatic.one((*case, 0, way, None)) for case in cases for way in automatic.WAYS]
    assert [row["found"] for row in rows] == [2] * len(automatic.WAYS) + [1] * len(automatic.WAYS)
    assert all(row["ari"] == 1 for row in rows)
    text = automatic.document(rows)
    assert "| digits | label-groups:2 | 2 | 2 | 1/1 | 1.00 | 1.00 | 1.00 | 1.00 |" in text
    assert text.count("| digits |") == 4


FEDCLUST = """row,column,seed,run,"cluster model, %","locally trained model, %"
FedAvg,FMNIST,0,a,70,95
FedAvg,FMNIST,1,a,74,95
"FedClust, the paper's K",FMNIST,0,b,80,94
"FedClust, the paper's K",FMNIST,1,b,90,96.5
IFCA,FMNIST,0,c,80,90
PACFL,FMNIST,1,d,80,96
"""


def test_claims_are_judged_by_seeds_that_both_have(study: Callable[[str], ModuleType], tmp_path: Path) -> None:
    papers = study("papers")
    assert papers.section(tmp_path) == ""
    (tmp_path / "fedclust-table1-200.csv").write_text(FEDCLUST)
    rows = [line.split(" | ")[2:] for line in papers.section(tmp_path).splitlines() if "FMNIST" in line]
    mine, own, served = "FedClust, the paper's K above", "locally trained models", "cluster models"
    assert [[word.rstrip(" |") for word in row] for row in rows] == [
        [f"{mine} FedAvg", f"{own} against {served}", "+20.82", "+23.25 ± 0.75", "2", "holds here"],
        [f"{mine} FedAvg", own, "+20.82", "+0.25 ± 1.25", "2", "within what seeds differ by"],
        [f"{mine} FedAvg", served, "+20.82", "+13.00 ± 3.00", "2", "holds here"],
        [f"{mine} IFCA", own, "+1.09", "+4.00", "1", "holds here, one seed"],
        [f"{mine} PACFL", own, "+0.46", "+0.50", "1", "open, one seed"],
    ]
