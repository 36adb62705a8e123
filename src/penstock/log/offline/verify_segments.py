"""Checks one segment and its index against what the catalog says of them, block by block."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from penstock.errors import Damaged, ObjectNotFound, StorageError
from penstock.log.disk import segment
from penstock.log.disk.files import File
from penstock.log.disk.segment import (
    ENTRY,
    ColdSegment,
    IndexEntry,
    SegmentInfo,
    decode_entry,
)
from penstock.log.disk.tiered.cold_file import ColdFile
from penstock.log.offline.folder import SegmentFiles
from penstock.log.offline.report import Progress, Report

BLOCKS_PER_READ = 16


class Owner(NamedTuple):
    """The stream a segment belongs to."""

    id: int
    path: str
    is_json: bool
    covered_to: int | None
    """The tail of the stream after the replay of the journal: up to there, bytes behind the
    recorded end of a segment belong to a checkpoint that was not finished. None if unknown."""


class SegmentCheck:
    def __init__(
        self,
        folder: SegmentFiles,
        report: Report,
        progress: Progress,
        owner: Owner,
        info: SegmentInfo,
    ) -> None:
        self._folder = folder
        self._report = report
        self._progress = progress
        self._owner = owner
        self._info = info
        self._data_path = folder.segments.data_path(owner.id, info.base)
        self._index_path = folder.segments.index_path(owner.id, info.base)
        self._data_name = folder.name(self._data_path)
        self._index_name = folder.name(self._index_path)
        self._faults = 0

    def run(self) -> int | None:
        """Return the number of messages that end in the segment; None after a fault, and if its
        object is not to be read."""
        self._report.segments += 1
        cold = self._cold()
        with ExitStack() as cleanup:
            if cold is None:
                data: File | ColdFile | None = self._open(self._data_path, "segment", cleanup)
            else:
                self._report.cold_segments += 1
                self._data_name = cold.object
                objects = self._folder.objects
                data = None if objects is None else ColdFile(objects, cold)
            index = None
            if self._info.length >= segment.BLOCK_BYTES:
                index = self._open(self._index_path, "index", cleanup)
            try:
                if index is not None:
                    self._check_index(index)
                if data is None:
                    self._check_entries(index)
                    return None
                self._check_data_size(data)
                lines = self._check_blocks(data, index)
            except ObjectNotFound:
                self._fault("object-missing", self._data_name, None, "the object is missing")
                return None
            except (OSError, StorageError) as error:
                code = "segment-unreadable" if cold is None else "object-unreadable"
                self._fault(code, self._data_name, None, str(error))
                return None
        return lines if self._faults == 0 else None

    def _cold(self) -> ColdSegment | None:
        """Return where the object store has the segment, if its file is gone."""
        if self._folder.files.exists(self._data_path):
            return None
        try:
            cold = self._folder.cold(self._owner.id, self._info.base)
        except Damaged:
            return None  # reported with the tables
        return None if cold is None else cold.segment

    def _open(self, path: Path, kind: str, cleanup: ExitStack) -> File | None:
        name = self._folder.name(path)
        try:
            file = self._folder.files.open_read(path)
        except FileNotFoundError:
            self._fault(f"{kind}-missing", name, None, f"the {kind} is missing")
            return None
        except OSError as error:
            self._fault(f"{kind}-unreadable", name, None, str(error))
            return None
        cleanup.callback(file.close)
        return file

    def _check_index(self, index: File) -> None:
        size, length = index.size(), self._info.length // segment.BLOCK_BYTES * ENTRY.size
        if size < length:
            what = f"the index has {size} bytes, the catalog says {length}"
            self._fault("index-short", self._index_name, size, what)

    def _check_entries(self, index: File | None) -> None:
        """Check the index of a segment whose bytes are not read."""
        self._progress.add(self._info.length)
        entries = 0 if index is None else self._info.length // segment.BLOCK_BYTES
        raw = b"" if index is None else index.read_at(0, entries * ENTRY.size)
        for block in range(entries):
            self._entry(block, raw[block * ENTRY.size : (block + 1) * ENTRY.size])

    def _check_data_size(self, data: File | ColdFile) -> None:
        size, length = data.size(), self._info.length
        if size < length:
            what = f"the segment has {size} bytes, the catalog says {length}"
            self._fault("segment-short", self._data_name, size, what)
        elif size > length:
            self._extra(size - length)

    def _extra(self, extra: int) -> None:
        """Report bytes behind the recorded end: harmless if the journal has them too."""
        covered_to = self._owner.covered_to
        if covered_to is None or self._info.end + extra <= covered_to:
            again = "" if covered_to is None else "; the journal has them too"
            self._report.note(
                f"{self._data_name} has {extra} bytes behind its recorded end, from a checkpoint "
                f"that was not finished{again}"
            )
        else:
            self._fault(
                "segment-long",
                self._data_name,
                self._info.length,
                f"{extra} bytes stand behind the recorded end that the journal does not have: "
                "catalog or journal are older than this file",
            )

    def _check_blocks(self, data: File | ColdFile, index: File | None) -> int:
        info, is_json = self._info, self._owner.is_json
        ordinal = info.first_ordinal
        lines, last = 0, b""
        for block, piece, entry in self._blocks(data, index):
            self._report.blocks += 1
            self._progress.add(len(piece))
            if entry is not None:
                self._check_block(block, piece, entry)
                expected = info.first_ordinal + lines if is_json else ordinal
                if self._faults == 0 and (
                    entry.ordinal < ordinal or (is_json and entry.ordinal != expected)
                ):
                    self._wrong_ordinal(block, entry.ordinal, expected)
                ordinal = max(ordinal, entry.ordinal)
            if is_json:
                lines += piece.count(b"\n")
            last = piece[-1:] or last
        if is_json and self._faults == 0 and last not in (b"", b"\n"):
            self._fault(
                "segment-unaligned", self._data_name, info.length - 1, "it ends inside a message"
            )
        return lines

    def _blocks(
        self, data: File | ColdFile, index: File | None
    ) -> Iterator[tuple[int, bytes, IndexEntry | None]]:
        """Yield every block with its index entry (None if unknown), the open one last."""
        block_bytes, length = segment.BLOCK_BYTES, self._info.length
        full = length // block_bytes
        for first in range(0, full, BLOCKS_PER_READ):
            count = min(BLOCKS_PER_READ, full - first)
            raw = b"" if index is None else index.read_at(first * ENTRY.size, count * ENTRY.size)
            pieces = data.read_at(first * block_bytes, count * block_bytes)
            for number in range(count):
                piece = pieces[number * block_bytes : (number + 1) * block_bytes]
                if len(piece) < block_bytes:
                    return  # reported already: the file is too short
                entry = raw[number * ENTRY.size : (number + 1) * ENTRY.size]
                yield first + number, piece, self._entry(first + number, entry)
        rest = data.read_at(full * block_bytes, length % block_bytes)
        if len(rest) == length % block_bytes:
            info = self._info
            yield full, rest, IndexEntry(info.open_ordinal, info.open_time_us, info.open_crc)

    def _entry(self, block: int, raw: bytes) -> IndexEntry | None:
        if len(raw) < ENTRY.size:
            return None  # reported already: missing, or too short
        try:
            return decode_entry(raw, "")
        except Damaged:
            self._fault(
                "index-damaged",
                self._index_name,
                block * ENTRY.size,
                f"the entry of block {block} does not match its checksum",
            )
            return None

    def _check_block(self, block: int, piece: bytes, entry: IndexEntry) -> None:
        if zlib.crc32(piece) == entry.crc:
            return
        position = block * segment.BLOCK_BYTES
        start = self._info.base + position
        self._fault(
            "block-damaged",
            self._data_name,
            position,
            f"block {block}, bytes {start} to {start + len(piece)} of the stream, does not match "
            "its checksum",
        )

    def _wrong_ordinal(self, block: int, ordinal: int, expected: int) -> None:
        is_open = block == self._info.length // segment.BLOCK_BYTES
        self._fault(
            "ordinal-wrong",
            self._data_name if is_open else self._index_name,
            block * (segment.BLOCK_BYTES if is_open else ENTRY.size),
            f"block {block} is said to start in message {ordinal}, but it is message {expected}",
        )

    def _fault(self, code: str, name: str, position: int | None, what: str) -> None:
        self._faults += 1
        self._report.problem(code, name, what, position=position, stream=self._owner.path)
