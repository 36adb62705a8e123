"""The store on disk: journal, segments and catalog of a folder, behind the protocol `Store`.

Its state belongs to the event loop; the commit, checkpoint and reader threads get immutable work
and hand back results.
"""

from __future__ import annotations

import asyncio
import logging
from heapq import merge
from itertools import islice
from pathlib import Path

from penstock.clock import Clock
from penstock.config.settings import Settings
from penstock.errors import DiskFull, Overloaded, PenstockError, StoreDamaged, StoreReadOnly
from penstock.log.disk import journal
from penstock.log.disk.catalog import Catalog, Changes, as_damage
from penstock.log.disk.catalog_rows import stream_from_row
from penstock.log.disk.checkpoint import Checkpointer
from penstock.log.disk.checkpoint_schedule import CheckpointSchedule, StoreCounters
from penstock.log.disk.committer import Committed, Committer
from penstock.log.disk.files import Files, Lock
from penstock.log.disk.journal_mark import MarkFile
from penstock.log.disk.journal_recovery import SET_ASIDE
from penstock.log.disk.reader import StreamReader
from penstock.log.disk.recovery import HAS_MARK, Recovered, check_format, recover
from penstock.log.disk.segment import SegmentFolder, SegmentReader
from penstock.log.mutations import Mutation
from penstock.log.stats import StoreStats
from penstock.log.store import Health, Observer, Sizes
from penstock.log.stream import Deadline, Stream, StreamInfo
from penstock.protocol.producer import ProducerState

log = logging.getLogger("penstock.log")

CATALOG_FILE = "catalog.sqlite"


class DiskStore:
    def __init__(self, settings: Settings, *, clock: Clock, files: Files | None = None) -> None:
        self._settings = settings
        self._clock = clock
        self._files = files or Files()
        self._root = Path(settings.data_dir)
        self._folder = SegmentFolder(self._root / "segments")
        self._segments = SegmentReader(
            self._files, self._folder, open_files_max=settings.open_files_max
        )
        self.stats = StoreStats()
        self._read_only: str | None = None
        self._unclean_since_us: int | None = None

    # -- opening and closing

    async def open(self, observer: Observer) -> list[Stream]:
        self._observer = observer
        self._files.check_system()
        self._files.make_folder(self._root)
        self._lock: Lock = self._files.lock(self._root / "LOCK")
        try:
            check_format(self._files, self._root)
            for folder in (self._root / "journal", self._folder.folder):
                self._files.make_folder(folder)
            self._files.sync_folder(self._root)
            with as_damage():
                self._catalog = self.open_catalog()
            try:
                with as_damage():
                    is_clean = bool(self._catalog.meta().get("clean", 1))
                    if not is_clean:
                        self._check_catalog()
                    recovered = recover(
                        self._files,
                        self._root,
                        self._catalog,
                        self._folder,
                        cuts_damage=self._settings.journal_damage == "cut",
                    )
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
        self._start_writing(recovered, sweep=not is_clean)
        for file in recovered.files:
            self._journal.adopt(file)
        self._schedule_task = asyncio.create_task(self._schedule.run())
        return list(recovered.streams.values())

    def open_catalog(self) -> Catalog:
        """Open the catalog. A method of its own, so that tests can make catalog commits fail."""
        return Catalog(self._root / CATALOG_FILE)

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
        self._journal = journal.JournalWriter(
            self._files,
            self._root / "journal",
            file_bytes=settings.journal_file_bytes,
            durability=journal.FSYNC if is_synced else journal.BUFFERED,
            next_number=recovered.next_number,
            mark=self._mark,
            aside=self._root / SET_ASIDE,
        )
        self.stats.sync_seconds = self._journal.sync_seconds
        self._committer: Committer[Mutation] = Committer(
            self._journal,
            next_lsn=recovered.next_lsn,
            batch_bytes_max=settings.journal_batch_bytes_max,
            on_committed=self._on_committed,
            on_failed=self._on_failed,
        )
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
            files=self._files,
            root=self._root,
            lock=self._lock,
            sweep=sweep,
            on_broken=self._go_read_only,
            on_trimmed=self._segments.forget_some,
        )
        self._reader = StreamReader(self._segments)
        for stream in recovered.streams.values():
            self._schedule.changed(stream)
        for stream in recovered.deleted.values():
            self._schedule.deleted(stream)
        self._schedule.wrote(sum(stream.memory.size for stream in recovered.streams.values()))
        self._committer.start()

    async def close(self, *, timeout_s: float | None = None) -> None:
        deadline = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
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
        self._journal.close()
        self._reader.close()
        self._catalog.close()
        self._lock.close()

    # -- writing

    def next_id(self) -> int:
        self._counters.next_id += 1
        return self._counters.next_id - 1

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

    def submit(self, mutation: Mutation) -> None:
        self._committer.submit(mutation)

    def _on_committed(self, batch: Committed[Mutation]) -> None:
        lsn = batch.first_lsn
        for mutation in batch.entries:
            stream = mutation.stream
            if stream is None:
                continue
            mutation.apply(lsn)
            lsn += 1
            for each in mutation.ended:
                if each.deleted:
                    self._schedule.deleted(each)
                    self._segments.forget(each.id)
            for each in mutation.related:
                self._schedule.changed(each)
            if not stream.deleted:
                self._schedule.changed(stream)
        self._counters.durable_lsn = lsn - 1
        self._schedule.wrote(batch.bytes)
        if batch.bytes:
            self._schedule.committed()
        stats = self.stats
        stats.commits += 1
        stats.commit_records.add(len(batch.entries))
        stats.commit_seconds.add(batch.seconds)
        stats.journal_bytes_written += batch.bytes
        stats.journal_bytes = self._journal.live_bytes()
        self._observer.committed(batch.entries)
        for mutation in batch.entries:
            future = mutation.future
            if future is not None and not future.done():
                future.set_result(mutation.result)

    def _on_failed(self, entries: list[Mutation], error: PenstockError) -> None:
        self.stats.commit_failures += 1
        if isinstance(error, StoreReadOnly):
            self._schedule.broke()
            self._go_read_only(error.detail)
        elif isinstance(error, DiskFull):
            self._schedule.journal_is_full()
        self._observer.failed(entries, error)
        for mutation in entries:
            future = mutation.future
            if future is not None and not future.done():
                future.set_exception(type(error)(error.detail))

    def _go_read_only(self, reason: str) -> None:
        if self._read_only is None:
            log.error("The store is read-only from now on: %s", reason)
            self._read_only = reason
            self._journal.refuse(reason)  # deletions are not admitted, so nothing else stops them

    # -- reading

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

    def list_streams(self, prefix: str, after: str, limit: int) -> list[StreamInfo]:
        return self._list(prefix, after, limit, filed=False)

    def list_filed(self, prefix: str, after: str, limit: int) -> list[StreamInfo]:
        return self._list(prefix, after, limit, filed=True)

    def _list(self, prefix: str, after: str, limit: int, *, filed: bool) -> list[StreamInfo]:
        schedule = self._schedule
        changed = [stream.info() for stream in schedule.fresh_page(prefix, after, limit)]
        stored: list[StreamInfo] = []
        while len(stored) < limit:
            with as_damage():
                page = self._catalog.list_streams(prefix, after, limit, filed=filed)
            stored += [
                info
                for info in page
                if not schedule.is_fresh(info.id) and not schedule.is_gone(info.id)
            ]
            if len(page) < limit:
                break
            after = page[-1].path
        return list(islice(merge(changed, stored), limit))

    def sizes(self, after_id: int, limit: int) -> Sizes:
        with as_damage():
            page = self._catalog.sizes(after_id, limit)
        last_id = page[-1][0] if len(page) == limit else None
        fresh = self._schedule.fresh()
        stored = [
            (path, size)
            for id, path, size in page
            if id not in fresh and not self._schedule.is_gone(id)
        ]
        changed = [
            (stream.path, stream.held_bytes)
            for stream in fresh.values()
            if after_id < stream.id and (last_id is None or stream.id <= last_id)
        ]
        return Sizes(stored + changed, last_id)

    def list_meta(self, name: str, after: str, limit: int) -> list[str]:
        fresh = self._schedule.fresh()
        changed = sorted(
            stream.path
            for stream in fresh.values()
            if name in stream.meta and not stream.is_gone and stream.path > after
        )
        stored: list[str] = []
        while len(stored) < limit:
            with as_damage():
                page = self._catalog.list_meta(name, after, limit)
            stored += [
                path for id, path in page if id not in fresh and not self._schedule.is_gone(id)
            ]
            if len(page) < limit:
                break
            after = page[-1][1]
        return list(islice(merge(changed, stored), limit))

    def untouched(self, since_us: int, after: tuple[int, int], limit: int) -> list[Deadline]:
        with as_damage():
            return self._catalog.untouched(since_us, after, limit)

    def expired(self, now_us: int, after: tuple[int, int], limit: int) -> list[Deadline]:
        with as_damage():
            return self._catalog.expired(now_us, after, limit)

    def touched(self, stream: Stream) -> None:
        if stream.durable and not stream.deleted:
            self._schedule.changed(stream)

    def release(self, stream: Stream) -> bool:
        return not stream.is_dirty and not stream.in_checkpoint

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


def _until(deadline: float | None) -> float | None:
    """Return the seconds up to a time of the event loop; None if there is none."""
    if deadline is None:
        return None
    return max(deadline - asyncio.get_running_loop().time(), 0.0)
