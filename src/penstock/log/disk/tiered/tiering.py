"""Moves segments to the object store: which ones, when, and in steps that a kill may end anywhere.

A name is noted as doomed, the object is written and read back, a catalog transaction makes the
segment cold, and only then its file goes. Objects go when the catalog has forgotten them. Belongs
to the event loop; threads of its own talk to the store, that of the checkpoints to the catalog.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import closing
from typing import Any, TypeVar

from penstock.clock import Clock
from penstock.config.settings import Settings
from penstock.errors import Damaged, PenstockError, StorageError, StoreReadOnly
from penstock.log.disk import segment
from penstock.log.disk.catalog import Catalog, CatalogError, Changes
from penstock.log.disk.catalog_cold import ColdChanges, LocalSegment
from penstock.log.disk.checkpoint_schedule import CheckpointSchedule
from penstock.log.disk.files import Files
from penstock.log.disk.segment import (
    ENTRY,
    ColdSegment,
    IndexEntry,
    SegmentFolder,
    SegmentReader,
    check_blocks,
    encode_entry,
)
from penstock.log.disk.tiered.pool import DaemonPool
from penstock.log.stats import TierStats
from penstock.object_store import ObjectStore
from penstock.protocol.globs import matches

log = logging.getLogger("penstock.log")

T = TypeVar("T")

TIER_URL = "tier_url"
"""The key of the catalog's meta values that says where the cold segments are."""
BATCH = 16
"""Segments that are moved together: three transactions for all of them."""
REMOVED_AT_ONCE = 1000
READ_BACK_BYTES = 8 * 1024 * 1024


class Tiering:
    def __init__(
        self,
        store: ObjectStore,
        catalog: Catalog,
        schedule: CheckpointSchedule,
        segments: SegmentReader,
        settings: Settings,
        stats: TierStats,
        *,
        patterns: Sequence[str],
        store_id: str,
        files: Files,
        folder: SegmentFolder,
        clock: Clock,
        before_first: Callable[[], None],
    ) -> None:
        """`before_first` runs on the checkpoint thread before anything is written to the store."""
        self._store = store
        self._catalog = catalog
        self._schedule = schedule
        self._segments = segments
        self._settings = settings
        self._stats = stats
        self._store_id = store_id
        self._files = files
        self._folder = folder
        self._clock = clock
        self._before_first: Callable[[], None] | None = before_first
        self._patterns = patterns
        self._damaged: set[tuple[int, int]] = set()
        self._late: set[str] = set()
        self._running = asyncio.Lock()
        self._work: set[Future[Any]] = set()
        self._threads = DaemonPool(settings.tier_concurrency, "penstock-tier")

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._settings.tier_interval_s)
            try:
                while await self.round():
                    pass
            except StoreReadOnly:
                return  # until the next start
            except (PenstockError, CatalogError, OSError) as error:
                log.warning("Segments cannot be moved to the object store: %s", error)

    async def close(self, *, timeout_s: float) -> None:
        """Wait for what threads have begun, but not for longer than `timeout_s`."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._work:
            await asyncio.wait([*map(asyncio.wrap_future, self._work)], timeout=timeout_s)

    async def round(self) -> bool:
        """Move a batch of segments, and remove objects that are not needed. Return whether there
        may be more to do at once."""
        async with self._running:
            chosen = await self._on_thread(self._choose)
            moved = await self._move(chosen) if chosen else 0
            removed = await self._remove_doomed()
            return moved == BATCH or removed == REMOVED_AT_ONCE

    def _choose(self) -> list[LocalSegment]:
        """Return segments that are old enough, or the oldest while there are too many bytes."""
        settings, stats = self._settings, self._stats
        oldest_us = self._clock.now_us() - int(settings.tier_after_s * 1_000_000)
        chosen: list[LocalSegment] = []
        with self._catalog.survey() as (totals, segments):
            stats.cold_segments, stats.cold_bytes, stats.local_bytes = totals
            bound = settings.tier_local_bytes_max
            excess = totals.local_bytes - bound if bound else 0
            for each in segments:
                if each.time_us > oldest_us and excess <= 0:
                    break
                if (each.stream_id, each.info.base) in self._damaged or not self._covers(each.path):
                    continue
                chosen.append(each)
                excess -= each.info.length
                if len(chosen) == BATCH:
                    break
        return chosen

    def _covers(self, path: str) -> bool:
        patterns = self._patterns
        return not patterns or any(matches(pattern, path) for pattern in patterns)

    # -- there

    async def _move(self, chosen: Sequence[LocalSegment]) -> int:
        """Move segments; return how many the store has taken."""
        names = [self._name(each) for each in chosen]
        await self._schedule.between(lambda: self._announce(names))
        results = await asyncio.gather(
            *[
                self._on_thread(self._upload, each, name)
                for each, name in zip(chosen, names, strict=True)
            ],
            return_exceptions=True,
        )
        uploaded = [each for each in results if isinstance(each, ColdSegment)]
        if uploaded:
            await self._commit(ColdChanges(cold=uploaded))
            await self._remove_files(uploaded)
        self._stats.uploads += len(uploaded)
        self._stats.upload_bytes += sum(each.length for each in uploaded)
        failures = [
            (each, name, result)
            for each, name, result in zip(chosen, names, results, strict=True)
            if isinstance(result, BaseException)
        ]
        for each, name, error in failures:
            self._upload_failed(each, name, error)
        return len(uploaded)

    def _name(self, each: LocalSegment) -> str:
        token = secrets.token_hex(8)  # an object is never written twice
        return f"{self._store_id}/{each.stream_id:016x}-{each.info.base:016x}-{token}"

    def _announce(self, names: list[str]) -> None:
        """Note names before there are objects, so that none is forgotten after a crash."""
        if self._before_first is not None:
            self._before_first()
            self._before_first = None
        meta: dict[str, int | str] = {TIER_URL: self._store.url}
        self._catalog.commit(Changes([], [], [], [], meta, tiered=ColdChanges(doomed=names)))

    def _upload(self, each: LocalSegment, name: str) -> ColdSegment:
        """Write a segment and its index to the store, and read them back."""
        info = each.info
        data_path = self._folder.data_path(each.stream_id, info.base)
        with closing(self._files.open_read(data_path)) as file:
            data = file.read_at(0, info.length)
        index = b""
        if entries := info.length // segment.BLOCK_BYTES:
            index_path = self._folder.index_path(each.stream_id, info.base)
            with closing(self._files.open_read(index_path)) as file:
                index = file.read_at(0, entries * ENTRY.size)
        if len(data) != info.length:
            raise Damaged(f"{data_path} is too short. Run `penstock verify`.")
        check_blocks(info, 0, data, index, str(data_path))
        last = encode_entry(IndexEntry(info.open_ordinal, info.open_time_us, info.open_crc))
        crc = zlib.crc32(last, zlib.crc32(index, zlib.crc32(data)))
        size = len(data) + len(index) + len(last)
        self._store.put(name, [data, index, last])
        del data
        self._read_back(name, size, crc)
        return ColdSegment(each.stream_id, info.base, info.length, name, crc)

    def _read_back(self, name: str, size: int, crc: int) -> None:
        check = 0
        for start in range(0, size, READ_BACK_BYTES):
            end = min(start + READ_BACK_BYTES, size)
            piece = self._store.get_range(name, start, end)
            if len(piece) != end - start:
                raise StorageError(f"{self._store.url}: {name} is shorter than it was written.")
            check = zlib.crc32(piece, check)
        if check != crc:
            raise StorageError(f"{self._store.url}: {name} is not as it was written.")

    def _upload_failed(self, each: LocalSegment, name: str, error: BaseException) -> None:
        if isinstance(error, FileNotFoundError):
            return  # trimmed or deleted meanwhile
        self._stats.upload_failures += 1
        # The store may still be about to write it.
        self._late.add(name)
        if isinstance(error, Damaged):
            self._damaged.add((each.stream_id, each.info.base))
        elif not isinstance(error, PenstockError | OSError):
            raise error
        log.warning("A segment of %r stays in its file: %s", each.path, error)

    async def _remove_files(self, uploaded: list[ColdSegment]) -> None:
        """Remove the files of segments that the catalog has as cold."""
        cold = [each for each in uploaded if self._is_in_force(each)]
        paths = [self._folder.data_path(each.stream_id, each.base) for each in cold]
        try:
            await self._schedule.remove_files(paths)
        except OSError as error:
            log.warning("Files of cold segments cannot be removed: %s", error)
        for each in cold:
            self._segments.close_segment(each.stream_id, each.base)

    def _is_in_force(self, each: ColdSegment) -> bool:
        cold = self._catalog.cold(each.stream_id, each.base)
        return cold is not None and cold.segment == each

    # -- and gone

    async def _remove_doomed(self) -> int:
        """Remove objects that the catalog has forgotten; return how many. None while a backup may
        still copy them."""
        if self._schedule.is_held:
            return 0
        late, self._late = self._late, set()
        names = [name for name in self._catalog.doomed(REMOVED_AT_ONCE) if name not in late]
        if not names:
            return 0
        try:
            await self._on_thread(self._store.delete, names)
        except StorageError as error:
            self._stats.removal_failures += 1
            log.warning("Objects cannot be removed, and will be tried again: %s", error)
            return 0
        await self._commit(ColdChanges(removed=names))
        self._stats.removals += len(names)
        return len(names)

    async def _commit(self, changes: ColdChanges) -> None:
        tiered = Changes([], [], [], [], {}, tiered=changes)
        await self._schedule.between(lambda: self._catalog.commit(tiered))

    async def _on_thread(self, function: Callable[..., T], *arguments: object) -> T:
        work = self._threads.submit(function, *arguments)
        self._work.add(work)
        work.add_done_callback(self._work.discard)
        return await asyncio.wrap_future(work)
