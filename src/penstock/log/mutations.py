"""The changes to a stream, as values on their way to the journal.

A mutation is decided by the engine, made durable by a store, then applied to the durable half of
its stream, by the same code live and at recovery. Each is atomic, and they keep their order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.log import records
from penstock.log.append_record import encode_append
from penstock.log.receipt import Receipt
from penstock.log.stream import ForkPoint, Stream
from penstock.protocol.headers import Producer

if TYPE_CHECKING:
    from penstock.log.active import ActiveStreams
    from penstock.log.stats import EngineStats


class Entry(Receipt):
    """What a store takes in order, and the answer to it. `record` is empty if nothing is to be
    written."""

    __slots__ = ("record",)

    def __init__(self, record: bytes, result: Any) -> None:
        super().__init__(result)
        self.record = record


class Barrier(Entry):
    """Changes nothing; done when everything before it is durable."""

    __slots__ = ()

    def __init__(self, result: Any = None) -> None:
        super().__init__(b"", result)


class Mutation(Entry):
    """A change of a stream on its way to the journal.

    The class attributes say what a kind of change does, so that stores and observers need not know
    the kinds.
    """

    __slots__ = ("growth", "stream")
    stream: Stream
    growth: int
    """The bytes that the streams hold more than before, once this is applied. An append has none of
    these: they are its payload."""

    creates: ClassVar[bool] = False
    """Whether `stream` is new."""
    trims: ClassVar[bool] = False
    """Whether `stream` retains less than before."""
    ended: Sequence[Stream] = ()
    """The streams that take no more requests once this is committed. `Stream.deleted` distinguishes
    those that are gone from those that stay for their forks."""
    related: Sequence[Stream] = ()
    """The living streams beside `stream` that this changes."""

    @property
    def reserved(self) -> tuple[int, int]:
        """The streams and the bytes of payload that quotas were asked for."""
        return 0, 0

    def __init__(self, stream: Stream, record: bytes, result: Any) -> None:
        super().__init__(record, result)
        self.stream = stream

    def apply(self, lsn: int) -> None:
        """Make the durable half of the stream what this mutation says."""

    def committed(self, stats: EngineStats) -> None:
        """Count the mutation, and release what its decision had reserved: it is durable."""
        self.stream.landed()

    def undo(self, streams: ActiveStreams) -> None:
        """Take the decision back: the mutation never became durable."""
        _reset(self.stream)
        for stream in (*self.ended, *self.related):
            _reset(stream)


def mutations_of(entries: Sequence[Entry]) -> list[Mutation]:
    """Return the entries of a batch that change something."""
    return [entry for entry in entries if isinstance(entry, Mutation)]


def _reset(stream: Stream) -> None:
    if not stream.deleted:
        stream.reset_pending()


def _held(mutation: Mutation) -> int:
    """Return the bytes that are held for the streams of a mutation."""
    streams = {mutation.stream, *mutation.ended, *mutation.related}
    return sum([each.held_bytes for each in streams if each.durable and not each.deleted])


class TailMutation(Mutation):
    """A change that adds `payload`, `count` messages, at the tail; `start` is where it was."""

    __slots__ = ("count", "payload", "start", "time_us")
    start: int
    count: int
    time_us: int
    payload: bytes


class AppendMutation(TailMutation):
    """New bytes at the tail, a close, or both."""

    __slots__ = ("closes", "producer", "stream_seq")

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
        # All fields are set here: a call of the base class would cost every append.
        self.stream = stream
        self.result = result
        self.error = None
        self.is_done = False
        self.future = None
        self._then = None
        self.start = start
        self.count = count
        self.time_us = time_us
        self.payload = payload
        self.closes = closes
        self.producer = producer
        self.stream_seq = stream_seq
        self.record = encode_append(
            stream.id,
            start,
            count,
            time_us,
            payload,
            closes=closes,
            producer=producer,
            stream_seq=stream_seq,
        )

    @property
    def reserved(self) -> tuple[int, int]:
        return 0, len(self.payload)

    def apply(self, lsn: int) -> None:
        apply_append(self.stream, self, lsn)

    def committed(self, stats: EngineStats) -> None:
        stats.appends += 1
        stats.append_messages += self.count
        stats.append_bytes += len(self.payload)
        self.stream.landed()


class CreateMutation(Mutation):
    """A new stream with its first bytes; `replaces` is an expired one deleted in the same step,
    `source` the stream that it is a fork of."""

    __slots__ = ("ended", "meta", "payload", "related", "replaces", "source")
    creates = True

    def __init__(
        self,
        stream: Stream,
        result: Any,
        *,
        payload: bytes,
        count: int,
        closed: bool,
        replaces: Stream | None,
        source: Stream | None = None,
    ) -> None:
        self.payload = payload
        self.replaces = replaces
        self.source = source
        self.ended = () if replaces is None else (replaces,)
        self.related = () if source is None else (source,)
        self.meta = records.CreateMeta(
            path=stream.path,
            content_type=stream.config.content_type,
            created_us=stream.created_us,
            ttl_s=stream.config.ttl_s,
            expires_at_us=stream.config.expires_at_us,
            closed=closed,
            count=count,
            replaces=None if replaces is None else replaces.id,
            **({} if stream.fork is None else _fork_fields(stream, stream.fork)),
        )
        super().__init__(stream, records.encode_create(stream.id, self.meta, payload), result)

    @property
    def reserved(self) -> tuple[int, int]:
        # What an expired stream had is free for the one that replaces it.
        return int(self.replaces is None), len(self.payload)

    def apply(self, lsn: int) -> None:
        before = _held(self)
        if self.replaces is not None:
            self.replaces.deleted = True
        apply_create(self.stream, self.meta, self.payload, lsn)
        if self.source is not None:
            apply_forked(self.source, self.meta, lsn)
        self.growth = _held(self) - before

    def committed(self, stats: EngineStats) -> None:
        stats.creates += 1
        stats.added_streams += self.replaces is None
        stats.added_bytes += self.growth
        stats.forks += self.source is not None
        self.stream.previous = None
        self.stream.landed()

    def undo(self, streams: ActiveStreams) -> None:
        streams.undo(self.stream)
        super().undo(streams)


class DeleteMutation(Mutation):
    """The end of a stream. A soft one keeps its bytes for its forks. The other one takes `cascade`
    with it, the soft-deleted streams whose last fork it was, and `released` has one fork less."""

    __slots__ = ("cascade", "ended", "expired", "related", "released", "soft")

    def __init__(
        self,
        stream: Stream,
        result: Any,
        *,
        time_us: int,
        expired: bool,
        soft: bool = False,
        cascade: Sequence[Stream] = (),
        released: Stream | None = None,
    ) -> None:
        self.expired = expired
        self.soft = soft
        self.cascade = cascade
        self.released = released
        self.ended = (stream, *cascade)
        self.related = () if released is None else (released,)
        record = records.encode_delete(
            stream.id,
            time_us,
            expired=expired,
            soft=soft,
            released=0 if released is None else released.id,
            cascade=[each.id for each in cascade],
        )
        super().__init__(stream, record, result)

    def apply(self, lsn: int) -> None:
        self.growth = 0
        if self.soft:
            apply_soft_delete(self.stream, lsn)
            return
        before = _held(self)
        for each in self.ended:
            each.deleted = True
            each.applied_lsn = lsn
        if self.released is not None:
            apply_released(self.released, lsn)
        self.growth = _held(self) - before

    def committed(self, stats: EngineStats) -> None:
        stats.deletes += 1
        stats.added_streams -= 1
        stats.added_bytes += self.growth
        stats.expired += self.expired
        for each in self.ended:
            each.landed()


class TrimMutation(Mutation):
    """Nothing before `position` is retained any more."""

    __slots__ = ("ordinal", "position")
    trims = True

    def __init__(
        self, stream: Stream, result: Any, *, position: int, ordinal: int, time_us: int
    ) -> None:
        self.position = position
        self.ordinal = ordinal
        super().__init__(stream, records.encode_trim(stream.id, position, ordinal, time_us), result)

    def apply(self, lsn: int) -> None:
        before = _held(self)
        apply_trim(self.stream, self, lsn)
        self.growth = _held(self) - before

    def committed(self, stats: EngineStats) -> None:
        stats.trims += 1
        stats.added_bytes += self.growth
        self.stream.landed()


class SnapshotMutation(TailMutation):
    """Messages at the tail that stand for all before them, which are retained no more."""

    __slots__ = ("ordinal",)
    trims = True

    def __init__(
        self,
        stream: Stream,
        result: Any,
        *,
        start: int,
        count: int,
        time_us: int,
        ordinal: int,
        payload: bytes,
    ) -> None:
        self.start = start
        self.count = count
        self.time_us = time_us
        self.ordinal = ordinal
        self.payload = payload
        record = records.encode_snapshot(stream.id, start, count, time_us, ordinal, payload)
        super().__init__(stream, record, result)

    def apply(self, lsn: int) -> None:
        before = _held(self)
        apply_snapshot(self.stream, self, lsn)
        self.growth = _held(self) - before

    def committed(self, stats: EngineStats) -> None:
        stats.compactions += 1
        stats.added_bytes += self.growth
        self.stream.landed()


class MetaMutation(Mutation):
    """A named value of the stream; None removes it."""

    __slots__ = ("name", "value")

    def __init__(self, stream: Stream, result: Any, *, name: str, value: bytes | None) -> None:
        self.name = name
        self.value = value
        super().__init__(stream, records.encode_meta(stream.id, name, value), result)

    def apply(self, lsn: int) -> None:
        apply_meta(self.stream, self, lsn)


def apply_append(stream: Stream, change: AppendMutation | records.AppendRecord, lsn: int) -> None:
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
    stream.earliest, stream.earliest_ordinal = meta.earliest, meta.earliest_ordinal
    stream.add_bytes(payload, meta.count, meta.created_us)
    stream.closed = meta.closed
    stream.applied_lsn = lsn


def _fork_fields(stream: Stream, fork: ForkPoint) -> dict[str, Any]:
    return {
        "source_id": fork.source_id,
        "source_path": fork.source_path,
        "fork_position": fork.position,
        "fork_count": fork.ordinal,
        "earliest": stream.pending_earliest,
        "earliest_ordinal": stream.pending_earliest_ordinal,
    }


def apply_forked(source: Stream, meta: records.CreateMeta, lsn: int) -> None:
    """Count a fork. The first one pins all that the source retains; later ones need no more."""
    source.forks += 1
    if source.pinned is None:
        source.pinned = meta.earliest
    source.applied_lsn = lsn


def apply_released(source: Stream, lsn: int) -> None:
    source.forks -= 1
    if source.forks == 0:
        source.pinned = None
    source.applied_lsn = lsn


def apply_soft_delete(stream: Stream, lsn: int) -> None:
    stream.soft_deleted = True
    stream.applied_lsn = lsn


def apply_trim(stream: Stream, change: TrimMutation | records.TrimRecord, lsn: int) -> None:
    stream.earliest, stream.earliest_ordinal = change.position, change.ordinal
    stream.applied_lsn = lsn


def apply_snapshot(
    stream: Stream, change: SnapshotMutation | records.SnapshotRecord, lsn: int
) -> None:
    touched_us = stream.touched_us
    stream.memory.open_segment()
    stream.add_bytes(change.payload, change.count, change.time_us)
    # A compaction is no use of the stream, and must not put off its expiry.
    stream.touched_us = touched_us
    stream.earliest, stream.earliest_ordinal = change.start, change.ordinal
    stream.applied_lsn = lsn


def apply_meta(stream: Stream, change: MetaMutation | records.MetaRecord, lsn: int) -> None:
    stream.meta = with_meta(stream.meta, change.name, change.value)
    stream.applied_lsn = lsn


def with_meta(meta: dict[str, bytes], name: str, value: bytes | None) -> dict[str, bytes]:
    """Return a new dict, because the plan of a running checkpoint may hold the old one."""
    others = {key: other for key, other in meta.items() if key != name}
    return others if value is None else {**others, name: value}


_APPLY: dict[type, Callable[[Stream, Any, int], None]] = {
    records.AppendRecord: apply_append,
    records.MetaRecord: apply_meta,
    records.SnapshotRecord: apply_snapshot,
    records.TrimRecord: apply_trim,
}


def apply_record(stream: Stream, record: records.Record, lsn: int) -> None:
    """Apply a record that changes one stream and neither creates nor deletes it."""
    _APPLY[type(record)](stream, record, lsn)
