"""Messages found in the bytes of an answer, and the columns of their locations, for any bytes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.source import arrow

GENERATION = f"{7:016d}"


@given(st.lists(st.booleans() | st.just(value=False), max_size=200))
def test_flags_are_found_wherever_they_are(flags: list[bool]) -> None:
    expected = [index for index, flag in enumerate(flags) if flag]
    assert arrow.true_at(np.array(flags, np.bool_)).tolist() == expected


MESSAGES = st.lists(
    st.sampled_from([b"1", b'"a\\n"', b'{"a":\n1}', b"[1,2]", b"x" * 30, b"y" * 99, b"z" * 700]),
    min_size=1,
    max_size=60,
)


@given(MESSAGES, st.sampled_from([8, 64, 4096]))
def test_messages_are_found_in_blocks_of_any_size(messages: list[bytes], block: int) -> None:
    body = b"[" + b",\n".join(messages) + b"]"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow, "_BLOCK_BYTES", block)
        frame = arrow.Frame(body)
    assert frame.texts(frame.starts, frame.ends, pa.binary()).to_pylist() == messages


@given(
    st.sampled_from([0, 99_999_990, 10**8 - 3, 10**15 + 7]),
    st.lists(st.integers(1, 10**9) | st.integers(1, 300), max_size=50),
)
def test_offsets_have_the_digits_of_their_bytes(first: int, sizes: list[int]) -> None:
    ends = first + np.cumsum(np.array(sizes, np.int64))
    expected = [f"{GENERATION}_{end:016d}" for end in ends.tolist()]
    assert arrow.offset_tokens(GENERATION, ends).to_pylist() == expected
    generations = np.array([GENERATION] * len(sizes), "S16")
    assert arrow.offset_tokens(generations, ends).to_pylist() == expected


@pytest.mark.parametrize("count", [0, 1, 7, 8, 100_000, 100_001])
def test_repeated_values_are_as_many_as_asked_for(count: int) -> None:
    assert arrow.repeated("s", count, pa.string()).to_pylist() == ["s"] * count
    assert arrow.repeated(3, count, pa.int64()).to_pylist() == [3] * count
    assert arrow.repeated(None, count, pa.int64()).null_count == count
