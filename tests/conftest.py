"""What many tests share."""

import pytest
import torch

from fedclade.data.federation import Federation
from synthetic import planted

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _paper_is_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's terminal, nor that of a test runner with several processes, shapes what commands print."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def federation() -> Federation:
    return planted()
