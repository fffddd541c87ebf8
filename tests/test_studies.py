"""The studies behind pages of the documentation still run: on digits, which need no download."""

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from fedclade.data import federation_of


@pytest.fixture
def automatic(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "studies"))
    return importlib.import_module("automatic")


def test_the_automatic_number_is_judged_in_every_way(automatic: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [("digits", "label-groups:2"), ("digits", "iid")]
    monkeypatch.setattr(automatic, "SETTINGS", cases)
    rows = [row for case in cases for row in automatic.one((*case, 0, None))]
    assert [row["way"] for row in rows] == 2 * list(automatic.WAYS)
    assert [row["found"] for row in rows] == [2] * 5 + [1] * 5
    assert all(row["ari"] == 1 for row in rows)
    assert all(row["best"] >= row["ari"] for row in rows if "best" in row)
    text = automatic.document(rows, 1)
    assert "| digits | label-groups:2 | 2 | 2 | 1/1 | 1.00 | 1.00 | 1.00 | 1.00 |" in text
    assert text.count("| digits |") == 4


def test_halves_share_no_row_and_are_as_long_as_the_whole(automatic: ModuleType) -> None:
    whole = federation_of("digits", split="iid", clients=5, seed=1).limited(31, 1)
    halves = automatic.halved(whole, 1).clients
    for number, client in enumerate(whole.clients):
        a, b = halves[2 * number], halves[2 * number + 1]
        assert len(a.train) == len(b.train) == len(client.train)
        parts = [set(half.train.tolist()) for half in (a, b)]
        assert not parts[0] & parts[1]
        assert parts[0] | parts[1] == set(client.train.tolist())
        assert abs(len(parts[0]) - len(parts[1])) <= 1
        np.testing.assert_array_equal(a.test, client.test)
