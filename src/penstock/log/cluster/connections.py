"""What the shards of one node share: its sessions with PostgreSQL, the threads that wait for them,
the transactions that carry the batches of several shards, and the cache of extents."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from penstock.config.settings import Settings
from penstock.errors import ClusterUnavailable, NotOwner
from penstock.log.cluster.database import Fenced, Session, Sessions
from penstock.log.cluster.extent_objects import ObjectReader
from penstock.log.cluster.extents import ExtentCache
from penstock.log.cluster.slots import Batch, Claim, Journal, Place, append_together
from penstock.log.cluster.thread_session import ThreadLoop, ThreadSession
from penstock.log.stats import TierStats
from penstock.object_store import ObjectStore, open_store

T = TypeVar("T")

SESSIONS: Final = 4
"""Sessions for reads of the catalog and of extents."""
LOOK_UP_TIMEOUT_S: Final = 2.0
"""How long the event loop waits for a stream that nobody has fetched."""


class Lane:
    """The way of batches to PostgreSQL. While one transaction is on its way, the batches of all
    shards that come meanwhile wait for the next, which carries all of them."""

    def __init__(self, open_session: Callable[[], Awaitable[Session]]) -> None:
        self._loop = ThreadLoop()
        self._place = Place(open_session)
        self._turn = threading.Lock()
        # Threads append to it and take from it without a lock: both are one step.
        self._waiting: deque[_Waiting] = deque()
        self.transactions = 0
        self.batches = 0

    def journal(self, claim: Claim) -> Journal:
        """Return the journal of a shard, which is written here."""
        return Journal(self._place.session, claim, place=self._place)

    def append(self, journal: Journal, batch: Batch) -> None:
        """Return when a batch is durable, blocking the thread; raise what became of it else."""
        mine = _Waiting(journal, batch)
        self._waiting.append(mine)
        with self._turn:
            # Whoever comes first takes all that wait; the others find theirs done.
            while not mine.is_done:
                waiting: list[_Waiting] = []
                while self._waiting:
                    waiting.append(self._waiting.popleft())
                self._run(waiting)
        if mine.error is not None:
            raise mine.error

    def _run(self, waiting: list[_Waiting]) -> None:
        self._loop.run(lambda: self._write(waiting))

    async def _write(self, waiting: list[_Waiting]) -> None:
        self.transactions += 1
        self.batches += len(waiting)
        errors: list[BaseException | None] = []
        try:
            if len(waiting) == 1:
                try:
                    await waiting[0].journal.append(waiting[0].batch)
                    errors.append(None)
                except (Fenced, ClusterUnavailable) as error:
                    errors.append(error)
            else:
                pairs = [(each.journal, each.batch) for each in waiting]
                errors += await append_together(self._place, pairs)
        except BaseException as error:
            errors = [error] * len(waiting)  # nobody waits for ever
            raise
        finally:
            for each, outcome in zip(waiting, errors, strict=True):
                each.error, each.is_done = outcome, True

    def close(self) -> None:
        """Called when no journal is written any more."""

        async def end() -> None:
            self._place.drop()
            await asyncio.sleep(0)  # its transport is closed in the next turn

        self._loop.run(end)
        self._loop.close()


class _Waiting:
    __slots__ = ("batch", "error", "is_done", "journal")

    def __init__(self, journal: Journal, batch: Batch) -> None:
        self.journal = journal
        self.batch = batch
        self.error: BaseException | None = None
        self.is_done = False


class SlotWriter:
    """The journal of a shard as its committer writes it, on its commit thread."""

    def __init__(self, lane: Lane, claim: Claim) -> None:
        self._lane = lane
        self.journal = lane.journal(claim)

    def write(self, first_lsn: int, parts: list[bytes]) -> None:
        batch = Batch(first_lsn, len(parts), b"".join(parts))
        try:
            self._lane.append(self.journal, batch)
        except Fenced as error:
            raise NotOwner(f"Another node owns the streams: {error}", Retry_After="1") from None


class LookUps:
    """Questions to PostgreSQL for which the event loop waits."""

    def __init__(self, open_session: Callable[[], Awaitable[Session]]) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="penstock-look-up")
        self._loop = ThreadLoop()
        self.sessions = Sessions(open_session, size=1)

    def ask(self, question: Callable[[], Awaitable[T]]) -> T:
        work = self._thread.submit(self._loop.run, question)
        try:
            return work.result(LOOK_UP_TIMEOUT_S)
        except TimeoutError:
            raise ClusterUnavailable(
                "PostgreSQL takes too long to answer. Try again.", Retry_After="1"
            ) from None

    def close(self) -> None:
        async def end() -> None:
            self.sessions.close()
            await asyncio.sleep(0)  # their transports are closed in the next turn

        self._thread.submit(self._loop.run, end).result()
        self._loop.close()
        self._thread.shutdown()


class Connections:
    """All of it, for the stores of one node. Belongs to its event loop."""

    def __init__(
        self,
        open_session: Callable[[], Awaitable[Session]],
        settings: Settings,
        open_objects: Callable[[], ObjectStore] | None = None,
    ) -> None:
        self.lane = Lane(open_session)
        self.checkpoints = ThreadSession(open_session)
        self.sessions = Sessions(open_session, size=SESSIONS)
        self.look_ups = LookUps(open_session)
        self.objects: ObjectStore | None = None
        """The object store of extents, if there is one."""
        self.tier: TierStats | None = None
        """What was read from it."""
        reader = None
        if settings.cluster_extents:
            self.objects = (
                open_store(settings.cluster_extents) if open_objects is None else open_objects()
            )
            self.tier = TierStats()
            reader = ObjectReader(self.objects, settings, self.tier)
        self.extents = ExtentCache(self.sessions, reader, cache_bytes=settings.cluster_cache_bytes)

    async def close(self) -> None:
        """Called when no store uses it any more."""
        await asyncio.to_thread(self.lane.close)
        await asyncio.to_thread(self.checkpoints.close)
        self.extents.close()
        self.sessions.close()
        await asyncio.to_thread(self.look_ups.close)
