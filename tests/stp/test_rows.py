"""Rows as bytes and values: every rule of the text, every corner that it leaves open."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidParameter, InvalidRow
from penstock.stp.escaping import escape, unescape
from penstock.stp.rows import (
    SEQNO_MAX,
    Change,
    Row,
    RowDecoder,
    RowsBefore,
    format_change,
    format_row,
    parse_change,
    parse_changes,
    parse_last_seqno,
    parse_row,
    parse_since_id,
)

T = "2026-01-08T00:00:00Z"
ANY = st.text(st.characters(blacklist_categories=["Cs"]), max_size=20)
PLAIN = st.text(
    st.characters(blacklist_categories=["Cs"], blacklist_characters="\t\r\n"), max_size=20
)


@pytest.mark.parametrize(
    ("line", "row"),
    [
        (b"43\t" + T.encode() + b"\t+\tfhir_read\thttps://a/b", Row(43, T, "+", "fhir_read", "https://a/b")),
        (b"1\tt\t+\tk\tv\n", Row(1, "t", "+", "k", "v")),
        (b"1\tt\t+\tk\tv\r\n", Row(1, "t", "+", "k", "v")),
        (b"1\tt\t+\tk\tv\r", Row(1, "t", "+", "k", "v")),
        (b"1\tt\t-\tk\t\n", Row(1, "t", "-", "k", "")),
        (b"1\tt\t-\tk\n", Row(1, "t", "-", "k", "")),
        (b"1\tt\t+\tk\n", Row(1, "t", "+", "k", "")),
        (b"1\tt\t+\tk\ta\tb\tc", Row(1, "t", "+", "k", "a\tb\tc")),
        (b"1\t\t+\tk\ta b ", Row(1, "", "+", "k", "a b ")),
        (b"007\tt\t+\t k \tv", Row(7, "t", "+", " k ", "v")),
        ("1\tt\t+\tké\t\u2028\x85\x0b", Row(1, "t", "+", "ké", "\u2028\x85\x0b")),
        (b"%d\tt\t+\tk\tv" % SEQNO_MAX, Row(SEQNO_MAX, "t", "+", "k", "v")),
        (b"1\tt\t+\tk\t\\t\\n\\x", Row(1, "t", "+", "k", "\\t\\n\\x")),
    ],
)  # fmt: skip
def test_a_line_is_a_row(line: bytes | str, row: Row) -> None:
    assert parse_row(line) == row


@pytest.mark.parametrize(
    ("line", "field"),
    [
        (b"", "row"),
        (b"1\tt\t+", "row"),
        (b"1 t + k v", "row"),
        (b"\tt\t+\tk\tv", "seqno"),
        (b"0\tt\t+\tk\tv", "seqno"),
        (b"-1\tt\t+\tk\tv", "seqno"),
        (b"1_0\tt\t+\tk\tv", "seqno"),
        (b" 1\tt\t+\tk\tv", "seqno"),
        ("١\tt\t+\tk\tv", "seqno"),
        (b"%d\tt\t+\tk\tv" % (SEQNO_MAX + 1), "seqno"),
        (b"9" * 5000 + b"\tt\t+\tk\tv", "seqno"),
        (b"1\tt\t*\tk\tv", "action"),
        (b"1\tt\t\tk\tv", "action"),
        (b"1\tt\t+\t\tv", "key"),
        (b"1\tt\t+\t\xff\tv", "row"),
    ],
)
def test_what_is_no_row_is_refused_by_the_field_it_breaks(line: bytes | str, field: str) -> None:
    with pytest.raises(InvalidRow) as caught:
        parse_row(line)
    assert caught.value.field == field


def test_five_fields_are_written_always_and_a_delete_ends_in_a_tab() -> None:
    assert format_row(Row(43, T, "+", "k", "v w")) == f"43\t{T}\t+\tk\tv w\n".encode()
    assert format_row(Row(44, T, "-", "k")) == f"44\t{T}\t-\tk\t\n".encode()


@pytest.mark.parametrize(
    "row",
    [
        Row(0, T, "+", "k", "v"),
        Row(1, "a\tb", "+", "k", "v"),
        Row(1, T, "*", "k", "v"),  # type: ignore[arg-type]
        Row(1, T, "+", "", "v"),
        Row(1, T, "+", "a\tb", "v"),
        Row(1, T, "+", "a\rb", "v"),
        Row(1, T, "+", "a\nb", "v"),
        Row(1, T, "+", "k", "v\t"),
        Row(1, T, "+", "k", "v\r"),
        Row(1, T, "+", "k", "v\n"),
        Row(1, T, "+", "k", "\ud800"),
    ],
)
def test_what_would_break_a_row_is_not_written(row: Row) -> None:
    with pytest.raises(InvalidRow):
        format_row(row)


@given(ANY.filter(bool), ANY, st.sampled_from("+-"), st.integers(1, SEQNO_MAX))
def test_with_escaping_any_text_comes_back(key: str, record: str, action: str, seqno: int) -> None:
    row = Row(seqno, T, action, key, record)  # type: ignore[arg-type]
    line = format_row(row, escape=True)
    assert line.count(b"\n") == 1
    assert line.count(b"\t") == 4
    assert parse_row(line, escape=True) == row


@given(PLAIN.filter(bool), PLAIN)
def test_without_escaping_any_plain_text_comes_back(key: str, record: str) -> None:
    row = Row(7, T, "+", key, record)
    assert parse_row(format_row(row)) == row
    change = Change("+", key, record)
    assert parse_change(format_change(change)) == change


@given(ANY)
def test_escaping_leaves_no_tab_and_no_line_end(text: str) -> None:
    escaped = escape(text)
    assert not set("\t\r\n") & set(escaped)
    assert unescape(escaped) == text


@pytest.mark.parametrize("text", ["\\", "a\\", "\\x", "\\T", "\\\\\\", "\\\n"])
def test_an_unknown_escape_is_refused(text: str) -> None:
    with pytest.raises(InvalidRow, match="backslash"):
        unescape(text, "record")


@given(st.lists(st.tuples(PLAIN.filter(bool), PLAIN), max_size=8), st.data())
def test_rows_arrive_in_any_pieces(pairs: list[tuple[str, str]], data: st.DataObject) -> None:
    rows = [Row(number, T, "+", *pair) for number, pair in enumerate(pairs, 1)]
    stream = b"".join(map(format_row, rows)) + b"9\tcut"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    decoder, found = RowDecoder(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += decoder.feed(stream[start:end])
    assert found == rows
    assert decoder.end() == b"9\tcut"


def test_empty_lines_keep_a_connection_alive_and_are_no_rows() -> None:
    assert RowDecoder().feed(b"\n\r\n1\tt\t+\tk\tv\n\n") == [Row(1, "t", "+", "k", "v")]


def test_rows_before_and_after_a_bad_line_are_not_lost() -> None:
    decoder = RowDecoder()
    with pytest.raises(RowsBefore, match="Row 1") as caught:
        decoder.feed(b"1\tt\t+\tk\tv\nbad\n2\tt\t-\tk\n3\tt")
    assert caught.value.index == 1
    assert [row.seqno for row in caught.value.rows] == [1]
    assert [row.seqno for row in decoder.feed(b"\t+\tk\tv\n")] == [2, 3]


def test_a_line_without_end_has_a_bound() -> None:
    decoder = RowDecoder(line_bytes_max=10)
    with pytest.raises(InvalidRow, match="more than 10 bytes"):
        decoder.feed(b"x" * 11)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (None, 0), ("0", 0), ("-0", 0), ("42", 42), ("-5", -5), ("007", 7), ("-00", 0),
        ("9" * 18, SEQNO_MAX), ("9" * 5000, SEQNO_MAX), ("-" + "9" * 5000, -SEQNO_MAX),
        ("0" * 5000 + "3", 3),
    ],
)  # fmt: skip
def test_since_id_is_a_number(text: str | None, number: int) -> None:
    assert parse_since_id(text) == number


@pytest.mark.parametrize("text", ["", "-", "x", "1.5", "+1", " 1", "1 ", "--1", "1e3", "0x1", "١"])
def test_junk_since_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidParameter, match="since_id"):
        parse_since_id(text)


def test_changes_are_lines_of_sign_key_and_record() -> None:
    body = b"+\ta\tx y\tz\r\n-\ta\n+\tb\n-\tc\t\n+\td\te"
    assert parse_changes(body) == [
        Change("+", "a", "x y\tz"),
        Change("-", "a"),
        Change("+", "b", ""),
        Change("-", "c"),
        Change("+", "d", "e"),
    ]
    assert parse_changes(b"") == []


@pytest.mark.parametrize(
    "line", [b"+", b"+\t\tv", b"*\tk\tv", b"-\tk\tv", b"\n", b"k\tv", b"1\tt\t+\tk\tv"]
)
def test_a_bad_change_names_its_row(line: bytes) -> None:
    with pytest.raises(InvalidRow, match="Row 1: ") as caught:
        parse_changes(b"+\ta\tb\n" + line + b"\n")
    assert caught.value.index == 1
    assert caught.value.members["index"] == 1


@pytest.mark.parametrize(
    ("text", "seqno"),
    [
        ("0", 0),
        ("17", 17),
        (None, None),
        ("", None),
        ("-1", None),
        ("1.5", None),
        ("٧", None),
        ("9" * 5000, None),  # more digits than Python converts
    ],
)
def test_the_last_seqno_that_a_server_states(text: str | None, seqno: int | None) -> None:
    assert parse_last_seqno(text) == seqno
