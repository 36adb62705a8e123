"""The store of a cluster: journal, catalog and extents in PostgreSQL, behind the protocol `Store`.

One node owns the streams; what another node writes is found out at the next write, and by the beat.
Mutations, the committer, the schedule of checkpoints and the replay are those of the disk store.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

from penstock import __version__
from penstock.clock import Clock
from penstock.config.settings import Settings
from penstock.errors import (
    ClusterRefused,
    ClusterUnavailable,
    NotOwner,
    Overloaded,
    PenstockError,
)
from penstock.log.cluster.catalog import Catalog
from penstock.log.cluster.checkpoint import ClusterCheckpointer
from penstock.log.cluster.connections import Connections
from penstock.log.cluster.database import Fenced, OutcomeUnknown, Refused
from penstock.log.cluster.extent_objects import ExtentMover
from penstock.log.cluster.extents import ExtentCache, ExtentMissing, ExtentReader
from penstock.log.cluster.lane import LaneCommitter
from penstock.log.cluster.node import Holding, Node
from penstock.log.cluster.recovery import Recovered, recover
from penstock.log.cluster.slots import Claim
from penstock.log.disk.applying import answer_batch, apply_batch
from penstock.log.disk.catalog_rows import Row, stream_from_row
from penstock.log.disk.checkpoint_schedule import CheckpointSchedule, StoreCounters
from penstock.log.disk.committer import Committed
from penstock.log.disk.files import Files, Lock
from penstock.log.disk.listing import Listing
from penstock.log.disk.reader import StreamReader
from penstock.log.mutations import Entry, mutations_of
from penstock.log.stats import StoreStats, TierStats, Totals
from penstock.log.store import Health, Observer, Sizes
from penstock.log.stream import Deadline, Stream, StreamInfo
from penstock.object_store import ObjectStore, open_store
from penstock.protocol.producer import ProducerState
from penstock.protocol.shards import WHOLE, Shard

T = TypeVar("T")

log = logging.getLogger("penstock.log")

FETCHED_MAX: Final = 10_000
"""Rows that are at hand for streams that are not active, or not yet."""
CURRENT_TIMEOUT_S: Final = 30.0
"""How long a node that has claimed the streams waits for its lease before it gives them up."""
OWN_PREFIX: Final = "__"
"""The server's own streams stay in memory: they are written without a fetch."""


class SharedExtents(ExtentReader):
    """Extents in a cache that other shards use, too."""

    def close(self) -> None:
        """The cache goes on."""


class ClusterStore:
    needs_fetch = True

    """The store of one shard. `holding` and `connections` are those of the node that it is a part
    of; without them the store is a node of its own, of a cluster with one shard."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock,
        holding: Holding | None = None,
        connections: Connections | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._own_node: Node | None = None
        if holding is not None and connections is not None:
            self.node, self._connections = holding, connections
        else:
            self._own_node = Node(settings)
        self._shard = WHOLE
        self.stats = StoreStats()
        self.restore_generation = 0
        self._unclean_since_us: int | None = None
        self._lost: str | None = None
        self._is_open = False
        self._fetched: dict[str, Row | None] = {}
        self._fetched_at = 0
        self._no_producers: WeakKeyDictionary[Stream, set[str]] = WeakKeyDictionary()
        self.on_lost: Callable[[str], None] | None = None
        """Called when another node has claimed the streams."""

    # -- opening and closing

    async def open(self, observer: Observer) -> list[Stream]:
        self._observer = observer
        # The folder holds what can be made again, such as the index of state streams.
        files, root = Files(), Path(self._settings.data_dir)
        files.make_folder(root)
        self._lock: Lock = files.lock(root / "LOCK")
        if self._own_node is not None:
            self._connections = Connections(
                self._own_node.open_session, self._settings, self.open_objects
            )
            self.node = Holding(self._own_node, 0, self._connections.sessions)
        try:
            if self._own_node is not None:
                await self._own_node.join(__version__)
            self._shard = Shard(self.node.shard, self._count_shards())
            self.restore_generation = self.node.node.about.restored
            claim = self.node.claim
            if claim is None:
                if self._own_node is None:
                    raise self.node.not_owner()
                claim = await self.node.claim_when_free(self.fenced)
            recovered = await self._recover(claim)
            # The replay may have taken longer than the lease that came with the claim.
            await self.node.until_current(CURRENT_TIMEOUT_S)
        except BaseException:
            self.node.lose("it could not be opened")
            await self._leave()
            raise
        if not self.node.was_released:
            self._unclean_since_us = self._clock.now_us()
        log.info("Replayed %d records of %d streams.", recovered.records, len(recovered.streams))
        self.stats.replayed_records = recovered.records
        self._start(claim, recovered)
        return list(recovered.streams.values())

    def _count_shards(self) -> int:
        shards = self.node.node.about.shards
        if self._own_node is not None and shards > 1:
            raise ClusterRefused(
                f"The cluster has {shards} shards, which only `penstock serve` can be a node of."
            )
        return shards

    async def _leave(self) -> None:
        self.node.forget()
        if self._own_node is not None:
            await self._connections.close()
            await self._own_node.leave()
        self._lock.close()

    async def _recover(self, claim: Claim) -> Recovered:
        """Read what the owners before have left, from a server that has the claim."""
        while True:
            try:
                async with self._connections.sessions.use() as session:
                    return await recover(session, claim)
            except Fenced:
                raise self.node.not_owner() from None
            except (OutcomeUnknown, Refused, ClusterRefused) as error:
                log.warning("The journal cannot be read: %s", error)
                await asyncio.sleep(0.2)

    def _start(self, claim: Claim, recovered: Recovered) -> None:
        settings = self._settings
        shared = self._connections
        self._committer: LaneCommitter[Entry] = LaneCommitter(
            shared.lane,
            claim,
            next_lsn=recovered.next_lsn,
            batch_bytes_max=settings.journal_batch_bytes_max,
            on_committed=self._on_committed,
            on_failed=self._on_failed,
        )
        self._counters = StoreCounters(recovered.next_lsn - 1, recovered.next_id)
        self._checkpointer = ClusterCheckpointer(
            shared.checkpoints,
            claim,
            recovered.checkpoints,
            extent_bytes=settings.segment_bytes_max,
            garbage_s=settings.cluster_garbage_s,
        )
        self._catalog = Catalog(shared.sessions, claim, lambda: self._checkpointer.checkpoints)
        self._extents = shared.extents
        self._start_mover()
        self._reader = StreamReader(SharedExtents(self._extents))
        self._schedule = CheckpointSchedule(
            self._checkpointer,
            settings,
            self._counters,
            self.stats,
            folder=None,
            sweep=False,
            on_broken=self.fenced,
            on_trimmed=self._extents.forget_some,
        )
        self._listing = Listing(self._catalog, self._schedule)
        self._fetched |= {row.path: row for row in recovered.rows.values()}
        for stream in recovered.streams.values():
            self._schedule.changed(stream)
        for stream in recovered.deleted.values():
            self._schedule.deleted(stream)
        self._schedule.wrote(sum(stream.memory.size for stream in recovered.streams.values()))
        changed = recovered.streams.values()
        self._changed = Totals(
            sum(not each.soft_deleted for each in changed), sum(each.held_bytes for each in changed)
        )
        self._excluded = [*recovered.streams, *recovered.deleted]
        self._is_open = True
        self._schedule_task = asyncio.create_task(self._schedule.run())

    def open_objects(self) -> ObjectStore:
        """Return the object store of extents."""
        return open_store(self._settings.cluster_extents)

    def _start_mover(self) -> None:
        """Start to move full extents to the object store, if there is one."""
        self.mover: ExtentMover | None = None
        shared = self._connections
        if shared.objects is None:
            return
        # A store that is a node of its own counts what is read, too.
        stats = shared.tier if self._own_node is not None else TierStats()
        assert stats is not None
        self.stats.tier = stats
        self.mover = ExtentMover(
            shared.objects, shared.sessions, self._settings, stats, shard=self._shard.index
        )
        self.mover.start()

    async def close(self, *, timeout_s: float | None = None) -> None:
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        is_whole = self._lost is None
        try:
            async with asyncio.timeout_at(deadline):
                await self._committer.drain()
        except TimeoutError:
            log.warning("PostgreSQL was too slow to finish the appends that were queued.")
            is_whole = False
        self._committer.journal.is_ending = True
        await self._committer.stop()
        self._schedule.stop()
        if self._lost is not None:
            self._schedule.abandon()
        wait_s = None if deadline is None else max(deadline - loop.time(), 0.0)
        _, running = await asyncio.wait((self._schedule_task,), timeout=wait_s)
        if running:
            if self._lost is None:
                log.warning("The last checkpoint takes too long; the next owner replays the rest.")
            self._schedule.abandon()
            is_whole = False
        await self._schedule_task
        if self.mover is not None:
            await self.mover.close()
        self._reader.close()
        if is_whole:
            await self.node.release()
        await self._leave()

    async def count_opened(self) -> Totals | None:
        try:
            streams, size = await self._catalog.totals(self._excluded)
        except PenstockError:
            return None
        return Totals(streams + self._changed.streams, size + self._changed.bytes)

    # -- writing

    def next_id(self) -> int:
        id = self._shard.next_id(self._counters.next_id)
        self._counters.next_id = id + 1
        return id

    def admit(self, size: int) -> None:
        if self._lost is not None:
            raise self.node.not_owner()
        if self._is_away():
            raise ClusterUnavailable("PostgreSQL does not answer. Try again.", Retry_After="1")
        queued = self._committer.queued_bytes
        if queued and queued + size > self._settings.append_queue_bytes_max:
            raise Overloaded(
                "Too many bytes wait for PostgreSQL (append_queue_bytes_max). Try again.",
                Retry_After="1",
            )
        if self._schedule.is_behind():
            raise Overloaded(
                "The checkpoint cannot keep up (tail_bytes_max). Try again.", Retry_After="1"
            )

    def submit(self, entry: Entry) -> None:
        self._committer.submit(entry)

    def _on_committed(self, batch: Committed[Entry]) -> None:
        mutations = mutations_of(batch.entries)
        self._counters.durable_lsn = apply_batch(
            mutations, batch.first_lsn, self._schedule.changed, self._ended
        )
        self._schedule.wrote(batch.bytes)
        stats = self.stats
        stats.commits += 1
        stats.commit_records.add(len(batch.entries))
        stats.commit_seconds.add(batch.seconds)
        stats.journal_bytes_written += batch.bytes
        self._observer.committed(mutations)
        answer_batch(batch.entries)

    def _ended(self, stream: Stream) -> None:
        self._schedule.deleted(stream)
        self._extents.forget(stream.id)

    def _on_failed(self, entries: list[Entry], error: PenstockError) -> None:
        self.stats.commit_failures += 1
        if isinstance(error, NotOwner):
            self.fenced(error.detail)
            error = self.node.not_owner()
        self._observer.failed(mutations_of(entries), error)
        for entry in entries:
            entry.fail(type(error)(error.detail, Retry_After="1"))

    def fenced(self, reason: str) -> None:
        """Another node owns the shard: answer nothing more as its owner."""
        if self._lost is None:
            self._lost = reason
            self.node.lose(reason)
            if self._is_open:
                self._schedule.abandon()
            if self.on_lost is not None:
                self.on_lost(reason)

    def _is_away(self) -> bool:
        """Whether PostgreSQL answers neither the journal nor the beat."""
        return self._committer.journal.is_away and not self.node.is_current()

    # -- loading

    def _rows(self) -> dict[str, Row | None]:
        """Return what was fetched, by path; None for a path without a stream. It is true until a
        checkpoint is finished: before that no stream that has changed leaves memory."""
        if self._fetched_at != self._schedule.checkpoints or len(self._fetched) > FETCHED_MAX:
            self._fetched, self._fetched_at = {}, self._schedule.checkpoints
        return self._fetched

    async def fetch(self, path: str) -> None:
        if self._lost is not None:
            raise self.node.not_owner()
        while path not in self._rows():
            checkpoints = self._schedule.checkpoints
            rows = await self._catalog.by_path(path)
            if self._schedule.checkpoints == checkpoints:
                self._keep(path, rows)

    def _keep(self, path: str, rows: list[Row]) -> None:
        fetched = self._rows()
        fetched[path] = None
        fetched.update((row.path, row) for row in rows)

    def load(self, path: str) -> Stream | None:
        if path not in self._rows():
            self._keep(path, self._look_up(lambda catalog: catalog.by_path(path)))
        row = self._fetched[path]
        if row is None or self._schedule.is_gone(row.id):
            if not self.node.is_current():
                # Another node may have created it.
                raise ClusterUnavailable(
                    "This node cannot tell whether there is such a stream: PostgreSQL does not "
                    "answer it. Try again.",
                    Retry_After="1",
                )
            return None
        return stream_from_row(row)

    def _look_up(self, question: Callable[[Catalog], Awaitable[T]]) -> T:
        """Ask the catalog while the event loop waits: for the server's own work, which looks at a
        stream that nobody has fetched. Requests fetch theirs."""
        if self._lost is not None or self.node.claim is None:
            raise self.node.not_owner()
        if self._is_away():
            raise ClusterUnavailable("PostgreSQL does not answer. Try again.", Retry_After="1")
        known, claim = self._checkpointer.checkpoints, self.node.claim
        look_ups = self._connections.look_ups
        catalog = Catalog(look_ups.sessions, claim, lambda: known)
        return look_ups.ask(lambda: question(catalog))

    async def fetch_producer(self, stream: Stream, producer_id: str) -> None:
        state = await self._catalog.producer(stream.id, producer_id)
        if state is None:
            self._no_producers.setdefault(stream, set()).add(producer_id)
        else:
            stream.producers.setdefault(producer_id, state)

    def load_producer(self, stream: Stream, producer_id: str) -> ProducerState | None:
        if not stream.stored_producers or producer_id in self._no_producers.get(stream, ()):
            return None
        return self._look_up(lambda catalog: catalog.producer(stream.id, producer_id))

    def touched(self, stream: Stream) -> None:
        if stream.durable and not stream.deleted:
            self._schedule.changed(stream)

    def release(self, stream: Stream) -> bool:
        is_own = stream.path.startswith(OWN_PREFIX)
        return not (stream.is_dirty or stream.in_checkpoint or is_own)

    # -- reading

    def read_now(self, stream: Stream, start: int, end: int) -> bytes | None:
        return self._reader.read_now(stream, start, end)

    def views(self, stream: Stream, start: int, end: int) -> list[memoryview] | None:
        return self._reader.views(stream, start, end)

    async def read(self, stream: Stream, start: int, end: int) -> bytes:
        return await self._reader.read(stream, start, end)

    async def _seek(self, question: Callable[[], T]) -> T:
        """Ask the reader; the indexes that it lacks are read first."""
        while True:
            try:
                return question()
            except ExtentMissing as missing:
                await self._extents.load(missing.stream_id, missing.info)

    async def seek_ordinal(self, stream: Stream, ordinal: int) -> tuple[int, int]:
        return await self._seek(lambda: self._reader.seek_ordinal(stream, ordinal))

    async def seek_position(self, stream: Stream, position: int) -> tuple[int, int]:
        return await self._seek(lambda: self._reader.seek_position(stream, position))

    async def seek_time(self, stream: Stream, time_us: int) -> int:
        return await self._seek(lambda: self._reader.seek_time(stream, time_us))

    async def time_after(self, stream: Stream, position: int) -> int:
        return await self._seek(lambda: self._reader.time_after(stream, position))

    # -- listing

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
        return await self._catalog.untouched(since_us, after, limit)

    async def expired(self, now_us: int, after: tuple[int, int], limit: int) -> list[Deadline]:
        return await self._catalog.expired(now_us, after, limit)

    # -- how it is

    @property
    def extents(self) -> ExtentCache:
        return self._extents

    @property
    def is_owner(self) -> bool:
        """Whether no other node is known to own the streams."""
        return self._lost is None

    def is_current(self) -> bool:
        return self.node.is_current()

    async def until_current(self, timeout_s: float) -> None:
        await self.node.until_current(timeout_s)

    def health(self) -> Health:
        if self._lost is not None:
            return Health(False, False, "Another node owns the streams.")
        if self._is_away():
            return Health(True, False, "PostgreSQL does not answer.")
        return Health(True, True, None)

    def grace_until_us(self, ttl_s: int) -> int:
        if self._unclean_since_us is None:
            return 0
        seconds = min(ttl_s, self._settings.checkpoint_interval_s)
        return self._unclean_since_us + int(seconds * 1_000_000)

    async def checkpoint(self) -> bool:
        """Run a checkpoint now; return whether it succeeded."""
        return await self._schedule.checkpoint()

    async def abandon(self) -> None:
        """Let go as a killed process would: nothing is finished, nothing released."""
        self._lost = self._lost or "abandoned"
        self._committer.journal.is_ending = True
        with contextlib.suppress(TimeoutError):
            await self.close(timeout_s=0)
