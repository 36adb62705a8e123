"""Extents in an object store: how full ones get there, and how objects go that nobody needs.

Killed at any step, nothing is lost. The name of an object is in the table `garbage` before the
object is written; one transaction takes it out and lets the extent point to it. An object that no
extent points to goes when no reader and no restored backup can want it (`not_before`).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import Final, NamedTuple

from penstock.backoff import Backoff
from penstock.config.settings import Settings
from penstock.errors import (
    ClusterRefused,
    ColdDataUnavailable,
    Damaged,
    InvalidStorageUrl,
    ObjectNotFound,
    StorageError,
)
from penstock.log.cluster.database import OutcomeUnknown, Refused, Session, Sessions
from penstock.log.disk.segment import SegmentInfo, check_blocks
from penstock.log.disk.tiered.pool import DaemonPool
from penstock.log.stats import TierStats
from penstock.object_store import ObjectStore, open_store

log = logging.getLogger("penstock.log")

BATCH: Final = 8
"""Extents that are moved together: no more than 8 MB of them are in memory."""
REMOVED_AT_ONCE: Final = 500
MOVE_S: Final = 1.0
"""Time between two looks for extents that are full."""
COLLECT_S: Final = 60.0
"""Time between two looks for objects that may go."""
BACKOFF: Final = Backoff(base_s=1.0, cap_s=60, jitter=0.5)

FULL: Final = """SELECT e.stream_id, e.base, e.length, e.first_ordinal, e.open_ordinal,
e.open_time_us, e.open_crc, e.body, e.index, e.object, e.object_length
FROM penstock.extent e JOIN penstock.stream s ON s.id = e.stream_id
WHERE s.shard = $1 AND e.is_full AND e.length > e.object_length
AND (e.stream_id, e.base) > ($2, $3) ORDER BY e.stream_id, e.base LIMIT $4"""
ANNOUNCE: Final = """INSERT INTO penstock.garbage (object, not_before)
SELECT each, now() + make_interval(secs => $2) FROM unnest($1::text[]) AS each"""
SWITCH: Final = """UPDATE penstock.extent SET object = $4, object_length = length, body = ''
WHERE stream_id = $1 AND base = $2 AND length = $3 AND object IS NOT DISTINCT FROM $5
RETURNING 1"""
KEEP: Final = "DELETE FROM penstock.garbage WHERE object = $1 AND NOT is_leaving RETURNING 1"
CHOOSE: Final = """UPDATE penstock.garbage SET is_leaving = true WHERE object IN (
  SELECT object FROM penstock.garbage WHERE not_before <= now() ORDER BY not_before LIMIT $1
  FOR UPDATE SKIP LOCKED) RETURNING object"""
REMOVED: Final = "DELETE FROM penstock.garbage WHERE object = ANY($1::text[]) AND is_leaving"
TOTALS: Final = """SELECT count(*) FILTER (WHERE object IS NOT NULL),
coalesce(sum(object_length), 0)::bigint, coalesce(sum(length - object_length), 0)::bigint
FROM penstock.extent"""
NOTED: Final = """SELECT extents, (SELECT object FROM penstock.extent WHERE object IS NOT NULL
  LIMIT 1) FROM penstock.cluster"""
NOTE: Final = "UPDATE penstock.cluster SET extents = $1"


class _Full(NamedTuple):
    """An extent that gets no more bytes, all or some of which are in its row."""

    stream_id: int
    info: SegmentInfo
    body: bytes
    entries: bytes
    object: str | None
    object_length: int

    @property
    def where(self) -> str:
        return f"stream {self.stream_id}, extent {self.info.base}"


class NotSwitched(Exception):
    """Another has moved or dropped the extent, or the object is to go: nothing has changed."""


class ObjectReader:
    """Reads parts of extents that are in the object store. Belongs to the event loop."""

    def __init__(self, store: ObjectStore, settings: Settings, stats: TierStats) -> None:
        self._store = store
        self._stats = stats
        self._timeout_s = settings.tier_timeout_s
        self._threads = DaemonPool(settings.tier_concurrency, "penstock-extents")

    async def read(self, name: str, length: int, where: str) -> bytes:
        """Return the first bytes of an object; ColdDataUnavailable while the store does not
        answer."""
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._threads, self._store.get_range, name, 0, length)
        try:
            async with asyncio.timeout(self._timeout_s):
                data = await work
        except ObjectNotFound:
            self._stats.damaged_objects += 1
            raise Damaged(
                f"{where}: the object store has no {name}. Restore it from a backup."
            ) from None
        except (StorageError, TimeoutError) as failure:
            error = failure if isinstance(failure, StorageError) else "the object store is too slow"
            self._stats.fetch_failures += 1
            log.warning("An extent cannot be read: %s", error)
            raise ColdDataUnavailable(
                "This part of the stream is in the object store, which does not answer now. Try "
                "again.",
                Retry_After="1",
            ) from None
        self._stats.fetches += 1
        self._stats.fetched_bytes += len(data)
        return data

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class ExtentMover:
    """Moves full extents of a shard to the object store; that of the first shard removes objects
    nobody needs, of all shards.

    Runs on the owner. A former owner that still runs it does no harm: it moves what never changes.
    """

    def __init__(
        self,
        store: ObjectStore,
        sessions: Sessions,
        settings: Settings,
        stats: TierStats,
        *,
        shard: int = 0,
    ) -> None:
        self._store = store
        self._sessions = sessions
        self._shard = shard
        self._prefix = f"extents/{settings.cluster_name}"
        self._garbage_s = settings.cluster_garbage_s
        self._stats = stats
        self._threads = DaemonPool(settings.tier_concurrency, "penstock-mover")
        self._damaged: set[tuple[int, int]] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop; what threads have begun and do not finish is as after a kill."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self) -> None:
        failures, next_collect = 0, 0.0
        loop = asyncio.get_running_loop()
        while True:
            wait_s = MOVE_S
            try:
                moved = await self.move()
                if self._shard == 0 and loop.time() >= next_collect:
                    while await self.collect():
                        pass
                    await self._count()
                    next_collect = loop.time() + COLLECT_S
                failures = 0
                wait_s = 0 if moved else MOVE_S
            except (StorageError, OutcomeUnknown, Refused, ClusterRefused) as error:
                failures += 1
                self._stats.upload_failures += 1
                wait_s = BACKOFF.wait_s(failures, secrets.randbelow(1000) / 1000)
                log.warning("Extents stay in PostgreSQL for now: %s", error)
            await asyncio.sleep(wait_s)

    async def move(self) -> int:
        """Move a batch of full extents; return how many were moved."""
        chosen = await self._choose()
        if not chosen:
            return 0
        names = [self._name(each) for each in chosen]
        async with self._sessions.use() as session:
            await session.fetch(ANNOUNCE, names, self._garbage_s)
        loop = asyncio.get_running_loop()
        results = await asyncio.gather(
            *(
                loop.run_in_executor(self._threads, self._upload, each, name)
                for each, name in zip(chosen, names, strict=True)
            ),
            return_exceptions=True,
        )
        moved = 0
        for each, name, result in zip(chosen, names, results, strict=True):
            if isinstance(result, Damaged):
                # It stays where it is, and whoever reads it is told.
                self._damaged.add((each.stream_id, each.info.base))
                log.error("An extent stays in PostgreSQL: %s", result)
            elif not isinstance(result, BaseException):
                moved += await self._switch(each, name)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, Damaged):
                raise result
        return moved

    async def _choose(self) -> list[_Full]:
        chosen: list[_Full] = []
        after = (-1, -1)
        while len(chosen) < BATCH:
            rows = await self._sessions.query(FULL, self._shard, *after, BATCH)
            for row in rows:
                after = (row[0], row[1])
                if after not in self._damaged:
                    chosen.append(_Full(row[0], SegmentInfo(*row[1:7]), *row[7:]))
            if len(rows) < BATCH:
                break
        return chosen

    def _name(self, each: _Full) -> str:
        token = secrets.token_hex(8)  # an object is never written twice
        return f"{self._prefix}/{each.stream_id:016x}/{each.info.base:016x}-{token}"

    def _upload(self, each: _Full, name: str) -> None:
        """Write an extent to the store, and read it back. On a thread."""
        data = each.body
        if each.object is not None:
            data = self._store.get_range(each.object, 0, each.object_length) + data
        if len(data) != each.info.length:
            raise Damaged(f"{each.where}: bytes are missing. Restore the database from a backup.")
        check_blocks(each.info, 0, data, each.entries, each.where)
        self._store.put(name, data)
        if self._store.get(name) != data:
            raise StorageError(f"{self._store.url} returns other bytes than were written: {name}")

    async def _switch(self, each: _Full, name: str) -> int:
        """Let an extent point to its object; return 1 if it does."""
        try:
            async with self._sessions.use() as session, session.transaction():
                values = (each.stream_id, each.info.base, each.info.length, name, each.object)
                # In this order: an object that is not pointed to stays garbage.
                if not await session.fetch(SWITCH, *values):
                    raise NotSwitched
                if not await session.fetch(KEEP, name):
                    raise NotSwitched
                if each.object is not None:
                    await session.fetch(ANNOUNCE, [each.object], self._garbage_s)
        except NotSwitched:
            return 0
        self._stats.uploads += 1
        self._stats.upload_bytes += each.info.length
        return 1

    async def collect(self) -> int:
        """Remove objects whose time has come; return how many. They are marked in a transaction of
        their own first: from then on none can be pointed to."""
        async with self._sessions.use() as session:
            names = [row[0] for row in await session.fetch(CHOOSE, REMOVED_AT_ONCE)]
        if names:
            try:
                await asyncio.get_running_loop().run_in_executor(
                    self._threads, self._store.delete, names
                )
            except StorageError:
                self._stats.removal_failures += 1
                raise
            async with self._sessions.use() as session:
                await session.fetch(REMOVED, names)
            self._stats.removals += len(names)
        return len(names)

    async def _count(self) -> None:
        row = (await self._sessions.query(TOTALS))[0]
        stats = self._stats
        stats.cold_segments, stats.cold_bytes, stats.local_bytes = row[0], row[1], row[2]


async def check_store(session: Session, settings: Settings) -> None:
    """Compare `cluster_extents` with what the cluster uses; note a new one after a trial.

    ClusterRefused, in one line, if the extents are somewhere else, or the store does not work.
    """
    noted, example = (await session.fetch(NOTED))[0]
    if not settings.cluster_extents:
        if example is not None:
            raise ClusterRefused(
                f"The cluster has extents in {noted}. Set cluster_extents to it, on every node."
            )
        return
    try:
        store = open_store(settings.cluster_extents)
        if store.url == noted:
            return
        await asyncio.to_thread(_try, store, settings.cluster_name, example, noted)
    except (StorageError, InvalidStorageUrl) as error:
        raise ClusterRefused(f"cluster_extents: {error.detail}") from None
    await session.fetch(NOTE, store.url)


def _try(store: ObjectStore, cluster: str, example: str | None, noted: object) -> None:
    if example is not None and store.head(example) is None:
        raise ClusterRefused(
            f"The extents of the cluster are in {noted}, and {store.url} does not have {example}. "
            "Set cluster_extents to where they are, or copy all objects there first."
        )
    name, data = f"extents/{cluster}/trial-{secrets.token_hex(8)}", secrets.token_bytes(64)
    store.put(name, data)
    if store.get_range(name, 0, len(data)) != data:
        raise StorageError(f"{store.url} returns other bytes than were written.")
    store.delete([name])
