"""The live form of one stream: what is durable, what is pending, and the bytes still in memory.

One object per active stream, owned by the event loop. The engine decides on the pending half, the
store advances the durable half, and nobody else writes to either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock.log.memory_tail import MemoryTail
from penstock.protocol.headers import Producer, is_json, is_text
from penstock.protocol.lifecycle import StreamConfig
from penstock.protocol.producer import ProducerState

if TYPE_CHECKING:
    from penstock.log.disk.segment import SegmentInfo

SUCCESSOR = "successor"
"""The name under which a stream carries the location of the one that it goes on in."""


class Watcher(Protocol):
    """Told on the event loop when a stream moves."""

    def advanced(self, start: int, end: int, wire: bytes, closed: bool) -> None: ...

    def ended(self) -> None: ...


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
        "closed",
        "closed_by",
        "config",
        "count",
        "created_us",
        "deleted",
        "deleting",
        "dirty_producers",
        "durable",
        "earliest",
        "earliest_ordinal",
        "fork",
        "forks",
        "hot",
        "id",
        "in_checkpoint",
        "in_flight",
        "is_dirty",
        "is_json",
        "is_text",
        "memory",
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

        self.memory = MemoryTail(self.own_start)
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
        """Advance the tail by bytes that have become durable, and keep them in memory."""
        if data:
            self.memory.add(self.tail, data, self.count, time_us)
            self.tail += len(data)
            self.count += count
        if time_us > self.touched_us:
            self.touched_us = time_us

    def set_producer(self, producer: Producer) -> None:
        if producer.id not in self.producers:
            self.producer_total += 1
        self.producers[producer.id] = ProducerState(producer.epoch, producer.seq)
        self.dirty_producers.add(producer.id)
