"""The streams that are in memory: looked up by path, touched, and evicted when they are idle.

A path can have a stream that is being created and, before it, one that is being deleted: decisions
see the former, readers the latter until the change is durable.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from weakref import WeakValueDictionary

from penstock.clock import Clock
from penstock.errors import Damaged
from penstock.log.stats import EngineStats
from penstock.log.store import Store
from penstock.log.stream import Stream, StreamInfo
from penstock.protocol.lifecycle import StreamConfig, expires_at_us

EVICT_ON_ADD = 2
"""Streams examined when one is added and there are too many: two, so that eviction keeps up."""
EVICT_REGULARLY = 20_000
"""Streams examined by the regular eviction: after a checkpoint many become clean at once."""
DEADLINES_SLACK = 1024
"""Number of deadlines of evicted streams that may pile up before they are removed."""
LOOK_AGAIN_US = 1_000_000
"""Time until a stream is examined again whose deadline has passed, but which is not gone."""


class ActiveStreams:
    def __init__(
        self, store: Store, clock: Clock, stats: EngineStats, *, active_streams_max: int
    ) -> None:
        self._store = store
        self._clock = clock
        self._stats = stats
        self._max = active_streams_max
        # A queue: a plain dict is slow to return its first item after many deletions before it.
        self._by_path: OrderedDict[str, Stream] = OrderedDict()
        # Evicted streams that a reader still holds: a second object for the same stream would not
        # see what happens to the first.
        self._evicted: WeakValueDictionary[str, Stream] = WeakValueDictionary()
        self._deadlines: list[tuple[int, int, str]] = []

    def pending(self, path: str) -> Stream | None:
        """Return the stream at `path` that decisions rest on; load it if it is not in memory."""
        stream = self._by_path.get(path)
        if stream is not None:
            stream.hot = True
            return stream
        return self._load(path)

    def durable(self, path: str) -> Stream | None:
        """Return the stream at `path` that readers see."""
        stream = self.pending(path)
        while stream is not None and not stream.durable:
            stream = stream.previous
        return None if stream is None or stream.deleted else stream

    def active(self, path: str) -> Stream | None:
        """Return the stream at `path` if it is in memory."""
        return self._by_path.get(path)

    async def fetch(self, path: str) -> None:
        """Make a stream active that may only be in the store. Once this returns, `pending` answers
        without waiting, in a store that needs it: until then it cannot."""
        if path not in self._by_path and path not in self._evicted:
            await self._store.fetch(path)

    def is_at_hand(self, path: str, producer_id: str | None) -> bool:
        """Whether a stream, and one of its producers, can be looked at without a fetch."""
        stream = self._by_path.get(path)
        if stream is None:
            return False
        return (
            producer_id is None
            or not stream.stored_producers
            or producer_id in stream.producers
            or producer_id in stream.pending_producers
        )

    def _load(self, path: str) -> Stream | None:
        stream = self._evicted.pop(path, None)
        if stream is None or stream.deleted:
            stream = self._store.load(path)
        if stream is not None:
            stream.hot = True
            self.link(stream)
            self._stats.loaded += 1
            self.add(stream)
        return stream

    def all_active(self) -> list[Stream]:
        """Return the streams that are in memory."""
        return list(self._by_path.values())

    def add(self, stream: Stream) -> None:
        self._by_path[stream.path] = stream
        stream.memory.count_in(self._store.stats)
        deadline = self.deadline(stream)
        if deadline is not None:
            self._schedule(deadline, stream)
        self._evict(EVICT_ON_ADD)
        self._stats.active_streams = len(self._by_path)

    def link(self, stream: Stream) -> None:
        """Give a fork its source. The source exists as long as the fork does, and while the fork
        holds it there is no second object for it."""
        fork = stream.fork
        if fork is None or stream.source is not None:
            return
        source = self.pending(fork.source_path)
        while source is not None and source.id > fork.source_id:
            source = source.previous
        if source is None or source.id != fork.source_id:
            raise Damaged(
                f"Stream {stream.path!r} is a fork of {fork.source_path!r}, which does not exist. "
                "Run `penstock verify` and restore from a backup."
            )
        stream.source = source

    def evict(self) -> None:
        """Evict idle streams if there are too many."""
        self._evict(EVICT_REGULARLY)
        self._stats.active_streams = len(self._by_path)

    def remove(self, stream: Stream) -> None:
        if self._by_path.get(stream.path) is stream:
            del self._by_path[stream.path]
        if self._evicted.get(stream.path) is stream:
            del self._evicted[stream.path]
        stream.memory.discount()
        self._stats.active_streams = len(self._by_path)

    def undo(self, stream: Stream) -> None:
        """Take back a creation that failed: the stream that was at the path before is there
        again."""
        self.remove(stream)
        stream.deleted = True
        previous = stream.previous
        if previous is not None and not previous.deleted:
            self._by_path[previous.path] = previous
            deadline = self.deadline(previous)
            if deadline is not None:
                # It was dropped if it passed while the other stream was at the path.
                self._schedule(deadline, previous)
        self._stats.active_streams = len(self._by_path)

    def _evict(self, examined_max: int) -> None:
        """Second chance: a stream used since the last round stays, an idle clean one is evicted."""
        for _ in range(min(examined_max, len(self._by_path))):
            if len(self._by_path) <= self._max:
                return
            path, stream = self._by_path.popitem(last=False)
            is_busy = stream.hot or stream.in_flight or stream.watchers or not stream.durable
            if is_busy or not self._store.release(stream):
                stream.hot = False
                self._by_path[path] = stream
            else:
                self._evicted[path] = stream
                stream.memory.discount()

    # -- expiry

    def _schedule(self, deadline: int, stream: Stream) -> None:
        heapq.heappush(self._deadlines, (deadline, stream.id, stream.path))
        if len(self._deadlines) > 2 * len(self._by_path) + DEADLINES_SLACK:
            # Evicted streams have left deadlines behind; the store knows those itself.
            self._deadlines = [
                (later, active.id, active.path)
                for active in self._by_path.values()
                if (later := self.deadline(active)) is not None
            ]
            heapq.heapify(self._deadlines)

    def deadline(self, stream: Stream) -> int | None:
        """Return when a stream expires, None if never."""
        return self._deadline(stream.config, stream.touched_us)

    def _deadline(self, config: StreamConfig, touched_us: int) -> int | None:
        deadline = expires_at_us(config, touched_us)
        if deadline is not None and config.ttl_s is not None:
            return max(deadline, self._store.grace_until_us(config.ttl_s))
        return deadline

    def is_expired(self, stream: Stream, now_us: int) -> bool:
        """Whether the time of a stream is over. One with readers or writes in flight has not
        expired by its TTL."""
        config = stream.config
        if config.ttl_s is None and config.expires_at_us is None:
            return False
        deadline = self.deadline(stream)
        if deadline is None or now_us < deadline:
            return False
        if config.ttl_s is None or stream.deleting:
            return True  # what is in flight may be its deletion
        return not (stream.watchers or stream.in_flight)

    def touch(self, stream: Stream, now_us: int) -> None:
        """Slide the TTL of a stream that was used: in memory, until the next checkpoint stores
        it."""
        if stream.config.ttl_s is not None and now_us > stream.touched_us:
            stream.touched_us = now_us
            self._store.touched(stream)

    def take_expired(self, now_us: int, limit: int) -> list[Stream]:
        """Return active streams that have expired.

        A deadline stays queued until its stream is gone: the end of a stream may fail, and the
        deadline of one that is used slides.
        """
        expired: list[Stream] = []
        while self._deadlines and self._deadlines[0][0] <= now_us and len(expired) < limit:
            _, stream_id, path = heapq.heappop(self._deadlines)
            stream = self._by_path.get(path)
            if stream is None or stream.id != stream_id or stream.is_gone:
                continue
            later = now_us + LOOK_AGAIN_US
            if not stream.deleting:
                if self.is_expired(stream, now_us):
                    expired.append(stream)
                else:
                    # Its deadline slid, or something is in flight.
                    deadline = self.deadline(stream) or 0
                    later = deadline if deadline > now_us else later
            heapq.heappush(self._deadlines, (later, stream_id, path))
        return expired

    # -- listing

    async def list_streams(self, prefix: str, after: str, limit: int) -> list[StreamInfo]:
        now = self._clock.now_us()
        infos: list[StreamInfo] = []
        while len(infos) < limit:
            page = await self._store.list_streams(prefix, after, limit)
            infos += [info for info in page if not self._is_info_expired(info, now)]
            if len(page) < limit:
                break
            after = page[-1].path
        return infos[:limit]

    def _is_info_expired(self, info: StreamInfo, now_us: int) -> bool:
        stream = self._by_path.get(info.path)
        if stream is not None and stream.id == info.id:
            return self.is_expired(stream, now_us)
        config = StreamConfig(info.content_type, info.ttl_s, info.expires_at_us)
        deadline = self._deadline(config, info.touched_us)
        return deadline is not None and now_us >= deadline
