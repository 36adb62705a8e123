"""The file JOURNAL: which journal file is the last one, so that a start notices when it is missing.

It is written when a file is taken into use, before the first batch of that file, and stands twice
in it: a torn write or a flipped bit leaves one copy. The catalog cannot hold it, because a
checkpoint may keep the catalog busy for longer than an append can wait.
"""

from __future__ import annotations

import struct
import zlib
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from penstock.log.disk.files import File, Files

MARK_FILE = "JOURNAL"
MAGIC = b"PSTKMRK1"
COPY_BYTES = 4096
"""Distance of the two copies: they share no page and no sector."""

_MARK = struct.Struct("<8sIIQQQQ")
_CRC = struct.Struct("<I")
_VERSION = 1


class Mark(NamedTuple):
    """The last journal file. `is_open` if it takes batches; otherwise all records before
    `first_lsn` are in the catalog or in the files up to `number`."""

    number: int
    is_open: bool
    file_id: int
    first_lsn: int
    """LSN of the first batch of the file, or the next one if it is not open."""
    bytes: int
    """The size that the file was made with."""

    @property
    def file_name(self) -> str:
        return f"{self.number:016d}.journal"


def encode_mark(mark: Mark) -> bytes:
    packed = _MARK.pack(
        MAGIC,
        _VERSION,
        int(mark.is_open),
        mark.number,
        mark.file_id,
        mark.first_lsn,
        mark.bytes,
    )
    return packed + _CRC.pack(zlib.crc32(packed))


def decode_mark(data: bytes) -> Mark | None:
    """Return the mark, or None if it is not as it was written."""
    packed = data[: _MARK.size]
    if len(data) < _MARK.size + _CRC.size or packed[:8] != MAGIC:
        return None
    if _CRC.unpack_from(data, _MARK.size)[0] != zlib.crc32(packed):
        return None
    _, _, is_open, number, file_id, first_lsn, size = _MARK.unpack(packed)
    return Mark(number, bool(is_open), file_id, first_lsn, size)


def read_mark(files: Files, root: Path) -> Mark | None:
    """Return the newest copy that is whole; None if there is none."""
    path = root / MARK_FILE
    if not files.exists(path):
        return None
    with closing(files.open_read(path)) as file:
        copies = [decode_mark(file.read_at(at, COPY_BYTES)) for at in (0, COPY_BYTES)]
    # A file is closed after it was open, and the next one has a higher number.
    return max(
        (mark for mark in copies if mark is not None),
        key=lambda mark: (mark.number, not mark.is_open, mark.first_lsn),
        default=None,
    )


class MarkFile:
    """JOURNAL, opened for writing. Used by one thread at a time."""

    def __init__(self, files: Files, root: Path, current: Mark) -> None:
        self._files = files
        self._root = root
        self._file: File | None = None
        self.current = current
        self.is_unsure = False
        """Whether a write has failed, so that the disk may have another mark than `current`."""

    def create(self, mark: Mark) -> None:
        """Write a mark at a start: what was read may be in the page cache only, its name too."""
        self.write(mark)
        self.close()
        self._files.sync_folder(self._root)

    def write(self, mark: Mark) -> None:
        """Write and sync; after an OSError the old or the new one is on the disk."""
        self.is_unsure = True
        if self._file is None:
            self._file = self._files.open_write(self._root / MARK_FILE)
        data = encode_mark(mark)
        for at in (0, COPY_BYTES):
            self._file.write_at(at, [data])
        self._file.sync_data()
        self.current = mark
        self.is_unsure = False

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
