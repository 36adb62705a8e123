"""The store in memory: the same program without a disk.

Commits one batch per iteration of the event loop, so that the engine sees the same events.
"""

from __future__ import annotations

import asyncio
import heapq
from bisect import bisect_left
from collections.abc import Callable

from penstock.config.settings import Settings
from penstock.errors import Overloaded
from penstock.log.lineage import owner, owner_at_time, owner_of_ordinal, spans, trimmed
from penstock.log.memory_tail import Chunk
from penstock.log.mutations import Entry, mutations_of
from penstock.log.stats import StoreStats, Totals
from penstock.log.store import Health, Observer, Sizes
from penstock.log.stream import Deadline, Stream, StreamInfo
from penstock.protocol.producer import ProducerState


class MemoryStore:
    needs_fetch = False

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.stats = StoreStats()
        self._streams: dict[str, Stream] = {}
        self._queue: list[Entry] = []
        self._queued_bytes = 0
        self._next_id = 1
        self.restore_generation = 0
        self._lsn = 0

    async def open(self, observer: Observer) -> list[Stream]:
        self._observer = observer
        self._loop = asyncio.get_running_loop()
        return []

    async def close(self, *, timeout_s: float | None = None) -> None:
        self._flush()

    async def count_opened(self) -> Totals:
        return Totals(0, 0)

    def next_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    async def fetch(self, path: str) -> None:
        pass

    async def fetch_producer(self, stream: Stream, producer_id: str) -> None:
        pass

    def load(self, path: str) -> Stream | None:
        return self._streams.get(path)

    def load_producer(self, stream: Stream, producer_id: str) -> ProducerState | None:
        return None

    def admit(self, size: int) -> None:
        total = self._queued_bytes + size
        if total > self._settings.append_queue_bytes_max and total > size:
            raise Overloaded(
                "Too many bytes are queued (append_queue_bytes_max). Try again.", Retry_After="1"
            )

    def submit(self, entry: Entry) -> None:
        if not self._queue:
            self._loop.call_soon(self._flush)
        self._queue.append(entry)
        self._queued_bytes += len(entry.record)

    def _flush(self) -> None:
        batch, self._queue = self._queue, []
        if not batch:
            return
        mutations = mutations_of(batch)
        for mutation in mutations:
            self._lsn += 1
            mutation.apply(self._lsn)
            stream = mutation.stream
            stream.dirty_producers.clear()
            if mutation.creates:
                self._streams[stream.path] = stream
            if mutation.trims:
                stream.memory.drop_chunks(stream.keep_from)
            for each in mutation.ended:
                if each.deleted and self._streams.get(each.path) is each:
                    del self._streams[each.path]
            for each in mutation.related:
                each.memory.drop_chunks(each.keep_from)
        self.stats.commits += 1
        self.stats.commit_records.add(len(batch))
        self._queued_bytes = 0
        self._observer.committed(mutations)
        for entry in batch:
            entry.resolve()

    def read_now(self, stream: Stream, start: int, end: int) -> bytes:
        if start >= end:
            return b""
        if start >= stream.own_start:
            return self._read(stream, start, end)
        return b"".join([self._read(*span) for span in spans(stream, start, end)])

    def _read(self, stream: Stream, start: int, end: int) -> bytes:
        if start < stream.memory.start:
            raise trimmed(stream)
        return stream.memory.read(start, end)

    def views(self, stream: Stream, start: int, end: int) -> list[memoryview]:
        views: list[memoryview] = []
        for holder, first, last in spans(stream, start, end):
            if first < holder.memory.start:
                raise trimmed(holder)
            views += holder.memory.views(first, last)
        return views

    async def read(self, stream: Stream, start: int, end: int) -> bytes:
        return self.read_now(stream, start, end)

    async def seek_ordinal(self, stream: Stream, ordinal: int) -> tuple[int, int]:
        return self._seek(owner_of_ordinal(stream, ordinal), ordinal, lambda chunk: chunk.ordinal)

    async def seek_position(self, stream: Stream, position: int) -> tuple[int, int]:
        return self._seek(owner(stream, position), position, lambda chunk: chunk.start)

    async def seek_time(self, stream: Stream, time_us: int) -> int:
        holder, bound = owner_at_time(stream, time_us)
        return min(self._seek(holder, time_us, lambda chunk: chunk.time_us)[0], bound)

    def _seek(self, stream: Stream, value: int, key: Callable[[Chunk], int]) -> tuple[int, int]:
        """Return (position, ordinal) of the last chunk whose key is below `value`, else of the
        first."""
        if not stream.memory.chunks:
            return stream.tail, stream.count
        chunks = stream.memory.chunks
        chunk = chunks[max(bisect_left(chunks, value, key=key) - 1, 0)]
        return chunk.start, chunk.ordinal

    async def list_streams(self, prefix: str, after: str, limit: int) -> list[StreamInfo]:
        paths = heapq.nsmallest(
            limit,
            [
                path
                for path, stream in self._streams.items()
                if path > after and path.startswith(prefix) and not stream.soft_deleted
            ],
        )
        return [self._streams[path].info() for path in paths]

    async def list_filed(self, prefix: str, after: str, limit: int) -> list[StreamInfo]:
        return await self.list_streams(prefix, after, limit)

    async def list_forks(self, source: Stream, after: str, limit: int) -> list[StreamInfo]:
        forks = (
            stream.info()
            for path, stream in self._streams.items()
            if path > after
            and stream.fork is not None
            and stream.fork.source_id == source.id
            and not stream.soft_deleted
        )
        return heapq.nsmallest(limit, forks)

    async def list_producers(
        self, stream: Stream, after: str, limit: int
    ) -> list[tuple[str, ProducerState]]:
        return sorted(item for item in stream.producers.items() if item[0] > after)[:limit]

    async def untouched(self, since_us: int, after: tuple[int, int], limit: int) -> list[Deadline]:
        return []

    async def time_after(self, stream: Stream, position: int) -> int:
        return 0

    async def sizes(self, after_id: int, limit: int) -> Sizes:
        streams = (stream for stream in self._streams.values() if stream.id > after_id)
        return Sizes([(stream.path, stream.held_bytes) for stream in streams], None)

    async def list_meta(self, name: str, after: str, limit: int) -> list[str]:
        paths = (path for path, stream in self._streams.items() if name in stream.meta)
        return sorted(path for path in paths if path > after)[:limit]

    async def expired(self, now_us: int, after: tuple[int, int], limit: int) -> list[Deadline]:
        return []

    def touched(self, stream: Stream) -> None:
        pass

    def release(self, stream: Stream) -> bool:
        return False

    def is_current(self) -> bool:
        return True

    async def until_current(self, timeout_s: float) -> None:
        pass

    def health(self) -> Health:
        return Health(True, True, None)

    def grace_until_us(self, ttl_s: int) -> int:
        return 0
