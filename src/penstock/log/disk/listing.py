"""Listings of stored streams: the rows of a catalog, and over them the streams that have changed
since the last checkpoint.

Knows no database: a catalog on this machine answers at once, one behind a network later.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from heapq import merge
from itertools import islice
from typing import Protocol, TypeVar

from penstock.log.disk.checkpoint_schedule import CheckpointSchedule
from penstock.log.store import Sizes
from penstock.log.stream import Stream, StreamInfo
from penstock.protocol.producer import ProducerState

T = TypeVar("T")


class CatalogPages(Protocol):
    """The pages of a catalog, as of its last checkpoint."""

    async def list_streams(
        self, prefix: str, after: str, limit: int, *, filed: bool
    ) -> list[StreamInfo]: ...

    async def list_forks(self, source_id: int, after: str, limit: int) -> list[StreamInfo]: ...

    async def list_producers(
        self, stream_id: int, after: str, limit: int
    ) -> list[tuple[str, ProducerState]]: ...

    async def sizes(self, after_id: int, limit: int) -> list[tuple[int, str, int]]: ...

    async def list_meta(self, name: str, after: str, limit: int) -> list[tuple[int, str]]: ...


class Listing:
    """Lists streams as they are now, whatever the catalog has of them."""

    def __init__(self, catalog: CatalogPages, schedule: CheckpointSchedule) -> None:
        self._catalog = catalog
        self._schedule = schedule

    def _is_current(self, stream_id: int) -> bool:
        """Whether the row of a stream says what is durable."""
        return not self._schedule.is_fresh(stream_id) and not self._schedule.is_gone(stream_id)

    async def _settled(self, query: Callable[[], Awaitable[T]]) -> T:
        """Return the answer to a query during which no checkpoint was finished: one could be older
        than what is known of the streams afterwards."""
        while True:
            checkpoints = self._schedule.checkpoints
            answer = await query()
            if self._schedule.checkpoints == checkpoints:
                return answer

    async def list_streams(
        self, prefix: str, after: str, limit: int, *, filed: bool
    ) -> list[StreamInfo]:
        stored = await self._settled(lambda: self._stored(prefix, after, limit, filed=filed))
        changed = [stream.info() for stream in self._schedule.fresh_page(prefix, after, limit)]
        return list(islice(merge(changed, filter(self._is_shown, stored)), limit))

    def _is_shown(self, info: StreamInfo) -> bool:
        return self._is_current(info.id)

    async def _stored(
        self, prefix: str, after: str, limit: int, *, filed: bool
    ) -> list[StreamInfo]:
        """Return rows, so many that `limit` of them are shown, if there are."""
        stored: list[StreamInfo] = []
        while True:
            page = await self._catalog.list_streams(prefix, after, limit, filed=filed)
            stored += page
            if len(page) < limit or sum(map(self._is_shown, stored)) >= limit:
                return stored
            after = page[-1].path

    async def list_forks(self, source: Stream, after: str, limit: int) -> list[StreamInfo]:
        schedule = self._schedule

        async def query() -> list[StreamInfo]:
            # Of the forks in the catalog at most so many are left out.
            hidden = len(schedule.fresh()) + schedule.gone_count
            return await self._catalog.list_forks(source.id, after, limit + hidden)

        stored = await self._settled(query)
        changed = [
            stream.info()
            for stream in schedule.fresh().values()
            if stream.fork is not None
            and stream.fork.source_id == source.id
            and stream.path > after
            and stream.durable
            and not stream.is_gone
        ]
        return list(islice(merge(sorted(changed), filter(self._is_shown, stored)), limit))

    async def list_producers(
        self, stream: Stream, after: str, limit: int
    ) -> list[tuple[str, ProducerState]]:
        stored: list[tuple[str, ProducerState]] = []
        if stream.stored_producers:
            stored = await self._catalog.list_producers(stream.id, after, limit)
        states = {id: state for id, state in stream.producers.items() if id > after}
        return sorted({**dict(stored), **states}.items())[:limit]

    async def sizes(self, after_id: int, limit: int) -> Sizes:
        page = await self._settled(lambda: self._catalog.sizes(after_id, limit))
        last_id = page[-1][0] if len(page) == limit else None
        stored = [(path, size) for id, path, size in page if self._is_current(id)]
        changed = [
            (stream.path, stream.held_bytes)
            for stream in self._schedule.fresh().values()
            if after_id < stream.id and (last_id is None or stream.id <= last_id)
        ]
        return Sizes(stored + changed, last_id)

    async def list_meta(self, name: str, after: str, limit: int) -> list[str]:
        stored = await self._settled(lambda: self._stored_meta(name, after, limit))
        changed = sorted(
            stream.path
            for stream in self._schedule.fresh().values()
            if name in stream.meta and not stream.is_gone and stream.path > after
        )
        paths = [path for id, path in stored if self._is_current(id)]
        return list(islice(merge(changed, paths), limit))

    async def _stored_meta(self, name: str, after: str, limit: int) -> list[tuple[int, str]]:
        stored: list[tuple[int, str]] = []
        while True:
            page = await self._catalog.list_meta(name, after, limit)
            stored += page
            if len(page) < limit or sum(self._is_current(id) for id, _ in stored) >= limit:
                return stored
            after = page[-1][1]
