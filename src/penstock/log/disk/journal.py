"""The write-ahead log shared by all streams: files of CRC-guarded batches, in LSN order.

File: a 64-byte head, then batches. Batch: ``magic u32 · length u32 · file id u64 · first LSN u64 ·
records u32 · CRC u32 · body``. A file's id is random, so bytes left from a recycled file, or sent
by a user, never pass for a batch of this one.
"""

from __future__ import annotations

import errno
import secrets
import struct
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from penstock.errors import StoreDamaged, StoreTooNew
from penstock.log.disk.files import File, Files, is_disk_full
from penstock.log.stats import SECONDS, Histogram

FILE_MAGIC = b"PSTKJNL1"
FILE_VERSION = 1
BATCH_MAGIC = 0x48435450  # "PTCH"
HEAD_BYTES = 64
SPARES_MAX = 4

_FILE_HEAD = struct.Struct("<8sIIQQQ")
_BATCH = struct.Struct("<IIQQII")
_CRC = struct.Struct("<I")

FSYNC, BUFFERED = 1, 2


class JournalBroken(Exception):
    """The journal can take no more: a sync failed, or a refused batch could not be voided."""


class FileHead(NamedTuple):
    durability: int
    file_id: int
    number: int
    first_lsn: int


class Batch(NamedTuple):
    first_lsn: int
    records: int
    body: bytes


def encode_head(head: FileHead) -> bytes:
    packed = _FILE_HEAD.pack(
        FILE_MAGIC, FILE_VERSION, head.durability, head.file_id, head.number, head.first_lsn
    )
    return (packed + _CRC.pack(zlib.crc32(packed))).ljust(HEAD_BYTES, b"\0")


def decode_head(data: bytes, name: str) -> FileHead | None:
    """Return the head, or None if it was never completed (a crash while the file was created)."""
    packed = data[: _FILE_HEAD.size]
    if len(data) < HEAD_BYTES or packed[:8] != FILE_MAGIC:
        return None
    if _CRC.unpack_from(data, _FILE_HEAD.size)[0] != zlib.crc32(packed):
        return None
    _, version, durability, file_id, number, first_lsn = _FILE_HEAD.unpack(packed)
    if version > FILE_VERSION:
        raise StoreTooNew(
            f"Journal {name} has format {version}; this Penstock reads format {FILE_VERSION}. "
            "Run the newer Penstock that wrote it."
        )
    return FileHead(durability, file_id, number, first_lsn)


def encode_batch(file_id: int, first_lsn: int, parts: Sequence[bytes]) -> tuple[bytes, bytes]:
    body = parts[0] if len(parts) == 1 else b"".join(parts)
    crc = _batch_crc(file_id, first_lsn, len(parts), body)
    head = _BATCH.pack(BATCH_MAGIC, len(body), file_id, first_lsn, len(parts), crc)
    return head, body


def _batch_crc(file_id: int, first_lsn: int, records: int, body: bytes) -> int:
    head = _BATCH.pack(BATCH_MAGIC, len(body), file_id, first_lsn, records, 0)
    return zlib.crc32(body, zlib.crc32(head))


def decode_batch(data: bytes, at: int, file_id: int) -> Batch | None:
    """Return the batch at `at`, or None if there is no complete batch of this file."""
    if at + _BATCH.size > len(data):
        return None
    magic, length, batch_file, first_lsn, records, crc = _BATCH.unpack_from(data, at)
    start = at + _BATCH.size
    if magic != BATCH_MAGIC or batch_file != file_id or start + length > len(data):
        return None
    body = data[start : start + length]
    if _batch_crc(file_id, first_lsn, records, body) != crc:
        return None
    return Batch(first_lsn, records, body)


def batch_bytes(batch: Batch) -> int:
    return _BATCH.size + len(batch.body)


class Scan(NamedTuple):
    """The content of one journal file."""

    head: FileHead
    batches: list[Batch]
    end: int
    torn: bool
    later: int | None
    """Byte of a valid batch behind the unreadable one at `end`, if there is one."""


def scan_file(data: bytes, name: str) -> Scan | None:
    """Return all batches of one file; StoreDamaged if valid ones follow an unreadable one."""
    scan = find_batches(data, name)
    if scan is not None and scan.later is not None and scan.head.durability == FSYNC:
        raise StoreDamaged(
            f"Journal {name} is damaged at byte {scan.end}: the batch there is unreadable but a "
            f"valid one follows at byte {scan.later}. Nothing was changed. Restore the data folder "
            "from a backup, or run `penstock verify` to see what is affected."
        )
    return scan


def find_batches(data: bytes, name: str) -> Scan | None:
    """Return all batches of one file, and what follows them, without judging it."""
    head = decode_head(data, name)
    if head is None:
        return None
    position, lsn = HEAD_BYTES, head.first_lsn
    batches: list[Batch] = []
    while (batch := decode_batch(data, position, head.file_id)) is not None:
        if batch.first_lsn != lsn:
            break
        batches.append(batch)
        lsn += batch.records
        position += batch_bytes(batch)
    later = _later_batch(data, position, head.file_id, lsn)
    torn = later is not None or _is_own_head(data, position, head.file_id)
    return Scan(head, batches, position, torn, later)


def _is_own_head(data: bytes, at: int, file_id: int) -> bool:
    """Whether a batch of this file began here; one of another file is left from recycling."""
    if at + _BATCH.size > len(data):
        return False
    magic, _, batch_file, *_ = _BATCH.unpack_from(data, at)
    return bool(magic == BATCH_MAGIC and batch_file == file_id)


def _later_batch(data: bytes, position: int, file_id: int, lsn: int) -> int | None:
    """Return the byte of a valid batch with a later LSN after `position`, if there is one."""
    magic = _CRC.pack(BATCH_MAGIC)
    at = data.find(magic, position)
    while at >= 0:
        batch = decode_batch(data, at, file_id)
        if batch is not None and batch.first_lsn >= lsn:
            return at
        at = data.find(magic, at + 1)
    return None


class JournalWriter:
    """Appends batches. `write` belongs to the commit thread, `release` to the checkpoint thread."""

    def __init__(
        self, files: Files, folder: Path, *, file_bytes: int, durability: int, next_number: int
    ) -> None:
        self._files = files
        self._folder = folder
        self._file_bytes = file_bytes
        self._durability = durability
        self._next_number = next_number
        self._file: File | None = None
        self._head = FileHead(durability, 0, 0, 0)
        self._position = 0
        self._size = 0
        self._older: list[tuple[Path, int]] = []
        self._lock = threading.Lock()
        self._broken: JournalBroken | None = None
        self.sync_seconds = Histogram(SECONDS)

    def write(self, first_lsn: int, parts: Sequence[bytes]) -> None:
        """Write and sync one batch. After an error the batch is not in the file; after
        JournalBroken nothing is ever written again."""
        if self._broken is not None:
            raise self._broken
        try:
            self._write(first_lsn, parts)
        except JournalBroken as error:
            self._broken = error
            raise

    def refuse(self, reason: str) -> None:
        """Refuse all further batches."""
        self._broken = self._broken or JournalBroken(reason)

    def _write(self, first_lsn: int, parts: Sequence[bytes]) -> None:
        length = _BATCH.size + sum(map(len, parts))
        if self._file is None or self._position + length > self._size:
            self._roll(first_lsn, length)
        file = self._file
        assert file is not None
        head, body = encode_batch(self._head.file_id, first_lsn, parts)
        try:
            file.write_at(self._position, [head, body])
        except OSError as error:
            self._void(file, error)
            raise
        if self._durability == FSYNC:
            started = time.perf_counter()
            _sync(file)
            self.sync_seconds.add(time.perf_counter() - started)
        self._position += length

    def _void(self, file: File, error: OSError) -> None:
        """A batch that was refused must not come back at recovery: overwrite its head. Synced,
        because the next batch, with the same LSN, may go to another file."""
        try:
            file.write_at(self._position, [bytes(_BATCH.size)])
        except OSError as second:
            raise JournalBroken(f"cannot cut back {file.path.name}: {second}") from second
        if not is_disk_full(error):
            raise JournalBroken(f"cannot write {file.path.name}: {error}") from error
        _sync(file)

    def _roll(self, first_lsn: int, length: int) -> None:
        with self._lock:
            size = max(self._file_bytes, HEAD_BYTES + length)
            number = self._next_number
            head = FileHead(self._durability, secrets.randbits(64), number, first_lsn)
            file = self._make_file(head, size)
            if self._file is not None:
                if self._durability == BUFFERED:
                    _sync(self._file)  # `sync` reaches the current file only
                self._older.append((self._file.path, first_lsn - 1))
                self._file.close()
            self._file, self._head, self._position = file, head, HEAD_BYTES
            self._next_number = number + 1

    def _make_file(self, head: FileHead, size: int) -> File:
        path = self._folder / f"{head.number:016d}.journal"
        spare = self._take_spare()
        file = self._open(spare or path)
        try:
            if file.size() < size:
                if spare is not None:
                    # A power loss must not give its old name back to a file that is half zeros.
                    self._sync_folder()
                self._files.allocate(file, size)
            file.write_at(0, [encode_head(head)])
            _sync(file)
            if spare is not None:
                self._files.rename(spare, path)
                file.path = path
            self._sync_folder()
            self._size = file.size()
        except (OSError, JournalBroken) as error:
            self._discard(file)
            if isinstance(error, JournalBroken) or is_disk_full(error):
                raise
            raise JournalBroken(f"cannot make {path.name}: {error}") from error
        return file

    def _open(self, path: Path) -> File:
        try:
            return self._files.open_write(path)
        except OSError as error:
            if is_disk_full(error) or error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            raise JournalBroken(f"cannot open {path.name}: {error}") from error

    def _discard(self, file: File) -> None:
        """Remove a file that holds nothing yet; the error that made it useless is what matters."""
        file.close()
        try:
            self._files.remove(file.path)
        except OSError:
            pass

    def _sync_folder(self) -> None:
        try:
            self._files.sync_folder(self._folder)
        except OSError as error:
            raise JournalBroken(f"cannot sync the journal folder: {error}") from error

    def _take_spare(self) -> Path | None:
        names = [name for name in self._files.list_folder(self._folder) if name.endswith(".spare")]
        return self._folder / names[0] if names else None

    def adopt(self, path: Path, last_lsn: int) -> None:
        """Add a file of an earlier run: it stays until a checkpoint covers it."""
        self._older.append((path, last_lsn))

    def release(self, lsn: int) -> None:
        """Recycle or remove the files whose batches are all at or below `lsn`."""
        with self._lock:
            names = self._files.list_folder(self._folder)
            spares = sum(name.endswith(".spare") for name in names)
            for entry in [entry for entry in self._older if entry[1] <= lsn]:
                path = entry[0]
                if spares < SPARES_MAX:
                    self._files.rename(path, path.with_suffix(".spare"))
                    spares += 1
                else:
                    self._files.remove(path)
                self._older.remove(entry)  # one by one: an error leaves the rest for next time

    def live_bytes(self) -> int:
        return self._position + len(self._older) * self._file_bytes

    def sync(self) -> None:
        """Make everything written so far durable; it is already, unless the journal is buffered."""
        with self._lock:
            if self._file is not None and self._durability == BUFFERED:
                _sync(self._file)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _sync(file: File) -> None:
    try:
        file.sync_data()
    except OSError as error:
        # The kernel may have dropped the pages: a second sync could succeed without them.
        raise JournalBroken(f"cannot sync {file.path.name}: {error}") from error


def journal_files(files: Files, folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield every journal file and its bytes, oldest first."""
    for name in files.list_folder(folder):
        if name.endswith(".journal"):
            file = files.open_read(folder / name)
            try:
                yield folder / name, file.read_at(0, file.size())
            finally:
                file.close()
