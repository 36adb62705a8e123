"""Rows that are decoded many at once are those that are parsed line by line."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.errors import InvalidRow
from penstock.stp import Row, RowDecoder, parse_row
from penstock.stp.rows import RowsBefore

SEQNOS = st.sampled_from(
    ["1", "7", "0", "00", "007", "x", "", "٣", "²", "9" * 15, "9" * 16, "9" * 21]
)
ACTIONS = st.sampled_from(["+", "+", "+", "-", "*", ""])
TEXTS = st.sampled_from(["k", "", "a b", "a\tb", "\\n", "\\x", "\\", "\r", "é水", "\u2028", "\x85"])
ENDS = st.sampled_from(["\n", "\n", "\n", "\r\n", "\n\n"])


@st.composite
def lines(draw: st.DrawFn) -> str:
    fields = [draw(SEQNOS), draw(TEXTS), draw(ACTIONS), draw(TEXTS), draw(TEXTS)]
    return "\t".join(fields[: draw(st.sampled_from([5, 5, 5, 5, 4, 3, 1]))]) + draw(ENDS)


GOOD = st.builds(
    "{}\tT\t{}\t{}\t{}\n".format,
    st.integers(1, 2**53 - 1),
    st.sampled_from("+-"),
    st.text(st.characters(exclude_characters="\t\r\n", exclude_categories=["Cs"]), min_size=1),
    st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])),
)


def one_by_one(text: str, *, escape: bool) -> tuple[list[Row], int | None]:
    """The rows before the first line that is none, and the index of that line."""
    rows: list[Row] = []
    for index, line in enumerate(text.split("\n")[:-1]):
        if line in ("", "\r"):
            continue
        try:
            rows.append(parse_row(line, escape=escape))
        except InvalidRow:
            return rows, index
    return rows, None


def at_once(text: str, *, escape: bool) -> tuple[list[Row], int | None]:
    try:
        return RowDecoder(escape=escape).feed(text.encode()), None
    except RowsBefore as error:
        return error.rows, error.index


@given(st.lists(lines() | GOOD, min_size=1, max_size=6).map("".join), st.booleans())
@example("1\tT\t+\ta\\tb\tc\\nd\n", True)
@example("1\tT\t+\ta\\tb\tc\\nd\n", False)
def test_rows_at_once_are_rows_one_by_one(text: str, escape: bool) -> None:
    assert at_once(text, escape=escape) == one_by_one(text, escape=escape)


@given(st.lists(GOOD, min_size=1, max_size=6).map("".join))
def test_good_rows_are_all_there(text: str) -> None:
    rows, broken = at_once(text, escape=False)
    assert (len(rows), broken) == (text.count("\n"), None)


def test_bytes_that_are_not_utf8_spoil_their_line_alone() -> None:
    decoder = RowDecoder()
    good = b"1\tT\t+\tk\tv\n"
    with pytest.raises(RowsBefore) as caught:
        decoder.feed(good + b"2\tT\t+\tk\t\xff\n" + good.replace(b"1", b"3"))
    assert ([row.seqno for row in caught.value.rows], caught.value.index) == ([1], 1)
    assert [row.seqno for row in decoder.feed(b"")] == [3]
