"""Ends expired streams, whether they are in memory or only in the store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from penstock.clock import Clock
from penstock.errors import PenstockError
from penstock.log.active import ActiveStreams
from penstock.log.store import Store
from penstock.log.stream import Stream

log = logging.getLogger("penstock.log")

REAP_MAX = 1000
"""Streams ended per round, so that a million expiring at once do not block the event loop."""

FROM_START = (-1, -1)


class Reaper:
    def __init__(
        self,
        streams: ActiveStreams,
        store: Store,
        clock: Clock,
        expire: Callable[[Stream], None],
    ) -> None:
        self._streams = streams
        self._store = store
        self._clock = clock
        self._expire = expire
        self._after = FROM_START

    async def run(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self.reap()
            except PenstockError as error:
                log.error("Cannot look for expired streams: %s", error)
            self._streams.evict()

    async def reap(self) -> int:
        """End what has expired, up to a limit; return the number of streams."""
        now = self._clock.now_us()
        expired = self._streams.take_expired(now, REAP_MAX)
        for stream in expired:
            self._expire(stream)
        return len(expired) + await self._reap_stored(now, REAP_MAX - len(expired))

    async def _reap_stored(self, now_us: int, limit: int) -> int:
        """End streams that are not in memory, in the order of their deadlines: one page per round,
        because each has to be loaded, and many may have grace or be deleted but not yet purged."""
        page = await self._store.expired(now_us, self._after, REAP_MAX)
        reaped, after = 0, self._after
        for time_us, stream_id, path in page:
            if reaped == limit:
                break
            after = (time_us, stream_id)
            if self._streams.active(path) is not None:
                continue
            if self._store.needs_fetch:
                await self._streams.fetch(path)
            stream = self._streams.pending(path)
            if (
                stream is not None
                and stream.id == stream_id
                and self._streams.is_expired(stream, now_us)
            ):
                self._expire(stream)
                reaped += 1
        else:
            if len(page) < REAP_MAX:
                after = FROM_START
        self._after = after
        return reaped
