"""Engines for crash tests: small limits so that everything happens often, and sudden ends."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest

from penstock.clock import Clock, ManualClock
from penstock.config.settings import Settings
from penstock.errors import StreamSoftDeleted
from penstock.log.disk import checkpoint, journal, reader, recovery, segment
from penstock.log.disk.catalog import Catalog
from penstock.log.disk.files import File, Files
from penstock.log.disk.store import CATALOG_FILE, DiskStore
from penstock.log.engine import Engine
from penstock.log.lineage import ancestors
from penstock.log.requests import Append
from penstock.protocol.headers import Producer
from penstock.protocol.lifecycle import StreamConfig

BYTES = StreamConfig("application/octet-stream", None, None)
JSON = StreamConfig("application/json", None, None)
START_US = 1_800_000_000_000_000
PIECE_BYTES = 1000


def small_settings(folder: Path, **options: Any) -> Settings:
    """A journal file, a segment and the inline limit are reached after a few appends."""
    small: dict[str, Any] = {
        "data_dir": folder,
        "journal_file_bytes": 4096,
        "journal_batch_bytes_max": 2000,
        "checkpoint_bytes": 6000,
        "segment_bytes_max": 3000,
        "inline_bytes_max": 200,
        "disk_reserve_bytes": 0,
        "open_files_max": 4,
        "reap_interval_s": 3600,
    }
    return Settings(**{**small, **options})


@contextmanager
def small_blocks() -> Iterator[None]:
    """Index entries after 512 bytes instead of 64 KiB, `syncfs` above 4 files instead of 64, two
    spare journal files instead of four: some are removed then, however the threads take turns."""
    with (
        patch.object(segment, "BLOCK_BYTES", 512),
        patch.object(reader, "BLOCK_BYTES", 512),
        patch.object(recovery, "BLOCK_BYTES", 512),
        patch.object(checkpoint, "SYNC_SINGLY_MAX", 4),
        patch.object(journal, "SPARES_MAX", 2),
    ):
        yield


class _UnsyncedFile(File):
    __slots__ = ()

    def sync_data(self) -> None:
        pass


class UnsyncedFiles(Files):
    """Real files without the waiting: for engines whose folder no one pulls the plug on."""

    def open_write(self, path: Path) -> File:
        file = super().open_write(path)
        file.__class__ = _UnsyncedFile
        return file

    def sync_folder(self, path: Path) -> None:
        pass

    def sync_all(self, path: Path) -> None:
        pass


@cache
def _empty_catalog() -> bytes:
    with tempfile.TemporaryDirectory(prefix="penstock-empty-") as folder:
        path = Path(folder) / CATALOG_FILE
        Catalog(path).close()
        return path.read_bytes()


class QuickCatalog(Catalog):
    """A catalog that leaves syncing to the system; a new one is copied, which needs none."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(_empty_catalog())
        super().__init__(path)
        for connection in (self._reader, self._writer):
            connection.execute("PRAGMA synchronous=OFF")


class QuickStore(DiskStore):
    """A disk store that does not wait for the disk."""

    def __init__(self, settings: Settings, *, clock: Clock, files: Files | None = None) -> None:
        super().__init__(settings, clock=clock, files=files or UnsyncedFiles())

    def open_catalog(self) -> Catalog:
        return QuickCatalog(self._root / CATALOG_FILE)


async def start(
    settings: Settings,
    *,
    files: Files | None = None,
    clock: Clock | None = None,
    make: Callable[..., DiskStore] = QuickStore,
) -> Engine:
    clock = clock or ManualClock(START_US)
    engine = Engine(make(settings, clock=clock, files=files), settings, clock=clock)
    await engine.start()
    return engine


def disk(engine: Engine) -> DiskStore:
    assert isinstance(engine.store, DiskStore)
    return engine.store


async def abandon(engine: Engine) -> None:
    """End an engine as a killed process ends: nothing is finished, nothing is tidied up."""
    store = disk(engine)
    tasks = (engine._reap_task, engine._retention_task)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    if store.tier is not None:
        await store.tier.stop()
    store._committer.stop()
    store._schedule.broke()  # no last checkpoint
    store._schedule.stop()
    await store._schedule_task
    if store.tier is not None:
        await store.tier.close()
    store._journal.close()
    store._reader.close()
    store._catalog.close()
    store._lock.close()


def append(
    body: bytes,
    *,
    producer: Producer | None = None,
    close: bool = False,
    config: StreamConfig = BYTES,
    expected: str | None = None,
) -> Append:
    return Append(body, config.content_type, close, producer, None, expected)


class Seen(NamedTuple):
    """A stream as a reader finds it."""

    id: int
    payload: bytes
    closed: bool


async def read_all(engine: Engine, path: str) -> bytes:
    """Every byte of a stream, in pieces, so that reads start and end inside blocks."""
    stream = engine.find(path, touch=False)
    pieces = [
        await engine.read(stream, at, min(at + PIECE_BYTES, stream.tail))
        for at in range(stream.earliest, stream.tail, PIECE_BYTES)
    ]
    return b"".join(pieces)


SOFT_DELETED = b"(kept for its forks)"
"""What there is to see of a soft-deleted stream."""


async def observe(engine: Engine) -> dict[str, Seen]:
    """All streams with all of their bytes, and those that are only there for their forks."""
    seen: dict[str, Seen] = {}
    for info in await engine.list_streams("", "", 1000):
        seen[info.path] = Seen(info.id, await read_all(engine, info.path), info.closed)
        for each in ancestors(engine.find(info.path, touch=False)):
            if each.soft_deleted:
                with pytest.raises(StreamSoftDeleted):
                    engine.find(each.path, touch=False)
                seen[each.path] = Seen(each.id, SOFT_DELETED, False)
    return seen
