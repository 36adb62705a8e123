"""Journal records: mutations as bytes.

A record is ``length u32 · kind u8 · flags u8 · reserved u16 · stream id u64 · body``. Kind 8 is
reserved for bodies in a side file. `append_record` encodes appends.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import msgspec

from penstock.log.append_record import (
    APPEND,
    APPEND_HEAD,
    CLOSES,
    HAS_PRODUCER,
    HAS_SEQ,
    PRODUCER_HEAD,
    RECORD_HEAD,
    SHORT,
)
from penstock.log.stream import ForkPoint
from penstock.protocol.headers import Producer
from penstock.protocol.lifecycle import StreamConfig

CREATE, DELETE, FORK, TRIM, META, SNAPSHOT = 1, 3, 5, 6, 7, 9
RESERVED_KINDS = {8: "indirect"}

EXPIRED, SOFT, RELEASES = 1, 2, 4
REMOVES = 1

_LONG = struct.Struct("<I")
_RELEASES = struct.Struct("<QH")
_TRIM = struct.Struct("<QQQ")
_SNAPSHOT = struct.Struct("<QIQQ")


class CreateMeta(msgspec.Struct, frozen=True, omit_defaults=True):
    """The JSON part of a create or fork record; `source…` and `fork…` are in fork records only."""

    path: str
    content_type: str
    created_us: int
    ttl_s: int | None = None
    expires_at_us: int | None = None
    closed: bool = False
    count: int = 0
    replaces: int | None = None
    source_id: int | None = None
    source_path: str = ""
    fork_position: int = 0
    fork_count: int = 0
    earliest: int = 0
    earliest_ordinal: int = 0

    @property
    def fork(self) -> ForkPoint | None:
        if self.source_id is None:
            return None
        return ForkPoint(self.source_id, self.source_path, self.fork_position, self.fork_count)

    @property
    def config(self) -> StreamConfig:
        return StreamConfig(self.content_type, self.ttl_s, self.expires_at_us)


class StreamRecord(msgspec.Struct, frozen=True):
    """What all records have: the stream that they are about."""

    stream_id: int

    @property
    def required_ids(self) -> tuple[int, ...]:
        """The streams that have to exist before this record."""
        return (self.stream_id,)

    @property
    def ended_ids(self) -> tuple[int, ...]:
        """The streams that take no more requests after this record."""
        return ()


class CreateRecord(StreamRecord, frozen=True):
    meta: CreateMeta
    payload: bytes

    @property
    def required_ids(self) -> tuple[int, ...]:
        return () if self.meta.source_id is None else (self.meta.source_id,)

    @property
    def ended_ids(self) -> tuple[int, ...]:
        return () if self.meta.replaces is None else (self.meta.replaces,)


class AppendRecord(StreamRecord, frozen=True):
    start: int
    count: int
    time_us: int
    closes: bool
    producer: Producer | None
    stream_seq: str | None
    payload: bytes


class DeleteRecord(StreamRecord, frozen=True):
    """With `soft` the bytes stay for forks. Otherwise `cascade` are the soft-deleted streams that
    are deleted with it, and `released` is the source that has one fork less (0: none)."""

    time_us: int
    expired: bool
    soft: bool = False
    released: int = 0
    cascade: tuple[int, ...] = ()

    @property
    def required_ids(self) -> tuple[int, ...]:
        """None: the row and the first records of a stream may be gone when it is deleted."""
        return ()

    @property
    def ended_ids(self) -> tuple[int, ...]:
        return (self.stream_id, *self.cascade)


class TrimRecord(StreamRecord, frozen=True):
    """Nothing before `position`, message `ordinal` of a JSON stream, is retained any more."""

    position: int
    ordinal: int
    time_us: int


class MetaRecord(StreamRecord, frozen=True):
    """A named value of a stream; None removes it."""

    name: str
    value: bytes | None


class SnapshotRecord(StreamRecord, frozen=True):
    """Messages that stand for all before them: appended at `start`, the first as message `ordinal`;
    nothing before `start` is retained any more."""

    start: int
    count: int
    time_us: int
    ordinal: int
    payload: bytes


Record = CreateRecord | AppendRecord | DeleteRecord | TrimRecord | MetaRecord | SnapshotRecord

_encode_meta = msgspec.json.Encoder().encode
_decode_meta = msgspec.json.Decoder(CreateMeta).decode


def encode_create(stream_id: int, meta: CreateMeta, payload: bytes) -> bytes:
    text = _encode_meta(meta)
    # A kind of its own, so that a Penstock without forks refuses it instead of losing the source.
    kind = CREATE if meta.source_id is None else FORK
    length = RECORD_HEAD.size + _LONG.size + len(text) + len(payload)
    return b"".join(
        (RECORD_HEAD.pack(length, kind, 0, 0, stream_id), _LONG.pack(len(text)), text, payload)
    )


def encode_delete(
    stream_id: int,
    time_us: int,
    *,
    expired: bool,
    soft: bool = False,
    released: int = 0,
    cascade: Sequence[int] = (),
) -> bytes:
    flags = (EXPIRED if expired else 0) | (SOFT if soft else 0)
    extra = b""
    if released or cascade:
        flags |= RELEASES
        extra = _RELEASES.pack(released, len(cascade)) + struct.pack(f"<{len(cascade)}Q", *cascade)
    head = RECORD_HEAD.pack(RECORD_HEAD.size + 8 + len(extra), DELETE, flags, 0, stream_id)
    return head + time_us.to_bytes(8, "little") + extra


def encode_trim(stream_id: int, position: int, ordinal: int, time_us: int) -> bytes:
    head = RECORD_HEAD.pack(RECORD_HEAD.size + _TRIM.size, TRIM, 0, 0, stream_id)
    return head + _TRIM.pack(position, ordinal, time_us)


def encode_snapshot(
    stream_id: int, start: int, count: int, time_us: int, ordinal: int, payload: bytes
) -> bytes:
    length = RECORD_HEAD.size + _SNAPSHOT.size + len(payload)
    head = RECORD_HEAD.pack(length, SNAPSHOT, 0, 0, stream_id)
    return b"".join((head, _SNAPSHOT.pack(start, count, time_us, ordinal), payload))


def encode_meta(stream_id: int, name: str, value: bytes | None) -> bytes:
    text = name.encode()
    length = RECORD_HEAD.size + SHORT.size + len(text) + len(value or b"")
    head = RECORD_HEAD.pack(length, META, REMOVES if value is None else 0, 0, stream_id)
    return b"".join((head, SHORT.pack(len(text)), text, value or b""))


def decode_records(body: bytes) -> Iterator[Record]:
    """Yield the records of one batch body. ValueError for anything this version cannot read."""
    try:
        yield from _decode_records(body)
    except struct.error as error:
        raise ValueError(f"a record is cut short: {error}") from None


def _decode_records(body: bytes) -> Iterator[Record]:
    position = 0
    while position < len(body):
        length, kind, flags, _, stream_id = RECORD_HEAD.unpack_from(body, position)
        if length < RECORD_HEAD.size or position + length > len(body):
            raise ValueError(f"record at {position} claims {length} bytes")
        start, end = position + RECORD_HEAD.size, position + length
        if kind == APPEND:
            yield _decode_append(body, stream_id, flags, start, end)
        elif kind in (CREATE, FORK):
            (size,) = _LONG.unpack_from(body, start)
            start += _LONG.size
            meta = _decode_meta(body[start : start + size])
            yield CreateRecord(stream_id, meta, body[start + size : end])
        elif kind == DELETE:
            yield _decode_delete(body, stream_id, flags, start)
        elif kind == TRIM:
            yield TrimRecord(stream_id, *_TRIM.unpack_from(body, start))
        elif kind == SNAPSHOT:
            first, count, time_us, ordinal = _SNAPSHOT.unpack_from(body, start)
            payload = body[start + _SNAPSHOT.size : end]
            yield SnapshotRecord(stream_id, first, count, time_us, ordinal, payload)
        elif kind == META:
            (size,) = SHORT.unpack_from(body, start)
            start += SHORT.size
            value = None if flags & REMOVES else body[start + size : end]
            yield MetaRecord(stream_id, body[start : start + size].decode(), value)
        else:
            name = RESERVED_KINDS.get(kind, "unknown")
            raise ValueError(f"record kind {kind} ({name}) needs a newer Penstock")
        position = end


def _decode_delete(body: bytes, stream_id: int, flags: int, start: int) -> DeleteRecord:
    time_us = int.from_bytes(body[start : start + 8], "little")
    released, cascade = 0, ()
    if flags & RELEASES:
        released, count = _RELEASES.unpack_from(body, start + 8)
        cascade = struct.unpack_from(f"<{count}Q", body, start + 8 + _RELEASES.size)
    expired, soft = bool(flags & EXPIRED), bool(flags & SOFT)
    return DeleteRecord(stream_id, time_us, expired, soft, released, cascade)


def _decode_append(body: bytes, stream_id: int, flags: int, at: int, end: int) -> AppendRecord:
    start, count, time_us = APPEND_HEAD.unpack_from(body, at)
    at += APPEND_HEAD.size
    producer = None
    if flags & HAS_PRODUCER:
        size, epoch, seq = PRODUCER_HEAD.unpack_from(body, at)
        at += PRODUCER_HEAD.size
        producer = Producer(body[at : at + size].decode(), epoch, seq)
        at += size
    stream_seq = None
    if flags & HAS_SEQ:
        (size,) = SHORT.unpack_from(body, at)
        at += SHORT.size
        stream_seq = body[at : at + size].decode()
        at += size
    return AppendRecord(
        stream_id, start, count, time_us, bool(flags & CLOSES), producer, stream_seq, body[at:end]
    )
