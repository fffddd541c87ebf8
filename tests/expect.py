"""What several tests expect of errors for people."""

from collections.abc import Callable
from typing import Any

import pytest

from fedclade.errors import FedcladeError


def refused(action: Callable[[], Any], *words: str) -> str:
    """The one line with which an action is refused, which must hold all the words."""
    with pytest.raises(FedcladeError) as caught:
        action()
    line = str(caught.value)
    assert "\n" not in line
    for word in words:
        assert word in line
    return line
