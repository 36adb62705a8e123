"""What can be done to a stream, as values on their way to the journal.

A mutation is decided by the engine, made durable by a store, then applied here to the stream's
durable half: live and at recovery by the same code. Each is atomic, and they keep their order.
"""

from __future__ import annotations

import asyncio
from typing import Any

from penstock.log import records
from penstock.log.stream import Stream
from penstock.protocol.headers import Producer


class Mutation:
    __slots__ = ("future", "record", "result", "stream")

    def __init__(self, stream: Stream | None, record: bytes, result: Any) -> None:
        self.stream = stream
        self.record = record
        self.result = result
        self.future: asyncio.Future[Any] | None = None

    def apply(self, lsn: int) -> None:
        """Make the stream's durable half what this mutation says."""


class Barrier(Mutation):
    """Changes nothing; done when everything before it is durable."""

    __slots__ = ()

    def __init__(self, result: Any = None) -> None:
        super().__init__(None, b"", result)


class Append(Mutation):
    __slots__ = ("closes", "count", "payload", "producer", "start", "stream_seq", "time_us")
    stream: Stream

    def __init__(
        self,
        stream: Stream,
        result: Any,
        *,
        start: int,
        count: int,
        time_us: int,
        payload: bytes,
        closes: bool,
        producer: Producer | None,
        stream_seq: str | None,
    ) -> None:
        self.start = start
        self.count = count
        self.time_us = time_us
        self.payload = payload
        self.closes = closes
        self.producer = producer
        self.stream_seq = stream_seq
        record = records.encode_append(
            stream.id,
            start,
            count,
            time_us,
            payload,
            closes=closes,
            producer=producer,
            stream_seq=stream_seq,
        )
        super().__init__(stream, record, result)

    def apply(self, lsn: int) -> None:
        apply_append(self.stream, self, lsn)


class Create(Mutation):
    """A new stream with its first bytes; `replaces` is an expired one deleted in the same step."""

    __slots__ = ("meta", "payload", "replaces")
    stream: Stream

    def __init__(
        self,
        stream: Stream,
        result: Any,
        *,
        payload: bytes,
        count: int,
        closed: bool,
        replaces: Stream | None,
    ) -> None:
        self.payload = payload
        self.replaces = replaces
        self.meta = records.CreateMeta(
            path=stream.path,
            content_type=stream.config.content_type,
            created_us=stream.created_us,
            ttl_s=stream.config.ttl_s,
            expires_at_us=stream.config.expires_at_us,
            closed=closed,
            count=count,
            replaces=None if replaces is None else replaces.id,
        )
        super().__init__(stream, records.encode_create(stream.id, self.meta, payload), result)

    def apply(self, lsn: int) -> None:
        if self.replaces is not None:
            self.replaces.deleted = True
        apply_create(self.stream, self.meta, self.payload, lsn)


class Delete(Mutation):
    __slots__ = ("expired",)
    stream: Stream

    def __init__(self, stream: Stream, result: Any, *, time_us: int, expired: bool) -> None:
        self.expired = expired
        record = records.encode_delete(stream.id, time_us, expired=expired)
        super().__init__(stream, record, result)

    def apply(self, lsn: int) -> None:
        self.stream.deleted = True
        self.stream.applied_lsn = lsn


class SetMeta(Mutation):
    """A named value kept with the stream; None takes it away."""

    __slots__ = ("name", "value")
    stream: Stream

    def __init__(self, stream: Stream, result: Any, *, name: str, value: bytes | None) -> None:
        self.name = name
        self.value = value
        super().__init__(stream, records.encode_meta(stream.id, name, value), result)

    def apply(self, lsn: int) -> None:
        apply_meta(self.stream, self, lsn)


def apply_append(stream: Stream, change: Append | records.AppendRecord, lsn: int) -> None:
    stream.add_bytes(change.payload, change.count, change.time_us)
    if change.producer is not None:
        stream.set_producer(change.producer)
    if change.stream_seq is not None:
        stream.stream_seq = change.stream_seq
    if change.closes:
        stream.closed = True
        stream.closed_by = change.producer
    stream.applied_lsn = lsn


def apply_create(stream: Stream, meta: records.CreateMeta, payload: bytes, lsn: int) -> None:
    stream.durable = True
    stream.add_bytes(payload, meta.count, meta.created_us)
    stream.closed = meta.closed
    stream.applied_lsn = lsn


def apply_meta(stream: Stream, change: SetMeta | records.MetaRecord, lsn: int) -> None:
    stream.meta = with_meta(stream.meta, change.name, change.value)
    stream.applied_lsn = lsn


def with_meta(meta: dict[str, bytes], name: str, value: bytes | None) -> dict[str, bytes]:
    """A new dict: plans of a checkpoint that runs may hold the old one."""
    changed = {key: known for key, known in meta.items() if key != name}
    return changed if value is None else {**changed, name: value}
