"""Tiered storage of one data folder, put together: the object store, the reader, and the mover."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from penstock.clock import Clock
from penstock.config.settings import Settings
from penstock.errors import StorageError, StoreError
from penstock.log.disk.catalog import Catalog, Changes, as_damage
from penstock.log.disk.catalog_cold import Cold
from penstock.log.disk.checkpoint_schedule import CheckpointSchedule
from penstock.log.disk.files import Files
from penstock.log.disk.recovery import FORMAT, FORMAT_COLD, read_format, set_format
from penstock.log.disk.segment import SegmentFolder, SegmentReader
from penstock.log.disk.tiered.cache import PieceCache
from penstock.log.disk.tiered.cold_reader import ColdReader
from penstock.log.disk.tiered.tiering import TIER_URL, Tiering
from penstock.log.stats import TierStats
from penstock.object_store import ObjectStore
from penstock.protocol.globs import parse_pattern

CACHE_FOLDER = "cache"
STOP_TIMEOUT_S = 1.0
"""How long a stop waits for calls of the object store."""


class Tier:
    def __init__(
        self,
        store: ObjectStore,
        settings: Settings,
        *,
        files: Files,
        root: Path,
        folder: SegmentFolder,
        catalog: Catalog,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._store = store
        self._files = files
        self._root = root
        self._folder = folder
        self._catalog = catalog
        self._clock = clock
        self._patterns = [parse_pattern(text) for text in settings.tier_patterns]
        self.stats = TierStats()
        self._cache = PieceCache(
            files,
            root / CACHE_FOLDER,
            self.stats,
            bytes_max=settings.tier_cache_bytes_max,
            reserve_bytes=settings.disk_reserve_bytes,
        )
        self._cache.open()

    def start(self, segments: SegmentReader, schedule: CheckpointSchedule) -> None:
        """Let `segments` read cold data, and begin to move segments."""
        settings = self._settings
        self.reader = segments.cold = ColdReader(
            self._store,
            self._cache,
            self._find,
            self.stats,
            files=self._files,
            folder=self._folder,
            concurrency=settings.tier_concurrency,
            timeout_s=settings.tier_timeout_s,
        )
        self.tiering = Tiering(
            self._store,
            self._catalog,
            schedule,
            segments,
            settings,
            self.stats,
            patterns=self._patterns,
            store_id=str(read_format(self._files, self._root)["store_id"]),
            files=self._files,
            folder=self._folder,
            clock=self._clock,
            before_first=lambda: set_format(self._files, self._root, FORMAT_COLD),
        )
        self._task = asyncio.create_task(self.tiering.run())

    def _find(self, stream_id: int, base: int) -> Cold | None:
        with as_damage():
            return self._catalog.cold(stream_id, base)

    async def stop(self) -> None:
        """Move no more segments. What threads have begun and do not finish soon is as after a
        crash."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self.tiering.close(timeout_s=STOP_TIMEOUT_S)

    async def close(self) -> None:
        """Read no more, after `stop`."""
        await self.reader.close(timeout_s=STOP_TIMEOUT_S)


async def open_tier(
    settings: Settings,
    open_objects: Callable[[], ObjectStore],
    *,
    files: Files,
    root: Path,
    folder: SegmentFolder,
    catalog: Catalog,
    clock: Clock,
) -> Tier | None:
    """Return the tiered storage of a folder, None without. StoreError if the folder has cold
    segments somewhere else than the settings say."""
    totals, noted = catalog.cold_totals(), catalog.meta().get(TIER_URL)
    if not totals.cold_segments and not catalog.doomed(1):
        set_format(files, root, FORMAT)  # earlier versions can open it again
    if not settings.tier_url:
        if totals.cold_segments:
            raise StoreError(
                f"{root} has {totals.cold_segments} cold segments in {noted}. Set tier_url to it."
            )
        return None
    store = open_objects()
    if totals.cold_segments and store.url != noted:
        for cold in catalog.cold_segments()[:1]:
            await asyncio.to_thread(_check_moved, store, cold.object, noted)
        catalog.commit(Changes([], [], [], [], {TIER_URL: store.url}))
    return Tier(
        store,
        settings,
        files=files,
        root=root,
        folder=folder,
        catalog=catalog,
        clock=clock,
    )


def _check_moved(store: ObjectStore, name: str, noted: object) -> None:
    try:
        is_there = store.head(name) is not None
    except StorageError as error:
        raise StoreError(
            f"The cold segments are in {noted} by the catalog, and tier_url is another: "
            f"{error.detail}"
        ) from None
    if not is_there:
        raise StoreError(
            f"The cold segments are in {noted}, and {store.url} does not have {name}. Set tier_url "
            "to where they are, or copy all objects there first."
        )
