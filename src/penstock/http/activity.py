"""`GET /v1/activity`: what the server did in the last hour, and which streams are busy now.

Samples are differences of counters that exist anyway. Appends are counted by stream only while
somebody asks. Nothing is stored.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from heapq import nlargest
from typing import TYPE_CHECKING, Final

import msgspec

from penstock import __version__, limits
from penstock.access.rules import Verb
from penstock.errors import InvalidParameter
from penstock.http.dialect import Dialect, Routes, Services
from penstock.http.documents import document
from penstock.http.endpoint import on_server, readable
from penstock.http.live.channel import Channel
from penstock.http.message import Request, Response
from penstock.http.permission import principal_of
from penstock.http.query import parse_count, parse_query
from penstock.http.streams.listing import is_visible
from penstock.http.streams.many.feed import Feed
from penstock.log.mutations import AppendMutation, Mutation
from penstock.protocol.headers import format_expires_at
from penstock.protocol.timestamps import unix_us

if TYPE_CHECKING:
    from penstock.access.principal import Principal
    from penstock.http.tables.live import TableLive
    from penstock.http.watchdog import LoopWatchdog
    from penstock.log.engine import Engine
    from penstock.log.stats import Histogram
    from penstock.log.stream import Stream

STREAMS_DEFAULT: Final = 100
ASKED_S: Final = 60.0
"""Appends are counted by stream until nobody has asked for so long."""
WINDOW_S: Final = 5.0
"""A rate of a stream is that of the current window and the one before."""
RATE_S_MIN: Final = 1.0
"""The shortest time that a rate is an average of."""
COUNTED_MAX: Final = 5000
"""Streams counted in one window: enough for the busiest, which come early."""
SORTS: Final = ("appends", "messages", "bytes")

_PARAMETERS: Final = frozenset({"since", "limit", "sort"})


class Sample(msgspec.Struct, frozen=True):
    """What the server did in one interval, which ended at `time`, and what there was then."""

    time: str
    appends_per_s: float
    messages_per_s: float
    reads_per_s: float
    bytes_in_per_s: float
    bytes_out_per_s: float
    commit_p50_ms: float | None
    commit_p99_ms: float | None
    loop_lag_max_ms: float
    live_readers: int
    connections: int
    streams: int | None
    stored_bytes: int | None
    disk_free_bytes: int | None


class StreamActivity(msgspec.Struct, frozen=True):
    """What is appended to one stream, and how many read it as it grows."""

    path: str
    appends_per_s: float
    messages_per_s: float
    bytes_per_s: float
    live_readers: int


class Counters(msgspec.Struct, frozen=True):
    """The counters that samples are differences of, at one time of the loop."""

    at_s: float
    appends: int
    messages: int
    reads: int
    bytes_in: int
    bytes_out: int
    commits: tuple[int, ...]


class ActivityDialect(Dialect):
    def __init__(self, services: Services, watchdog: LoopWatchdog, tables: TableLive) -> None:
        settings = services.settings
        self._services = services
        self._watchdog = watchdog
        self._tables = tables
        self._interval_s = settings.activity_interval_s
        self._started_us = services.clock.now_us()
        self._samples: deque[tuple[int, Sample]] = deque(maxlen=settings.activity_samples_max)
        self._rates = StreamRates(services.engine)
        self._timer: asyncio.TimerHandle | None = None
        self._last: Counters

    def routes(self) -> Routes:
        get = on_server(Verb.READ, "metrics", self.get)
        return Routes(fixed={b"/v1/activity": readable(get)})

    def start(self) -> None:
        self._last = self._count()
        self._schedule()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._rates.close()

    def get(self, path: str, request: Request) -> Response:
        query = parse_query(request.query, _PARAMETERS)
        since_us = _since(query["since"]) if "since" in query else 0
        limit = STREAMS_DEFAULT
        if "limit" in query:
            limit = parse_count("limit", query["limit"], maximum=limits.ACTIVITY_STREAMS_MAX)
        sort = query.get("sort", SORTS[0])
        if sort not in SORTS:
            raise InvalidParameter(f"`sort` is one of {', '.join(SORTS)}.")
        content = {
            "version": __version__,
            "started_at": format_expires_at(self._started_us),
            "now": format_expires_at(self._services.clock.now_us()),
            "interval_s": self._interval_s,
            "samples": [sample for time_us, sample in self._samples if time_us > since_us],
            "current": self._current(),
            "streams": self._rates.busiest(principal_of(request), limit, sort),
        }
        return document(content)

    # -- samples

    def _schedule(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._interval_s, self.sample)

    def sample(self) -> None:
        """Add the sample of the interval that ends now."""
        counters = self._count()
        sample = self._difference(counters, self._watchdog.take_lag_max())
        self._samples.append((self._services.clock.now_us(), sample))
        self._last = counters
        self._schedule()

    def _current(self) -> Sample | None:
        """Return the sample of the interval that goes on; that of the last one if it is short."""
        counters = self._count()
        if counters.at_s - self._last.at_s >= RATE_S_MIN:
            return self._difference(counters, self._watchdog.lag_recent_max_s)
        return self._samples[-1][1] if self._samples else None

    def _count(self) -> Counters:
        engine, traffic = self._services.engine, self._services.traffic
        stats = engine.stats
        return Counters(
            asyncio.get_running_loop().time(),
            stats.appends,
            stats.append_messages,
            traffic.reads + traffic.events,
            stats.append_bytes,
            traffic.bytes_out + self._tables.rows_bytes,
            tuple(engine.store.stats.commit_seconds.counts),
        )

    def _difference(self, counters: Counters, lag_s: float) -> Sample:
        services, last = self._services, self._last
        engine, traffic = services.engine, services.traffic
        seconds = max(counters.at_s - last.at_s, 0.001)
        commits = [now - then for now, then in zip(counters.commits, last.commits, strict=True)]
        histogram = engine.store.stats.commit_seconds
        totals = engine.stats.totals
        return Sample(
            time=format_expires_at(services.clock.now_us()),
            appends_per_s=_rate(counters.appends - last.appends, seconds),
            messages_per_s=_rate(counters.messages - last.messages, seconds),
            reads_per_s=_rate(counters.reads - last.reads, seconds),
            bytes_in_per_s=_rate(counters.bytes_in - last.bytes_in, seconds),
            bytes_out_per_s=_rate(counters.bytes_out - last.bytes_out, seconds),
            commit_p50_ms=_quantile_ms(histogram, commits, 0.5),
            commit_p99_ms=_quantile_ms(histogram, commits, 0.99),
            loop_lag_max_ms=round(1000 * lag_s, 3),
            live_readers=traffic.long_polls + traffic.sse_readers + self._tables.readers,
            connections=traffic.connections(),
            streams=None if totals is None else totals.streams,
            stored_bytes=None if totals is None else totals.bytes,
            disk_free_bytes=engine.store.stats.disk_free_bytes,
        )


class StreamRates:
    """The rates of streams: counted from the first question until nobody has asked for a while."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.counted_max = COUNTED_MAX
        # Appends, messages and bytes by stream, of the current window and the one before.
        self._counts: dict[Stream, list[int]] = {}
        self._before: dict[Stream, list[int]] = {}
        self._since_s = 0.0
        self._since_before_s = 0.0
        self._asked_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def busiest(self, principal: Principal, limit: int, sort: str) -> list[StreamActivity]:
        """Return the streams with the highest rates that a principal may list."""
        now_s = self._asked_s = asyncio.get_running_loop().time()
        if self._timer is None:
            self._begin(now_s)
            return []
        seconds = max(now_s - self._since_before_s, RATE_S_MIN)
        visible = [
            (stream, counts)
            for stream, counts in self._merged().items()
            if not stream.is_gone and is_visible(principal, stream.path)
        ]
        column = SORTS.index(sort)
        return [
            StreamActivity(
                path=stream.path,
                appends_per_s=_rate(counts[0], seconds),
                messages_per_s=_rate(counts[1], seconds),
                bytes_per_s=_rate(counts[2], seconds),
                live_readers=readers(stream),
            )
            for stream, counts in nlargest(limit, visible, key=lambda each: each[1][column])
        ]

    def close(self) -> None:
        self._engine.unlisten(self._committed)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._counts, self._before = {}, {}

    def _begin(self, now_s: float) -> None:
        self._since_s = self._since_before_s = now_s
        self._engine.listen(self._committed)
        self._timer = asyncio.get_running_loop().call_later(WINDOW_S, self._turn)

    def _turn(self) -> None:
        """Begin a new window, or stop counting if nobody has asked lately."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        if now_s - self._asked_s > ASKED_S:
            self.close()
            return
        self._since_before_s, self._since_s = self._since_s, now_s
        self._before, self._counts = self._counts, {}
        self._timer = loop.call_later(WINDOW_S, self._turn)

    def _committed(self, batch: Sequence[Mutation]) -> None:
        counts = self._counts
        for mutation in batch:
            if isinstance(mutation, AppendMutation):
                row = counts.get(mutation.stream)
                if row is None:
                    if len(counts) >= self.counted_max:
                        continue
                    row = counts[mutation.stream] = [0, 0, 0]
                row[0] += 1
                row[1] += mutation.count
                row[2] += len(mutation.payload)

    def _merged(self) -> dict[Stream, list[int]]:
        merged = dict(self._before)
        for stream, counts in self._counts.items():
            before = merged.get(stream)
            if before is not None:
                counts = [one + other for one, other in zip(before, counts, strict=True)]
            merged[stream] = counts
        return merged


def readers(stream: Stream) -> int:
    """Return the number of live reads of a stream."""
    return sum(each.readers for each in stream.watchers if isinstance(each, Channel | Feed))


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """Return the value below which a share of observations is, by linear interpolation within its
    bucket; None if there are none. The last bucket has no end, and stands for its beginning."""
    rank = share * sum(counts)
    if not rank:
        return None
    below = 0
    for index, count in enumerate(counts[:-1]):
        if count and below + count >= rank:
            start = bounds[index - 1] if index else 0.0
            return start + (bounds[index] - start) * (rank - below) / count
        below += count
    return bounds[-1]


def _quantile_ms(histogram: Histogram, counts: Sequence[int], share: float) -> float | None:
    seconds = quantile(histogram.bounds, counts, share)
    return None if seconds is None else round(1000 * seconds, 3)


def _rate(count: int, seconds: float) -> float:
    return round(count / seconds, 3)


def _since(text: str) -> int:
    time_us = unix_us(text)
    if time_us is None:
        raise InvalidParameter("`since` is the `time` of a sample, such as 2027-01-15T08:00:00Z.")
    return time_us
