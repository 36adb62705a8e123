from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidOffset
from penstock.limits import OFFSET_PART_MAX
from penstock.protocol.offsets import NOW, START, Offset, parse_offset

PARTS = st.integers(min_value=0, max_value=OFFSET_PART_MAX)
OFFSETS = st.builds(Offset, PARTS, PARTS)


def test_token_is_two_padded_numbers() -> None:
    assert Offset(7, 123).token == "0000000000000007_0000000000000123"


def test_sentinels_are_recognised() -> None:
    assert parse_offset("-1") == START
    assert parse_offset("now") == NOW


@given(OFFSETS)
def test_token_round_trips(offset: Offset) -> None:
    parsed = parse_offset(offset.token)
    assert parsed == offset
    assert isinstance(parsed, Offset)


@given(OFFSETS, OFFSETS)
def test_tokens_sort_like_offsets(a: Offset, b: Offset) -> None:
    assert (a < b) == (a.token < b.token)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "1",
        "-2",
        "NOW",
        "0,1",
        "0 1",
        "0_0",
        "0000000000000001_000000000000002",
        "0000000000000001_00000000000000002",
        "0000000000000001-0000000000000002",
        " 0000000000000001_0000000000000002",
        "0000000000000001_0000000000000002\n",
        "000000000000000a_0000000000000002",
        "+000000000000001_0000000000000002",
        "٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠١_0000000000000002",
        "0000000000000001_0000000000000002_",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidOffset, match="is not an offset"):
        parse_offset(text)


def test_refusal_shows_no_raw_or_endless_text() -> None:
    with pytest.raises(InvalidOffset) as caught:
        parse_offset("\x1b[31m\r\n" + "x" * 10_000)
    assert caught.value.detail.isprintable()
    assert len(caught.value.detail) < 300
