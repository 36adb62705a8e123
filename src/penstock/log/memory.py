"""The store that keeps everything in memory: the same program without a disk.

Commits a batch per turn of the loop, so that the engine sees the same shape of events.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right

from penstock.config import Settings
from penstock.errors import Overloaded
from penstock.log.mutations import Create, Delete, Mutation
from penstock.log.stats import StoreStats
from penstock.log.store import Health, Observer
from penstock.log.stream import Deadline, Stream, StreamInfo
from penstock.protocol.producer import ProducerState


class MemoryStore:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.stats = StoreStats()
        self._streams: dict[str, Stream] = {}
        self._queue: list[Mutation] = []
        self._queued_bytes = 0
        self._next_id = 1
        self._lsn = 0

    async def open(self, observer: Observer) -> list[Stream]:
        self._observer = observer
        self._loop = asyncio.get_running_loop()
        return []

    async def close(self) -> None:
        self._flush()

    def next_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    def load(self, path: str) -> Stream | None:
        return self._streams.get(path)

    def load_producer(self, stream: Stream, producer_id: str) -> ProducerState | None:
        return None

    def admit(self, size: int) -> None:
        waiting = self._queued_bytes + size
        if waiting > self._settings.append_queue_bytes_max and waiting > size:
            raise Overloaded("too many bytes are queued; try again", Retry_After="1")

    def submit(self, mutation: Mutation) -> None:
        if not self._queue:
            self._loop.call_soon(self._flush)
        self._queue.append(mutation)
        self._queued_bytes += len(mutation.record)

    def _flush(self) -> None:
        batch, self._queue = self._queue, []
        if not batch:
            return
        for mutation in batch:
            if not mutation.record:
                continue
            self._lsn += 1
            mutation.apply(self._lsn)
            stream = mutation.stream
            assert stream is not None
            stream.dirty_producers.clear()
            if type(mutation) is Create:
                self._streams[stream.path] = stream
            elif type(mutation) is Delete and self._streams.get(stream.path) is stream:
                del self._streams[stream.path]
        self.stats.commits += 1
        self.stats.commit_records.add(len(batch))
        self.stats.memory_bytes += self._queued_bytes
        self._queued_bytes = 0
        self._observer.committed(batch)
        for mutation in batch:
            if mutation.future is not None and not mutation.future.done():
                mutation.future.set_result(mutation.result)

    def read_now(self, stream: Stream, start: int, end: int) -> bytes | None:
        return stream.read_memory(start, end) if start < end else b""

    async def read(self, stream: Stream, start: int, end: int) -> bytes:
        return stream.read_memory(start, end) if start < end else b""

    async def seek_ordinal(self, stream: Stream, ordinal: int) -> tuple[int, int]:
        if not stream.chunks:
            return 0, 0
        index = bisect_left(stream.chunks, ordinal, key=lambda chunk: chunk.ordinal) - 1
        chunk = stream.chunks[max(index, 0)]
        return chunk.start, chunk.ordinal

    async def seek_position(self, stream: Stream, position: int) -> tuple[int, int]:
        if not stream.chunks:
            return 0, 0
        index = bisect_right(stream.chunks, position, key=lambda chunk: chunk.start) - 1
        chunk = stream.chunks[max(index, 0)]
        return chunk.start, chunk.ordinal

    async def seek_time(self, stream: Stream, time_us: int) -> int:
        index = bisect_left(stream.chunks, time_us, key=lambda chunk: chunk.time_us) - 1
        return stream.chunks[max(index, 0)].start if stream.chunks else 0

    def list_streams(self, prefix: str, after: str, limit: int) -> list[StreamInfo]:
        paths = sorted(path for path in self._streams if path > after and path.startswith(prefix))
        return [self._streams[path].info() for path in paths[:limit]]

    def expired(self, now_us: int, after: tuple[int, int], limit: int) -> list[Deadline]:
        return []

    def touched(self, stream: Stream) -> None:
        pass

    def release(self, stream: Stream) -> bool:
        return False

    def health(self) -> Health:
        return Health(True, True, None)

    def grace_until_us(self, ttl_s: int) -> int:
        return 0
