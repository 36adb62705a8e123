"""The interface between the engine and the stores: one protocol, one contract test suite.

Decisions, framing and waiting belong to the engine; a store makes mutations durable in order,
reads bytes, and loads streams that are not in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from penstock.errors import PenstockError
from penstock.log.mutations import Entry, Mutation
from penstock.log.stats import StoreStats, Totals
from penstock.log.stream import Deadline, Stream, StreamInfo
from penstock.protocol.producer import ProducerState


class Health(NamedTuple):
    ready: bool
    writable: bool
    reason: str | None


class Sizes(NamedTuple):
    """The paths and the bytes of streams with ascending ids; `last_id` is where the next page
    begins, None after the last."""

    sizes: list[tuple[str, int]]
    last_id: int | None


class Observer(Protocol):
    """The callbacks of a store, on the event loop. A batch is without its barriers."""

    def committed(self, batch: Sequence[Mutation]) -> None:
        """The batch is durable and applied; its futures are about to be resolved."""

    def failed(self, batch: Sequence[Mutation], error: PenstockError) -> None:
        """The batch failed as a whole; pending state has to be reset."""


class Store(Protocol):
    stats: StoreStats
    restore_generation: int
    """The generation of the last restore from a backup, 0 if there was none."""

    async def open(self, observer: Observer) -> list[Stream]:
        """Recover; return the streams that are active from the start."""

    async def close(self, *, timeout_s: float | None = None) -> None:
        """Make everything durable and release the folder.

        After `timeout_s` what is queued is not waited for, and the last checkpoint is abandoned:
        everything that was acknowledged is in the journal.
        """

    def next_id(self) -> int:
        """Return a generation that was never used before."""

    needs_fetch: bool
    """Whether streams have to be fetched before they can be loaded: a store behind a network
    cannot answer `load` at once."""

    async def fetch(self, path: str) -> None:
        """Bring what `load` needs of a stream that is not active next to the event loop, its
        sources included, if it is a fork. Nothing to do where `needs_fetch` is off."""

    async def fetch_producer(self, stream: Stream, producer_id: str) -> None:
        """Bring what `load_producer` needs next to the event loop."""

    def load(self, path: str) -> Stream | None:
        """Return a stream that is not active, from the store."""

    def load_producer(self, stream: Stream, producer_id: str) -> ProducerState | None: ...

    def submit(self, entry: Entry) -> None:
        """Queue a mutation or a barrier; its future is resolved when it is durable or has
        failed."""

    def admit(self, size: int) -> None:
        """Raise DiskFull, StoreReadOnly or Overloaded if `size` more bytes do not fit."""

    def read_now(self, stream: Stream, start: int, end: int) -> bytes | None:
        """Return durable bytes, or None if they would have to be waited for."""

    def views(self, stream: Stream, start: int, end: int) -> list[memoryview] | None:
        """Return durable bytes where they lie, without a copy, for the kernel to send and for
        nobody to look at; None if they have to be read."""

    async def read(self, stream: Stream, start: int, end: int) -> bytes: ...

    async def seek_ordinal(self, stream: Stream, ordinal: int) -> tuple[int, int]:
        """Return a (position, ordinal) at or before message `ordinal`, close enough to scan
        from."""

    async def seek_position(self, stream: Stream, position: int) -> tuple[int, int]:
        """Return a (position, ordinal) at or before `position`, close enough to scan from."""

    async def seek_time(self, stream: Stream, time_us: int) -> int:
        """Return a position at or before the first message appended at or after `time_us`."""

    async def list_streams(self, prefix: str, after: str, limit: int) -> list[StreamInfo]: ...

    async def list_filed(self, prefix: str, after: str, limit: int) -> list[StreamInfo]:
        """Like `list_streams`, without those that have no files and are not in memory."""

    async def list_forks(self, source: Stream, after: str, limit: int) -> list[StreamInfo]:
        """Return the forks that were made of a stream, by the order of their paths."""

    async def list_producers(
        self, stream: Stream, after: str, limit: int
    ) -> list[tuple[str, ProducerState]]:
        """Return the durable producers of a stream, by the order of their ids."""

    async def untouched(self, since_us: int, after: tuple[int, int], limit: int) -> list[Deadline]:
        """Return streams with data that are not in memory and were last touched before
        `since_us`."""

    async def time_after(self, stream: Stream, position: int) -> int:
        """Return when the index entry after the one that holds `position` was begun, 0 if unknown:
        `seek_time` can tell them apart from then on."""

    async def sizes(self, after_id: int, limit: int) -> Sizes:
        """Return the sizes of all durable streams after an id, those that stay for their forks
        included."""

    async def count_opened(self) -> Totals | None:
        """Return what there was when the store was opened; None if that could not be counted. May
        take long, and holds up nobody."""

    async def list_meta(self, name: str, after: str, limit: int) -> list[str]:
        """Return the paths of streams that have the meta value `name`, in order, after `after`."""

    async def expired(self, now_us: int, after: tuple[int, int], limit: int) -> list[Deadline]:
        """Return streams that are not in memory and whose deadline has passed."""

    def touched(self, stream: Stream) -> None:
        """Note that the TTL of a stream slid; the next checkpoint stores it."""

    def release(self, stream: Stream) -> bool:
        """Return whether the engine may evict a stream: only a clean one can be loaded again."""

    def is_current(self) -> bool:
        """Whether nobody else can have written since: what is durable here is all there is."""

    async def until_current(self, timeout_s: float) -> None:
        """Return when `is_current`; raise ClusterUnavailable after `timeout_s`."""

    def health(self) -> Health: ...

    def grace_until_us(self, ttl_s: int) -> int:
        """Return the time before which no TTL of this length ends, after an unclean stop."""
