"""The readers of the same streams: those that are up to date share every event and its id.

A reader that is behind is brought up from the log at its own pace, a piece of each stream in turn,
then joins without a gap or a repetition. Knows the engine, feeds and sinks; nothing of requests.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from penstock import limits
from penstock.errors import StreamTrimmed
from penstock.http.live.response import CatchUp, LiveReader
from penstock.http.message import Sink
from penstock.http.streams.many import entries
from penstock.http.streams.many.feed import Feed
from penstock.http.streams.many.positions import Positions
from penstock.protocol import sse

if TYPE_CHECKING:
    from penstock.access.principal import Principal
    from penstock.http.streams.many.live import ManyLive
    from penstock.http.streams.many.selection import Selection
    from penstock.log.stream import Stream

EVENT_BYTES: Final = 64 * 1024
"""Bytes after which an event ends, and so what a stalled reader holds."""
PIECE_BYTES: Final = 16 * 1024
"""Bytes that a reader that is behind gets of one stream before the next one has its turn."""
ID_BYTES_PER_S: Final = 512 * 1024
"""Bytes that the ids of a busy response may take: events wait for each other a little, the longer
the more streams there are. The first one after a pause never waits."""
RETRY: Final = sse.retry(limits.SSE_RETRY_MS)


class ManyReader(LiveReader):
    """One response over several streams.

    While it is behind it has positions of its own, and the feeds that it knows of; once it has
    joined, those of its group count.
    """

    __slots__ = ("deadline", "feeds", "group", "is_told", "live", "notices", "positions", "queue")

    def __init__(
        self,
        live: ManyLive,
        group: Group,
        positions: Positions,
        notices: list[bytes],
        feeds: dict[int, Feed],
    ) -> None:
        super().__init__()
        self.live = live
        self.group = group
        self.positions = positions
        self.feeds = feeds
        self.notices = notices  # entries that come first
        self.queue: deque[int] = deque()  # streams that have their turn
        self.deadline = 0.0
        self.is_told = False  # that it is up to date

    def attach(self, sink: Sink) -> None:
        self.sink = sink
        self.live.attached(self)


class Batch:
    """Entries of the next event of one reader."""

    __slots__ = ("entries", "size")

    def __init__(self) -> None:
        self.entries: list[bytes] = []
        self.size = 0

    def add(self, entry: bytes) -> None:
        self.entries.append(entry)
        self.size += len(entry)


class Group:
    """The streams of one selection for one principal, and the readers of them."""

    def __init__(
        self, live: ManyLive, selection: Selection, principal: Principal, *, streams_max: int
    ) -> None:
        self.selection = selection
        self.principal = principal
        self.key = selection.key
        self.filling: asyncio.Task[None] | None = None
        self.is_closed = False
        self.feeds: dict[int, Feed] = {}
        self.paths: dict[str, Feed] = {}
        self.since: dict[int, int] = {}  # the turn in which a stream was created, if it was noticed
        self.joined: dict[ManyReader, None] = {}
        self.behind: dict[ManyReader, None] = {}
        self.published_s = 0.0  # the loop's time of the last shared event
        self.left_s = 0.0  # the loop's time when the last reader left
        self._live = live
        self._engine = live.engine
        self._streams_max = streams_max
        # Where the joined readers are, with everything that is pending for them.
        self._positions = Positions()
        self._pending = Batch()
        self._timer: asyncio.Handle | None = None
        self._id_bytes = 0

    def __bool__(self) -> bool:
        return bool(self.joined or self.behind)

    # -- streams come and go

    @property
    def is_full(self) -> bool:
        return len(self.feeds) >= self._streams_max

    def add_stream(self, feed: Feed) -> None:
        """Add a stream at its tail: who reads it from an earlier position is behind."""
        stream = feed.stream
        feed.groups[self] = None
        self.feeds[stream.id] = self.paths[stream.path] = feed
        self._positions.set(stream.id, stream.tail, closed=stream.closed)
        self.renew(self._positions)

    def renew(self, positions: Positions) -> None:
        """Let cursors say that they are newer than the last restore of the store."""
        positions.newest = max(positions.newest, self._engine.restore_generation)

    def welcome(self, feed: Feed, turn: int) -> None:
        """Add a stream that was created while there are readers: all read it from its beginning."""
        stream = feed.stream
        start = stream.earliest
        self.since[stream.id] = turn
        data = None
        if self.joined:
            if stream.tail - start <= EVENT_BYTES:
                small = stream.tail > start
                data = self._engine.read_now(stream, start, stream.tail) if small else b""
            if data is None:
                self.fall_behind()
        self.add_stream(feed)
        if self.joined and data is not None:
            offset = self._engine.token(stream, start)
            is_all = not data and not stream.closed and self._engine.is_current()
            self._put(entries.joined(stream, offset, up_to_date=is_all))
            if data or stream.closed:
                self._put(feed.entry(data, stream.tail, stream.closed))

    def leave(self, feed: Feed) -> None:
        """Remove a stream that was deleted, or has expired."""
        stream = feed.stream
        feed.groups.pop(self, None)
        if self.feeds.pop(stream.id, None) is None:
            return
        del self.paths[stream.path]
        self.since.pop(stream.id, None)
        self._positions.remove(stream.id)
        if self.joined:
            self._put(entries.deleted(stream.path))

    def is_over(self, positions: Positions) -> bool:
        """Whether nothing can follow: every stream is closed, its reader knows, and none joins."""
        return not self.selection.patterns and all(
            (feed := self.paths.get(path)) is not None
            and feed.stream.id in positions
            and positions.knows_closed(feed.stream.id)
            and positions.position(feed.stream.id) == feed.stream.tail
            for path in self.selection.streams
        )

    def close(self) -> None:
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for feed in self.feeds.values():
            feed.groups.pop(self, None)

    # -- commits

    def publish(self, feed: Feed, entry: bytes, end: int, closed: bool) -> None:
        """Put one commit into the next event of the joined readers."""
        self._positions.set(feed.stream.id, end, closed=closed)
        self._put(entry)

    def skip(self, feed: Feed, end: int, closed: bool) -> None:
        """Note a commit that nobody is sent: readers that are behind get it from the log."""
        self._positions.set(feed.stream.id, end, closed=closed)

    def _put(self, entry: bytes) -> None:
        pending = self._pending
        pending.add(entry)
        if pending.size >= EVENT_BYTES:
            self._flush()
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            due_s = self.published_s + self._id_bytes / ID_BYTES_PER_S
            # In a later turn at the earliest: one commit moves many streams.
            if due_s <= loop.time():
                self._timer = loop.call_soon(self._flush)
            else:
                self._timer = loop.call_at(due_s, self._flush)

    def _flush(self) -> None:
        """Write what is pending to all joined readers, as one event."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pending = self._pending
        if not pending.entries:
            return
        self._pending = Batch()
        cursor = self._positions.cursor(self.key)
        self._id_bytes = len(cursor)
        self.published_s = asyncio.get_running_loop().time()
        frame = entries.event(pending.entries, cursor)
        traffic, written = self._live.traffic, 0
        for reader in list(self.joined):
            sink = reader.sink
            if sink is None:
                continue
            if sink.congested and sink.buffered > self._live.buffer_bytes_max:
                traffic.sse_dropped += 1
                reader.finish()
            else:
                sink.write(frame)
                written += 1
        traffic.events += written
        traffic.bytes_out += len(frame) * written
        if self.joined and self.is_over(self._positions):
            self.finish_readers()

    # -- readers

    def add(self, reader: ManyReader) -> None:
        self._live.traffic.sse_readers += 1
        reader.channel = self
        self._start(reader)

    def remove(self, reader: ManyReader) -> None:
        self.joined.pop(reader, None)
        self.behind.pop(reader, None)
        self._live.traffic.sse_readers -= 1
        if not self.joined:
            self._pending = Batch()
        self.left_s = asyncio.get_running_loop().time()

    def finish_readers(self) -> None:
        for reader in [*self.joined, *self.behind]:
            reader.finish()

    def abort_readers(self) -> None:
        for reader in [*self.joined, *self.behind]:
            reader.abort()

    def fall_behind(self) -> None:
        """Let every joined reader read on from the log: what comes is too much to be shared."""
        self._flush()
        for reader in list(self.joined):
            del self.joined[reader]
            reader.positions = self._positions.copy()
            reader.feeds = dict(self.feeds)
            self._start(reader)

    def _start(self, reader: ManyReader) -> None:
        self.behind[reader] = None
        reader.catch_up = CatchUp()
        reader.catch_up.task = asyncio.get_running_loop().create_task(
            self._catch_up(reader, reader.catch_up)
        )

    async def _catch_up(self, reader: ManyReader, catch_up: CatchUp) -> None:
        try:
            # `catch_up` is removed when the reader joins, and `sink` when it leaves.
            while reader.catch_up is catch_up and (sink := reader.sink) is not None:
                if sink.congested:
                    await catch_up.room()
                    continue
                batch = Batch()
                await self._collect(reader, batch)
                if reader.sink is not sink:
                    return
                if not reader.queue and reader.positions.is_level(self._positions):
                    self._join(reader, sink, batch)
                    return
                self._send(reader, sink, batch)
                # Reads from memory never wait, and other tasks need a turn too.
                await asyncio.sleep(0)
        except Exception as error:  # noqa: BLE001 - no response can carry it any more
            self._live.traffic.failed(error)
            reader.abort()

    def _join(self, reader: ManyReader, sink: Sink, batch: Batch) -> None:
        self._flush()
        if not reader.is_told and self._engine.is_current():
            reader.is_told = True
            batch.add(entries.UP_TO_DATE)
        self._send(reader, sink, batch)
        reader.catch_up = None
        reader.feeds = {}
        self.behind.pop(reader, None)
        self.joined[reader] = None
        if self.is_over(self._positions):
            reader.finish()

    def _send(self, reader: ManyReader, sink: Sink, batch: Batch) -> None:
        if batch.entries:
            frame = entries.event(batch.entries, reader.positions.cursor(self.key))
            self._live.traffic.events += 1
            self._live.traffic.bytes_out += len(frame)
            sink.write(frame)

    # -- what a reader that is behind gets next

    async def _collect(self, reader: ManyReader, batch: Batch) -> None:
        """Fill an event: what has come and gone, then a piece of each stream in its turn."""
        if reader.notices:
            for entry in reader.notices:
                batch.add(entry)
            reader.notices = []
        if not reader.queue:
            self._compare(reader, batch)
            reader.queue.extend(reader.positions.behind(self._positions))
        while reader.queue and batch.size < EVENT_BYTES and reader.sink is not None:
            feed = self.feeds.get(reader.queue.popleft())
            if feed is not None:
                await self._read(reader, feed.stream, batch)

    def _compare(self, reader: ManyReader, batch: Batch) -> None:
        """Tell a reader which streams have gone and come since it last looked."""
        positions = reader.positions
        for generation in [each for each in reader.feeds if each not in self.feeds]:
            batch.add(entries.deleted(reader.feeds.pop(generation).stream.path))
            positions.remove(generation)
        # In the order of their creation: a cursor counts all older ones as read.
        for generation in sorted(each for each in self.feeds if each not in reader.feeds):
            stream = self.feeds[generation].stream
            reader.feeds[generation] = self.feeds[generation]
            offset = self._engine.token(stream, stream.earliest)
            is_empty = stream.earliest == stream.tail and not stream.closed
            is_all = is_empty and self._engine.is_current()
            batch.add(entries.joined(stream, offset, up_to_date=is_all))
            positions.set(generation, stream.earliest)

    async def _read(self, reader: ManyReader, stream: Stream, batch: Batch) -> None:
        """Add the next piece of a stream, and what became of the stream meanwhile."""
        engine, positions = self._engine, reader.positions
        start = positions.position(stream.id)
        if start < stream.earliest:
            start = stream.earliest
            batch.add(entries.trimmed(stream, engine.token(stream, start)))
            positions.set(stream.id, start)
        end, wire = stream.tail, b""
        try:
            if end - start > PIECE_BYTES:
                end = await engine.plan(stream, start, max_bytes=PIECE_BYTES)
            if end > start:
                wire = await engine.read_range(stream, start, end)
        except StreamTrimmed:  # while it was being read; it has another turn
            return
        if stream.is_gone or start < stream.earliest:
            return
        if stream.is_text and end < stream.tail:
            wire = wire[: sse.text_cut(wire, len(wire))]
            end = start + len(wire)
        is_at_tail = end == stream.tail
        closed = is_at_tail and stream.closed
        positions.set(stream.id, end, closed=closed)
        if wire or closed:
            offset = engine.token(stream, end)
            is_all = is_at_tail and engine.is_current()
            batch.add(entries.data_entry(stream, offset, wire, up_to_date=is_all, closed=closed))
