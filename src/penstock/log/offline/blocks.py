"""The bytes of stored streams as chunks, one for each block, so that another store can write them
with the same ordinals and times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final, TypeVar

from penstock.errors import Damaged
from penstock.log.disk import segment
from penstock.log.disk.catalog_rows import Row
from penstock.log.disk.segment import (
    IndexEntry,
    SegmentInfo,
    SegmentReader,
    check_blocks,
    encode_entry,
)
from penstock.log.memory_tail import Chunk
from penstock.log.offline.folder import Folder

T = TypeVar("T")

BLOCKS_AT_ONCE: Final = 64
"""Blocks that are in memory at a time: 4 MB."""
OPEN_FILES: Final = 16

Read = Callable[[SegmentInfo, int, int], bytes]
Entry = Callable[[SegmentInfo, int], IndexEntry]


def chunks_of(segments: Iterable[SegmentInfo], read: Read, entry: Entry) -> Iterator[Chunk]:
    """Yield the bytes of segments or extents, block by block."""
    for info in segments:
        for start in range(0, info.length, segment.BLOCK_BYTES):
            data = read(info, start, min(start + segment.BLOCK_BYTES, info.length))
            first = entry(info, start // segment.BLOCK_BYTES)
            yield Chunk(info.base + start, data, first.ordinal, first.time_us)


def groups(items: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while group := list(islice(iterator, size)):
        yield group


class FolderBlocks:
    """Blocks of a stopped folder, those in its object store included, checked."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._reader = SegmentReader(folder.files, folder.segments, open_files_max=OPEN_FILES)
        self._reader.cold = self

    def chunks(self, row: Row) -> Iterator[Chunk]:
        def read(info: SegmentInfo, start: int, end: int) -> bytes:
            data = self._reader.read(row.id, info, start, end, wait=True)
            assert data is not None
            return data

        return chunks_of(row.segments, read, lambda info, n: self._reader.entry(row.id, info, n))

    def close(self) -> None:
        self._reader.close()

    # -- as the source of cold segments

    def has(self, stream_id: int, base: int) -> bool:
        return self._folder.cold(stream_id, base) is not None

    def read_now(self, stream_id: int, info: SegmentInfo, start: int, end: int) -> bytes:
        cold, objects = self._folder.cold(stream_id, info.base), self._folder.objects
        assert cold is not None
        if objects is None:
            raise Damaged(f"The object store of stream {stream_id} is not known.")
        data = objects.get_range(cold.segment.object, start, end)
        first = start // segment.BLOCK_BYTES
        index = b"".join(
            encode_entry(self._reader.entry(stream_id, info, first + number))
            for number in range(len(data) // segment.BLOCK_BYTES)
        )
        if len(data) != end - start:
            raise Damaged(f"Object {cold.segment.object} of stream {stream_id} is too short.")
        check_blocks(info, first, data, index, f"Object {cold.segment.object}")
        return data

    async def read(self, stream_id: int, info: SegmentInfo, start: int, end: int) -> bytes:
        return self.read_now(stream_id, info, start, end)

    def forget(self, stream_id: int, base: int | None = None) -> None:
        pass
