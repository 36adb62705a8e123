"""Which streams have changed since the last checkpoint, and when the next one runs.

Belongs to the event loop; `checkpoint.Checkpointer` does the work on its own thread.
A failed checkpoint never fails an append: the journal still has everything.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import ClassVar, Protocol

from penstock.config.settings import Settings
from penstock.errors import StoreReadOnly
from penstock.log.disk.catalog_snapshot import CatalogSnapshot
from penstock.log.disk.checkpoint import Abandoned, Plan, Result, plan_stream
from penstock.log.disk.files import Files, Lock
from penstock.log.disk.segment import SegmentInfo
from penstock.log.stats import StoreStats
from penstock.log.stream import Stream

log = logging.getLogger("penstock.log")

_PATH = attrgetter("path")

PLAN_SLICE = 256
"""Streams planned per iteration of the event loop."""
CHECK_INTERVAL_S = 1.0
"""How often free space and the age of the last checkpoint are checked."""


class StoreCounters:
    """The numbers that a checkpoint records beside the streams: the last durable LSN, and the next
    stream id."""

    __slots__ = ("durable_lsn", "next_id")

    def __init__(self, durable_lsn: int, next_id: int) -> None:
        self.durable_lsn = durable_lsn
        self.next_id = next_id


class Checkpoints(Protocol):
    """What runs checkpoints, on a thread of its own."""

    errors: ClassVar[tuple[type[Exception], ...]]
    """What `run` raises when a checkpoint has failed; the old one is in force then."""

    def passes(self, error: Exception) -> bool:
        """Whether a checkpoint that failed for this reason may succeed later."""

    def run(self, plan: Plan) -> Result: ...

    def abandon(self) -> None: ...

    def make_room(self) -> None: ...

    def snapshot(self) -> CatalogSnapshot: ...

    @property
    def is_held(self) -> bool: ...

    def hold(self) -> None: ...

    def release(self) -> None: ...

    def remove(self, paths: Iterable[Path]) -> None: ...


class FolderWatch:
    """The data folder of a store: whether it is still there, and how much room its disk has."""

    def __init__(self, files: Files, root: Path, lock: Lock) -> None:
        self._files = files
        self._root = root
        self._lock = lock

    def fault(self) -> str | None:
        """Return why nothing may be written any more: another server may have the folder's name."""
        if self._lock.is_current():
            return None
        return (
            f"The data folder {self._root} was moved, removed or replaced while the server "
            "uses it. Put it back and restart the server."
        )

    def free_bytes(self) -> int | None:
        try:
            return self._files.free_bytes(self._root)
        except OSError:
            return None  # unknown; a write on a full disk fails anyway


class CheckpointSchedule:
    def __init__(
        self,
        checkpointer: Checkpoints,
        settings: Settings,
        counters: StoreCounters,
        stats: StoreStats,
        *,
        folder: FolderWatch | None,
        sweep: bool,
        on_broken: Callable[[str], None],
        on_trimmed: Callable[[int, tuple[SegmentInfo, ...]], None],
    ) -> None:
        self._checkpointer = checkpointer
        self._settings = settings
        self._counters = counters
        self._stats = stats
        self._folder = folder
        self._sweep = sweep
        self._on_broken = on_broken
        self._on_trimmed = on_trimmed
        self._dirty: dict[int, Stream] = {}
        self._deleted: dict[int, Stream] = {}
        self._in_checkpoint: dict[int, Stream] = {}
        self._in_purge: dict[int, Stream] = {}
        # The fresh streams by path, once somebody has asked for them, and those that have become
        # fresh since. To sort them for every page of a listing would hold up the event loop.
        self._sorted: list[Stream] | None = None
        self._unsorted: list[Stream] = []
        self._bytes_since = 0
        self._bytes_in_checkpoint = 0
        self._due = asyncio.Event()
        self._running = asyncio.Lock()
        self._is_stopping = False
        self._is_stopped = False
        self._is_broken = False
        self.checkpoints = 0
        """The checkpoints that were finished."""
        self.is_disk_full = False
        self._is_journal_full = False
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="penstock-checkpoint")

    # -- reports of the store

    def changed(self, stream: Stream) -> None:
        """Note that the catalog row of a stream is behind."""
        if not stream.is_dirty:
            stream.is_dirty = True
            self._dirty[stream.id] = stream
            if self._sorted is not None:
                self._unsorted.append(stream)

    def deleted(self, stream: Stream) -> None:
        self._dirty.pop(stream.id, None)
        self._deleted[stream.id] = stream

    def wrote(self, size: int) -> None:
        self._bytes_since += size
        if self._bytes_since >= self._settings.checkpoint_bytes:
            self._due.set()

    def journal_is_full(self) -> None:
        """Note that a batch found no space. A committed one takes it back, and so does space for
        the next journal file: while `/readyz` says no, there may be no writer to find out."""
        self._is_journal_full = True

    def committed(self) -> None:
        self._is_journal_full = False

    def broke(self) -> None:
        """Run no more checkpoints: the journal failed, and nothing may be based on it."""
        self._is_broken = True

    # -- questions of the store

    def is_gone(self, stream_id: int) -> bool:
        """Whether a stream was deleted, though its row may still be in the catalog."""
        return stream_id in self._deleted or stream_id in self._in_purge

    @property
    def gone_count(self) -> int:
        """Number of deleted streams whose rows may still be in the catalog."""
        return len(self._deleted) + len(self._in_purge)

    def fresh(self) -> dict[int, Stream]:
        """Return the streams, by id, whose catalog row is behind or missing."""
        return {**self._in_checkpoint, **self._dirty}

    def is_fresh(self, stream_id: int) -> bool:
        """Whether the catalog row of a stream is behind or missing."""
        return stream_id in self._dirty or stream_id in self._in_checkpoint

    def fresh_page(self, prefix: str, after: str, limit: int) -> list[Stream]:
        """Return fresh streams by the order of their paths."""
        if self._sorted is None:
            self._sorted = list(self.fresh().values())
            self._sorted.sort(key=_PATH)
        elif self._unsorted:
            self._sorted += self._unsorted
            self._sorted.sort(key=_PATH)  # what is sorted already costs little
        self._unsorted = []
        page: list[Stream] = []
        last: Stream | None = None
        first = max(
            bisect_left(self._sorted, prefix, key=_PATH),
            bisect_right(self._sorted, after, key=_PATH),
        )
        for stream in islice(self._sorted, first, None):
            if not stream.path.startswith(prefix) or len(page) >= limit:
                break
            # A stream is there twice if it has become fresh again during a checkpoint.
            if stream is not last and self.is_fresh(stream.id) and not stream.is_gone:
                page.append(stream)
                last = stream
        return page

    @property
    def has_no_space(self) -> bool:
        """Whether the last append found the disk full, or the reserve is used up."""
        return self.is_disk_full or self._is_journal_full

    def is_behind(self) -> bool:
        """Whether more is in memory than the settings allow, so that a checkpoint has to run
        first."""
        if self._bytes_since + self._bytes_in_checkpoint <= self._settings.tail_bytes_max:
            return False
        self._due.set()
        return True

    # -- running

    async def run(self) -> None:
        """Run checkpoints by size and by age until `stop`, then a last one."""
        last = time.monotonic()
        self._check_space()
        while not self._is_stopping:
            try:
                await asyncio.wait_for(self._due.wait(), CHECK_INTERVAL_S)
            except TimeoutError:
                pass
            self._check_folder()
            self._check_space()
            if self._is_journal_full:
                await self._try_journal()
            is_old = time.monotonic() - last >= self._settings.checkpoint_interval_s
            is_due = self._due.is_set() or (is_old and bool(self._dirty or self._deleted))
            self._due.clear()
            if is_due and not self._is_stopping:
                await self.checkpoint()
                last = time.monotonic()
        await self.checkpoint()
        await self.release_cut()
        self._is_stopped = True
        self._executor.shutdown()

    def stop(self) -> None:
        self._is_stopping = True
        self._due.set()

    def abandon(self) -> None:
        """End the checkpoint that runs, and run no more; the last one that was made is in force."""
        self._is_broken = True
        self._checkpointer.abandon()

    async def checkpoint(self) -> bool:
        """Run one checkpoint now. Return False if it failed: the old one is still in force."""
        async with self._running:
            return await self._checkpoint()

    async def _checkpoint(self, *, at_once: bool = False) -> bool:
        if self._is_broken:
            return False
        started = time.perf_counter()
        plan = await self._plan(at_once=at_once)
        loop = asyncio.get_running_loop()
        try:
            result = await loop.run_in_executor(self._executor, self._checkpointer.run, plan)
        except self._checkpointer.errors as error:
            self._failed(error)
            return False
        except Abandoned:
            return False
        self._done(plan, result)
        self._stats.checkpoints += 1
        self._stats.checkpoint_seconds.add(time.perf_counter() - started)
        return True

    async def cut(self) -> CatalogSnapshot | None:
        """Return the catalog with everything that is durable now: all streams at one LSN. The files
        of its segments stay until `release_cut`. None if a checkpoint failed."""
        # The first checkpoint does the work; the second has few streams, and is planned at once.
        if not await self.checkpoint():
            return None
        async with self._running:
            if self._is_stopping or not await self._checkpoint(at_once=True):
                return None
            self._checkpointer.hold()
            loop = asyncio.get_running_loop()
            try:
                return await loop.run_in_executor(self._executor, self._checkpointer.snapshot)
            except BaseException:
                await self._release()
                raise

    async def release_cut(self) -> None:
        async with self._running:
            await self._release()

    async def _release(self) -> None:
        if self._is_stopped:
            return  # the next start sweeps
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._executor, self._checkpointer.release)
        except OSError as error:
            log.warning("Old files could not be removed after a backup: %s", error)
            self._sweep = True

    @property
    def is_held(self) -> bool:
        """Whether the segments of a cut are being copied, so that nothing of them may go."""
        return self._checkpointer.is_held

    async def remove_files(self, paths: list[Path]) -> None:
        """Remove files of segments, when nobody copies them any more."""
        await self.between(lambda: self._checkpointer.remove(paths))

    async def between(self, work: Callable[[], None]) -> None:
        """Run `work`, which changes the catalog or removes files, on the checkpoint thread while no
        checkpoint runs."""
        async with self._running:
            if self._is_broken:
                raise StoreReadOnly("The store is read-only. Restart the server.")
            try:
                await asyncio.get_running_loop().run_in_executor(self._executor, work)
            except OSError:
                self._sweep = True  # of what was not removed
                raise

    async def _try_journal(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._executor, self._checkpointer.make_room)
        except OSError:
            return  # still full
        self._is_journal_full = False

    async def _plan(self, *, at_once: bool) -> Plan:
        """Describe what has changed; `at_once` describes all streams at the same LSN."""
        # Every stream is described at this LSN or a later one: the journal up to it can go.
        release_lsn = self._counters.durable_lsn
        self._in_checkpoint, self._dirty = self._dirty, {}
        self._in_purge, self._deleted = self._deleted, {}
        self._sorted = None
        self._bytes_in_checkpoint, self._bytes_since = self._bytes_since, 0
        plans = []
        for number, stream in enumerate(self._in_checkpoint.values(), 1):
            stream.is_dirty = False
            stream.in_checkpoint = True
            if not stream.deleted:
                plans.append(plan_stream(stream, inline_bytes_max=self._settings.inline_bytes_max))
                stream.dirty_producers = set()
            if number % PLAN_SLICE == 0 and not at_once:
                await asyncio.sleep(0)
        meta: dict[str, int | str] = {
            "checkpoint_lsn": release_lsn,
            "next_id": self._counters.next_id,
            "clean": int(self._is_stopping),
        }
        deleted = [(stream.id, stream.segments) for stream in self._in_purge.values()]
        return Plan(plans, deleted, meta, release_lsn, self._sweep)

    def _done(self, plan: Plan, result: Result) -> None:
        self.checkpoints += 1
        for item in plan.streams:
            stream = self._in_checkpoint[item.row.id]
            stream.segments = result.segments.get(stream.id, item.row.segments)
            if item.dropped:
                self._on_trimmed(stream.id, item.dropped)
            stream.stored_producers = stream.stored_producers or bool(item.producers)
            if stream.segments:
                stream.memory.drop(stream.segments[-1].end)
        for stream in self._in_checkpoint.values():
            stream.in_checkpoint = False
        self._in_checkpoint, self._in_purge = {}, {}
        self._sorted = None
        self._bytes_in_checkpoint = 0
        self._sweep = result.uncleared is not None
        if result.uncleared is not None:
            log.warning("A checkpoint could not remove old files: %s", result.uncleared)

    def _failed(self, error: Exception) -> None:
        """Mark everything that the plan covered as dirty again."""
        self._stats.checkpoint_failures += 1
        for stream in self._in_checkpoint.values():
            stream.in_checkpoint = False
            stream.dirty_producers |= stream.producers.keys()
            if not stream.deleted:
                self.changed(stream)
        self._deleted.update(self._in_purge)
        self._in_checkpoint, self._in_purge = {}, {}
        self._bytes_since += self._bytes_in_checkpoint
        self._bytes_in_checkpoint = 0
        if self._checkpointer.passes(error):
            log.warning("A checkpoint failed and will be tried again: %s", error)
        else:
            self._is_broken = True
            self._on_broken(
                f"A checkpoint failed ({error}). Check the disk and restart the server."
            )

    def _check_folder(self) -> None:
        """Stop writing when the folder was moved or removed."""
        fault = None if self._folder is None or self._is_broken else self._folder.fault()
        if fault is not None:
            self._is_broken = True
            self._on_broken(fault)

    def _check_space(self) -> None:
        free = None if self._folder is None else self._folder.free_bytes()
        if free is not None:
            self._stats.disk_free_bytes = free
            self.is_disk_full = free < self._settings.disk_reserve_bytes
