"""Rows as change events: the JSON that a table appends to the log, and timestamps in UTC. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, Literal

import msgspec

from penstock.errors import InvalidEvent, InvalidRow
from penstock.protocol.timestamps import is_rfc3339
from penstock.state.json import check_depth
from penstock.stp.declaration import Codec
from penstock.stp.rows import Change

# One spelling for all events of tables, in the order of a row's fields.
_HEAD: Final = b'{"headers":{"timestamp":%b,"operation":"%b"},"type":%b,"key":%b'

# Days up to 28 only, so that every match is a date; other timestamps are parsed one by one.
_UTC: Final = (
    r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])"
    r"T(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d+)?Z"
)
_IS_UTC: Final = re.compile(_UTC, re.ASCII)
_ARE_UTC: Final = re.compile(rf"(?:{_UTC},)*+", re.ASCII)
_HOUR_WIDTH: Final = len("2026-01-31T00")
_SHAPE: Final = bytes.maketrans(b"0123456789", b"0000000000")
_PARTS: Final = re.compile(r"(.{10}).(.{8})(\.\d+)?(.*)")

Set = Literal["insert", "update"]
"""The operations of a `+` row. Readers apply both alike."""

_encode: Final = msgspec.json.Encoder().encode
_decode_raw: Final = msgspec.json.Decoder(msgspec.Raw).decode


def event_json(
    type: str, change: Change, *, timestamp: str, codec: Codec, operation: Set = "insert"
) -> bytes:
    """Return the change event of a row as JSON; raise InvalidRow for a bad record.

    `operation` is that of a `+` row.
    """
    try:
        name = "delete" if change.action == "-" else operation
        head = _HEAD % (_encode(timestamp), name.encode(), _encode(type), _encode(change.key))
        if change.action == "-":
            return head + b"}"
        value = _encode(change.record) if codec == "text" else json_value(change.record)
    except UnicodeEncodeError:
        raise InvalidRow("Half of a surrogate pair cannot be written.", field="row") from None
    return b'%b,"value":%b}' % (head, value)


def json_value(record: str | bytes) -> bytes:
    """Return the JSON of a record, checked and compact."""
    data = record.encode() if isinstance(record, str) else record
    try:
        data.isascii() or data.decode()
        raw = _decode_raw(data)
        check_depth(raw, "record")
        return msgspec.json.format(data, indent=-1)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = str(error).removeprefix("JSON is malformed: ")
        raise InvalidRow(f"The record is not JSON: {reason}.", field="record") from None
    except InvalidEvent as error:
        raise InvalidRow(f"The {error.detail}", field="record") from None


def all_utc(texts: Sequence[str]) -> bool:
    """Whether all of these are timestamps in UTC, as rows have them."""
    if _are_of_one_hour(texts):
        return True
    distinct = set(texts)
    if _ARE_UTC.fullmatch(",".join([*distinct, ""])):
        return True
    return all(to_utc(text) == text for text in distinct)


def _are_of_one_hour(texts: Sequence[str]) -> bool:
    """Whether these are timestamps of equal length within one hour, as most neighbours in a log
    are. Decided on the columns of their text, which is faster than to parse each."""
    first, count = texts[0], len(texts)
    width = len(first)
    if not _IS_UTC.fullmatch(first) or set(map(len, texts)) != {width}:
        return False
    joined = "".join(texts).encode()
    if joined.translate(_SHAPE) != first.encode().translate(_SHAPE) * count:
        return False
    if any(joined[column::width].count(joined[column]) != count for column in range(_HOUR_WIDTH)):
        return False
    minutes, seconds = joined[_HOUR_WIDTH + 1 :: width], joined[_HOUR_WIDTH + 4 :: width]
    return not (minutes + seconds).translate(None, b"012345")


@lru_cache(maxsize=4096)
def to_utc(text: str) -> str | None:
    """Return a timestamp as RFC 3339 in UTC; None if it is not a timestamp."""
    if _IS_UTC.fullmatch(text):
        return text
    if not is_rfc3339(text):
        return None
    match = _PARTS.fullmatch(text)
    assert match is not None
    date, time, fraction, zone = match.groups()
    if zone in "Zz":
        return f"{date}T{time}{fraction or ''}Z"
    # A datetime cannot hold a leap second; a zone shifts whole minutes only.
    is_leap = time.endswith("60")
    sign = 1 if zone[0] == "+" else -1
    shift = sign * timedelta(hours=int(zone[1:3]), minutes=int(zone[4:6]))
    try:
        local = datetime.fromisoformat(f"{date}T{time[:6]}{'59' if is_leap else time[6:]}")
        moved = (local.replace(tzinfo=UTC) - shift).strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0")
    except (OverflowError, ValueError):  # It is outside of the years 1 to 9999.
        return None
    if is_leap:
        moved = moved[:17] + "60"
    return f"{moved}{fraction or ''}Z"
