"""Reads cold segments: pieces of a few MiB from the object store, checked against the local index,
through a cache.

Belongs to the event loop, which never waits for the store: threads of its own fetch, and readers of
the same piece share one fetch. What is read in order is fetched ahead.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TypeVar

from penstock.backoff import Backoff
from penstock.errors import (
    ColdDataUnavailable,
    Damaged,
    ObjectNotFound,
    StorageError,
)
from penstock.log.disk import segment
from penstock.log.disk.catalog_cold import Cold
from penstock.log.disk.files import Files
from penstock.log.disk.segment import ENTRY, SegmentFolder, SegmentInfo, check_blocks
from penstock.log.disk.tiered.cache import PieceCache
from penstock.log.disk.tiered.pool import DaemonPool
from penstock.log.stats import TierStats
from penstock.object_store import ObjectStore

log = logging.getLogger("penstock.log")

K = TypeVar("K")
V = TypeVar("V")

PIECE_BYTES = 4 * 1024 * 1024
"""Bytes of one fetch. A multiple of the size of a block."""
AHEAD_PIECES = 4
"""Pieces that are fetched before a reader in order asks for them."""
DISK_THREADS = 2
"""Threads that read cached pieces, so that these do not wait behind the store."""
REMEMBERED = 4096
"""Cold segments, and ends of reads, that are remembered."""
BACKOFF = Backoff(base_s=1, cap_s=30)
"""How long reads fail at once after the store has failed."""

Find = Callable[[int, int], Cold | None]


def piece_name(cold: Cold, number: int) -> str:
    return f"{cold.segment.object.rpartition('/')[2]}.{number}"


class ColdReader:
    def __init__(
        self,
        store: ObjectStore,
        cache: PieceCache,
        find: Find,
        stats: TierStats,
        *,
        files: Files,
        folder: SegmentFolder,
        concurrency: int,
        timeout_s: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._cache = cache
        self._find_cold = find
        self._stats = stats
        self._files = files
        self._folder = folder
        self._concurrency = concurrency
        self._timeout_s = timeout_s
        self._now = now
        self._cold: OrderedDict[tuple[int, int], Cold] = OrderedDict()
        self._ends: OrderedDict[tuple[int, int], None] = OrderedDict()
        self._flights: dict[str, asyncio.Future[bytes]] = {}
        self._failures = 0
        self._retry_at = 0.0
        self._answered_at = -math.inf
        self._fetchers = DaemonPool(concurrency, "penstock-cold")
        self._disk = ThreadPoolExecutor(DISK_THREADS, thread_name_prefix="penstock-cache")

    def has(self, stream_id: int, base: int) -> bool:
        return self._find(stream_id, base) is not None

    def read_now(self, stream_id: int, info: SegmentInfo, start: int, end: int) -> bytes | None:
        cold = self._must_find(stream_id, info)
        parts: list[bytes] = []
        for number, low, high in _pieces(start, end):
            name = piece_name(cold, number)
            if not self._cache.is_checked(name):
                return None
            part = self._cache.read(name, low, high, wait=False)
            if part is None or len(part) != high - low:
                return None
            parts.append(part)
        self._stats.cache_hits += len(parts)
        self._go_ahead(cold, start, end)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def read(self, stream_id: int, info: SegmentInfo, start: int, end: int) -> bytes:
        cold = self._must_find(stream_id, info)
        pieces = list(_pieces(start, end))
        flights = [self._flight(cold, number) for number, _, _ in pieces]
        self._go_ahead(cold, start, end)
        try:
            async with asyncio.timeout(self._timeout_s):
                # Shielded: others may wait for the same piece, or ask for it again.
                data = await asyncio.gather(*[asyncio.shield(flight) for flight in flights])
        except TimeoutError:
            # A store that answers others is busy, and will have the piece when it is asked again.
            if self._now() - self._answered_at >= self._timeout_s:
                self._failed(f"a fetch took longer than tier_timeout_s, {self._timeout_s:g} s")
            raise self._unavailable() from None
        parts = [piece[low:high] for (_, low, high), piece in zip(pieces, data, strict=True)]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def forget(self, stream_id: int, base: int | None = None) -> None:
        """Drop what is cached of a stream, or of one of its segments."""
        if self._cache.has_stream(stream_id):
            self._disk.submit(self._cache.drop_stream, stream_id, base)

    async def close(self, *, timeout_s: float) -> None:
        """Wait for what runs, but not for longer than `timeout_s`."""
        flights = list(self._flights.values())
        self._fetchers.shutdown(wait=False, cancel_futures=True)
        if flights:
            await asyncio.wait(flights, timeout=timeout_s)
        for flight in flights:
            flight.cancel()
        self._disk.shutdown()  # after what is to be dropped

    # -- on the event loop

    def _find(self, stream_id: int, base: int) -> Cold | None:
        cold = self._cold.get((stream_id, base))
        if cold is None:
            cold = self._find_cold(stream_id, base)
            if cold is not None:  # for ever: neither ids nor bases are used again
                _remember(self._cold, (stream_id, base), cold)
        return cold

    def _must_find(self, stream_id: int, info: SegmentInfo) -> Cold:
        cold = self._find(stream_id, info.base)
        if cold is None:
            raise Damaged(
                f"The segment of stream {stream_id} at {info.base} is missing. Run "
                "`penstock verify`."
            )
        return cold

    def _go_ahead(self, cold: Cold, start: int, end: int) -> None:
        """Fetch what comes next, if this read goes on where another has ended."""
        stream_id, base = cold.segment.stream_id, cold.info.base
        first, last = start // PIECE_BYTES, (end - 1) // PIECE_BYTES
        is_in_order = (stream_id, base + first * PIECE_BYTES) in self._ends
        _remember(self._ends, (stream_id, _piece_end(cold.info, last)), None)
        if not is_in_order or not self._cache.holds(2 * AHEAD_PIECES * PIECE_BYTES):
            return
        number = last
        for _ in range(AHEAD_PIECES):
            number += 1
            if number * PIECE_BYTES >= cold.info.length:
                following = self._find(stream_id, cold.info.end)
                if following is None:
                    return
                cold, number = following, 0
            if len(self._flights) >= self._concurrency or self._now() < self._retry_at:
                return
            if not self._cache.has(piece_name(cold, number)):
                self._flight(cold, number)

    def _flight(self, cold: Cold, number: int) -> asyncio.Future[bytes]:
        """Return the fetch of a piece, begun here or by another reader."""
        name = piece_name(cold, number)
        flight = self._flights.get(name)
        if flight is None:
            task = asyncio.ensure_future(self._load(cold, number, name))
            flight = self._flights[name] = task
            task.add_done_callback(lambda _: self._flights.pop(name))
            task.add_done_callback(_ignore)
        return flight

    async def _load(self, cold: Cold, number: int, name: str) -> bytes:
        loop = asyncio.get_running_loop()
        if self._cache.has(name):
            data = await loop.run_in_executor(self._disk, self._cached, cold, number, name)
            if data is not None:
                self._stats.cache_hits += 1
                return data
        if self._now() < self._retry_at:
            raise self._unavailable()
        self._stats.cache_misses += 1
        try:
            data = await loop.run_in_executor(self._fetchers, self._fetch, cold, number, name)
        except ObjectNotFound:
            self._stats.damaged_objects += 1
            raise Damaged(
                f"The object store has no {cold.segment.object}, which holds a part of stream "
                f"{cold.segment.stream_id}. Restore it from a backup."
            ) from None
        except Damaged:
            self._stats.damaged_objects += 1
            raise
        except StorageError as error:
            self._failed(error.detail)
            raise self._unavailable() from None
        self._failures, self._retry_at, self._answered_at = 0, 0.0, self._now()
        self._stats.fetches += 1
        self._stats.fetched_bytes += len(data)
        return data

    def _failed(self, reason: str) -> None:
        self._stats.fetch_failures += 1
        if self._now() < self._retry_at:
            return  # one of several that failed together
        self._failures += 1
        self._retry_at = self._now() + BACKOFF.wait_s(self._failures, 1.0)
        log.warning("Cold data cannot be read: %s", reason)

    def _unavailable(self) -> ColdDataUnavailable:
        wait_s = max(1, math.ceil(self._retry_at - self._now()))
        return ColdDataUnavailable(
            "This part of the stream is in the object store, which does not answer now. Try again.",
            Retry_After=str(wait_s),
        )

    # -- on threads

    def _cached(self, cold: Cold, number: int, name: str) -> bytes | None:
        start, end = number * PIECE_BYTES, _piece_end(cold.info, number) - cold.info.base
        data = self._cache.read(name, 0, end - start, wait=True)
        if data is None or self._cache.is_checked(name):
            return data
        try:
            self._check(cold, number, data)
        except Damaged:
            self._cache.drop(name)  # what a crash has left
            return None
        self._cache.checked(name)
        return data

    def _fetch(self, cold: Cold, number: int, name: str) -> bytes:
        start, end = number * PIECE_BYTES, _piece_end(cold.info, number) - cold.info.base
        data = self._store.get_range(cold.segment.object, start, end)
        try:
            self._check(cold, number, data)
        except Damaged:
            data = self._store.get_range(cold.segment.object, start, end)  # damaged on its way?
            self._check(cold, number, data)
        self._cache.put(name, data)
        return data

    def _check(self, cold: Cold, number: int, data: bytes) -> None:
        info, id = cold.info, cold.segment.stream_id
        start, end = number * PIECE_BYTES, _piece_end(info, number) - info.base
        where = f"Object {cold.segment.object} of stream {id}"
        if len(data) != end - start:
            raise Damaged(f"{where} is too short. Run `penstock verify --cold`.")
        first, last = start // segment.BLOCK_BYTES, end // segment.BLOCK_BYTES
        index = b""
        if last > first:
            try:
                file = self._files.open_read(self._folder.index_path(id, info.base))
            except FileNotFoundError:
                raise Damaged(
                    f"The index of stream {id} at {info.base} is missing. Run `penstock verify`."
                ) from None
            with closing(file):
                index = file.read_at(first * ENTRY.size, (last - first) * ENTRY.size)
        check_blocks(info, first, data, index, where)


def _pieces(start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield (number, start, end) for the parts of a range, by the pieces that hold them."""
    while start < end:
        number, low = divmod(start, PIECE_BYTES)
        high = min(PIECE_BYTES, low + end - start)
        yield number, low, high
        start += high - low


def _piece_end(info: SegmentInfo, number: int) -> int:
    """Return the position in the stream where a piece ends."""
    return info.base + min((number + 1) * PIECE_BYTES, info.length)


def _remember(memory: OrderedDict[K, V], key: K, value: V) -> None:
    memory[key] = value
    memory.move_to_end(key)
    while len(memory) > REMEMBERED:
        memory.popitem(last=False)


def _ignore(flight: asyncio.Future[bytes]) -> None:
    """Take the error of a fetch that no reader waits for any more."""
    if not flight.cancelled():
        flight.exception()
