"""Keeps streams within their limits of age and bytes, by their own policy or by their path.

Checks streams that may be over a limit, page by page, and trims those that are; compaction is a
callback. Data is dropped only when a limit allows it; some may stay a little longer. A stream that
cannot have anything too old yet is not even loaded.
"""

from __future__ import annotations

import asyncio
import logging
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.clock import Clock
from penstock.errors import InvalidPath, PenstockError
from penstock.log.active import ActiveStreams
from penstock.log.ranges import Ranges
from penstock.log.requests import Trimmed
from penstock.log.store import Store
from penstock.log.stream import Stream, StreamInfo
from penstock.protocol.globs import is_pattern, literal_prefix, matches
from penstock.protocol.retention import FOREVER, Keep, parse_rules

if TYPE_CHECKING:
    from penstock.config.settings import Settings

log = logging.getLogger("penstock.log")

META = "retention"
"""The name of the meta value that holds a stream's own policy."""
SMALL_BYTES = 1024 * 1024
"""With limits below this, streams that are stored in their catalog row are checked too."""
PAGE = 200
"""Streams checked before other work gets the event loop."""
UNTOUCHED_PAGE = 1000
"""The same, where only an index is read."""
REST = 9
"""The pause after a page, as a multiple of the time that the page took."""

Trim = Callable[[Stream, int, int], Awaitable[Trimmed]]
Compact = Callable[[Stream, int], Awaitable[bool]]
"""(stream, ratio of log to live state): compacts the stream if it is over that ratio."""


class Due:
    """When each stream, by its id, may have something too old: a few bytes per stream.

    Holds what was learned since the start; an unknown stream is always due.
    """

    _IDS: Final = 4096  # per page

    def __init__(self) -> None:
        self._pages: dict[int, array[int]] = {}

    def set(self, stream_id: int, time_us: int) -> None:
        number, index = divmod(stream_id, self._IDS)
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = array("L", bytes(array("L").itemsize * self._IDS))
        page[index] = time_us // 1_000_000

    def is_over(self, stream_id: int, now_us: int) -> bool:
        number, index = divmod(stream_id, self._IDS)
        page = self._pages.get(number)
        return page is None or page[index] * 1_000_000 <= now_us

    def forget(self, now_us: int) -> None:
        """Drop the pages whose streams are all due: ids only grow, and old streams are deleted."""
        for number, page in list(self._pages.items()):
            if max(page) * 1_000_000 <= now_us:
                del self._pages[number]


class Retention:
    def __init__(
        self,
        streams: ActiveStreams,
        store: Store,
        clock: Clock,
        settings: Settings,
        trim: Trim,
        *,
        rules: list[tuple[str, Keep]],
    ) -> None:
        self._streams = streams
        self._store = store
        self._clock = clock
        self._rules = rules
        self._small_bytes = max(SMALL_BYTES, settings.inline_bytes_max)
        self._compact_bytes_min = settings.compact_bytes_min
        self._due = Due()
        self._ranges = Ranges(store)
        self._trim = trim
        self.compact: Compact | None = None

    async def run(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self.enforce()
            except PenstockError as error:
                log.error("Cannot check the limits of streams: %s", error)

    def keep(self, stream: Stream) -> Keep:
        """Return the limits in force for a stream."""
        own = stream.meta.get(META)
        return self.default(stream.path) if own is None else decode(own)

    def default(self, path: str) -> Keep:
        """Return the limits of a stream at `path` that has no policy of its own."""
        for rule, keep in self._rules:
            if applies(rule, path):
                return keep
        return FOREVER

    async def enforce(self) -> int:
        """Trim every stream that is over its limits; return their number."""
        trimmed, started = 0, time.perf_counter()
        async for page in self._pages():
            for path in page:
                try:
                    trimmed += await self._enforce_limits(path)
                except PenstockError as error:
                    log.warning("Cannot keep %s within its limits: %s", path, error)
            # A million streams take seconds to check: most of the time belongs to other work.
            await asyncio.sleep((time.perf_counter() - started) * REST)
            started = time.perf_counter()
        self._due.forget(self._clock.now_us())
        return trimmed

    async def _pages(self) -> AsyncIterator[list[str]]:
        """Yield the paths of streams that may be over a limit, page by page."""
        after = ""
        while paths := await self._store.list_meta(META, after, PAGE):
            yield paths
            after = paths[-1]
        for rule, keep in self._rules:
            after, prefix = "", literal_prefix(rule)
            all_count = self._counts_small(keep)
            listed = self._store.list_streams if all_count else self._store.list_filed
            while infos := await listed(prefix, after, PAGE):
                now = self._clock.now_us()
                yield [
                    info.path
                    for info in infos
                    if applies(rule, info.path) and self._may_be_over(info, keep, now)
                ]
                after = infos[-1].path
        async for page in self._untouched():
            yield page

    async def _untouched(self) -> AsyncIterator[list[str]]:
        """Yield streams of which everything is too old: small ones have no other way to be."""
        ages = [keep.age_s for _, keep in self._rules if keep.age_s is not None]
        if not ages:
            return
        after = (-1, -1)
        while True:
            now = self._clock.now_us()
            streams = await self._store.untouched(
                now - min(ages) * 1_000_000, after, UNTOUCHED_PAGE
            )
            if not streams:
                return
            after = (streams[-1].time_us, streams[-1].id)
            paths = []
            for touched_us, _, path in streams:
                age_s = self.default(path).age_s
                if age_s is not None and touched_us < now - age_s * 1_000_000:
                    paths.append(path)
            yield paths

    def _may_be_over(self, info: StreamInfo, keep: Keep, now_us: int) -> bool:
        size = info.tail - info.earliest
        if size == 0:
            return False
        if keep.ratio is not None or (keep.bytes is not None and size > keep.bytes):
            return True
        if keep.age_s is None:
            return False
        if info.forked_from is None and info.created_us >= now_us - keep.age_s * 1_000_000:
            return False
        return self._due.is_over(info.id, now_us)

    def _counts_small(self, keep: Keep) -> bool:
        """Whether a stream without files can be over these limits by anything but its age."""
        if keep.ratio is not None and self._compact_bytes_min < self._small_bytes:
            return True
        return keep.bytes is not None and keep.bytes < self._small_bytes

    async def _enforce_limits(self, path: str) -> bool:
        if self._store.needs_fetch:
            await self._streams.fetch(path)
        stream = self._streams.durable(path)
        if stream is None or stream.is_gone or stream.deleting:
            return False
        keep = self.keep(stream)
        trimmed = await self._cut(stream, keep)
        if keep.age_s is not None and META not in stream.meta and stream.tail > stream.earliest:
            next_us = await self._store.time_after(stream, stream.earliest)
            self._due.set(stream.id, next_us + keep.age_s * 1_000_000)
        if keep.ratio is None or self.compact is None:
            return trimmed
        return await self.compact(stream, keep.ratio) or trimmed

    async def _cut(self, stream: Stream, keep: Keep) -> bool:
        cut = max(await self._old(stream, keep.age_s), await self._excess(stream, keep.bytes))
        if cut <= stream.earliest:
            return False
        ordinal = await self._ranges.ordinal(stream, cut) if stream.is_json else 0
        await self._trim(stream, cut, ordinal)
        return True

    async def _old(self, stream: Stream, age_s: int | None) -> int:
        """Return where younger data begins, as precisely as the index of the log can tell."""
        if age_s is None or stream.tail == stream.earliest:
            return 0
        limit_us = self._clock.now_us() - age_s * 1_000_000
        if stream.created_us >= limit_us and stream.fork is None:
            return 0
        if stream.touched_us < limit_us:
            return stream.tail
        return await self._ranges.boundary_from(
            stream, await self._store.seek_time(stream, limit_us)
        )

    async def _excess(self, stream: Stream, size: int | None) -> int:
        """Return the last boundary with at least `size` bytes after it."""
        if size is None or stream.tail - stream.earliest <= size:
            return 0
        return await self._ranges.boundary_to(stream, stream.earliest, stream.tail - size)


def rules_of(settings: Settings) -> list[tuple[str, Keep]]:
    """Return the rules of the setting `retention`, the longest first; InvalidPath names a pattern
    that is wrong."""
    try:
        return parse_rules(settings.retention)
    except InvalidPath as error:
        raise InvalidPath(f"Setting retention: {error.detail}") from None


def applies(rule: str, path: str) -> bool:
    """Whether a path matches a pattern, or begins with a rule that is none."""
    return matches(rule, path) if is_pattern(rule) else path.startswith(rule)


def encode(keep: Keep) -> bytes:
    return msgspec.json.encode({"age": keep.age_s, "bytes": keep.bytes, "compact": keep.ratio})


def decode(value: bytes) -> Keep:
    content = msgspec.json.decode(value)
    return Keep(content["age"], content["bytes"], content.get("compact"))
