"""The only caller of open, write, sync, rename and unlink in Penstock.

Everything durable goes through a `Files` value, so that tests can put a layer here that loses
unsynced bytes, fails the Nth call or writes short. It knows nothing of what the bytes mean.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import islice
from mmap import ACCESS_READ, ALLOCATIONGRANULARITY, mmap
from pathlib import Path
from typing import TYPE_CHECKING

from penstock import file_sync
from penstock.errors import StoreError, StoreLocked
from penstock.log.disk import page_cache

if TYPE_CHECKING:
    from penstock.log.disk.direct_batches import WriteQueue

try:
    import fcntl
except ImportError:  # Windows, where `Files.check_system` refuses
    pass

ZERO_PIECE = bytes(1024 * 1024)
PARTS_MAX = 64
"""Parts that are written with one call; the system takes 1024 at most."""


def is_disk_full(error: OSError) -> bool:
    """Whether the disk is full, which may pass; after any other write error it is not trusted."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


class File:
    """One open file, addressed by position."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd

    def write_at(self, position: int, parts: Sequence[bytes | bytearray | memoryview]) -> None:
        """Write all of `parts` in order; a short write is continued until the system fails it."""
        if len(parts) == 1:  # as a lone writer waits for it
            written = self._pwritev([memoryview(parts[0])], position)
            if written == len(parts[0]):
                return
            parts, position = [memoryview(parts[0])[written:]], position + written
        remaining = deque([memoryview(part) for part in parts])
        while remaining:
            written = self._pwritev(list(islice(remaining, PARTS_MAX)), position)
            if written == 0:
                raise OSError(errno.ENOSPC, "nothing was written", str(self.path))
            position += written
            while remaining and written >= len(remaining[0]):
                written -= len(remaining.popleft())
            if written:
                remaining[0] = remaining[0][written:]

    def _pwritev(self, parts: list[memoryview], position: int) -> int:
        if hasattr(os, "pwritev"):
            return os.pwritev(self._fd, parts, position)
        return os.pwrite(self._fd, parts[0], position)  # macOS before 11

    def read_at(self, position: int, length: int) -> bytes:
        """Return `length` bytes; fewer only at the end of the file."""
        data = os.pread(self._fd, length, position)
        while len(data) < length:
            more = os.pread(self._fd, length - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def read_cached(self, position: int, length: int) -> bytes | None:
        """Return all `length` bytes if they are in the page cache, else None: never waits for the
        disk. Only Linux can tell; elsewhere the answer is None, and a reader thread waits."""
        if not hasattr(os, "RWF_NOWAIT"):
            return None
        buffer = bytearray(length)
        try:
            size = os.preadv(self._fd, [buffer], position, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP):
                return None
            raise
        return bytes(buffer) if size == length else None

    def view_cached(self, position: int, length: int) -> memoryview | None:
        """Return bytes where the page cache has them, without a copy, if all of them are there and
        the system can tell.

        For the kernel alone, which may be told to send them: a process that looks at such bytes
        ends if the disk fails. Bytes that are just being read, or leave the page cache before they
        are sent, are waited for.
        """
        if not page_cache.has(self._fd, position, length):
            return None
        skipped = position % ALLOCATIONGRANULARITY
        try:
            # Only what is about to be sent: a whole file would count as memory of this process.
            mapping = mmap(
                self._fd, skipped + length, access=ACCESS_READ, offset=position - skipped
            )
        except (OSError, ValueError):
            return None  # no descriptor is left, which it has of its own, or the file is too short
        return memoryview(mapping)[skipped:]

    def sync_data(self) -> None:
        file_sync.sync_data(self._fd)

    def fileno(self) -> int:
        return self._fd

    def truncate(self, length: int) -> None:
        os.ftruncate(self._fd, length)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Lock:
    """A data folder that this process holds until `close`."""

    __slots__ = ("_fds", "_folder", "path")

    def __init__(self, path: Path, folder: int, file: int | None) -> None:
        self.path = path
        self._folder = os.fstat(folder)
        self._fds = [folder] if file is None else [file, folder]

    def add(self, fd: int) -> None:
        self._fds.insert(0, fd)

    def is_current(self) -> bool:
        """Whether the name of the folder still stands for the folder that is held."""
        try:
            return os.path.samestat(os.stat(self.path.parent), self._folder)
        except OSError:
            return False

    def close(self) -> None:
        while self._fds:
            os.close(self._fds.pop())


class Files:
    """The real file system."""

    def check_system(self) -> None:
        """Raise StoreError on a system that cannot keep a data folder."""
        if not (file_sync.HAS_FCNTL and hasattr(os, "pread")):
            raise StoreError(
                "A data folder needs locks and syncs that this system does not have. "
                "Use --memory here, or Linux or macOS for durable data."
            )

    def open_read(self, path: Path) -> File:
        return File(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def open_write(self, path: Path) -> File:
        return File(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640))

    def write_queue(self) -> WriteQueue | None:
        """Return a queue of writes that are done while the event loop goes on, if there is one."""
        return None

    def open_direct(self, path: Path) -> File:
        """Open a file for writes past the page cache, each of which is synced when it returns;
        OSError where the file system has none of that. Positions, sizes and addresses have to be
        aligned."""
        if not hasattr(os, "O_DIRECT"):  # macOS
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(path))
        return File(path, os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_DIRECT | os.O_DSYNC))

    def allocate(self, file: File, length: int) -> None:
        """Fill with zeros: syncing into written blocks is faster than into reserved ones."""
        for position in range(0, length, len(ZERO_PIECE)):
            file.write_at(position, [ZERO_PIECE[: length - position]])

    def make_folder(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def sync_above(self, path: Path) -> None:
        """Sync the folders above `path`, any of which may be as new as it is."""
        for folder in path.absolute().parents:
            try:
                self.sync_folder(folder)
            except PermissionError:
                return  # belongs to another user, so it is not new

    def sync_folder(self, path: Path) -> None:
        file_sync.sync_folder(path)

    def can_sync_all(self) -> bool:
        """Whether `sync_all` works: Linux has `syncfs`, macOS has nothing like it."""
        return _syncfs() is not None

    def sync_all(self, path: Path) -> None:
        """Sync the whole file system of `path` with one `syncfs`: cheaper than many single
        syncs."""
        syncfs = _syncfs()
        assert syncfs is not None
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if syncfs(fd) != 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code), str(path))
        finally:
            os.close(fd)

    def sync_everything(self, path: Path) -> None:
        """Sync all files and folders below `path`, and `path` itself."""
        if self.can_sync_all():
            self.sync_all(path)
            return
        for folder, _, names in os.walk(path):
            for name in names:
                file = self.open_read(Path(folder, name))
                try:
                    file.sync_data()
                finally:
                    file.close()
            self.sync_folder(Path(folder))

    def rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        """Make `target` the same file as `source`, or a copy where the file system has no links."""
        try:
            os.link(source, target)
        except OSError:
            shutil.copyfile(source, target)

    def remove_all(self, path: Path) -> None:
        """Remove a folder with everything in it, or a file; nothing if it is not there."""
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def list_folder(self, path: Path) -> list[str]:
        return sorted(os.listdir(path)) if path.is_dir() else []

    def exists(self, path: Path) -> bool:
        return path.exists()

    def free_bytes(self, path: Path) -> int:
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def read_text(self, path: Path) -> str:
        return path.read_text(encoding="utf-8")

    def write_text(self, path: Path, text: str) -> None:
        """Replace a small file so that a crash leaves the old or the new content."""
        temporary = path.with_name(path.name + ".new")
        file = self.open_write(temporary)
        try:
            file.truncate(0)
            file.write_at(0, [text.encode()])
            file.sync_data()
        finally:
            file.close()
        self.rename(temporary, path)
        self.sync_folder(path.parent)

    def lock(self, path: Path) -> Lock:
        """Hold the folder of `path`, and `path` itself, for this process alone."""
        folder = _lock_folder(path, fcntl.LOCK_EX)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        lock = Lock(path, folder, fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise _in_use(path, fcntl.LOCK_EX) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return lock

    def lock_shared(self, path: Path) -> Lock:
        """Keep others from taking `path` with `lock`, and change nothing in it."""
        lock = Lock(path, _lock_folder(path, fcntl.LOCK_SH), None)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return lock  # the lock of the folder is enough
        lock.add(fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise _in_use(path, fcntl.LOCK_SH) from None
        return lock

    @contextmanager
    def copied(self, paths: Sequence[Path]) -> Iterator[Path]:
        """Provide a folder outside of the store with copies of `paths`; it is removed
        afterwards."""
        with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
            for path in paths:
                shutil.copyfile(path, Path(folder) / path.name)
            yield Path(folder)


def _lock_folder(path: Path, mode: int) -> int:
    """Lock the folder of `path` itself, so that removing `path` admits nobody; return its
    descriptor."""
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise _in_use(path, mode) from None
    except OSError:
        pass  # a file system without locks of folders, such as NFS: that of the file has to do
    return fd


def _in_use(path: Path, mode: int) -> StoreLocked:
    try:
        holder = path.read_text(encoding="utf-8", errors="replace")[:32].strip() or "unknown"
    except OSError:
        holder = "unknown"
    if mode == fcntl.LOCK_SH:
        return StoreLocked(
            f"{path.parent} is in use by Penstock (process {holder}). Stop it first."
        )
    return StoreLocked(
        f"{path.parent} is in use by another Penstock (process {holder}). "
        "Stop it first, or choose another --data-dir."
    )


@cache
def _syncfs() -> Callable[[int], int] | None:
    return getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
