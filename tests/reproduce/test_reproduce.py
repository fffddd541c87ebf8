"""Every table and figure is made at smoke scale; numbers stand beside the paper's; runs are shared and not repeated."""

from pathlib import Path

import pytest

from fedclade.reproduce import reproduce
from fedclade.reproduce.catalogue import items
from fedclade.reproduce.item import Experiment

ALL = items()
CAN_BE_MADE = [name for name, (_, item) in ALL.items() if not item.why_not]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reproduce")


@pytest.mark.parametrize("name", CAN_BE_MADE)
def test_every_item_can_be_made_at_smoke_scale(name: str, out: Path) -> None:
    page = reproduce(name, "smoke", out, workers=1)
    assert page.failures == 0, page.notes
    header, *rows = page.table()
    assert rows
    assert all(len(row) == len(header) for row in rows)
    assert any(word not in ("-", "") for row in rows for word in row[len(page.headings) :])
    folder = out / name.replace("/", "-") / "smoke"
    text = (folder / "table.md").read_text()
    assert text.startswith("# ")
    assert str(out) not in text
    assert (folder / "table.csv").read_text().count("\n") > 1
    _, item = ALL[name]
    if isinstance(item, Experiment) and item.kind == "figure" and page.draw is not None:
        assert (folder / "figure.svg").read_text().lstrip().startswith("<?xml")
