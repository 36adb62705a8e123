"""Messages of a stream as rows of a table, a block at a time.

A block of plain change events is decoded at once, with only the fields that rows have; any other is
parsed event by event, as the state does. Both give the same bytes. Pure: knows wire bytes, no log.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Raw, UnsetType

from penstock.errors import InvalidEvent
from penstock.protocol.json_mode import unframe
from penstock.state.event import ABSENT, ChangeEvent, NonEmpty
from penstock.state.parsing import decode_exactly, decode_loosely, parse
from penstock.stp.declaration import Table
from penstock.stp.escaping import escape
from penstock.stp.events import all_utc, to_utc

_SPACES: Final = (b" ", b"\t", b"\n", b"\r")
_SIGNS: Final = {"insert": "+", "update": "+", "upsert": "+", "delete": "-"}

_SMALL: Final = [f"{units}\t" for units in range(1000)]
_ENDINGS: Final = [f"{units:03}\t" for units in range(1000)]

_decode_text: Final = msgspec.json.Decoder(str).decode

_Impossible = Annotated[str, msgspec.Meta(min_length=1, max_length=0)]
"""No text has both lengths: an event with such a field is left to the slower parser."""


class _Headers(msgspec.Struct, gc=False, rename={"from_": "from"}):
    operation: Literal["insert", "update", "upsert", "delete"]
    timestamp: str = ""
    control: _Impossible = ""
    txid: NonEmpty | UnsetType = UNSET
    from_: NonEmpty | UnsetType = UNSET
    offset: NonEmpty | UnsetType = UNSET


class _TextEvent(msgspec.Struct, gc=False):
    headers: _Headers
    type: NonEmpty
    key: NonEmpty
    value: str | UnsetType = UNSET


class _JsonEvent(msgspec.Struct, gc=False):
    headers: _Headers
    type: NonEmpty
    key: NonEmpty
    value: Raw = ABSENT


class _SetHeaders(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    timestamp: str
    operation: Literal["insert", "update", "upsert"]


@lru_cache(maxsize=256)
def _set_decoder(type: str) -> Any:
    """Return a decoder of blocks in which every event sets a text of this type and has only the
    headers of rows. It refuses all others, so that its results need no further checks."""
    fields: list[Any] = [
        ("headers", _SetHeaders),
        ("type", Literal[type]),
        ("key", NonEmpty),
        ("value", str),
    ]
    event: Any = msgspec.defstruct("_SetEvent", fields, gc=False)
    return msgspec.json.Decoder(list[event]).decode


_DECODERS: Final = {
    "text": msgspec.json.Decoder(list[_TextEvent]).decode,
    "json": msgspec.json.Decoder(list[_JsonEvent]).decode,
}


class Rows(NamedTuple):
    """The rows of some messages, with the number of messages."""

    data: bytes
    messages: int


class Transcoder:
    """Turns messages of one stream into rows of one table. `fallback` is the timestamp of events
    that have none because they are older than their table."""

    __slots__ = ("_decode", "_escape", "_fallback", "_is_text", "_type", "table")

    def __init__(self, table: Table, fallback: str) -> None:
        self.table = table
        self._type = table.type
        self._is_text = table.record == "text"
        self._escape = table.escape
        self._fallback = fallback
        self._decode: Any = _DECODERS[table.record]

    def rows(self, wire: bytes | memoryview, ordinal: int) -> Rows:
        """Return the rows of wire bytes whose first message has `ordinal` messages before it."""
        rows = self._set_rows(wire, ordinal + 1)
        if rows is None:
            wire = bytes(wire)
            messages = wire.count(b"\n")
            seqnos = range(ordinal + 1, ordinal + 1 + messages)
            rows = Rows(self.rows_at(wire, seqnos), messages)
        return rows

    def rows_at(self, wire: bytes, seqnos: Sequence[int]) -> bytes:
        """Return the rows of wire bytes whose messages have these SeqNos."""
        if not wire:
            return b""
        rows = None
        try:
            events = self._decode(unframe(wire))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            events = None
        if events is not None:
            is_plain = self._is_text and not (self._escape and b"\\" in wire)
            rows = self._plain(events, seqnos) if is_plain else self._typed(events, seqnos)
        return "".join(self._parsed(wire, seqnos) if rows is None else rows).encode()

    def _set_rows(self, wire: bytes | memoryview, first: int) -> Rows | None:
        """Return the rows of messages that only set texts of the table's type; None for others."""
        if not (wire and self._is_text):
            return None
        array = unframe(wire)
        if self._escape and b"\\" in array:  # If JSON escaped nothing, rows need no escaping.
            return None
        try:
            events = _set_decoder(self._type)(array)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        stamps = [event.headers.timestamp for event in events]
        if not all_utc(stamps):
            return None
        return Rows(_set_text(first, stamps, events).encode(), len(events))

    def _plain(self, events: list[_TextEvent], seqnos: Sequence[int]) -> list[str] | None:
        """Return the rows of events of the table's type; None if one of them is not an event."""
        if {event.type for event in events} != {self._type}:
            return self._typed(events, seqnos)
        if not all_utc([event.headers.timestamp for event in events]):
            return self._typed(events, seqnos)
        if any(event.value is UNSET and event.headers.operation != "delete" for event in events):
            return None  # One of them is not an event.
        return [
            f"{seqno}\t{event.headers.timestamp}\t-\t{event.key}\t\n"
            if event.headers.operation == "delete"
            else f"{seqno}\t{event.headers.timestamp}\t+\t{event.key}\t{event.value}\n"
            for seqno, event in zip(seqnos, events, strict=True)
        ]

    def _typed(self, events: Sequence[Any], seqnos: Sequence[int]) -> list[str] | None:
        rows: list[str] = []
        append, type, fallback = rows.append, self._type, self._fallback
        for seqno, event in zip(seqnos, events, strict=True):
            headers = event.headers
            value = event.value
            if headers.operation != "delete" and (value is UNSET or value is ABSENT):
                return None  # One of them is not an event.
            if event.type != type:
                continue
            stamp = headers.timestamp
            stamp = (to_utc(stamp) or fallback) if stamp else fallback
            key = escape(event.key) if self._escape else event.key
            if headers.operation == "delete":
                append(f"{seqno}\t{stamp}\t-\t{key}\t\n")
            else:
                record = value if self._is_text else compact(bytes(value))
                if self._escape:
                    record = escape(record)
                append(f"{seqno}\t{stamp}\t+\t{key}\t{record}\n")
        return rows

    def _parsed(self, wire: bytes, seqnos: Sequence[int]) -> list[str]:
        rows: list[str] = []
        for seqno, event in zip(seqnos, events_of(wire), strict=True):
            if not self.is_row(event):
                continue
            own = event.timestamp
            stamp = (to_utc(own) if own else None) or self._fallback
            record = "" if event.operation == "delete" else record_text(event.raw_value, self.table)
            key = event.key
            if self._escape:
                key, record = escape(key), escape(record)
            rows.append(f"{seqno}\t{stamp}\t{_SIGNS[event.operation]}\t{key}\t{record}\n")
        return rows

    def counts(self, wire: bytes, ordinal: int) -> tuple[int, int]:
        """Return the number of rows in wire bytes, and the SeqNo of the last."""
        count, last = 0, 0
        for seqno, event in enumerate(events_of(wire), ordinal + 1):
            if self.is_row(event):
                count += 1
                last = seqno
        return count, last

    def is_row(self, event: Any) -> bool:
        return isinstance(event, ChangeEvent) and event.type == self._type


def _set_text(first: int, stamps: Sequence[str], events: Sequence[Any]) -> str:
    """Return the rows of events that set texts. The SeqNos of a thousand rows begin alike, so that
    only their endings are added, from a list: to format every number would double the time."""
    parts = []
    start, stop = 0, len(events)
    while start < stop:
        thousands, units = divmod(first + start, 1000)
        end = min(start + 1000 - units, stop)
        lead = str(thousands) if thousands else ""
        endings = (_ENDINGS if thousands else _SMALL)[units : units + end - start]
        rows = [
            f"{ending}{stamp}\t+\t{event.key}\t{event.value}"
            for ending, stamp, event in zip(
                endings, stamps[start:end], events[start:end], strict=True
            )
        ]
        parts += [lead, f"\n{lead}".join(rows), "\n"]
        start = end
    return "".join(parts)


def events_of(wire: bytes) -> list[Any]:
    """Return the events of wire bytes, one for each message; None for what is not an event."""
    array = unframe(wire)
    events: list[Any] | None = decode_exactly(array, strict_timestamp=False)
    if events is None:
        events = decode_loosely(array)
    if events is None:
        return [parsed(line) for line in wire.split(b",\n")[:-1]]
    return events


def compact(data: bytes) -> str:
    """Return JSON without spaces between its parts, and so without tabs and line ends."""
    if any(space in data for space in _SPACES):
        data = msgspec.json.format(data, indent=-1)
    return data.decode()


def record_text(raw: bytes | None, table: Table) -> str:
    """Return the record of a value, not escaped: in a text table a text is itself."""
    assert raw is not None
    if table.record == "text" and raw[:1] == b'"':
        return _decode_text(raw)
    return compact(raw)


def parsed(line: bytes) -> Any:
    """Return the event of one message; None if it is not an event."""
    try:
        return parse(line, strict_timestamp=False)
    except InvalidEvent:
        return None
