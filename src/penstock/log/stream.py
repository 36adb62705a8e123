"""A stream in memory: its durable half, its pending half, and where its bytes are.

One object per active stream, owned by the event loop. The engine decides on the pending half, the
store advances the durable half, and no other code writes to either.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple, Protocol

from mypy_extensions import mypyc_attr

from penstock.log.append_times import AppendTimes
from penstock.log.memory_tail import MemoryTail
from penstock.protocol.headers import Producer, is_json, is_text
from penstock.protocol.lifecycle import StreamConfig
from penstock.protocol.producer import ProducerState

if TYPE_CHECKING:
    from penstock.log.disk.segment import SegmentInfo

Renewals = tuple[tuple[int, int], ...]
"""(position, generation): after each position offsets are spelled with the generation."""

RENEWALS = "renewals"
"""The name of the meta value that holds a stream's renewals in the catalog."""

SUCCESSOR = "successor"
"""The name of the meta value that holds the location of the stream's successor."""


class Watcher(Protocol):
    """Called on the event loop when a stream advances or ends."""

    def advanced(self, start: int, end: int, wire: bytes, closed: bool) -> None: ...

    def ended(self) -> None: ...


class StreamInfo(NamedTuple):
    """A stream in a listing."""

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
    renewals: Renewals = ()


class ForkPoint(NamedTuple):
    """Where a fork leaves its source: everything before `position` belongs to the source."""

    source_id: int
    source_path: str
    position: int
    ordinal: int
    """Of a JSON stream: messages before `position`."""


def renewed(meta: dict[str, bytes], position: int, generation: int) -> dict[str, bytes]:
    """Return the stored meta values of a stream that goes on at `position` under a new
    generation."""
    renewals = [*decode_renewals(meta.get(RENEWALS)), (position, generation)]
    return {**meta, RENEWALS: json.dumps(renewals).encode()}


def decode_renewals(value: bytes | None) -> Renewals:
    return () if value is None else tuple((at, generation) for at, generation in json.loads(value))


class Deadline(NamedTuple):
    """When a stored stream expires, or was last touched."""

    time_us: int
    id: int
    path: str


@mypyc_attr(allow_interpreted_subclasses=True)  # of `HeldStream`
class Stream:
    """One stream in memory, in two halves.

    The durable half is what the store has made durable and applied; readers see it. The pending
    half (`pending_…`, `deleting`, `in_flight`) is what has been decided; decisions rest on it.
    `check_invariants` checks what the comments below say of the fields.
    """

    __slots__ = (
        "applied_lsn",
        "checked_producers",
        "closed",
        "closed_by",
        "config",
        "count",
        "counted_bytes",
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
        "offset_prefix",
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
        "renewals",
        "segments",
        "soft_deleted",
        "source",
        "stored_producers",
        "stream_seq",
        "tail",
        "times",
        "touched_us",
        "watchers",
    )

    # -- what never changes

    id: int
    """The generation: never used before in this store. A fork's is greater than its source's."""
    path: str
    config: StreamConfig
    created_us: int
    fork: ForkPoint | None
    """Where a fork left its source, None for any other stream."""
    offset_prefix: str
    """What all offsets of the stream's own positions begin with: its generation."""
    is_json: bool
    is_text: bool
    own_start: int
    """Position where a fork's own bytes begin; those before it are its source's. Else 0."""
    renewals: Renewals
    """Where the stream went on after the store was restored from a backup: what clients have of the
    time after the backup is of another generation."""

    # -- the durable half, advanced by `Mutation.apply` alone
    #    0 <= earliest <= tail, own_start <= tail, 0 <= earliest_ordinal <= count

    durable: bool
    """Whether the creation is durable. Nothing else of this half means anything before."""
    deleted: bool
    """Whether the stream is gone for good. Nothing else means anything afterwards."""
    soft_deleted: bool
    """Whether it was deleted, and is kept for its forks: forks > 0."""
    forks: int
    """Number of forks that read from this stream."""
    pinned: int | None
    """Position from which forks may read, whatever was trimmed; None if and only if forks == 0."""
    earliest: int
    """Position of the first byte that readers may have: what was trimmed is before it."""
    earliest_ordinal: int
    """Ordinal of the message at `earliest`; 0 in a stream of bytes."""
    tail: int
    """Position after the last byte."""
    count: int
    """Number of messages ever appended (of appends in a stream of bytes), the trimmed and the
    inherited ones included: the ordinal of the next one."""
    closed: bool
    closed_by: Producer | None
    """The producer and sequence that closed the stream, if they are known."""
    stream_seq: str | None
    """The last Stream-Seq."""
    meta: dict[str, bytes]
    """Named values. Replaced and never changed, because a checkpoint may hold the dict."""
    touched_us: int
    """Time of the last use, from which a TTL counts. Slides in memory between checkpoints."""
    applied_lsn: int
    """LSN of the last record that this half has; replay skips those up to it."""

    # -- the pending half, the engine's alone
    #    earliest <= pending_earliest <= pending_tail, tail <= pending_tail, count <= pending_count;
    #    equal to the durable half when in_flight == 0 (but for forks, which belong to a mutation of
    #    the fork)

    in_flight: int
    """Number of mutations that were submitted and are neither durable nor failed."""
    deleting: bool
    """Whether the end of the stream was decided: it takes no more changes."""
    pending_soft_deleted: bool
    pending_forks: int
    pending_earliest: int
    pending_earliest_ordinal: int
    pending_tail: int
    pending_count: int
    pending_closed: bool
    pending_closed_by: Producer | None
    pending_seq: str | None
    pending_meta: dict[str, bytes]
    pending_producers: dict[str, ProducerState]
    """The producers that mutations in flight have changed; the others are in `producers`."""
    previous: Stream | None
    """What was at the path before, until the creation is durable: readers still see that."""

    # -- producers

    producers: dict[str, ProducerState]
    """The durable states that are in memory; the catalog may have more."""
    dirty_producers: set[str]
    """Those of `producers` that the catalog does not have as they are."""
    producer_total: int
    """Number of durable producers, in memory or not: len(producers) <= producer_total."""
    stored_producers: bool
    """Whether the catalog has any producer of this stream."""
    checked_producers: bool
    """Whether the checksums of all producers in the catalog were seen to match."""

    # -- where the bytes are: segments, then memory, without a gap
    #    segments[-1].end == memory.start, if there are segments; memory.end == tail

    segments: tuple[SegmentInfo, ...]
    memory: MemoryTail
    times: AppendTimes
    source: Stream | None
    """The stream that a fork reads inherited bytes from, set while the fork is active."""

    # -- who uses it

    is_dirty: bool
    """Whether its catalog row is behind the durable half."""
    in_checkpoint: bool
    """Whether a checkpoint that runs writes its row."""
    hot: bool
    """Whether it was used since the last round of eviction."""
    watchers: dict[Watcher, None]
    counted_bytes: int | None
    """The bytes that quotas have counted for it; None before it is counted, and when it is gone."""

    def __init__(
        self,
        id: int,
        path: str,
        config: StreamConfig,
        created_us: int,
        *,
        fork: ForkPoint | None = None,
    ) -> None:
        self.id = id
        self.path = path
        self.config = config
        self.created_us = created_us
        self.fork = fork
        self.offset_prefix = f"{id:016d}_"
        self.is_json = is_json(config.content_type)
        self.is_text = is_text(config.content_type)
        self.own_start = self.tail = self.pending_tail = 0 if fork is None else fork.position
        self.count = self.pending_count = 0 if fork is None else fork.ordinal
        self.touched_us = created_us
        self.renewals = ()
        self.durable = self.deleted = self.soft_deleted = False
        self.forks = self.pending_forks = 0
        self.pinned = None
        self.earliest = self.pending_earliest = 0
        self.earliest_ordinal = self.pending_earliest_ordinal = 0
        self.closed = self.pending_closed = False
        self.closed_by = self.pending_closed_by = None
        self.stream_seq = self.pending_seq = None
        self.meta = self.pending_meta = {}
        self.applied_lsn = 0
        self.in_flight = 0
        self.deleting = self.pending_soft_deleted = False
        self.previous = self.source = None
        self.producers = {}
        self.pending_producers = {}
        self.dirty_producers = set()
        self.producer_total = 0
        self.stored_producers = self.checked_producers = False
        self.segments = ()
        self.memory = MemoryTail(self.own_start)
        self.times = AppendTimes(created_us // 1000)
        self.is_dirty = self.in_checkpoint = False
        self.hot = True
        self.watchers = {}
        self.counted_bytes = None

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
            self.renewals,
        )

    @property
    def is_gone(self) -> bool:
        """Whether the stream was deleted, though forks may still read what they inherited."""
        return self.deleted or self.soft_deleted

    @property
    def own_bytes(self) -> int:
        """Number of bytes retained here: inherited bytes belong to the source."""
        return self.tail - max(self.earliest, self.own_start)

    @property
    def own_messages(self) -> int:
        inherited = 0 if self.fork is None else self.fork.ordinal
        return self.count - max(self.earliest_ordinal, inherited)

    @property
    def keep_from(self) -> int:
        """Position before which no own bytes are needed, neither by readers nor by forks, which may
        have been made before a trim and still read what was trimmed."""
        first = self.earliest if self.pinned is None else min(self.earliest, self.pinned)
        return max(first, self.own_start)

    @property
    def held_bytes(self) -> int:
        """Number of own bytes that readers or forks may still read."""
        return self.tail - self.keep_from

    def landed(self) -> None:
        """One mutation less is in flight: it is durable."""
        self.in_flight -= 1
        if not self.in_flight and self.pending_producers:
            self.pending_producers = {}

    def reset_pending(self) -> None:
        """Discard what was decided but is not durable: pending is durable again."""
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
        if time_us > self.touched_us:
            self.touched_us = time_us
        if data:
            # Times never go back, whatever the clock does: they are searched by bisection.
            time_ms = self.touched_us // 1000
            if time_ms > self.times.last_ms:
                self.times.add(time_ms, self.tail)
            self.memory.add(self.tail, data, self.count, self.touched_us)
            self.tail += len(data)
            self.count += count

    def set_producer(self, producer: Producer) -> None:
        if producer.id not in self.producers:
            self.producer_total += 1
        self.producers[producer.id] = ProducerState(producer.epoch, producer.seq)
        self.dirty_producers.add(producer.id)

    def check_invariants(self) -> None:
        """Raise AssertionError if the fields contradict each other."""
        if self.deleted:
            return
        broken = [name for name, holds in self._invariants().items() if not holds]
        if broken:
            raise AssertionError(
                f"Stream {self.path!r} breaks {broken}. Pending: {self._pending()}, durable: "
                f"{self._durable()}, memory from {self.memory.start} to {self.memory.end}."
            )

    def _invariants(self) -> dict[str, bool]:
        segments, memory = self.segments, self.memory
        holds = {
            "0 <= earliest <= tail": 0 <= self.earliest <= self.tail,
            "own_start <= memory.start": self.own_start <= memory.start,
            "memory.start <= memory.end == tail": memory.start <= memory.end == self.tail,
            "segments end at memory": not segments or segments[-1].end == memory.start,
            "0 <= earliest_ordinal <= count": 0 <= self.earliest_ordinal <= self.count,
            "tail <= pending_tail": self.tail <= self.pending_tail,
            "count <= pending_count": self.count <= self.pending_count,
            "earliest <= pending_earliest <= pending_tail": self.earliest
            <= self.pending_earliest
            <= self.pending_tail,
            "closed: pending_closed": self.pending_closed or not self.closed,
            "0 <= in_flight": self.in_flight >= 0,
            "0 <= forks, pending_forks": self.forks >= 0 and self.pending_forks >= 0,
            "forks: pinned": (self.forks > 0) == (self.pinned is not None),
            "soft_deleted: forks": self.forks > 0 or not self.soft_deleted,
            "producers <= producer_total": len(self.producers) <= self.producer_total,
        }
        if self.in_flight == 0:
            holds["pending is durable"] = self._pending() == self._durable()
        return holds

    def _pending(self) -> tuple[object, ...]:
        return (
            self.deleting,
            self.pending_soft_deleted,
            self.pending_earliest,
            self.pending_earliest_ordinal,
            self.pending_tail,
            self.pending_count,
            self.pending_closed,
            self.pending_closed_by,
            self.pending_seq,
            self.pending_meta,
            self.pending_producers,
        )

    def _durable(self) -> tuple[object, ...]:
        return (
            self.soft_deleted,
            self.soft_deleted,
            self.earliest,
            self.earliest_ordinal,
            self.tail,
            self.count,
            self.closed,
            self.closed_by,
            self.stream_seq,
            self.meta,
            {},
        )
