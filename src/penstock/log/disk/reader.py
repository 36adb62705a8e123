"""Reads the durable bytes of a stream, from its segments and its memory tail as one range."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from penstock.errors import Damaged, PenstockError, StreamNotFound
from penstock.log.disk.segment import BLOCK_BYTES, ColdSource, IndexEntry, SegmentInfo
from penstock.log.lineage import owner, owner_at_time, owner_of_ordinal, spans, trimmed
from penstock.log.memory_tail import GATHERED_BYTES_MAX, Chunk
from penstock.log.stream import Stream

READERS = 4
"""Threads that wait for the disk, so that the event loop never does."""


class Segments(Protocol):
    """Where the bytes of segments are, and their indexes."""

    cold: ColdSource | None

    def read(
        self, stream_id: int, info: SegmentInfo, start: int, end: int, *, wait: bool
    ) -> bytes | None: ...

    def view_now(
        self, stream_id: int, info: SegmentInfo, start: int, end: int
    ) -> memoryview | None: ...

    def is_cold(self, stream_id: int, info: SegmentInfo) -> bool: ...

    def warm(self, stream_id: int, info: SegmentInfo, start: int, end: int) -> None: ...

    def entry(self, stream_id: int, info: SegmentInfo, block: int) -> IndexEntry: ...

    def close(self) -> None: ...


class StreamReader:
    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="penstock-read")

    def read_now(self, stream: Stream, start: int, end: int) -> bytes | None:
        """Return the bytes, or None if the disk would have to be waited for."""
        return self._read(stream, start, end, wait=False)

    def views(self, stream: Stream, start: int, end: int) -> list[memoryview] | None:
        """Return bytes where they lie, to be sent only; None if some have to be read, or cannot
        be."""
        if start >= stream.memory.start and start >= stream.own_start:
            return stream.memory.views(start, end)
        views: list[memoryview] = []
        for holder, first, last in spans(stream, start, end):
            position = first
            while position < min(last, holder.memory.start):
                view = self._view_part(holder, position, last)
                if view is None:
                    return None
                views.append(view)
                position += len(view)
            if position < last:
                views += holder.memory.views(position, last)
        return views

    def _view_part(self, stream: Stream, start: int, end: int) -> memoryview | None:
        """Return bytes from `start` on, those of one segment, where they lie."""
        try:
            info = self._segment_at(stream, start)
            low, high = start - info.base, min(end, info.end) - info.base
            return self._segments.view_now(stream.id, info, low, high)
        except PenstockError:
            return None  # to read them says why

    async def read(self, stream: Stream, start: int, end: int) -> bytes:
        data = self._read(stream, start, end, wait=False)
        if data is None:
            parts: list[bytes] = []
            for holder, first, last in spans(stream, start, end):
                while first < last:
                    # Segments may come, go and become cold while one is waited for.
                    part = await self._read_part(holder, first, last)
                    parts.append(part)
                    first += len(part)
            data = parts[0] if len(parts) == 1 else b"".join(parts)
        return data

    async def _read_part(self, stream: Stream, start: int, end: int) -> bytes:
        """Return bytes from `start` on, at least one: those of one segment, or those in memory."""
        while start < stream.memory.start:
            info = self._segment_at(stream, start)
            low, high = start - info.base, min(end, info.end) - info.base
            try:
                part = self._segments.read(stream.id, info, low, high, wait=False)
                if part is None and self._segments.is_cold(stream.id, info):
                    assert self._segments.cold is not None
                    part = await self._segments.cold.read(stream.id, info, low, high)
                elif part is None:
                    await asyncio.get_running_loop().run_in_executor(
                        self._threads, self._segments.warm, stream.id, info, low, high
                    )
                    part = self._segments.read(stream.id, info, low, high, wait=True)
            except Damaged as error:
                raise _reason(stream, start, error) from None
            if part is not None:
                return part  # else it has become cold meanwhile
        return stream.memory.read(start, end)

    def read_waiting(self, stream: Stream, start: int, end: int) -> bytes:
        """Return the bytes, waiting for the disk if necessary. Never called on the event loop."""
        data = self._read(stream, start, end, wait=True)
        assert data is not None
        return data

    def _read(self, stream: Stream, start: int, end: int, *, wait: bool) -> bytes | None:
        if start >= end:
            return b""
        if start >= stream.memory.start:
            return stream.memory.read(start, end)
        if start >= stream.own_start:
            return self._read_own(stream, start, end, wait=wait)
        parts: list[bytes] = []
        for holder, first, last in spans(stream, start, end):
            part = self._read(holder, first, last, wait=wait)
            if part is None:
                return None
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read_own(self, stream: Stream, start: int, end: int, *, wait: bool) -> bytes | None:
        parts: list[bytes] = []
        position, stop = start, min(end, stream.memory.start)
        while position < stop:
            info = self._segment_at(stream, position)
            low, high = position - info.base, min(stop, info.end) - info.base
            try:
                part = self._segments.read(stream.id, info, low, high, wait=wait)
            except Damaged as error:
                raise _reason(stream, position, error) from None
            if part is None:
                return None
            parts.append(part)
            position += len(part)
        if end > position:
            parts.append(stream.memory.read(position, end))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _segment_at(self, stream: Stream, position: int) -> SegmentInfo:
        segments = stream.segments
        index = bisect_right(segments, position, key=_base) - 1
        if not 0 <= index < len(segments) or position >= segments[index].end:
            if position < stream.earliest:
                raise trimmed(stream)
            raise Damaged(
                f"Stream {stream.id} has no segment that holds byte {position}. Run "
                "`penstock verify` and restore from a backup."
            )
        return segments[index]

    def seek_ordinal(self, stream: Stream, ordinal: int) -> tuple[int, int]:
        return self._seek(owner_of_ordinal(stream, ordinal), ordinal, lambda entry: entry.ordinal)

    def seek_time(self, stream: Stream, time_us: int) -> int:
        holder, bound = owner_at_time(stream, time_us)
        position = self._seek(holder, time_us, lambda entry: entry.time_us)[0]
        if position < holder.memory.start:
            # A block has the time at which the chunk that its first byte was in began; the end of
            # that chunk, in the block before, may be younger.
            position = max(position - GATHERED_BYTES_MAX, holder.own_start)
        return min(position, bound)

    def time_after(self, stream: Stream, position: int) -> int:
        """Return when the index entry after the one that holds `position` was begun: the last touch
        if there is none, 0 for what a fork inherited."""
        if position < stream.own_start:
            return 0
        segments = stream.segments
        index = bisect_right(segments, position, key=_base) - 1
        if 0 <= index < len(segments) and position < segments[index].end:
            info = segments[index]
            block = (position - info.base) // BLOCK_BYTES + 1
            if info.base + block * BLOCK_BYTES < info.end:
                return self._segments.entry(stream.id, info, block).time_us
            if index + 1 < len(segments):
                return self._segments.entry(stream.id, segments[index + 1], 0).time_us
        later = bisect_right(stream.memory.chunks, position, key=lambda each: each.start)
        return (
            stream.memory.chunks[later].time_us
            if later < len(stream.memory.chunks)
            else stream.touched_us
        )

    def seek_position(self, stream: Stream, position: int) -> tuple[int, int]:
        """Return (position, ordinal) of the last index entry before `position`, else of the
        first."""
        stream = owner(stream, position)
        chunks, segments = stream.memory.chunks, stream.segments
        if chunks and (chunks[0].start < position or not segments):
            chunk = chunks[max(bisect_left(chunks, position, key=lambda each: each.start) - 1, 0)]
            return chunk.start, chunk.ordinal
        if not segments:
            return stream.tail, stream.count
        info = segments[max(bisect_left(segments, position, key=_base) - 1, 0)]
        block = max(min(position, info.end) - info.base - 1, 0) // BLOCK_BYTES
        return info.base + block * BLOCK_BYTES, self._segments.entry(stream.id, info, block).ordinal

    def _seek(
        self, stream: Stream, value: int, key: Callable[[Chunk | IndexEntry], int]
    ) -> tuple[int, int]:
        """Return (position, ordinal) of the last index entry whose key is below `value`, else of
        the first."""
        chunks, segments = stream.memory.chunks, stream.segments
        if chunks and (key(chunks[0]) < value or not segments):
            chunk = chunks[max(bisect_left(chunks, value, key=key) - 1, 0)]
            return chunk.start, chunk.ordinal
        if not segments:
            return stream.tail, stream.count

        def first(info: SegmentInfo) -> int:
            return key(IndexEntry(*self._segments.entry(stream.id, info, 0)))

        index = bisect_left(segments, value, key=first)
        return self._seek_segment(stream, segments[max(index - 1, 0)], value, key)

    def _seek_segment(
        self,
        stream: Stream,
        info: SegmentInfo,
        value: int,
        key: Callable[[Chunk | IndexEntry], int],
    ) -> tuple[int, int]:
        def entry(block: int) -> IndexEntry:
            return self._segments.entry(stream.id, info, block)

        blocks = range(info.length // BLOCK_BYTES + 1)
        index = bisect_left(blocks, value, key=lambda block: key(entry(block)))
        block = max(index - 1, 0)
        return info.base + block * BLOCK_BYTES, entry(block).ordinal

    def close(self) -> None:
        self._threads.shutdown()
        self._segments.close()


def _reason(stream: Stream, position: int, error: Damaged) -> PenstockError:
    """Return why bytes are not there: they may be so because nobody needs them any more."""
    if stream.deleted:  # and its files with it
        return StreamNotFound(f"The stream at {stream.path!r} was deleted while it was read.")
    return trimmed(stream) if position < stream.earliest else error


def _base(info: SegmentInfo) -> int:
    return info.base
