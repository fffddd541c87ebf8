"""The codec: what goes in comes out, once, and its bytes are what is counted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedclade.clients.tasks import Train, Training
from fedclade.codec import Packet, decode, encode

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=3),
    max_leaves=12,
)


@given(PLAIN)
def test_plain_values_survive(value: object) -> None:
    assert decode(Packet.from_bytes(encode(value).to_bytes())) == value


@given(
    st.lists(st.tuples(st.sampled_from(["f4", "f8", "i2", "i8", "u1", "?"]), st.lists(st.integers(0, 4), max_size=3)))
)
def test_arrays_survive(kinds: list[tuple[str, list[int]]]) -> None:
    arrays = [np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(kind) for kind, shape in kinds]
    back = decode(Packet.from_bytes(encode({"all": arrays}).to_bytes()))["all"]
    assert len(back) == len(arrays)
    for one, two in zip(arrays, back, strict=True):
        assert one.dtype == two.dtype
        np.testing.assert_array_equal(one, two)


def test_an_array_that_occurs_twice_is_written_once() -> None:
    shared = np.arange(1000, dtype=np.float32)
    packet = encode({"a": shared, "b": [shared, shared[:]]})
    assert len(packet.arrays) == 1
    assert 4000 < packet.nbytes < 4100


def test_defaults_are_not_written_and_the_task_comes_back_as_it_was() -> None:
    task = Train(np.zeros(3, np.float32), training=Training(batch_size=7), layers=("a", "b"))
    packet = encode(task)
    assert (
        packet.text
        == '{"@kind":"Train","weights":{"@array":0},"layers":["a","b"],"training":{"@kind":"Training","batch_size":7}}'
    )
    back = decode(packet)
    assert isinstance(back, Train)
    assert (back.layers, back.training) == (("a", "b"), task.training)


def test_a_checksum_tells_any_change() -> None:
    packet = encode({"a": np.arange(4), "b": 1})
    other = [
        encode({"a": np.arange(4), "b": 2}),
        encode({"a": np.arange(4) + 1, "b": 1}),
        encode({"a": np.arange(4.0), "b": 1}),
    ]
    assert len({packet.checksum(), *(one.checksum() for one in other)}) == 4


@pytest.mark.parametrize(
    "header", [{"@kind": "Nothing"}, {"@array": 3}, {"@kind": "Train", "nonsense": 1}, {"@pairs": [1]}]
)
def test_what_is_no_value_is_an_error_that_readers_expect(header: object) -> None:
    with pytest.raises((KeyError, TypeError, ValueError, IndexError)):
        decode(Packet(header, []))
