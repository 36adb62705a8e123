"""The live form of one stream: what is durable, what is pending, and the bytes still in memory.

One object per active stream, owned by the event loop. The engine decides on the pending half, the
store advances the durable half, and nobody else writes to either.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock.protocol.headers import Producer, is_json, is_text
from penstock.protocol.lifecycle import StreamConfig
from penstock.protocol.producer import ProducerState

if TYPE_CHECKING:
    from penstock.log.disk.segment import SegmentInfo
    from penstock.log.stats import StoreStats

CHUNK_BYTES_MAX = 16 * 1024
"""Small appends are gathered into chunks of about this size, so that memory follows the bytes."""
SUCCESSOR = "successor"
"""The name under which a stream carries the location of the one that it goes on in."""


class Watcher(Protocol):
    """Told on the event loop when a stream moves."""

    def advanced(self, start: int, end: int, wire: bytes, closed: bool) -> None: ...

    def ended(self) -> None: ...


class Chunk:
    """Consecutive bytes of a stream's memory tail, with the ordinal and time of their first one."""

    __slots__ = ("data", "opens_segment", "ordinal", "sealed", "start", "time_us")

    def __init__(
        self, start: int, data: bytes, ordinal: int, time_us: int, *, opens_segment: bool = False
    ) -> None:
        self.start = start
        self.data: bytes | bytearray = data
        self.ordinal = ordinal
        self.time_us = time_us
        self.sealed = len(data) >= CHUNK_BYTES_MAX
        self.opens_segment = opens_segment


class StreamInfo(NamedTuple):
    """What a listing says of a stream."""

    path: str
    id: int
    content_type: str
    tail: int
    messages: int
    closed: bool
    created_us: int
    touched_us: int
    ttl_s: int | None
    expires_at_us: int | None
    earliest: int = 0
    earliest_ordinal: int = 0
    forked_from: str | None = None


class ForkPoint(NamedTuple):
    """Where a fork leaves its source: everything before `position` is the source's."""

    source_id: int
    source_path: str
    position: int
    ordinal: int
    """Of a JSON stream: messages before `position`."""


class Deadline(NamedTuple):
    """When a stored stream's time is over."""

    time_us: int
    id: int
    path: str


class Stream:
    __slots__ = (
        "__weakref__",
        "applied_lsn",
        "begins_segment",
        "chunks",
        "closed",
        "closed_by",
        "config",
        "count",
        "counted_in",
        "created_us",
        "deleted",
        "deleting",
        "dirty_producers",
        "durable",
        "earliest",
        "earliest_ordinal",
        "flushed",
        "fork",
        "forks",
        "hot",
        "id",
        "in_checkpoint",
        "in_flight",
        "is_dirty",
        "is_json",
        "is_text",
        "meta",
        "own_start",
        "path",
        "pending_closed",
        "pending_closed_by",
        "pending_count",
        "pending_earliest",
        "pending_earliest_ordinal",
        "pending_forks",
        "pending_meta",
        "pending_producers",
        "pending_seq",
        "pending_soft_deleted",
        "pending_tail",
        "pinned",
        "previous",
        "producer_total",
        "producers",
        "segments",
        "soft_deleted",
        "source",
        "stored_producers",
        "stream_seq",
        "tail",
        "touched_us",
        "watchers",
    )

    def __init__(
        self,
        stream_id: int,
        path: str,
        config: StreamConfig,
        created_us: int,
        *,
        fork: ForkPoint | None = None,
    ) -> None:
        self.id = stream_id
        self.path = path
        self.config = config
        self.is_json = is_json(config.content_type)
        self.is_text = is_text(config.content_type)
        self.created_us = created_us
        self.touched_us = created_us

        self.durable = False
        self.deleted = False
        # A fork's own bytes begin where it left its source; before there it reads the source's.
        # The object is found when the fork becomes active.
        self.fork = fork
        self.source: Stream | None = None
        self.own_start = 0 if fork is None else fork.position
        self.forks = 0
        self.pinned: int | None = None
        self.soft_deleted = False
        self.earliest = 0
        self.earliest_ordinal = 0
        self.tail = self.own_start
        self.count = 0 if fork is None else fork.ordinal
        self.closed = False
        self.closed_by: Producer | None = None
        self.stream_seq: str | None = None
        self.meta: dict[str, bytes] = {}
        self.applied_lsn = 0

        self.deleting = False
        self.in_flight = 0
        self.pending_forks = 0
        self.pending_soft_deleted = False
        self.pending_earliest = 0
        self.pending_earliest_ordinal = 0
        self.pending_tail = self.tail
        self.pending_count = self.count
        self.pending_closed = False
        self.pending_closed_by: Producer | None = None
        self.pending_seq: str | None = None
        self.pending_meta = self.meta
        self.pending_producers: dict[str, ProducerState] = {}
        self.previous: Stream | None = None

        self.producers: dict[str, ProducerState] = {}
        self.dirty_producers: set[str] = set()
        self.stored_producers = False
        self.producer_total = 0

        self.chunks: list[Chunk] = []
        self.counted_in: StoreStats | None = None
        self.begins_segment = False
        self.flushed = self.own_start
        self.segments: tuple[SegmentInfo, ...] = ()
        self.is_dirty = False
        self.in_checkpoint = False
        self.hot = True
        self.watchers: dict[Watcher, None] = {}

    def info(self) -> StreamInfo:
        return StreamInfo(
            self.path,
            self.id,
            self.config.content_type,
            self.tail,
            self.count,
            self.closed,
            self.created_us,
            self.touched_us,
            self.config.ttl_s,
            self.config.expires_at_us,
            self.earliest,
            self.earliest_ordinal,
            None if self.fork is None else self.fork.source_path,
        )

    @property
    def is_gone(self) -> bool:
        """Nobody may use it any more, though forks may still read what they inherited."""
        return self.deleted or self.soft_deleted

    @property
    def own_bytes(self) -> int:
        """What is retained here: inherited bytes are the source's."""
        return self.tail - max(self.earliest, self.own_start)

    @property
    def own_messages(self) -> int:
        inherited = 0 if self.fork is None else self.fork.ordinal
        return self.count - max(self.earliest_ordinal, inherited)

    @property
    def keep_from(self) -> int:
        """Bytes of its own before this position are needed by nobody: not by readers, and not by
        forks, which may be made before a trim and read what it took from the source's readers."""
        wanted = self.earliest if self.pinned is None else min(self.earliest, self.pinned)
        return max(wanted, self.own_start)

    def landed(self) -> None:
        """One mutation less is in flight: it is durable."""
        self.in_flight -= 1
        if not self.in_flight and self.pending_producers:
            self.pending_producers = {}

    def reset_pending(self) -> None:
        """Forget what was decided but is not durable: pending is durable again."""
        self.in_flight = 0
        self.deleting = self.pending_soft_deleted = self.soft_deleted
        self.pending_forks = self.forks
        self.pending_earliest = self.earliest
        self.pending_earliest_ordinal = self.earliest_ordinal
        self.pending_tail = self.tail
        self.pending_count = self.count
        self.pending_closed = self.closed
        self.pending_closed_by = self.closed_by
        self.pending_seq = self.stream_seq
        self.pending_meta = self.meta
        self.pending_producers = {}

    def add_bytes(self, data: bytes, count: int, time_us: int) -> None:
        """Durable bytes enter the memory tail."""
        if data:
            last = self.chunks[-1] if self.chunks else None
            if last is None or last.sealed or len(data) >= CHUNK_BYTES_MAX:
                self.chunks.append(
                    Chunk(
                        *(self.tail, data, self.count, time_us), opens_segment=self.begins_segment
                    )
                )
                self.begins_segment = False
            else:
                if isinstance(last.data, bytes):
                    last.data = bytearray(last.data)
                last.data += data
                last.sealed = len(last.data) >= CHUNK_BYTES_MAX
            self.tail += len(data)
            self.count += count
            if self.counted_in is not None:
                self.counted_in.memory_bytes += len(data)
        self.touched_us = max(self.touched_us, time_us)

    def begin_segment(self) -> None:
        """What comes next starts a segment file, so that those before it can go without it."""
        if self.chunks:
            self.chunks[-1].sealed = True
        self.begins_segment = True

    def set_producer(self, producer: Producer) -> None:
        if producer.id not in self.producers:
            self.producer_total += 1
        self.producers[producer.id] = ProducerState(producer.epoch, producer.seq)
        self.dirty_producers.add(producer.id)

    def memory_bytes(self) -> int:
        return self.tail - self.flushed

    def count_memory(self, stats: StoreStats) -> None:
        """Add the memory tail to `stats` and keep the sum true until `discount_memory`."""
        if self.counted_in is None:
            self.counted_in = stats
            stats.memory_bytes += self.memory_bytes()

    def discount_memory(self) -> None:
        if self.counted_in is not None:
            self.counted_in.memory_bytes -= self.memory_bytes()
            self.counted_in = None

    def read_memory(self, start: int, end: int) -> bytes:
        """Bytes [start, end), all of them at or after `flushed`."""
        chunks = self.chunks
        index = bisect_right(chunks, start, key=_start) - 1
        parts: list[memoryview] = []
        while start < end:
            chunk = chunks[index]
            offset = start - chunk.start
            # Views, so that the bytes are copied once; gone before a chunk can grow again.
            part = memoryview(chunk.data)[offset : offset + end - start]
            parts.append(part)
            start += len(part)
            index += 1
        return b"".join(parts)

    def drop_memory(self, flushed: int) -> None:
        """Bytes before `flushed` are in segments now."""
        if self.counted_in is not None:
            self.counted_in.memory_bytes -= flushed - self.flushed
        self.flushed = flushed
        del self.chunks[: self._whole_chunks(flushed)]

    def drop_chunks(self, position: int) -> None:
        """Drop the chunks that end at or before `position`; the others stay whole."""
        index = self._whole_chunks(position)
        self.drop_memory(self.chunks[index].start if index < len(self.chunks) else position)

    def _whole_chunks(self, position: int) -> int:
        """Return how many chunks end at or before `position`."""
        index = bisect_right(self.chunks, position, key=_start)
        if index and self.chunks[index - 1].start + len(self.chunks[index - 1].data) > position:
            index -= 1
        return index


def _start(chunk: Chunk) -> int:
    return chunk.start
