"""Flower's simulation on a cluster that is not there: one line, at once. On one that is: tests/deployed."""

import pytest

from fedclade.engines.simulation import check_answers
from fedclade.errors import FedcladeError


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("127.0.0.1:1", "no Ray cluster answers at 127.0.0.1:1"),
        ("127.0.0.1:99999", "no Ray cluster answers"),
        ("ray://127.0.0.1:1", "no Ray cluster answers"),
        ("nowhere", "give engine.address as host:port"),
    ],
)
def test_an_address_where_nobody_listens(address: str, says: str) -> None:
    with pytest.raises(FedcladeError, match=says):
        check_answers(address)
