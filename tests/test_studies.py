"""The studies behind pages of the documentation still run: on digits, which need no download."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def automatic(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "studies"))
    return importlib.import_module("automatic")


def test_the_automatic_number_is_judged_in_every_way(automatic: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [("digits", "label-groups:2"), ("digits", "iid")]
    monkeypatch.setattr(automatic, "SETTINGS", cases)
    rows = [automatic.one((*case, 0, way, None)) for case in cases for way in automatic.WAYS]
    assert [row["found"] for row in rows] == [2] * len(automatic.WAYS) + [1] * len(automatic.WAYS)
    assert all(row["ari"] == 1 for row in rows)
    text = automatic.document(rows)
    assert "| digits | label-groups:2 | 2 | 2 | 1/1 | 1.00 | 1.00 | 1.00 | 1.00 |" in text
    assert text.count("| digits |") == 4
