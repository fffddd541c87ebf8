"""What many tests share."""

import pytest
import torch

from fedclade.data.federation import Federation
from planting import planted

torch.set_num_threads(1)


@pytest.fixture
def federation() -> Federation:
    return planted()
