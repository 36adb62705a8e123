"""Messages become rows: the quick way and the careful way give the same bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidRow
from penstock.protocol.json_mode import frame
from penstock.stp.declaration import Table
from penstock.stp.escaping import escape
from penstock.stp.events import all_utc, event_json, json_value, to_utc
from penstock.stp.rows import Change, Row, RowDecoder, format_row
from penstock.stp.server.row_cache import after
from penstock.stp.transcode import Transcoder

CREATED = "2020-01-01T00:00:00.000Z"
TEXT = Table(schema="s", version=1, type="t")
JSON = Table(schema="s", version=1, type="t", record="json")
ESCAPED = Table(schema="s", version=1, type="t", escape=True)
UNICODE = st.text(st.characters(blacklist_categories=["Cs"]), max_size=12)
KEYS = UNICODE.filter(bool)
STAMPS = st.sampled_from(
    [None, "2026-01-08T00:00:00Z", "2026-01-08T01:30:00.5+01:30", "2026-01-08t00:00:00z", "junk"]
)


def event(type: str, key: str, value: Any, operation: str, stamp: str | None) -> dict[str, Any]:
    headers = {"operation": operation} | ({} if stamp is None else {"timestamp": stamp})
    made = {"type": type, "key": key, "headers": headers}
    return made if operation == "delete" else made | {"value": value}


EVENTS = st.builds(
    event,
    st.sampled_from(["t", "t", "t", "other"]),
    KEYS,
    UNICODE,
    st.sampled_from(["insert", "update", "upsert", "delete"]),
    STAMPS,
)
OTHERS = st.sampled_from(
    [
        {"headers": {"control": "snapshot-start"}},
        {"no": "event"},
        5,
        {"type": "t", "key": "k", "headers": {"operation": "insert"}},
        {"type": "t", "key": "", "value": "v", "headers": {"operation": "insert"}},
        {"type": "t", "key": "k", "value": "v", "headers": {"operation": "insert", "txid": ""}},
        {"type": "t", "key": "k", "value": "v", "headers": {"operation": "insert", "x": 1}, "y": 2},
        {"type": "t", "key": "k", "value": None, "headers": {"operation": "upsert"}},
        {"type": "t", "key": "k", "value": "v", "headers": {"operation": "delete"}},
        {"type": "t", "key": "k", "value": "", "headers": {"operation": "upsert", "control": "x"}},
    ]
)  # fmt: skip


def expected(messages: list[Any], table: Table) -> bytes:
    """The rows as the rules say, message by message, with nothing shared with the code."""
    lines = []
    for seqno, message in enumerate(messages, 11):
        if not isinstance(message, dict) or message.get("type") != "t" or not message.get("key"):
            continue
        headers = message["headers"]
        is_delete = headers["operation"] == "delete"
        if headers.get("txid") == "" or "control" in headers:
            continue
        if not is_delete and "value" not in message:
            continue
        stamp = {
            "2026-01-08T01:30:00.5+01:30": "2026-01-08T00:00:00.5Z",
            "2026-01-08t00:00:00z": "2026-01-08T00:00:00Z",
            "2026-01-08T00:00:00Z": "2026-01-08T00:00:00Z",
        }.get(headers.get("timestamp"), CREATED)
        record = ""
        if not is_delete:
            record = message["value"]
            if table.record == "json" or not isinstance(record, str):
                record = json.dumps(record, separators=(",", ":"), ensure_ascii=False)
        key = message["key"]
        if table.escape:
            key, record = escape(key), escape(record)
        lines.append(f"{seqno}\t{stamp}\t{'-' if is_delete else '+'}\t{key}\t{record}\n")
    return "".join(lines).encode()


@pytest.mark.parametrize("table", [TEXT, ESCAPED])
@given(messages=st.lists(EVENTS | OTHERS, min_size=1, max_size=12), spaced=st.booleans())
def test_rows_are_what_the_rules_say(table: Table, messages: list[Any], spaced: bool) -> None:
    separators = (" , ", " : ") if spaced else (",", ":")
    wire, _ = frame(json.dumps(messages, separators=separators).encode(), allow_empty=False)
    rows = Transcoder(table, CREATED).rows(wire, 10)
    assert rows.data == expected(messages, table)
    assert rows.messages == len(messages)


@pytest.mark.parametrize("first", [1, 990, 999, 1000, 1001, 9_990, 999_001, 12_345_678_990])
def test_the_numbers_of_rows_are_spelled_out(first: int) -> None:
    """Also where a thousand ends among them, and where there is none yet."""
    messages = [event("t", "k", "v", "upsert", "2026-01-08T00:00:00Z") for _ in range(2100)]
    wire, _ = frame(json.dumps(messages).encode(), allow_empty=False)
    lines = Transcoder(TEXT, CREATED).rows(wire, first - 1).data.decode().splitlines()
    row = "{}\t2026-01-08T00:00:00Z\t+\tk\tv"
    assert lines == [row.format(seqno) for seqno in range(first, first + 2100)]


NEAR = st.tuples(
    st.sampled_from(["2026-01-08T07", "2026-01-08T08", "2026-13-08T07", "2026-01-08T24"]),
    st.sampled_from([":00", ":59", ":60", "+00"]),
    st.sampled_from([":00", ":59", ":60", ":6"]),
    st.sampled_from(["Z", ".5Z", ".12Z", ".Z", "z", "Z2", "٣Z"]),
).map("".join)


@given(st.lists(NEAR, min_size=1, max_size=4) | NEAR.map(lambda stamp: [stamp] * 3))
def test_stamps_that_are_looked_at_together_are_each_in_utc(stamps: list[str]) -> None:
    assert all_utc(stamps) == all(to_utc(stamp) == stamp for stamp in stamps)


def test_stamps_that_only_joined_look_right_are_not() -> None:
    assert not all_utc(["2026-01-08T07:00:00Z", "2026-01-08T07:00:00Z2", "026-01-08T07:00:00Z"])
    assert not all_utc(["2026-01-08T07:00:00Z", "2026-01-08T07:00:00Z" * 2, ""])


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | UNICODE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(UNICODE, inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(VALUES, min_size=1, max_size=5), st.booleans(), st.booleans())
def test_json_records_are_compact_and_come_back(
    values: list[Any], escaped: bool, spaced: bool
) -> None:
    table = Table(schema="s", version=1, type="t", record="json", escape=escaped)
    messages = [event("t", "k", value, "upsert", None) for value in values]
    indent = 2 if spaced else None
    wire, _ = frame(json.dumps(messages, indent=indent).encode(), allow_empty=False)
    data = Transcoder(table, CREATED).rows(wire, 0).data
    assert data.count(b"\n") == len(values)
    rows = RowDecoder(escape=escaped).feed(data)
    assert [json.loads(row.record) for row in rows] == values
    assert all(row.record == json_value(row.record).decode() for row in rows)


@given(KEYS, UNICODE, st.booleans())
def test_a_written_row_is_read_as_it_was_written(key: str, record: str, is_set: bool) -> None:
    change = Change("+", key, record) if is_set else Change("-", key)
    made = event_json("t", change, timestamp="2026-01-08T00:00:00.123Z", codec="text")
    wire, count = frame(made, allow_empty=False)
    assert count == 1
    data = Transcoder(ESCAPED, CREATED).rows(wire, 41).data
    row = Row(42, "2026-01-08T00:00:00.123Z", change.action, key, change.record)
    assert data == format_row(row, escape=True)


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("2026-01-08T00:00:00Z", "2026-01-08T00:00:00Z"),
        ("2026-01-08t00:00:00.120z", "2026-01-08T00:00:00.120Z"),
        ("2026-01-08T00:00:00+00:00", "2026-01-08T00:00:00Z"),
        ("2026-01-01T00:30:00.25+01:00", "2025-12-31T23:30:00.25Z"),
        ("2026-12-31T23:30:00-01:00", "2027-01-01T00:30:00Z"),
        ("2016-12-31T23:59:60Z", "2016-12-31T23:59:60Z"),
        ("2017-01-01T00:59:60+01:00", "2016-12-31T23:59:60Z"),
        ("0001-01-01T00:00:00+01:00", None),
        ("9999-12-31T23:59:59-01:00", None),
        ("2026-02-30T00:00:00Z", None),
        ("2026-01-08 00:00:00Z", None),
        ("yesterday", None),
        ("", None),
    ],
)
def test_timestamps_are_in_utc(text: str, utc: str | None) -> None:
    assert to_utc(text) == utc


@pytest.mark.parametrize("record", ["", "{", "{}{}", "nul", "[1,]", "[" * 200 + "]" * 200])
def test_a_json_record_has_to_be_json(record: str) -> None:
    with pytest.raises(InvalidRow, match="record"):
        event_json("t", Change("+", "k", record), timestamp="x", codec="json")


@given(st.lists(st.integers(1, 60), unique=True, max_size=20), st.integers(0, 61))
def test_rows_after_a_seqno_are_found_in_a_block(seqnos: list[int], since: int) -> None:
    lines = [b"%d\tt\t+\tk%d\tv\n" % (seqno, seqno * 10**6) for seqno in sorted(seqnos)]
    later = [line for line, seqno in zip(lines, sorted(seqnos), strict=True) if seqno > since]
    assert after(b"".join(lines), since) == b"".join(later)
