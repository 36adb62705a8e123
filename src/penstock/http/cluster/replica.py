"""The end of a stream that another node owns, as live reads see it: an Engine with one stream, of
which the last bytes are in memory and nothing is written.

Knows frames and streams; nothing of nodes and requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.errors import StreamNotFound
from penstock.http.forwarding.tails import WINDOW_BYTES
from penstock.log.engine import Engine
from penstock.log.memory_tail import MemoryTail
from penstock.log.stats import EngineStats
from penstock.log.stream import ForkPoint, Stream, Watcher
from penstock.protocol.lifecycle import StreamConfig

if TYPE_CHECKING:
    from penstock.http.forwarding.tail_frames import Hello, TailFrame


def replica_of(path: str, hello: Hello) -> Stream:
    """Return a stream of which nothing is here but where it begins."""
    config = StreamConfig(hello.content_type, hello.ttl_s, hello.expires_at_us)
    fork = ForkPoint(0, "", hello.own_start, 0) if hello.own_start else None
    stream = Stream(hello.id, path, config, hello.created_us, fork=fork)
    stream.renewals = hello.renewals
    stream.durable = True
    stream.tail = stream.earliest = hello.start
    stream.memory = MemoryTail(hello.start)
    return stream


class ReplicaEngine(Engine):
    """What live reads of one stream ask of an engine. `on_unwatched` is called when nobody watches
    the stream any more."""

    def __init__(self, stream: Stream, on_unwatched: Callable[[], None]) -> None:
        # Without a store: of everything else that an engine can do, nothing is asked here.
        self.stats = EngineStats()
        self.stream = stream
        self.says_current = False
        """Whether the owner knew that there was no more, by its last word."""
        self._on_unwatched = on_unwatched

    # -- the owner's words

    def add(self, frame: TailFrame) -> bool:
        """Apply a frame; False if it does not follow what is here."""
        stream, wire = self.stream, frame.wire
        start = frame.end - len(wire)
        if start != stream.tail:
            return False
        self.says_current = frame.is_current
        if wire:
            stream.memory.add(start, wire, 0, 0)
            stream.tail = frame.end
        stream.closed = stream.closed or frame.is_closed
        self.forget_before(frame.earliest)
        if wire or frame.is_closed:
            for watcher in list(stream.watchers):
                watcher.advanced(start, frame.end, wire, frame.is_closed)
        return True

    def forget_before(self, earliest: int) -> None:
        """Let go of what the owner has trimmed, and of what is too far from the end."""
        stream, memory = self.stream, self.stream.memory
        memory.drop_chunks(
            max(min(earliest, stream.tail), stream.tail - WINDOW_BYTES, memory.start)
        )
        stream.earliest = max(stream.earliest, memory.start, min(earliest, stream.tail))

    def end(self) -> None:
        """The stream is gone, or can be followed no more: end what waits for it."""
        stream = self.stream
        stream.deleted = True
        watchers, stream.watchers = list(stream.watchers), {}
        for watcher in watchers:
            watcher.ended()

    # -- Engine

    def is_current(self) -> bool:
        return self.says_current

    def find(self, path: str, *, touch: bool) -> Stream:
        if self.stream.is_gone:
            raise StreamNotFound.at(path)
        return self.stream

    def watch(self, stream: Stream, watcher: Watcher) -> None:
        stream.watchers[watcher] = None

    def unwatch(self, stream: Stream, watcher: Watcher) -> None:
        stream.watchers.pop(watcher, None)
        if not stream.watchers:
            self._on_unwatched()

    def read_now(self, stream: Stream, start: int, end: int) -> bytes | None:
        return stream.memory.read(start, end)

    async def read(self, stream: Stream, start: int, end: int) -> bytes:
        return stream.memory.read(start, end)

    async def plan(
        self,
        stream: Stream,
        start: int,
        *,
        max_bytes: int,
        until: int | None = None,
        count: int | None = None,
    ) -> int:
        """Return where a piece from `start` ends: between two messages, after at least one."""
        limit = start + max_bytes
        if limit >= stream.tail:
            return stream.tail
        if not stream.is_json:
            return limit
        end = stream.memory.read(start, limit).rfind(b"\n") + 1
        if end:
            return start + end
        return limit + stream.memory.read(limit, stream.tail).index(b"\n") + 1
