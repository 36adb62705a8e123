"""The check of appends to streams that are shown as tables, so that rows can express every event.

Keys and records that would break a row are refused, an event without timestamp gets that of its
append, a reset becomes deletes of what it discards, and a row that a table writes becomes an insert
or an update. Decides within the append, on the pending state.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from penstock.errors import BadRequest, InvalidEvent, InvalidRow, PenstockError
from penstock.log.lineage import generation_at, is_generation
from penstock.log.requests import NotYet, Proposal, Writer
from penstock.protocol.headers import format_expires_at
from penstock.protocol.json_mode import SLICE_BYTES, slices
from penstock.protocol.offsets import Offset, parse_offset
from penstock.state.event import ChangeEvent, ControlEvent
from penstock.stp.declaration import META, Table, decode
from penstock.stp.events import event_json
from penstock.stp.rows import Change, check_key, check_record
from penstock.stp.transcode import events_of, record_text

if TYPE_CHECKING:
    from penstock.clock import Clock
    from penstock.stp.server.live_keys import LiveKeys
    from penstock.stp.server.resets import Resets

_DECODED_MAX: Final = 1024
_split: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode: Final = msgspec.json.Encoder().encode


Tables = dict[str, list[Table]]
"""The tables of a stream, by type."""


class _Verdict(NamedTuple):
    """The result of checking many messages, and what was checked. `rows` are their events, if a
    table wrote them."""

    value: bytes
    wire: bytes
    changed: tuple[bytes, int] | None
    rows: list[Any]
    error: PenstockError | None = None


class TableChecks:
    """The check of every stream that has tables."""

    def __init__(self, resets: Resets, live_keys: LiveKeys, *, clock: Clock) -> None:
        self._resets = resets
        self._live_keys = live_keys
        self._clock = clock
        self._decoded: dict[int, tuple[bytes, dict[str, list[Table]]]] = {}
        self.refused = 0
        self.resets = 0

    def __call__(self, proposal: Proposal) -> tuple[bytes, int] | None:
        tables = self._tables(proposal.stream.id, proposal.value)
        is_large = len(proposal.wire) > SLICE_BYTES
        try:
            if is_large:
                _, _, changed, events, _ = self._verdict(proposal)
            else:
                events = events_of(proposal.wire)
                changed = self._check(proposal, tables, events)
        except (InvalidRow, InvalidEvent):
            self.refused += 1
            raise
        if proposal.writer is Writer.TABLE:
            # Its events have timestamps and are no resets: the check has not changed them.
            changed = self._live_keys.resolve(proposal, tables, events)
        wire = proposal.wire if changed is None else changed[0]
        if proposal.writer is Writer.TABLE:
            pass  # `resolve` has recorded it
        elif is_large:
            self._live_keys.forget(proposal.stream)
        else:
            self._live_keys.record(proposal, wire)
        self._resets.record(proposal.stream, proposal.start, wire)
        return changed

    def _verdict(self, proposal: Proposal) -> _Verdict:
        """Return the result of checking many messages; raise NotYet if they are to be checked."""
        verdict = proposal.notes.get(META)
        if (
            not isinstance(verdict, _Verdict)
            or verdict.value != proposal.value
            or verdict.wire != proposal.wire
        ):
            raise NotYet(partial(self._check_later, proposal), blocks=True)
        if verdict.error is not None:
            raise verdict.error
        return verdict

    async def _check_later(self, proposal: Proposal) -> None:
        """Check many messages, a slice at a time, off the event loop."""
        tables = self._tables(proposal.stream.id, proposal.value)
        now = format_expires_at(self._clock.now_us())
        proposal.notes[META] = await asyncio.to_thread(_judge, tables, proposal, now)

    def _check(
        self, proposal: Proposal, tables: Tables, events: list[Any]
    ) -> tuple[bytes, int] | None:
        wire = proposal.wire
        stamps, resets = _inspect(tables, proposal, events, 0)
        if not stamps and not resets:
            return None
        now = format_expires_at(self._clock.now_us())
        lines = wire.split(b",\n")[:-1]
        for index in stamps:
            lines[index] = _stamped(lines[index], now)
        if resets:
            lines = self._without_resets(proposal, lines, events, resets, now)
        return b"".join([line + b",\n" for line in lines]), len(lines)

    def _without_resets(
        self,
        proposal: Proposal,
        lines: list[bytes],
        events: list[Any],
        resets: list[int],
        now: str,
    ) -> list[bytes]:
        """Replace each reset by deletes of the entities that it discards."""
        # Raises NotYet if the index has to be asked first.
        live = self._resets.live(proposal.stream, proposal.start)
        result: list[bytes] = []
        for index, (line, event) in enumerate(zip(lines, events, strict=True)):
            if index in resets:
                floor = _floor(event, proposal)
                discarded = [entity for entity, at in live.items() if floor is None or at < floor]
                result += [_delete(type, key, now) for type, key in discarded]
                for entity in discarded:
                    del live[entity]
                continue
            result.append(line)
            if isinstance(event, ChangeEvent):
                live.pop((event.type, event.key), None)
                if event.operation != "delete":
                    live[event.type, event.key] = proposal.start
        if not result:
            # An append cannot be empty: a reset of nothing becomes a control event without effect.
            result = [b'{"headers":{"control":"up-to-date"}}']
        self._resets.check_size(sum(map(len, result)))
        self.resets += len(resets)
        return result

    def _tables(self, stream_id: int, value: bytes) -> Tables:
        decoded = self._decoded.get(stream_id)
        if decoded is not None and decoded[0] == value:
            return decoded[1]
        if len(self._decoded) >= _DECODED_MAX:
            self._decoded.clear()
        tables: Tables = {}
        for table in decode(value).values():
            tables.setdefault(table.type, []).append(table)
        self._decoded[stream_id] = (value, tables)
        return tables


def _judge(tables: Tables, proposal: Proposal, now: str) -> _Verdict:
    value, wire = proposal.value, proposal.wire
    pieces: list[bytes] = []
    rows: list[Any] = []  # of a table's own append, to tell inserts from updates
    first, is_changed = 0, False
    try:
        for piece in slices(wire):
            events = events_of(piece)
            stamps, resets = _inspect(tables, proposal, events, first)
            if resets:
                raise InvalidEvent(
                    f"Event {first + resets[0]}: a reset of a stream that is shown as a table is "
                    f"in an append of more than {SLICE_BYTES} bytes; send it on its own.",
                    index=first + resets[0],
                )
            if stamps:
                lines = piece.split(b",\n")[:-1]
                for index in stamps:
                    lines[index] = _stamped(lines[index], now)
                piece = b"".join([line + b",\n" for line in lines])
                is_changed = True
            pieces.append(piece)
            first += len(events)
            if proposal.writer is Writer.TABLE:
                rows += events
    except (InvalidRow, InvalidEvent) as error:
        return _Verdict(value, wire, None, [], error)
    return _Verdict(value, wire, (b"".join(pieces), first) if is_changed else None, rows)


def _inspect(
    tables: Tables, proposal: Proposal, events: list[Any], first: int
) -> tuple[list[int], list[int]]:
    """Check events of an append, from number `first` on; return which of them have no timestamp,
    and which are resets."""
    stamps: list[int] = []
    resets: list[int] = []
    for index, event in enumerate(events):
        if isinstance(event, ControlEvent):
            if event.control == "reset":
                _check_reset(event, proposal, first + index)
                resets.append(index)
        elif event is not None and event.type in tables:
            for table in tables[event.type]:
                check_event(event, table, first + index)
            if event.timestamp is None:
                stamps.append(index)
    return stamps, resets


def check_event(event: ChangeEvent, table: Table, index: int | None = None) -> None:
    """Refuse an event that would break a row of the table."""
    try:
        check_key(event.key, escape=table.escape)
        if event.operation == "delete" or table.record == "json":
            return
        raw = event.raw_value
        assert raw is not None
        if raw[:1] != b'"':
            raise InvalidRow(
                "The value is not a text, and the table has text records.", field="record"
            )
        if not table.escape and b"\\" in raw:  # JSON escapes everything that would break a row.
            check_record(record_text(raw, table))
    except InvalidRow as error:
        where = "" if index is None else f"Event {index}: "
        raise InvalidRow(
            f"{where}{error.detail} The stream is shown as a table of {table.type!r}.",
            field=error.field,
            index=index,
        ) from None


def _floor(event: ControlEvent, proposal: Proposal) -> int | None:
    """Return the position from which events count after a reset; None if none before it does."""
    offset = _offset(event)
    if offset is None or not is_generation(proposal.stream, offset.generation):
        return None
    return offset.position


def _offset(event: ControlEvent) -> Offset | None:
    try:
        offset = parse_offset(event.offset or "")
    except BadRequest:
        return None
    return offset if isinstance(offset, Offset) else None


def _check_reset(event: ControlEvent, proposal: Proposal, index: int) -> None:
    """Refuse a reset that skips events after it: rows cannot express that."""
    offset = _offset(event)
    start = (generation_at(proposal.stream, proposal.start), proposal.start)
    if offset is not None and offset > start:
        raise InvalidEvent(
            f"Event {index}: a reset with an offset ahead of it skips events, which rows cannot: "
            "the stream is shown as a table. Leave the offset out.",
            field="headers.offset",
            index=index,
        )


def _stamped(line: bytes, now: str) -> bytes:
    """Return the event with a timestamp, spelled as a table writes its own events."""
    fields = _split(line)
    headers = bytes(fields.pop("headers")).lstrip()
    with_time = msgspec.Raw(b'{"timestamp":%b,%b' % (_encode(now), headers[1:].lstrip()))
    return _encode({"headers": with_time, **fields})


def _delete(type: str, key: str, now: str) -> bytes:
    return event_json(type, Change("-", key), timestamp=now, codec="text")
