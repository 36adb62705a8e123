"""The memory tail of a stream: durable bytes that no segment holds yet, as a list of chunks.

Belongs to the event loop. Knows positions and ordinals, and nothing of journals and segments.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.log.stats import StoreStats

CHUNK_BYTES_MAX = 16 * 1024
"""Small appends are gathered into chunks of about this size, so that memory follows the bytes."""
GATHERED_BYTES_MAX = 2 * CHUNK_BYTES_MAX
"""A chunk of more than one append has fewer bytes than this."""
OWN_CHUNK_BYTES = CHUNK_BYTES_MAX // 4
"""An append of this size is a chunk of its own: to gather it would copy it."""


class Chunk:
    """Consecutive bytes of a memory tail, with the ordinal and time of the first append in it.

    `sealed` chunks never grow again; with `opens_segment` a segment file begins here.
    """

    __slots__ = ("data", "opens_segment", "ordinal", "sealed", "start", "time_us")

    def __init__(
        self, start: int, data: bytes, ordinal: int, time_us: int, *, opens_segment: bool = False
    ) -> None:
        self.start = start
        self.data: bytes | bytearray = data
        self.ordinal = ordinal
        self.time_us = time_us
        self.sealed = len(data) >= OWN_CHUNK_BYTES
        self.opens_segment = opens_segment

    @property
    def end(self) -> int:
        return self.start + len(self.data)


class MemoryTail:
    """The bytes [start, end) of a stream.

    `chunks` are consecutive and none is empty. The last one ends at `end`; the first one holds the
    byte at `start`, and may begin before it.
    """

    __slots__ = ("_opens_segment", "_stats", "chunks", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.chunks: list[Chunk] = []
        self._opens_segment = False
        self._stats: StoreStats | None = None

    @property
    def end(self) -> int:
        return self.chunks[-1].end if self.chunks else self.start

    @property
    def size(self) -> int:
        return self.end - self.start

    def load(self, data: bytes, ordinal: int, time_us: int) -> None:
        """Fill an empty tail with bytes that are stored elsewhere too."""
        chunk = Chunk(self.start, data, ordinal, time_us)
        chunk.sealed = True
        self.chunks = [chunk]

    def add(self, end: int, data: bytes, ordinal: int, time_us: int) -> None:
        """Append bytes that have become durable; `end` is where they begin."""
        chunks = self.chunks
        last = chunks[-1] if chunks else None
        if last is None or last.sealed or len(data) >= OWN_CHUNK_BYTES:
            chunks.append(Chunk(end, data, ordinal, time_us, opens_segment=self._opens_segment))
            self._opens_segment = False
        else:
            if isinstance(last.data, bytes):
                last.data = bytearray(last.data)
            last.data += data
            last.sealed = len(last.data) >= CHUNK_BYTES_MAX
        if self._stats is not None:
            self._stats.memory_bytes += len(data)

    def open_segment(self) -> None:
        """Let the next bytes begin a segment file, so that those before it can go without it."""
        if self.chunks:
            self.chunks[-1].sealed = True
        self._opens_segment = True

    def read(self, start: int, end: int) -> bytes:
        """Return bytes [start, end), all of them at or after `self.start`."""
        chunks = self.chunks
        index = bisect_right(chunks, start, key=chunk_start) - 1
        parts: list[memoryview] = []
        while start < end:
            chunk = chunks[index]
            offset = start - chunk.start
            # Views, so that the bytes are copied once; released before the chunk can grow again.
            part = memoryview(chunk.data)[offset : offset + end - start]
            parts.append(part)
            start += len(part)
            index += 1
        return b"".join(parts)

    def views(self, start: int, end: int) -> list[memoryview]:
        """Return bytes [start, end), all of them at or after `self.start`, where they lie. They
        never change; only the last chunk, which may grow, is copied."""
        chunks = self.chunks
        index = bisect_right(chunks, start, key=chunk_start) - 1
        parts: list[memoryview] = []
        while start < end:
            chunk = chunks[index]
            data = chunk.data
            if not chunk.sealed and isinstance(data, bytearray):
                data = bytes(data)
            offset = start - chunk.start
            part = memoryview(data)[offset : offset + end - start]
            parts.append(part)
            start += len(part)
            index += 1
        return parts

    def drop(self, start: int) -> None:
        """Drop the bytes before `start`: segments hold them now."""
        if self._stats is not None:
            self._stats.memory_bytes -= start - self.start
        self.start = start
        del self.chunks[: self._chunks_before(start)]

    def drop_chunks(self, position: int) -> None:
        """Drop the chunks that end at or before `position`; the others stay whole."""
        index = self._chunks_before(position)
        self.drop(self.chunks[index].start if index < len(self.chunks) else position)

    def _chunks_before(self, position: int) -> int:
        """Return how many chunks end at or before `position`."""
        index = bisect_right(self.chunks, position, key=chunk_start)
        if index and self.chunks[index - 1].end > position:
            index -= 1
        return index

    def count_in(self, stats: StoreStats) -> None:
        """Add the size of the tail to `stats`, and keep the sum true until `discount`."""
        if self._stats is None:
            self._stats = stats
            stats.memory_bytes += self.size

    def discount(self) -> None:
        if self._stats is not None:
            self._stats.memory_bytes -= self.size
            self._stats = None


def chunk_start(chunk: Chunk) -> int:
    return chunk.start
