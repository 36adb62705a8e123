"""Payload that has left the journal: extents of at most 1 MB, with a cache of those that were read
last.

An extent is what a segment is on disk: bytes of one stream with an index of checksummed blocks. Its
first `object_length` bytes are in an object, if there is a store for them; the rest is in its row.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from penstock.errors import ClusterRefused, ClusterUnavailable, ColdDataUnavailable, Damaged
from penstock.log.cluster.catalog import ExtentWrite
from penstock.log.cluster.database import OutcomeUnknown, Sessions
from penstock.log.cluster.extent_objects import ObjectReader
from penstock.log.disk import segment
from penstock.log.disk.segment import (
    ENTRY,
    ColdSource,
    IndexEntry,
    SegmentInfo,
    check_blocks,
    decode_entry,
    extend_segments,
)
from penstock.log.lineage import spans
from penstock.log.memory_tail import Chunk
from penstock.log.stream import Stream

EXTENT_BYTES: Final = 256 * 1024
"""An extent of this size gets no more bytes."""
CHUNK_BYTES: Final = 768 * 1024
"""A longer chunk becomes several: an extent has no more than 1 MB."""
READ: Final = """SELECT body, index, object, object_length FROM penstock.extent
WHERE stream_id = $1 AND base = $2"""

Key = tuple[int, int, int]
"""The stream, where an extent begins, and its length; of a block the length is negative."""


def plan_extents(
    stream_id: int,
    extents: tuple[SegmentInfo, ...],
    chunks: Iterable[Chunk],
    *,
    count_lines: bool,
    extent_bytes: int,
) -> tuple[tuple[SegmentInfo, ...], list[ExtentWrite]]:
    """Return the extents of a stream with `chunks` behind them, and what has to be written."""
    written: dict[int, tuple[SegmentInfo, bytes, bytes]] = {}
    extent_bytes = min(extent_bytes, EXTENT_BYTES)

    def write(info: SegmentInfo, parts: list[bytes | bytearray], entries: bytes) -> None:
        written[info.base] = (info, b"".join(parts), entries)

    result = extend_segments(
        extents,
        _pieces(chunks, count_lines=count_lines),
        write,
        count_lines=count_lines,
        segment_bytes_max=extent_bytes,
    )
    writes = [
        ExtentWrite(
            stream_id,
            info,
            *written[info.base][1:],
            written[info.base][0].length,
            written[info.base][0].length // segment.BLOCK_BYTES * ENTRY.size,
            info is not result[-1] or info.length >= extent_bytes,
        )
        for info in result
        if info.base in written
    ]
    return result, writes


def _pieces(chunks: Iterable[Chunk], *, count_lines: bool) -> Iterator[Chunk]:
    for chunk in chunks:
        ordinal, opens = chunk.ordinal, chunk.opens_segment
        for start in range(0, len(chunk.data), CHUNK_BYTES):
            data = bytes(chunk.data[start : start + CHUNK_BYTES])
            yield Chunk(chunk.start + start, data, ordinal, chunk.time_us, opens_segment=opens)
            opens = False
            if count_lines:
                ordinal += data.count(b"\n")


class Place(NamedTuple):
    """Where the bytes [start, end) of a stream are: in an extent, or in the memory of its owner.
    `stream_id` is of the stream that holds them: a fork's own, or that of a source."""

    stream_id: int
    info: SegmentInfo | None
    start: int
    end: int


def places(stream: Stream, start: int, end: int) -> list[Place]:
    """Return where durable bytes of a stream are, in order."""
    result = []
    for holder, first, last in spans(stream, start, end):
        extents, border = holder.segments, max(min(last, holder.memory.start), first)
        index = max(bisect_right(extents, first, key=lambda each: each.base) - 1, 0)
        while first < border:
            info = extents[index] if index < len(extents) else None
            if info is None or not info.base <= first < info.end:
                raise Damaged(f"Stream {holder.id} has no extent that holds byte {first}.")
            stop = min(info.end, border)
            result.append(Place(holder.id, info, first, stop))
            first, index = stop, index + 1
        if first < last:
            result.append(Place(holder.id, None, first, last))
    return result


class ExtentMissing(Exception):
    """The index of an extent has to be read first."""

    def __init__(self, stream_id: int, info: SegmentInfo) -> None:
        super().__init__(stream_id, info)
        self.stream_id = stream_id
        self.info = info


class ExtentCache:
    """Reads and checks extents, and keeps those that were read last, bounded by their bytes.
    Belongs to the event loop. As a `ColdSource` it has every segment."""

    def __init__(
        self, sessions: Sessions, objects: ObjectReader | None, *, cache_bytes: int
    ) -> None:
        self._sessions = sessions
        self._objects = objects
        self._cache_bytes = cache_bytes
        self._cached: OrderedDict[Key, tuple[bytes, bytes]] = OrderedDict()
        self._reading: dict[Key, asyncio.Task[tuple[bytes, bytes]]] = {}
        self._bytes = 0

    def has(self, stream_id: int, base: int) -> bool:
        return True

    def read_now(self, stream_id: int, info: SegmentInfo, start: int, end: int) -> bytes | None:
        key = (stream_id, info.base, info.length)
        extent = self._cached.get(key)
        if extent is None:
            return None
        self._cached.move_to_end(key)
        return extent[0][start:end]

    def view_now(
        self, stream_id: int, info: SegmentInfo, start: int, end: int
    ) -> memoryview | None:
        """Return bytes of an extent where they lie, if they are here."""
        key = (stream_id, info.base, info.length)
        extent = self._cached.get(key)
        if extent is None:
            return None
        self._cached.move_to_end(key)
        return memoryview(extent[0])[start:end]

    def fresh(self, stream_id: int, start: int, end: int) -> memoryview | None:
        """Return a block that was in no extent yet, if it is here."""
        key = (stream_id, start, start - end)
        block = self._cached.get(key)
        if block is None:
            return None
        self._cached.move_to_end(key)
        return memoryview(block[0])

    def keep_fresh(self, stream_id: int, start: int, data: bytes) -> None:
        """Keep a block of durable bytes that are in no extent yet."""
        self._keep((stream_id, start, -len(data)), (data, b""))

    async def read(self, stream_id: int, info: SegmentInfo, start: int, end: int) -> bytes:
        body, _ = await self.load(stream_id, info)
        return body[start:end]

    def index(self, stream_id: int, info: SegmentInfo) -> bytes | None:
        """Return the index of an extent, if it is here."""
        extent = self._cached.get((stream_id, info.base, info.length))
        return None if extent is None else extent[1]

    async def load(self, stream_id: int, info: SegmentInfo) -> tuple[bytes, bytes]:
        """Return the bytes and the index of an extent, checked; those who ask at the same time
        share one query."""
        key = (stream_id, info.base, info.length)
        extent = self._cached.get(key)
        if extent is not None:
            return extent
        task = self._reading.get(key)
        if task is None:
            task = self._reading[key] = asyncio.ensure_future(self._fetch(stream_id, info))
            task.add_done_callback(lambda _: self._reading.pop(key, None))
        return await asyncio.shield(task)

    async def _fetch(self, stream_id: int, info: SegmentInfo) -> tuple[bytes, bytes]:
        try:
            rows = await self._sessions.query(READ, stream_id, info.base)
        except (OutcomeUnknown, ClusterRefused) as error:
            raise ClusterUnavailable(
                f"PostgreSQL does not answer: {error}", Retry_After="1"
            ) from None
        where = f"stream {stream_id}, extent {info.base}"
        body, index, name, length = rows[0] if rows else (b"", b"", None, 0)
        if name is not None:
            if self._objects is None:
                raise ColdDataUnavailable(
                    "This part of the stream is in an object store that this node does not know "
                    "(cluster_extents).",
                    Retry_After="1",
                )
            body = await self._objects.read(name, length, where) + body
        if len(body) < info.length:
            raise Damaged(f"{where}: bytes are missing. Restore the database from a backup.")
        body = body[: info.length]  # it may have grown since
        check_blocks(info, 0, body, index, where)
        self._keep((stream_id, info.base, info.length), (body, index))
        return body, index

    def _keep(self, key: Key, extent: tuple[bytes, bytes]) -> None:
        if key not in self._cached:
            self._bytes += len(extent[0])
        self._cached[key] = extent
        while self._bytes > self._cache_bytes and len(self._cached) > 1:
            _, (body, _) = self._cached.popitem(last=False)
            self._bytes -= len(body)

    def forget(self, stream_id: int, base: int | None = None) -> None:
        for key in [key for key in self._cached if key[0] == stream_id and base in (None, key[1])]:
            self._bytes -= len(self._cached.pop(key)[0])

    def forget_some(self, stream_id: int, infos: tuple[SegmentInfo, ...]) -> None:
        for info in infos:
            self.forget(stream_id, info.base)

    def close(self) -> None:
        if self._objects is not None:
            self._objects.close()
        for task in self._reading.values():
            task.cancel()
        self._cached.clear()


class ExtentReader:
    """Extents as `reader.StreamReader` reads segments: all of them are cold."""

    def __init__(self, cache: ExtentCache) -> None:
        self.cold: ColdSource | None = cache
        self._cache = cache

    def read(
        self, stream_id: int, info: SegmentInfo, start: int, end: int, *, wait: bool
    ) -> bytes | None:
        return self._cache.read_now(stream_id, info, start, end)

    def view_now(
        self, stream_id: int, info: SegmentInfo, start: int, end: int
    ) -> memoryview | None:
        return self._cache.view_now(stream_id, info, start, end)

    def is_cold(self, stream_id: int, info: SegmentInfo) -> bool:
        return True

    def warm(self, stream_id: int, info: SegmentInfo, start: int, end: int) -> None:
        pass

    def entry(self, stream_id: int, info: SegmentInfo, block: int) -> IndexEntry:
        if block == info.length // segment.BLOCK_BYTES:
            return IndexEntry(info.open_ordinal, info.open_time_us, info.open_crc)
        index = self._cache.index(stream_id, info)
        if index is None:
            raise ExtentMissing(stream_id, info)
        raw = index[block * ENTRY.size : (block + 1) * ENTRY.size]
        return decode_entry(raw, f"stream {stream_id}, extent {info.base}, block {block}")

    def close(self) -> None:
        self._cache.close()
