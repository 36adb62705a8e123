"""The write-ahead log shared by all streams: files of CRC-guarded batches, in LSN order.

File: a 64-byte head, then batches. Batch: ``magic u32 · length u32 · file id u64 · first LSN u64 ·
records u32 · CRC u32 · body``. A file's id is random, so bytes left from a recycled file, or sent
by a user, never pass for a batch of this one.
"""

from __future__ import annotations

import errno
import os
import secrets
import struct
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from penstock.errors import StoreTooNew
from penstock.log.disk.direct_batches import DirectBatches, WriteQueue
from penstock.log.disk.files import File, Files, is_disk_full
from penstock.log.disk.journal_mark import MARK_FILE, Mark, MarkFile
from penstock.log.stats import SECONDS, Histogram

FILE_MAGIC = b"PSTKJNL1"
FILE_VERSION = 2
BATCH_MAGIC = 0x48435450  # "PTCH"
HEAD_BYTES = 64
SPARES_MAX = 4

_FILE_HEAD = struct.Struct("<8sIIQQQQ")
_FILE_HEAD_1 = struct.Struct("<8sIIQQQ")
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
    bytes: int
    """The size that the file was made with; 0 in files of version 1, which do not say it."""


class OldFile(NamedTuple):
    """A journal file that is complete. `is_set_aside` if it must not be used again: it holds
    batches behind an unreadable one."""

    path: Path
    last_lsn: int
    is_set_aside: bool = False


class Batch(NamedTuple):
    first_lsn: int
    records: int
    body: bytes


def encode_head(head: FileHead) -> bytes:
    packed = _FILE_HEAD.pack(FILE_MAGIC, FILE_VERSION, *head)
    return (packed + _CRC.pack(zlib.crc32(packed))).ljust(HEAD_BYTES, b"\0")


def decode_head(data: bytes, name: str) -> FileHead | None:
    """Return the head, or None if it was never completed (a crash while the file was created)."""
    if len(data) < HEAD_BYTES or data[:8] != FILE_MAGIC:
        return None
    for form in (_FILE_HEAD, _FILE_HEAD_1):
        packed = data[: form.size]
        if _CRC.unpack_from(data, form.size)[0] != zlib.crc32(packed):
            continue
        _, version, durability, file_id, number, first_lsn, *size = form.unpack(packed)
        if version > FILE_VERSION:
            raise StoreTooNew(
                f"Journal {name} has format {version}; this Penstock reads format {FILE_VERSION}. "
                "Run the newer Penstock that wrote it."
            )
        return FileHead(durability, file_id, number, first_lsn, size[0] if size else 0)
    return None


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
    torn_bytes: int
    """Size of what stands at `end` and is no whole batch, as far as it can be seen."""

    @property
    def last_lsn(self) -> int:
        """LSN of the last record; the one before the first if there is none."""
        return self.head.first_lsn - 1 + sum(batch.records for batch in self.batches)


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
    torn_bytes = _torn_bytes(data, position, head.file_id)
    if later is not None:
        end = later
        while (batch := decode_batch(data, end, head.file_id)) is not None:
            end += batch_bytes(batch)
        torn_bytes = end - position
    return Scan(head, batches, position, torn_bytes > 0, later, torn_bytes)


def _torn_bytes(data: bytes, at: int, file_id: int) -> int:
    """Return the size of the batch of this file that began here; 0 for none, or for one of another
    file, which is left from recycling."""
    if at + _BATCH.size > len(data):
        return 0
    magic, length, batch_file, *_ = _BATCH.unpack_from(data, at)
    if magic != BATCH_MAGIC or batch_file != file_id:
        return 0
    return min(_BATCH.size + int(length), len(data) - at)


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
    """Appends batches. `write` belongs to the commit thread, `release` to the checkpoint thread.
    With a `queue`, which the journal closes, `stage`, `submit` and `end` do the same as `write`
    while the event loop goes on.

    `mark` names the file that is written to; `aside` is the folder for files that are not needed
    any more but hold batches that no replay could use."""

    def __init__(
        self,
        files: Files,
        folder: Path,
        *,
        file_bytes: int,
        durability: int,
        next_number: int,
        mark: MarkFile,
        aside: Path,
        queue: WriteQueue | None = None,
    ) -> None:
        self._files = files
        self._folder = folder
        self._mark = mark
        self._aside = aside
        self._file_bytes = file_bytes
        self._durability = durability
        self._next_number = next_number
        self._file: File | None = None
        self._queue = queue
        self._direct: DirectBatches | None = None  # None: through the page cache
        self._begun = 0  # bytes of the batch that the queue has
        self._begun_s = 0.0
        self._head = FileHead(durability, 0, 0, 0, 0)
        self._position = 0
        self._is_marked = True
        self._older: list[OldFile] = []
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
        if self._file is None or self._position + length > self._head.bytes:
            self._roll(first_lsn, length)
        if not self._is_marked:
            self._set_mark()
        file = self._file
        assert file is not None
        head, body = encode_batch(self._head.file_id, first_lsn, parts)
        if self._direct is not None and self._write_directly(self._direct, head, body):
            self._position += length
            return
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
        if self._direct is not None:
            self._follow(self._direct, file)

    def _follow(self, direct: DirectBatches, file: File) -> None:
        """Let writes past the page cache go on behind a batch that went through it. The batch is
        durable, so that nothing here may fail it."""
        try:
            direct.passed(self._position, file)
        except (OSError, IndexError, ValueError):  # the block could not be read back, or is short
            self._close_direct()

    def stage(self, first_lsn: int, parts: Sequence[bytes]) -> bool:
        """Prepare a batch for the queue, which has none; False if it has to take `write`."""
        direct = self._direct
        if direct is None or self._broken is not None or not self._is_marked:
            return False
        length = _BATCH.size + sum(map(len, parts))
        if self._position + length > self._head.bytes:
            return False
        head, body = encode_batch(self._head.file_id, first_lsn, parts)
        self._begun = length
        return direct.stage(head, body)

    def submit(self) -> bool:
        """Give the batch that is prepared to the queue; False if it has to take `write`."""
        assert self._direct is not None
        try:
            self._direct.submit()
        except OSError:
            return False
        self._begun_s = time.perf_counter()
        return True

    def end(self, result: int) -> bool:
        """Take the result of the queue; False if the batch has to take `write` after all.
        Raises as `write` does."""
        direct = self._direct
        assert direct is not None
        if not direct.is_whole(result):
            if result < 0 and not _is_refusal(-result):
                self._broken = self._direct_failed(OSError(-result, os.strerror(-result)))
                raise self._broken
            return False
        self.sync_seconds.add(time.perf_counter() - self._begun_s)
        direct.landed()
        self._position += self._begun
        return True

    def _write_directly(self, direct: DirectBatches, head: bytes, body: bytes) -> bool:
        """Write and sync a batch past the page cache; False if that way is not open to it."""
        if not direct.stage(head, body):
            return False
        started = time.perf_counter()
        try:
            direct.write()
        except OSError as error:
            if not _is_refusal(error.errno):
                raise self._direct_failed(error) from error
            self._close_direct()
            return False
        self.sync_seconds.add(time.perf_counter() - started)
        direct.landed()
        return True

    def _direct_failed(self, error: OSError) -> JournalBroken:
        assert self._file is not None
        return JournalBroken(f"cannot write {self._file.path.name}: {error}")

    def _open_direct(self, file: File, head: FileHead) -> None:
        """Write the batches of a new file past the page cache, if there is a queue for them."""
        if self._queue is None or self._durability != FSYNC:
            return
        try:
            direct = self._files.open_direct(file.path)
        except OSError:
            return  # not every file system has it
        self._direct = DirectBatches(self._queue, direct, head.bytes, encode_head(head))

    def _close_direct(self) -> None:
        if self._direct is not None:
            self._direct.file.close()
            self._direct = None

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
            head = FileHead(self._durability, secrets.randbits(64), number, first_lsn, size)
            file, head = self._make_file(head)
            if self._file is not None:
                if self._durability == BUFFERED:
                    _sync(self._file)  # `sync` reaches the current file only
                self._older.append(OldFile(self._file.path, first_lsn - 1))
                self._file.close()
            self._close_direct()
            self._file, self._head, self._position = file, head, HEAD_BYTES
            self._open_direct(file, head)
            self._is_marked = False
            self._next_number = number + 1

    def _set_mark(self) -> None:
        """Name the current file in JOURNAL; it takes no batch before that."""
        head = self._head
        with self._lock:
            try:
                self._mark.write(Mark(head.number, True, head.file_id, head.first_lsn, head.bytes))
            except OSError as error:
                if _may_pass(error):
                    raise
                raise JournalBroken(f"cannot write {MARK_FILE}: {error}") from error
            self._is_marked = True

    def _make_file(self, head: FileHead) -> tuple[File, FileHead]:
        """Return a file of at least the size in `head`, and the head that it got."""
        path = self._folder / f"{head.number:016d}.journal"
        spare = self._take_spare()
        file = self._open(spare or path)
        try:
            if file.size() < head.bytes:
                if spare is not None:
                    # A power loss must not give its old name back to a file that is half zeros.
                    self._sync_folder()
                self._files.allocate(file, head.bytes)
            head = head._replace(bytes=file.size())
            file.write_at(0, [encode_head(head)])
            _sync(file)
            if spare is not None:
                self._files.rename(spare, path)
                file.path = path
            self._sync_folder()
        except (OSError, JournalBroken) as error:
            self._discard(file)
            if isinstance(error, JournalBroken) or is_disk_full(error):
                raise
            raise JournalBroken(f"cannot make {path.name}: {error}") from error
        return file, head

    def _open(self, path: Path) -> File:
        try:
            return self._files.open_write(path)
        except OSError as error:
            if _may_pass(error):
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

    def make_spare(self) -> None:
        """Make a file for the next roll, unless there is one; OSError if the disk is full."""
        with self._lock:
            if self._take_spare() is not None:
                return
            unfinished = self._folder / "spare.new"
            file = self._files.open_write(unfinished)
            try:
                self._files.allocate(file, self._file_bytes)
                file.sync_data()
            except OSError:
                self._discard(file)
                raise
            file.close()
            self._files.rename(unfinished, self._folder / f"{0:016d}.spare")

    def adopt(self, file: OldFile) -> None:
        """Add a file of an earlier run: it stays until a checkpoint covers it."""
        self._older.append(file)

    def release(self, lsn: int) -> None:
        """Recycle, remove or set aside the files whose batches are all at or below `lsn`."""
        with self._lock:
            names = self._files.list_folder(self._folder)
            spares = sum(name.endswith(".spare") for name in names)
            if self._mark.is_unsure:
                self._mark.write(self._mark.current)
            for old in [old for old in self._older if old.last_lsn <= lsn]:
                self._forget_mark(old.path, lsn)
                if old.is_set_aside:
                    set_aside(self._files, old.path, self._aside)
                elif spares < SPARES_MAX:
                    self._files.rename(old.path, old.path.with_suffix(".spare"))
                    spares += 1
                else:
                    self._files.remove(old.path)
                self._older.remove(old)  # one by one: an error leaves the rest for next time

    def _forget_mark(self, path: Path, lsn: int) -> None:
        """Note that the last file is not needed, if it is the one at `path`."""
        mark = self._mark.current
        if mark.is_open and mark.file_name == path.name:
            self._mark.write(mark._replace(is_open=False, first_lsn=lsn + 1))

    def live_bytes(self) -> int:
        return self._position + len(self._older) * self._file_bytes

    def sync(self) -> None:
        """Make everything written so far durable; it is already, unless the journal is buffered."""
        with self._lock:
            if self._file is not None and self._durability == BUFFERED:
                _sync(self._file)

    def close(self) -> None:
        self._mark.close()
        self._close_direct()
        if self._queue is not None:
            self._queue.close()
            self._queue = None
        if self._file is not None:
            self._file.close()
            self._file = None


def _is_refusal(code: int | None) -> bool:
    """Whether a write past the page cache may succeed through it: the file system does not take
    such a write, or has no room for it now. All other errors are those of the disk."""
    return code in (errno.EINVAL, errno.EAGAIN, errno.EOPNOTSUPP, errno.ENOSPC, errno.EDQUOT)


def _may_pass(error: OSError) -> bool:
    """Whether the same call can succeed later: a full disk, or no free descriptor."""
    return is_disk_full(error) or error.errno in (errno.EMFILE, errno.ENFILE)


def set_aside(files: Files, path: Path, folder: Path) -> Path:
    """Move a file into `folder`, under a name that is free there; return its new path."""
    files.make_folder(folder)
    target, number = folder / path.name, 0
    while files.exists(target):
        number += 1
        target = folder / f"{path.name}.{number}"
    files.rename(path, target)
    for each in (folder, path.parent, folder.parent):
        files.sync_folder(each)  # else a power loss could bring it back
    return target


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
