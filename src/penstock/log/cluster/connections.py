"""What the shards of one node share: its sessions with PostgreSQL, the threads that wait for some
of them, the lane that carries the batches of all shards, and the cache of extents."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from penstock.config.settings import Settings
from penstock.errors import ClusterUnavailable
from penstock.log.cluster.database import Session, Sessions
from penstock.log.cluster.extent_objects import ObjectReader
from penstock.log.cluster.extents import ExtentCache
from penstock.log.cluster.lane import Lane
from penstock.log.cluster.thread_session import ThreadLoop, ThreadSession
from penstock.log.stats import TierStats
from penstock.object_store import ObjectStore, open_store

T = TypeVar("T")

SESSIONS: Final = 4
"""Sessions for reads of the catalog and of extents."""
LOOK_UP_TIMEOUT_S: Final = 2.0
"""How long the event loop waits for a stream that nobody has fetched."""


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
        await self.lane.close()
        await asyncio.to_thread(self.checkpoints.close)
        self.extents.close()
        self.sessions.close()
        await asyncio.to_thread(self.look_ups.close)
