"""The store on disk: journal, segments and catalog of a folder, behind the protocol `Store`.

Its state belongs to the event loop; the commit, checkpoint and reader threads get immutable work
and hand back results.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from penstock.clock import Clock
from penstock.config.settings import Settings
from penstock.errors import (
    DiskFull,
    Overloaded,
    PenstockError,
    ShuttingDown,
    StoreDamaged,
    StoreReadOnly,
)
from penstock.log.disk import journal
from penstock.log.disk.applying import answer_batch, apply_batch
from penstock.log.disk.catalog import Catalog, Changes, as_damage
from penstock.log.disk.catalog_rows import stream_from_row
from penstock.log.disk.catalog_snapshot import CatalogSnapshot
from penstock.log.disk.checkpoint import Checkpointer
from penstock.log.disk.checkpoint_schedule import (
    CheckpointSchedule,
    FolderWatch,
    StoreCounters,
)
from penstock.log.disk.committer import Committed, Committer
from penstock.log.disk.cut import Cut, HeldCut
from penstock.log.disk.files import Files, Lock
from penstock.log.disk.journal_mark import MarkFile
from penstock.log.disk.journal_recovery import SET_ASIDE
from penstock.log.disk.kernel_queue import QueueFiles
from penstock.log.disk.listing import Listing
from penstock.log.disk.reader import StreamReader
from penstock.log.disk.recovery import (
    HAS_MARK,
    RESTORED,
    Recovered,
    check_format,
    read_shard,
    recover,
)
from penstock.log.disk.segment import SegmentFolder, SegmentReader
from penstock.log.disk.tiered.tier import Tier, open_tier
from penstock.log.mutations import Entry, mutations_of
from penstock.log.stats import StoreStats, Totals
from penstock.log.store import Health, Observer, Sizes
from penstock.log.stream import Deadline, Stream, StreamInfo
from penstock.object_store import ObjectStore, open_store
from penstock.protocol.producer import ProducerState

log = logging.getLogger("penstock.log")

CATALOG_FILE = "catalog.sqlite"


class _Pages:
    """The pages of the catalog, which are there at once."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    async def list_streams(
        self, prefix: str, after: str, limit: int, *, filed: bool
    ) -> list[StreamInfo]:
        with as_damage():
            return self._catalog.list_streams(prefix, after, limit, filed=filed)

    async def list_forks(self, source_id: int, after: str, limit: int) -> list[StreamInfo]:
        with as_damage():
            return self._catalog.list_forks(source_id, after, limit)

    async def list_producers(
        self, stream_id: int, after: str, limit: int
    ) -> list[tuple[str, ProducerState]]:
        with as_damage():
            return self._catalog.list_producers(stream_id, after, limit)

    async def sizes(self, after_id: int, limit: int) -> list[tuple[int, str, int]]:
        with as_damage():
            return self._catalog.sizes(after_id, limit)

    async def list_meta(self, name: str, after: str, limit: int) -> list[tuple[int, str]]:
        with as_damage():
            return self._catalog.list_meta(name, after, limit)


class DiskStore:
    needs_fetch = False
    submit: Callable[[Entry], None]  # the committer's own: one call less for every change

    def __init__(self, settings: Settings, *, clock: Clock, files: Files | None = None) -> None:
        self._settings = settings
        self._clock = clock
        self._files = files or QueueFiles()
        self._root = Path(settings.data_dir)
        self._folder = SegmentFolder(self._root / "segments")
        self._segments = SegmentReader(
            self._files, self._folder, open_files_max=settings.open_files_max
        )
        self.stats = StoreStats()
        self._read_only: str | None = None
        self._unclean_since_us: int | None = None
        self.tier: Tier | None = None
        """Tiered storage, if it is on."""
        self.restore_generation = 0

    # -- opening and closing

    async def open(self, observer: Observer) -> list[Stream]:
        self._observer = observer
        self._files.check_system()
        self._files.make_folder(self._root)
        self._lock: Lock = self._files.lock(self._root / "LOCK")
        try:
            check_format(self._files, self._root)
            self._shard = read_shard(self._files, self._root)
            for folder in (self._root / "journal", self._folder.folder):
                self._files.make_folder(folder)
            self._files.sync_folder(self._root)
            with as_damage():
                self._catalog = self.open_catalog()
            try:
                with as_damage():
                    meta = self._catalog.meta()
                    is_clean = bool(meta.get("clean", 1))
                    self.restore_generation = int(meta.get(RESTORED, 0))
                    if not is_clean:
                        self._check_catalog()
                    recovered = recover(
                        self._files,
                        self._root,
                        self._catalog,
                        self._folder,
                        cuts_damage=self._settings.journal_damage == "cut",
                    )
                    self.tier = await self._open_tier()
                self._mark = MarkFile(self._files, self._root, recovered.mark)
                self._mark.create(recovered.mark)
                self._catalog.commit(Changes([], [], [], [], {"clean": 0, HAS_MARK: 1}))
            except BaseException:
                self._catalog.close()
                raise
        except BaseException:
            self._lock.close()
            raise
        if not is_clean:
            self._unclean_since_us = self._clock.now_us()
        for warning in recovered.warnings:
            log.warning("%s", warning)
        if recovered.records:
            log.info(
                "Replayed %d records of %d streams.", recovered.records, len(recovered.streams)
            )
        self.stats.replayed_records = recovered.records
        self.stats.journal_cut_bytes = recovered.cut_bytes
        self.stats.journal_files_set_aside = recovered.set_aside
        self._count_from(recovered)
        self._start_writing(recovered, sweep=not is_clean)
        for file in recovered.files:
            self._journal.adopt(file)
        self._schedule_task = asyncio.create_task(self._schedule.run())
        return list(recovered.streams.values())

    async def _open_tier(self) -> Tier | None:
        return await open_tier(
            self._settings,
            self.open_objects,
            files=self._files,
            root=self._root,
            folder=self._folder,
            catalog=self._catalog,
            clock=self._clock,
        )

    def open_catalog(self) -> Catalog:
        """Open the catalog. A method of its own, so that tests can make catalog commits fail."""
        return Catalog(self._root / CATALOG_FILE)

    def open_objects(self) -> ObjectStore:
        """Open the object store of cold segments. A method of its own, so that tests can make it
        fail."""
        return open_store(self._settings.tier_url)

    def _check_catalog(self) -> None:
        """Check the catalog after an unclean stop; StoreDamaged if new indexes do not mend it."""
        timeout_s = self._settings.catalog_check_timeout_s
        if not timeout_s:
            return
        check = self._catalog.check(timeout_s=timeout_s)
        if not check.is_complete:
            log.warning(
                "The check of the catalog was ended after %g s (catalog_check_timeout_s). "
                "Run `penstock verify` at the next stop.",
                timeout_s,
            )
        if not check.faults:
            return
        if not check.is_repaired:
            raise StoreDamaged(
                f"{CATALOG_FILE} is damaged ({check.faults[0]!a}). Nothing was changed. Run "
                "`penstock verify` to see what is affected, and restore the data folder from a "
                "backup."
            )
        self.stats.catalog_repairs += 1
        log.warning(
            "The indexes of %s were damaged (%a) and were built again; no row was lost. "
            "Check the disk.",
            CATALOG_FILE,
            check.faults[0],
        )

    def _start_writing(self, recovered: Recovered, *, sweep: bool) -> None:
        settings = self._settings
        is_synced = settings.durability == "fsync"
        queue = self._files.write_queue() if is_synced and settings.in_place_commit_us else None
        self._journal = journal.JournalWriter(
            self._files,
            self._root / "journal",
            file_bytes=settings.journal_file_bytes,
            durability=journal.FSYNC if is_synced else journal.BUFFERED,
            next_number=recovered.next_number,
            mark=self._mark,
            aside=self._root / SET_ASIDE,
            queue=queue,
        )
        self.stats.sync_seconds = self._journal.sync_seconds
        self._committer: Committer[Entry] = Committer(
            self._journal,
            next_lsn=recovered.next_lsn,
            batch_bytes_max=settings.journal_batch_bytes_max,
            in_place_s_max=settings.in_place_commit_us / 1_000_000,
            on_committed=self._on_committed,
            on_failed=self._on_failed,
            queue=queue,
            queue_writer=None if queue is None else self._journal,
        )
        self.submit = self._committer.submit
        self._counters = StoreCounters(recovered.next_lsn - 1, recovered.next_id)
        checkpointer = Checkpointer(
            self._files,
            self._root,
            self._folder,
            self._catalog,
            self._journal,
            segment_bytes_max=settings.segment_bytes_max,
        )
        self._schedule = CheckpointSchedule(
            checkpointer,
            settings,
            self._counters,
            self.stats,
            folder=FolderWatch(self._files, self._root, self._lock),
            sweep=sweep,
            on_broken=self._go_read_only,
            on_trimmed=self._segments.forget_some,
        )
        self._reader = StreamReader(self._segments)
        self._listing = Listing(_Pages(self._catalog), self._schedule)
        if self.tier is not None:
            self.stats.tier = self.tier.stats
            self.tier.start(self._segments, self._schedule)
        for stream in recovered.streams.values():
            self._schedule.changed(stream)
        for stream in recovered.deleted.values():
            self._schedule.deleted(stream)
        self._schedule.wrote(sum(stream.memory.size for stream in recovered.streams.values()))
        self._committer.start()

    async def close(self, *, timeout_s: float | None = None) -> None:
        deadline = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
        if self.tier is not None:
            await self.tier.stop()
        try:
            async with asyncio.timeout_at(deadline):
                await self._committer.drain()
        except TimeoutError:
            log.warning("The disk was too slow to finish the appends that were queued.")
        self._committer.stop()
        self._schedule.stop()
        _, running = await asyncio.wait((self._schedule_task,), timeout=_until(deadline))
        if running:
            log.warning("The last checkpoint takes too long; the next start replays the journal.")
            self._schedule.abandon()
        await self._schedule_task
        self._totals.stop()
        await self._counting
        if self.tier is not None:
            await self.tier.close()
        self._journal.close()
        self._reader.close()
        self._catalog.close()
        self._lock.close()

    def _count_from(self, recovered: Recovered) -> None:
        """Begin to count what there is now: the streams as the catalog has them, but for those that
        the journal has changed since."""
        changed = recovered.streams.values()
        streams = sum(not each.soft_deleted for each in changed)
        size = sum(each.held_bytes for each in changed)
        self._changed = Totals(streams, size)
        self._totals = self._catalog.totals_query()
        excluded = [*recovered.streams, *recovered.deleted]
        self._counting = asyncio.ensure_future(asyncio.to_thread(self._totals.run, excluded))

    async def count_opened(self) -> Totals | None:
        stored = await asyncio.shield(self._counting)
        if stored is None:
            return None
        return Totals(stored[0] + self._changed.streams, stored[1] + self._changed.bytes)

    # -- writing

    def next_id(self) -> int:
        id = self._shard.next_id(self._counters.next_id)
        self._counters.next_id = id + 1
        return id

    def admit(self, size: int) -> None:
        if self._read_only is not None:
            raise StoreReadOnly(self._read_only)
        if self._schedule.is_disk_full:
            raise DiskFull(
                f"Less than {self._settings.disk_reserve_bytes} bytes are free on the disk of the "
                "data folder. Free some space, or delete streams."
            )
        queued = self._committer.queued_bytes
        if queued and queued + size > self._settings.append_queue_bytes_max:
            raise Overloaded(
                "Too many bytes wait for the disk (append_queue_bytes_max). Try again.",
                Retry_After="1",
            )
        if self._schedule.is_behind():
            raise Overloaded(
                "The checkpoint cannot keep up (tail_bytes_max). Try again.", Retry_After="1"
            )

    def _on_committed(self, batch: Committed[Entry]) -> None:
        mutations = mutations_of(batch.entries)
        self._counters.durable_lsn = apply_batch(
            mutations, batch.first_lsn, self._schedule.changed, self._ended
        )
        self._schedule.wrote(batch.bytes)
        if batch.bytes:
            self._schedule.committed()
        stats = self.stats
        stats.commits += 1
        stats.commit_records.add(len(batch.entries))
        stats.commit_seconds.add(batch.seconds)
        stats.journal_bytes_written += batch.bytes
        stats.journal_bytes = self._journal.live_bytes()
        self._observer.committed(mutations)
        answer_batch(batch.entries)

    def _ended(self, stream: Stream) -> None:
        self._schedule.deleted(stream)
        self._segments.forget(stream.id)

    def _on_failed(self, entries: list[Entry], error: PenstockError) -> None:
        self.stats.commit_failures += 1
        if isinstance(error, StoreReadOnly):
            self._schedule.broke()
            self._go_read_only(error.detail)
        elif isinstance(error, DiskFull):
            self._schedule.journal_is_full()
        self._observer.failed(mutations_of(entries), error)
        for entry in entries:
            entry.fail(type(error)(error.detail))

    def _go_read_only(self, reason: str) -> None:
        if self._read_only is None:
            log.error("The store is read-only from now on: %s", reason)
            self._read_only = reason
            self._journal.refuse(reason)  # deletions are not admitted, so nothing else stops them

    # -- reading

    async def fetch(self, path: str) -> None:
        """Nothing to do: the catalog answers at once."""

    async def fetch_producer(self, stream: Stream, producer_id: str) -> None:
        """Nothing to do: the catalog answers at once."""

    def load(self, path: str) -> Stream | None:
        with as_damage():
            row = self._catalog.by_path(path)
        if row is None or self._schedule.is_gone(row.id):
            return None
        return stream_from_row(row)

    def load_producer(self, stream: Stream, producer_id: str) -> ProducerState | None:
        if not stream.stored_producers:
            return None
        with as_damage():
            state = self._catalog.producer(stream.id, producer_id)
            if state is None and not stream.checked_producers:
                # Once while the stream is in memory: with a full table this takes milliseconds.
                self._catalog.check_producers(stream.id)
                stream.checked_producers = True
        return state

    def read_now(self, stream: Stream, start: int, end: int) -> bytes | None:
        return self._reader.read_now(stream, start, end)

    def views(self, stream: Stream, start: int, end: int) -> list[memoryview] | None:
        return self._reader.views(stream, start, end)

    async def read(self, stream: Stream, start: int, end: int) -> bytes:
        return await self._reader.read(stream, start, end)

    async def seek_ordinal(self, stream: Stream, ordinal: int) -> tuple[int, int]:
        return self._reader.seek_ordinal(stream, ordinal)

    async def seek_position(self, stream: Stream, position: int) -> tuple[int, int]:
        return self._reader.seek_position(stream, position)

    async def seek_time(self, stream: Stream, time_us: int) -> int:
        return self._reader.seek_time(stream, time_us)

    async def time_after(self, stream: Stream, position: int) -> int:
        return self._reader.time_after(stream, position)

    async def list_streams(self, prefix: str, after: str, limit: int) -> list[StreamInfo]:
        return await self._listing.list_streams(prefix, after, limit, filed=False)

    async def list_filed(self, prefix: str, after: str, limit: int) -> list[StreamInfo]:
        return await self._listing.list_streams(prefix, after, limit, filed=True)

    async def list_forks(self, source: Stream, after: str, limit: int) -> list[StreamInfo]:
        return await self._listing.list_forks(source, after, limit)

    async def list_producers(
        self, stream: Stream, after: str, limit: int
    ) -> list[tuple[str, ProducerState]]:
        return await self._listing.list_producers(stream, after, limit)

    async def sizes(self, after_id: int, limit: int) -> Sizes:
        return await self._listing.sizes(after_id, limit)

    async def list_meta(self, name: str, after: str, limit: int) -> list[str]:
        return await self._listing.list_meta(name, after, limit)

    async def untouched(self, since_us: int, after: tuple[int, int], limit: int) -> list[Deadline]:
        with as_damage():
            return self._catalog.untouched(since_us, after, limit)

    async def expired(self, now_us: int, after: tuple[int, int], limit: int) -> list[Deadline]:
        with as_damage():
            return self._catalog.expired(now_us, after, limit)

    def touched(self, stream: Stream) -> None:
        if stream.durable and not stream.deleted:
            self._schedule.changed(stream)

    def release(self, stream: Stream) -> bool:
        return not stream.is_dirty and not stream.in_checkpoint

    def is_current(self) -> bool:
        return True

    async def until_current(self, timeout_s: float) -> None:
        pass

    def health(self) -> Health:
        if self._read_only is not None:
            return Health(True, False, self._read_only)
        if self._schedule.has_no_space:
            return Health(True, False, "The disk of the data folder is full, or nearly so.")
        return Health(True, True, None)

    def grace_until_us(self, ttl_s: int) -> int:
        if self._unclean_since_us is None:
            return 0
        seconds = min(ttl_s, self._settings.checkpoint_interval_s)
        return self._unclean_since_us + int(seconds * 1_000_000)

    async def checkpoint(self) -> bool:
        """Run a checkpoint now; return whether it succeeded."""
        return await self._schedule.checkpoint()

    def holds(self, path: Path) -> bool:
        """Whether a path is that of the data folder, or below it."""
        return path.resolve().is_relative_to(self._root.resolve())

    def glance(self) -> Cut:
        """Return the folder as it stands. Nothing keeps a segment there that is trimmed away."""
        return Cut(self._files, self._root, self._folder, CatalogSnapshot(self._catalog.path))

    def cut(self) -> HeldCut:
        """Return a context with everything that is durable now, at one LSN, for as long as it
        lasts."""
        return HeldCut(self._cut, self._schedule.release_cut)

    async def _cut(self) -> Cut:
        catalog = await self._schedule.cut()
        if catalog is None:
            if self._read_only is not None:
                raise StoreReadOnly(self._read_only)
            if self._schedule.has_no_space:
                raise DiskFull("The disk of the data folder is too full for a checkpoint.")
            raise ShuttingDown("The server is shutting down.")
        try:
            objects = None if self.tier is None else self.open_objects()
        except BaseException:
            catalog.close()
            await self._schedule.release_cut()
            raise
        return Cut(self._files, self._root, self._folder, catalog, objects)


def _until(deadline: float | None) -> float | None:
    """Return the seconds up to a time of the event loop; None if there is none."""
    if deadline is None:
        return None
    return max(deadline - asyncio.get_running_loop().time(), 0.0)
