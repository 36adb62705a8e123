"""A stream's row in the catalog: its columns, its checksum, and the stream that it describes.

Knows no SQLite, which is `catalog`'s.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock.errors import Damaged
from penstock.log.append_times import UNKNOWN, AppendTimes
from penstock.log.disk.segment import SegmentInfo
from penstock.log.held_stream import HeldStream
from penstock.log.memory_tail import MemoryTail
from penstock.log.stream import RENEWALS, ForkPoint, Stream, decode_renewals
from penstock.protocol.headers import Producer
from penstock.protocol.lifecycle import StreamConfig, expires_at_us

COLUMNS = (
    "id, path, content_type, ttl_s, expires_at_us, created_us, touched_us, deadline_us, earliest, "
    "tail, count, closed, closed_by, stream_seq, producers, applied_lsn, meta, "
    "forked_from, fork_path, fork_position, fork_count, soft_deleted, forks, pinned, "
    "earliest_ordinal"
)
_PLAIN = 17
"""Columns that every stream uses; the others are about forks and trims."""
_UNUSED = (None, None, None, None, 0, 0, None, 0)
WIDTH = _PLAIN + len(_UNUSED)
PRODUCER_TOTAL = 14
"""The column with the number of a stream's producers."""


class Row(NamedTuple):
    """A stream as it is stored in the catalog."""

    id: int
    path: str
    config: StreamConfig
    created_us: int
    touched_us: int
    deadline_us: int | None
    earliest: int
    tail: int
    messages: int
    closed: bool
    closed_by: Producer | None
    stream_seq: str | None
    producer_total: int
    applied_lsn: int
    meta: dict[str, bytes]
    inline: bytes | None
    segments: tuple[SegmentInfo, ...]
    fork: ForkPoint | None = None
    soft_deleted: bool = False
    forks: int = 0
    pinned: int | None = None
    earliest_ordinal: int = 0

    @property
    def own_start(self) -> int:
        """Position where a fork's own bytes begin."""
        return 0 if self.fork is None else self.fork.position

    @property
    def own_bytes(self) -> int:
        """Number of bytes retained here: inherited bytes belong to the source."""
        return self.tail - max(self.earliest, self.own_start)

    @property
    def own_messages(self) -> int:
        inherited = 0 if self.fork is None else self.fork.ordinal
        return self.messages - max(self.earliest_ordinal, inherited)

    @property
    def keep_from(self) -> int:
        """Position from which on the bytes have to be stored; there may be more."""
        first = self.earliest if self.pinned is None else min(self.earliest, self.pinned)
        return max(first, self.own_start)


def stream_from_row(row: Row) -> Stream:
    """Return the stream that a row describes; Damaged if some of its bytes are nowhere."""
    _check_extent(row)
    stream = HeldStream(row.id, row.path, row.config, row.created_us, fork=row.fork)
    stream.durable = True
    stream.touched_us = row.touched_us
    # A snapshot is later than the last touch, and trims what is before it.
    stream.times = AppendTimes(UNKNOWN if row.earliest else row.touched_us // 1000)
    stream.soft_deleted, stream.forks, stream.pinned = row.soft_deleted, row.forks, row.pinned
    stream.earliest, stream.earliest_ordinal = row.earliest, row.earliest_ordinal
    stream.tail, stream.count = row.tail, row.messages
    stream.closed, stream.closed_by = row.closed, row.closed_by
    stream.stream_seq = row.stream_seq
    stream.producer_total = row.producer_total
    stream.stored_producers = row.producer_total > 0
    stream.meta = row.meta
    if RENEWALS in row.meta:
        stream.renewals = decode_renewals(row.meta[RENEWALS])
        stream.meta = {name: value for name, value in row.meta.items() if name != RENEWALS}
    stream.applied_lsn = row.applied_lsn
    stream.segments = row.segments
    inline = row.inline or b""
    stream.memory = MemoryTail(row.tail - len(inline))
    if inline:
        ordinal = row.messages - inline.count(b"\n") if stream.is_json else 0
        stream.memory.load(inline, ordinal, row.touched_us)
    stream.reset_pending()
    stream.counted_bytes = stream.held_bytes
    return stream


def row_from_stream(stream: Stream, inline: bytes | None, segments: tuple[SegmentInfo, ...]) -> Row:
    """Return the row that describes the durable half of a stream whose payload is there."""
    return Row(
        stream.id,
        stream.path,
        stream.config,
        stream.created_us,
        stream.touched_us,
        None if stream.soft_deleted else expires_at_us(stream.config, stream.touched_us),
        stream.earliest,
        stream.tail,
        stream.count,
        stream.closed,
        stream.closed_by,
        stream.stream_seq,
        stream.producer_total,
        stream.applied_lsn,
        _stored_meta(stream),
        inline,
        segments,
        stream.fork,
        stream.soft_deleted,
        stream.forks,
        stream.pinned,
        stream.earliest_ordinal,
    )


def _stored_meta(stream: Stream) -> dict[str, bytes]:
    if not stream.renewals:
        return stream.meta
    return {**stream.meta, RENEWALS: json.dumps(stream.renewals).encode()}


def _check_extent(row: Row) -> None:
    """Raise Damaged unless all bytes that a row promises are somewhere, without a gap."""
    # A trim takes whole segments, so the first may begin before what is promised.
    first = row.keep_from
    position = min(first, row.segments[0].base) if row.segments else first + len(row.inline or b"")
    for info in row.segments:
        if info.base != position:
            break
        position = info.end
    if position != row.tail:
        raise Damaged(
            f"Stream {row.path!r} should reach byte {row.tail} but its data ends at {position}. "
            "Run `penstock verify` and restore from a backup."
        )


def _values(row: Row) -> list[object]:
    by = None if row.closed_by is None else json.dumps(list(row.closed_by))
    return [
        row.id,
        row.path,
        row.config.content_type,
        row.config.ttl_s,
        row.config.expires_at_us,
        row.created_us,
        row.touched_us,
        row.deadline_us,
        row.earliest,
        row.tail,
        row.messages,
        int(row.closed),
        by,
        row.stream_seq,
        row.producer_total,
        row.applied_lsn,
        _encode_meta(row.meta),
        *_fork_values(row.fork),
        int(row.soft_deleted),
        row.forks,
        row.pinned,
        row.earliest_ordinal,
    ]


def _fork_values(fork: ForkPoint | None) -> tuple[object, ...]:
    return (None, None, None, None) if fork is None else tuple(fork)


def _encode_meta(meta: dict[str, bytes]) -> str | None:
    if not meta:
        return None
    return json.dumps({name: b64encode(value).decode() for name, value in sorted(meta.items())})


def _decode_meta(text: str | None) -> dict[str, bytes]:
    return {} if text is None else {name: b64decode(v) for name, v in json.loads(text).items()}


def checksum(
    values: Sequence[object], inline: bytes | None, segments: tuple[SegmentInfo, ...]
) -> int:
    """Return the checksum of a row and of its payload: the inline bytes, or the list of
    segments."""
    # SQLite returns an empty blob as NULL; both mean that there is no payload in the row.
    payload = inline or repr([tuple(info) for info in segments]).encode()
    if tuple(values[_PLAIN:]) == _UNUSED:
        values = values[:_PLAIN]
    return zlib.crc32(payload, zlib.crc32(repr(tuple(values)).encode()))


def decode(values: Sequence[Any], inline: bytes | None, segments: tuple[SegmentInfo, ...]) -> Row:
    by = None if values[12] is None else Producer(*json.loads(values[12]))
    fork, soft_deleted = values[_PLAIN : _PLAIN + 4], values[_PLAIN + 4]
    return Row._make(
        (
            values[0],
            values[1],
            StreamConfig(values[2], values[3], values[4]),
            *values[5:11],
            bool(values[11]),
            by,
            *values[13:16],
            _decode_meta(values[16]),
            inline,
            segments,
            None if fork[0] is None else ForkPoint._make(fork),
            bool(soft_deleted),
            *values[_PLAIN + 5 :],
        )
    )


def encode(rows: Sequence[Row]) -> tuple[str, bytes]:
    """Return rows as one JSON text, and their inline bytes as one blob that the rows point into."""
    items, blob = [], bytearray()
    for row in rows:
        values = _values(row)
        inline_range: list[int | None] = [None, None]
        if row.inline is not None:
            inline_range = [len(blob) + 1, len(row.inline)]
            blob += row.inline
        items.append([*values, checksum(values, row.inline, row.segments), *inline_range])
    return json.dumps(items), bytes(blob)
