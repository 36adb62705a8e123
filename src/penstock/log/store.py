"""The seam between the engine and where streams are kept: one interface, one contract test suite.

Decisions, framing and waiting belong to the engine; a store makes mutations durable in order,
reads bytes back, and finds streams it does not hold in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from penstock.errors import PenstockError
from penstock.log.mutations import Mutation
from penstock.log.stats import StoreStats
from penstock.log.stream import Deadline, Stream, StreamInfo
from penstock.protocol.producer import ProducerState


class Health(NamedTuple):
    ready: bool
    writable: bool
    reason: str | None


class Observer(Protocol):
    """What a store tells the engine, on the event loop."""

    def committed(self, batch: Sequence[Mutation]) -> None:
        """The batch is durable and applied; its futures are about to be resolved."""

    def failed(self, batch: Sequence[Mutation], error: PenstockError) -> None:
        """Nothing of the batch came to be; pending state has to be reset."""


class Store(Protocol):
    stats: StoreStats

    async def open(self, observer: Observer) -> list[Stream]:
        """Recover; the streams that are active from the start."""

    async def close(self) -> None:
        """Make everything durable and let go of the folder."""

    def next_id(self) -> int:
        """A generation never given out before."""

    def load(self, path: str) -> Stream | None:
        """A stream that is not active, from where it is kept."""

    def load_producer(self, stream: Stream, producer_id: str) -> ProducerState | None: ...

    def submit(self, mutation: Mutation) -> None:
        """Queue; the mutation's future is resolved when it is durable, or fails."""

    def admit(self, size: int) -> None:
        """Raise DiskFull, StoreReadOnly or Overloaded if `size` more bytes cannot be taken."""

    def read_now(self, stream: Stream, start: int, end: int) -> bytes | None:
        """Durable bytes if they can be had without waiting for the disk."""

    async def read(self, stream: Stream, start: int, end: int) -> bytes: ...

    async def seek_ordinal(self, stream: Stream, ordinal: int) -> tuple[int, int]:
        """A (position, ordinal) at or before the wanted message, close enough to scan from."""

    async def seek_position(self, stream: Stream, position: int) -> tuple[int, int]:
        """A (position, ordinal) at or before `position`, close enough to scan from."""

    async def seek_time(self, stream: Stream, time_us: int) -> int:
        """A position at or before the first message appended at or after `time_us`."""

    def list_streams(self, prefix: str, after: str, limit: int) -> list[StreamInfo]: ...

    def list_filed(self, prefix: str, after: str, limit: int) -> list[StreamInfo]:
        """The same, without those that are too small to have files and are not in memory."""

    def untouched(self, since_us: int, after: tuple[int, int], limit: int) -> list[Deadline]:
        """Streams with data, kept elsewhere than in memory, that were last touched before."""

    async def time_after(self, stream: Stream, position: int) -> int:
        """When what follows the part of the index that holds `position` was begun: something
        before it can be told from it then. 0 if that is not known."""

    def list_meta(self, name: str, after: str, limit: int) -> list[str]:
        """Paths of streams that have the meta value `name`, in order, after `after`."""

    def expired(self, now_us: int, after: tuple[int, int], limit: int) -> list[Deadline]:
        """Streams kept elsewhere than in memory whose deadline has passed."""

    def touched(self, stream: Stream) -> None:
        """The stream's TTL slid; to be kept at the next checkpoint."""

    def release(self, stream: Stream) -> bool:
        """May the engine forget this stream? Only a clean one can be loaded again."""

    def health(self) -> Health: ...

    def grace_until_us(self, ttl_s: int) -> int:
        """No TTL of this length ends before this time (after an unclean stop)."""
