"""`Files` and a catalog whose Nth call of an operation fails, once or from then on."""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections import Counter
from pathlib import Path

from penstock.clock import Clock
from penstock.config.settings import Settings
from penstock.log.disk.catalog import Catalog, Changes
from penstock.log.disk.direct_batches import WriteQueue
from penstock.log.disk.files import File, Files
from penstock.log.disk.store import CATALOG_FILE
from tests.crash.engines import QuickCatalog, QuickStore
from tests.helpers.write_queue import HookedQueue

OPERATIONS = ("write", "sync", "allocate", "rename", "open", "remove", "truncate", "commit")
SHORT = -1
"""In place of an error number: the write is cut short, without an error."""
SHORT_THEN_FULL = -2
"""The write is cut short, and the rest of it finds the disk full."""


class Fault:
    """Call number `nth` of `operation` goes wrong. `nth` 0 never does: it only counts."""

    def __init__(
        self, operation: str = "", nth: int = 0, code: int = 0, *, forever: bool = False
    ) -> None:
        self.operation = operation
        self.nth = nth
        self.code = code
        self.forever = forever
        self.calls: Counter[str] = Counter()
        self.hit: Path | None = None
        self._lock = threading.Lock()

    def strikes(self, operation: str, path: Path) -> int:
        """The error number that this call fails with, or 0."""
        with self._lock:
            self.calls[operation] += 1
            count = self.calls[operation]
            if operation != self.operation or not 0 < self.nth <= count:
                return 0
            if count > self.nth and not self.forever:
                return 0
            self.hit = self.hit or path
            return self.code

    def check(self, operation: str, path: Path) -> None:
        if code := self.strikes(operation, path):
            raise OSError(code, os.strerror(code), str(path))

    def strike_next(self, operation: str, code: int, *, forever: bool = False) -> None:
        """From now on: the next call of `operation` goes wrong."""
        with self._lock:
            self.operation, self.code, self.forever = operation, code, forever
            self.nth = self.calls[operation] + 1

    def heal(self) -> None:
        self.nth = 0


class FaultFile(File):
    __slots__ = ("_fault", "_is_cut")

    def __init__(self, path: Path, fd: int, fault: Fault) -> None:
        super().__init__(path, fd)
        self._fault = fault
        self._is_cut = False

    def _pwritev(self, parts: list[memoryview], position: int) -> int:
        if self._is_cut:
            self._is_cut = False
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        code = self._fault.strikes("write", self.path)
        if code > 0:
            raise OSError(code, os.strerror(code), str(self.path))
        if code == 0:
            return super()._pwritev(parts, position)
        self._is_cut = code == SHORT_THEN_FULL
        data = b"".join(parts)
        return super()._pwritev([memoryview(data)[: max(1, len(data) // 2)]], position)

    def sync_data(self) -> None:
        self._fault.check("sync", self.path)

    def truncate(self, length: int) -> None:
        self._fault.check("truncate", self.path)
        super().truncate(length)


class DirectFaultFile(FaultFile):
    """One whose every write is synced when it returns."""

    __slots__ = ()

    def _pwritev(self, parts: list[memoryview], position: int) -> int:
        written = super()._pwritev(parts, position)
        self.sync_data()
        return written


class FaultFiles(Files):
    """With `queued`, there is a queue for the journal."""

    def __init__(self, fault: Fault, *, queued: bool = False) -> None:
        self._fault = fault
        self.queue = HookedQueue() if queued else None

    def write_queue(self) -> WriteQueue | None:
        return self.queue

    def open_direct(self, path: Path) -> File:
        file = super().open_write(path)
        return DirectFaultFile(path, file._fd, self._fault)

    def open_write(self, path: Path) -> File:
        self._fault.check("open", path)
        file = super().open_write(path)
        return FaultFile(path, file._fd, self._fault)

    def allocate(self, file: File, length: int) -> None:
        self._fault.check("allocate", file.path)
        file.truncate(length)

    def sync_folder(self, path: Path) -> None:
        self._fault.check("sync", path)

    def sync_all(self, path: Path) -> None:
        self._fault.check("sync", path)

    def rename(self, source: Path, target: Path) -> None:
        self._fault.check("rename", source)
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self._fault.check("remove", path)
        super().remove(path)


class FaultCatalog(QuickCatalog):
    def __init__(self, path: Path, fault: Fault) -> None:
        super().__init__(path)
        self._fault = fault

    def commit(self, changes: Changes) -> None:
        code = self._fault.strikes("commit", self.path)
        if code == errno.ENOSPC:
            raise sqlite3.OperationalError("database or disk is full")
        if code:
            raise sqlite3.OperationalError("disk I/O error")
        super().commit(changes)


class FaultStore(QuickStore):
    def __init__(self, settings: Settings, *, clock: Clock, files: Files | None = None) -> None:
        assert isinstance(files, FaultFiles)
        super().__init__(settings, clock=clock, files=files)
        self.fault = files._fault

    def open_catalog(self) -> Catalog:
        return FaultCatalog(self._root / CATALOG_FILE, self.fault)
