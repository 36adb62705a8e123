"""Per-stream payload files in wire shape, each with a side index of checksummed blocks.

A segment holds bytes [base, base + length) of its stream. Its index has one 24-byte entry for every
full block: ``ordinal u64 · time u64 · block CRC u32 · entry CRC u32``, the ordinal and append time
being those of the message that holds the block's first byte. The entry of the open block is in the
catalog. The index is data: bytes whose block does not match are never served.
"""

from __future__ import annotations

import re
import struct
import zlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, Protocol

from penstock.errors import Damaged
from penstock.log.disk.files import File, Files
from penstock.log.memory_tail import Chunk

BLOCK_BYTES = 64 * 1024
ENTRY = struct.Struct("<QQII")
_ENTRY_BODY = struct.Struct("<QQI")
_NAME = re.compile(r"([0-9a-f]{16})-([0-9a-f]{16})\.(?:segment|index)")


class SegmentInfo(NamedTuple):
    """A segment as the catalog knows it. `open_*` describe the block that is not full yet."""

    base: int
    length: int
    first_ordinal: int
    open_ordinal: int
    open_time_us: int
    open_crc: int

    @property
    def end(self) -> int:
        return self.base + self.length


class ColdSegment(NamedTuple):
    """A segment in the object store: an object with its bytes, then those of its index."""

    stream_id: int
    base: int
    length: int
    object: str
    object_crc: int


class IndexEntry(NamedTuple):
    ordinal: int
    time_us: int
    crc: int


def encode_entry(entry: IndexEntry) -> bytes:
    body = _ENTRY_BODY.pack(*entry)
    return ENTRY.pack(*entry, zlib.crc32(body))


def decode_entry(data: bytes, where: str) -> IndexEntry:
    if len(data) != ENTRY.size:
        raise Damaged(f"{where}: the index ends too early. Run `penstock verify`.")
    ordinal, time_us, crc, check = ENTRY.unpack(data)
    if zlib.crc32(data[: _ENTRY_BODY.size]) != check:
        raise Damaged(
            f"{where}: the index entry does not match its checksum. Run `penstock verify`."
        )
    return IndexEntry(ordinal, time_us, crc)


def check_blocks(
    info: SegmentInfo, first: int, data: bytes | memoryview, index: bytes, where: str
) -> None:
    """Raise Damaged unless whole blocks from number `first` on, the open one included, match their
    entries in `index`, which are those from `first` on."""
    data = memoryview(data)
    for number in range((len(data) + BLOCK_BYTES - 1) // BLOCK_BYTES):
        block = first + number
        if block == info.length // BLOCK_BYTES:
            crc = info.open_crc
        else:
            raw = index[number * ENTRY.size : (number + 1) * ENTRY.size]
            crc = decode_entry(raw, f"{where}, block {block}").crc
        piece = data[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES]
        if zlib.crc32(piece) != crc:
            raise Damaged(f"{where}, block {block}: the bytes do not match their checksum.")


class SegmentFolder:
    """The paths of segment files: 256 folders, names by stream id and base."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def shard(self, stream_id: int) -> Path:
        return self.folder / f"{stream_id & 0xFF:02x}"

    def data_path(self, stream_id: int, base: int) -> Path:
        return self.shard(stream_id) / f"{stream_id:016x}-{base:016x}.segment"

    def index_path(self, stream_id: int, base: int) -> Path:
        return self.shard(stream_id) / f"{stream_id:016x}-{base:016x}.index"

    @staticmethod
    def parse_name(name: str) -> tuple[int, int] | None:
        """Return (stream id, base) of the name of a segment or index; None for any other name."""
        match = _NAME.fullmatch(name)
        return None if match is None else (int(match[1], 16), int(match[2], 16))


WriteSegment = Callable[[SegmentInfo, list[bytes | bytearray], bytes], None]
"""Writes parts behind those of a segment, and entries behind those of its index."""


def extend_segments(
    segments: tuple[SegmentInfo, ...],
    chunks: Iterable[Chunk],
    write: WriteSegment,
    *,
    count_lines: bool,
    segment_bytes_max: int,
) -> tuple[SegmentInfo, ...]:
    """Write `chunks` behind `segments`, in segments of about the same size; return all of them."""
    result = list(segments)
    group: list[Chunk] = []
    size = 0
    for chunk in chunks:
        current = result[-1] if result else None
        if current is None or chunk.opens_segment or current.length + size >= segment_bytes_max:
            if group:
                assert current is not None
                result[-1] = _extend(current, group, write, count_lines=count_lines)
                group, size = [], 0
            result.append(
                SegmentInfo(chunk.start, 0, chunk.ordinal, chunk.ordinal, chunk.time_us, 0)
            )
        group.append(chunk)
        size += len(chunk.data)
    if group:
        result[-1] = _extend(result[-1], group, write, count_lines=count_lines)
    return tuple(result)


def _extend(
    info: SegmentInfo, group: list[Chunk], write: WriteSegment, *, count_lines: bool
) -> SegmentInfo:
    entries: list[bytes] = []
    ordinal, time_us, crc = info.open_ordinal, info.open_time_us, info.open_crc
    marks = _Marks(group, count_lines=count_lines)
    length = info.length
    for chunk in group:
        # Chunks stay where they are: to join them would take their memory a second time.
        rest = memoryview(chunk.data)
        while rest:
            room = BLOCK_BYTES - length % BLOCK_BYTES
            crc = zlib.crc32(rest[:room], crc)
            length += min(room, len(rest))
            rest = rest[room:]
            if length % BLOCK_BYTES == 0:
                entries.append(encode_entry(IndexEntry(ordinal, time_us, crc)))
                ordinal, time_us = marks.at(info.base + length)
                crc = 0
    write(info, [chunk.data for chunk in group], b"".join(entries))
    return SegmentInfo(info.base, length, info.first_ordinal, ordinal, time_us, crc)


class SegmentWriter:
    """Extends one stream's segments with chunks of its memory tail. Checkpoint thread only."""

    def __init__(
        self, files: Files, folder: SegmentFolder, stream_id: int, *, segment_bytes_max: int
    ) -> None:
        self._files = files
        self._folder = folder
        self._stream_id = stream_id
        self._segment_bytes_max = segment_bytes_max
        self.touched: list[File] = []
        self.new_folders: set[Path] = set()

    def extend(
        self, segments: tuple[SegmentInfo, ...], chunks: Iterable[Chunk], *, count_lines: bool
    ) -> tuple[SegmentInfo, ...]:
        """Write `chunks` behind `segments`; the result is to be trusted only after a sync."""
        return extend_segments(
            segments,
            chunks,
            self._write,
            count_lines=count_lines,
            segment_bytes_max=self._segment_bytes_max,
        )

    def _write(self, info: SegmentInfo, parts: list[bytes | bytearray], entries: bytes) -> None:
        data_file = self._open(self._folder.data_path(self._stream_id, info.base), info.length == 0)
        data_file.write_at(info.length, parts)
        if entries:
            first_entry = info.length // BLOCK_BYTES
            path = self._folder.index_path(self._stream_id, info.base)
            index_file = self._open(path, first_entry == 0)
            index_file.write_at(first_entry * ENTRY.size, [entries])

    def _open(self, path: Path, fresh: bool) -> File:
        if fresh:
            self._files.make_folder(path.parent)
            self.new_folders.add(path.parent)
        file = self._files.open_write(path)
        self.touched.append(file)
        if fresh:
            file.truncate(0)
        return file

    def close(self) -> None:
        for file in self.touched:
            file.close()


class _Marks:
    """The ordinals of ascending positions in chunks: each byte is counted once, however many
    positions a chunk has."""

    __slots__ = ("_chunk", "_count_lines", "_counted", "_group", "_lines")

    def __init__(self, group: list[Chunk], *, count_lines: bool) -> None:
        self._group = group
        self._count_lines = count_lines
        self._chunk = group[0]
        self._counted = 0
        self._lines = 0

    def at(self, position: int) -> tuple[int, int]:
        """Return ordinal and time of the message that holds `position`, or of the next at the
        end."""
        index = bisect_right(self._group, position, key=lambda chunk: chunk.start) - 1
        chunk = self._group[index]
        if chunk is not self._chunk:
            self._chunk, self._counted, self._lines = chunk, 0, 0
        if self._count_lines:
            end = position - chunk.start
            self._lines += chunk.data.count(b"\n", self._counted, end)
            self._counted = end
        return chunk.ordinal + self._lines, chunk.time_us


class ColdSource(Protocol):
    """Segments that are in an object store instead of their file."""

    def has(self, stream_id: int, base: int) -> bool:
        """Whether a segment is cold."""

    def read_now(self, stream_id: int, info: SegmentInfo, start: int, end: int) -> bytes | None:
        """Return bytes of a cold segment, checked; None if they would have to be waited for."""

    async def read(self, stream_id: int, info: SegmentInfo, start: int, end: int) -> bytes:
        """Return bytes of a cold segment, checked; ColdDataUnavailable while the object store does
        not answer."""

    def forget(self, stream_id: int, base: int | None = None) -> None:
        """Drop what is cached of a stream, or of one of its segments."""


class _OpenSegment:
    __slots__ = ("data", "index", "open_checked", "verified")

    def __init__(self, data: File | None) -> None:
        self.data = data  # None: the segment is cold
        self.index: File | None = None
        self.verified: set[int] = set()
        self.open_checked = -1

    def close(self) -> None:
        if self.data is not None:
            self.data.close()
        if self.index is not None:
            self.index.close()


class SegmentReader:
    """Reads and checks segments through a bounded cache of open files.

    `cold` has the segments without a file; their indexes are files like those of the others.
    """

    cold: ColdSource | None = None

    def __init__(self, files: Files, folder: SegmentFolder, *, open_files_max: int) -> None:
        self._files = files
        self._folder = folder
        self._open_max = max(1, open_files_max // 2)
        self._open: OrderedDict[tuple[int, int], _OpenSegment] = OrderedDict()

    def read(
        self, stream_id: int, info: SegmentInfo, start: int, end: int, *, wait: bool
    ) -> bytes | None:
        """Return bytes [start, end) of the segment (file positions), checked; None if `wait` is off
        and the disk would have to be waited for, or for bytes that only the object store has."""
        segment = self._segment(stream_id, info)
        if segment.data is None:
            assert self.cold is not None
            return self.cold.read_now(stream_id, info, start, end)
        first, last = start // BLOCK_BYTES, (end - 1) // BLOCK_BYTES
        if all(_is_checked(segment, info, block) for block in range(first, last + 1)):
            return self._bytes(segment.data, start, end, info, stream_id, wait)
        begin = first * BLOCK_BYTES
        stop = min((last + 1) * BLOCK_BYTES, info.length)
        data = self._bytes(segment.data, begin, stop, info, stream_id, wait)
        if data is None:
            return None
        for block in range(first, last + 1):
            if not _is_checked(segment, info, block):
                piece = data[(block - first) * BLOCK_BYTES : (block - first + 1) * BLOCK_BYTES]
                self._check(segment, stream_id, info, block, piece)
        return data[start - begin : end - begin]

    def view_now(
        self, stream_id: int, info: SegmentInfo, start: int, end: int
    ) -> memoryview | None:
        """Return bytes that were checked before where the page cache has them, to be sent only;
        None if they have to be read."""
        segment = self._segment(stream_id, info)
        if segment.data is None:
            return None
        blocks = range(start // BLOCK_BYTES, (end - 1) // BLOCK_BYTES + 1)
        if not all(_is_checked(segment, info, block) for block in blocks):
            return None
        return segment.data.view_cached(start, end - start)

    def is_cold(self, stream_id: int, info: SegmentInfo) -> bool:
        return self._segment(stream_id, info).data is None

    def warm(self, stream_id: int, info: SegmentInfo, start: int, end: int) -> None:
        """Bring what `read` needs into the page cache. Runs on a reader thread and opens files of
        its own, because the cache of open files belongs to the event loop."""
        for path, scale in (
            (self._folder.data_path(stream_id, info.base), BLOCK_BYTES),
            (self._folder.index_path(stream_id, info.base), ENTRY.size),
        ):
            try:
                file = self._files.open_read(path)
            except FileNotFoundError:
                continue
            try:
                first, last = start // BLOCK_BYTES, (end - 1) // BLOCK_BYTES
                file.read_at(first * scale, (last + 1 - first) * scale)
            finally:
                file.close()

    def entry(self, stream_id: int, info: SegmentInfo, block: int) -> IndexEntry:
        """Return the index entry of a block, the open one included."""
        if block == info.length // BLOCK_BYTES:
            return IndexEntry(info.open_ordinal, info.open_time_us, info.open_crc)
        segment = self._segment(stream_id, info)
        if segment.index is None:
            try:
                segment.index = self._files.open_read(self._folder.index_path(stream_id, info.base))
            except FileNotFoundError:
                raise Damaged(
                    f"The index of stream {stream_id} at {info.base} is missing. Run "
                    "`penstock verify`."
                ) from None
        raw = segment.index.read_at(block * ENTRY.size, ENTRY.size)
        return decode_entry(raw, f"stream {stream_id}, segment {info.base}, block {block}")

    def forget(self, stream_id: int) -> None:
        """Close the files of a deleted stream."""
        for key in [key for key in self._open if key[0] == stream_id]:
            self._open.pop(key).close()
        if self.cold is not None:
            self.cold.forget(stream_id)

    def forget_some(self, stream_id: int, infos: tuple[SegmentInfo, ...]) -> None:
        """Close the files of segments that were trimmed away."""
        for info in infos:
            self.close_segment(stream_id, info.base)
            if self.cold is not None:
                self.cold.forget(stream_id, info.base)

    def close_segment(self, stream_id: int, base: int) -> None:
        """Close the files of one segment."""
        segment = self._open.pop((stream_id, base), None)
        if segment is not None:
            segment.close()

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def _segment(self, stream_id: int, info: SegmentInfo) -> _OpenSegment:
        key = (stream_id, info.base)
        segment = self._open.get(key)
        if segment is None:
            segment = self._open[key] = _OpenSegment(self._open_data(stream_id, info))
            while len(self._open) > self._open_max:
                self._open.popitem(last=False)[1].close()
        else:
            self._open.move_to_end(key)
        return segment

    def _open_data(self, stream_id: int, info: SegmentInfo) -> File | None:
        try:
            return self._files.open_read(self._folder.data_path(stream_id, info.base))
        except FileNotFoundError:
            # The catalog has it as cold before its file goes.
            if self.cold is not None and self.cold.has(stream_id, info.base):
                return None
            raise Damaged(
                f"The segment of stream {stream_id} at {info.base} is missing. Run "
                "`penstock verify`."
            ) from None

    def _bytes(
        self, file: File, start: int, end: int, info: SegmentInfo, stream_id: int, wait: bool
    ) -> bytes | None:
        data = file.read_at(start, end - start) if wait else file.read_cached(start, end - start)
        if data is not None and len(data) != end - start:
            raise Damaged(
                f"The segment of stream {stream_id} at {info.base} is too short. Run "
                "`penstock verify`."
            )
        return data

    def _check(
        self, segment: _OpenSegment, stream_id: int, info: SegmentInfo, block: int, piece: bytes
    ) -> None:
        if zlib.crc32(piece) != self.entry(stream_id, info, block).crc:
            start = info.base + block * BLOCK_BYTES
            raise Damaged(
                f"Bytes {start} to {start + len(piece)} of stream {stream_id} do not match their "
                "checksum and are not served. Run `penstock verify` and restore from a backup."
            )
        if block == info.length // BLOCK_BYTES:
            segment.open_checked = info.length
        else:
            segment.verified.add(block)


def _is_checked(segment: _OpenSegment, info: SegmentInfo, block: int) -> bool:
    if block == info.length // BLOCK_BYTES:
        return segment.open_checked == info.length
    return block in segment.verified
