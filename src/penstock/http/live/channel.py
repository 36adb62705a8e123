"""Live readers of one stream: each commit is encoded once and written to all who are up to date.

A reader that is behind is brought up from the log at its own pace, then joins without gap or
repetition. Knows engine, frames and sinks; nothing of requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.errors import StreamTrimmed
from penstock.http.bodies import read_range
from penstock.http.live.response import CatchUp
from penstock.http.message import Sink
from penstock.protocol import sse

if TYPE_CHECKING:
    from penstock.http.live.response import EventReader
    from penstock.http.streams.live import Live
    from penstock.log.stream import Stream

# What a reader that is behind is sent at a time, and so what a stalled one holds in memory.
PIECE_BYTES = 64 * 1024
# More than this at once, such as a snapshot, everybody takes from the log at their own pace.
PUBLISH_BYTES_MAX = 1024 * 1024


class Channel:
    """The engine's one watcher of a stream, and everybody who waits there."""

    __slots__ = ("_behind", "_encode", "_held", "_joined", "_live", "_sent", "_waiting", "stream")

    def __init__(self, live: Live, stream: Stream) -> None:
        self._live = live
        self.stream = stream
        self._encode = _encoder(stream)
        # Joined readers have all been sent the same: everything up to `_sent`. `_held` are bytes
        # between there and the tail: the start of a character whose rest is yet to come.
        self._joined: dict[EventReader, None] = {}
        self._sent = stream.tail
        self._held = b""
        self._behind: dict[EventReader, None] = {}
        self._waiting: dict[asyncio.Future[None], None] = {}
        live.engine.watch(stream, self)

    def __len__(self) -> int:
        return len(self._joined) + len(self._behind) + len(self._waiting)

    # What the engine calls.

    def advanced(self, start: int, end: int, wire: bytes, closed: bool) -> None:
        self.wake()
        if self._joined:
            follows = start == self._sent + len(self._held)
            if follows and len(wire) <= PUBLISH_BYTES_MAX:
                self._publish(wire, end, closed)
            else:
                self._resume_joined()
        if self._behind:
            # Those without a task have waited for more than what the others hold back.
            for reader in [reader for reader in self._behind if reader.catch_up is None]:
                self.bring_up(reader)

    def ended(self) -> None:
        """The stream is gone: readers are told at once and have nothing to resume."""
        self.wake()
        self.finish_readers()

    # What waiting requests call.

    def wait(self) -> asyncio.Future[None]:
        """A future that is done when the stream moves or ends, or `wake` is called for it."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = None
        return future

    def stop_waiting(self, future: asyncio.Future[None]) -> None:
        self._waiting.pop(future, None)
        self._close_if_empty()

    def finish_readers(self) -> None:
        for reader in [*self._joined, *self._behind]:
            reader.finish()

    def remove(self, reader: EventReader) -> None:
        if reader in self._joined:
            del self._joined[reader]
        else:
            self._behind.pop(reader, None)
        self._live.traffic.sse_readers -= 1
        self._close_if_empty()

    def add(self, reader: EventReader) -> None:
        self._behind[reader] = None
        self._live.traffic.sse_readers += 1
        self.bring_up(reader)

    def bring_up(self, reader: EventReader) -> None:
        """Write what a reader is missing: at once if memory has it, else in a task."""
        stream, sink = self.stream, reader.sink
        assert sink is not None
        if stream.is_gone or reader.position < stream.earliest:
            # What it wants was trimmed away: it is told so when it comes again with its offset.
            reader.finish()
            return
        missing = stream.tail - reader.position
        if missing <= PIECE_BYTES and not sink.congested:
            engine = self._live.engine
            wire = engine.read_now(stream, reader.position, stream.tail) if missing else b""
            if wire is not None:
                self._deliver(reader, sink, wire, stream.tail)
                return
        reader.catch_up = CatchUp()
        reader.catch_up.task = asyncio.get_running_loop().create_task(
            self._catch_up(reader, reader.catch_up)
        )

    async def _catch_up(self, reader: EventReader, catch_up: CatchUp) -> None:
        stream, engine = self.stream, self._live.engine
        try:
            # `catch_up` is taken off when the reader joins, and `sink` when it has gone.
            while reader.catch_up is catch_up and (sink := reader.sink) is not None:
                if sink.congested:
                    await catch_up.room()
                elif stream.is_gone or reader.position < stream.earliest:
                    reader.finish()
                else:
                    start, end = reader.position, stream.tail
                    if end - start > PIECE_BYTES:
                        end = await engine.plan(stream, start, max_bytes=PIECE_BYTES)
                    wire = await read_range(engine, stream, start, end)
                    if reader.sink is sink:
                        self._deliver(reader, sink, wire, end)
                    # Reads from memory never wait, and everybody else wants a turn too.
                    await asyncio.sleep(0)
        except StreamTrimmed:  # while it was being read
            reader.finish()
        except Exception as error:  # noqa: BLE001 - no answer can carry it any more
            self._live.traffic.failed(error)
            reader.abort()

    def _deliver(self, reader: EventReader, sink: Sink, wire: bytes, end: int) -> None:
        """Write one data and one control event; a reader that is then at the tail joins."""
        stream = self.stream
        at_tail = end == stream.tail
        closed = at_tail and stream.closed
        held = b""
        if stream.is_text and wire and not closed:
            cut = text_end(wire)
            wire, held = wire[:cut], wire[cut:]
            end -= len(held)
        frame = self._control(end, self._live.cursor(reader.cursor), at_tail, closed)
        if wire:
            frame = self._encode(wire) + frame
            self._live.traffic.events += 1
        self._live.traffic.bytes_out += len(frame)
        reader.position = end
        sink.write(frame)
        if reader.sink is not sink:
            return
        if closed:
            reader.finish()
        elif at_tail and not (sink.congested and reader.catch_up is not None):
            # One that has yet to take what it got goes on at its own pace a while longer.
            self._join(reader, held)

    def _join(self, reader: EventReader, held: bytes) -> None:
        reader.catch_up = None
        if not self._joined:
            self._sent, self._held = reader.position, held
        elif reader.position != self._sent:
            return  # it starts inside what the others hold back: served by itself next time
        self._behind.pop(reader, None)
        self._joined[reader] = None

    def _publish(self, wire: bytes, end: int, closed: bool) -> None:
        if self._held:
            wire = self._held + wire
            self._held = b""
        if self.stream.is_text and wire and not closed:
            cut = text_end(wire)
            self._held = wire[cut:]
            wire = wire[:cut]
            end -= len(self._held)
            if not wire:
                return
        self._sent = end
        data = self._encode(wire) if wire else b""
        live = self._live
        current = live.cursor(0)
        common = data + self._control(end, current, True, closed)
        ahead: dict[int, bytes] = {}
        behind_max = live.buffer_bytes_max
        readers = list(self._joined)
        traffic = live.traffic
        traffic.events += len(readers)
        traffic.bytes_out += len(common) * len(readers)
        for reader in readers:
            sink = reader.sink
            if sink is None:
                continue
            if sink.congested and sink.buffered > behind_max:
                traffic.sse_dropped += 1
                reader.finish()
                continue
            if reader.cursor <= current:
                sink.write(common)
                continue
            frame = ahead.get(reader.cursor)
            if frame is None:
                frame = data + self._control(end, reader.cursor, True, closed)
                ahead[reader.cursor] = frame
            sink.write(frame)
        if closed:
            for reader in readers:
                reader.finish()

    def _resume_joined(self) -> None:
        """What came does not follow what was sent, or is much: take everybody up from there."""
        readers, self._joined = list(self._joined), {}
        for reader in readers:
            reader.position = self._sent
            self._behind[reader] = None
        self._held = b""

    def _control(self, end: int, cursor: int, up_to_date: bool, closed: bool) -> bytes:
        token = self._live.engine.token(self.stream, end)
        return sse.control(token, cursor=str(cursor), up_to_date=up_to_date, closed=closed)

    def wake(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    def _close_if_empty(self) -> None:
        if not self:
            self._live.forget(self)


def text_end(data: bytes) -> int:
    """How much of the text at a tail can be sent: not a character's start, and no CR alone.

    What is left is at most three bytes; the next append completes it, or the close sends it.
    """
    if data.endswith(b"\r"):
        return len(data) - 1
    # text_cut always makes progress; the dot gives it some, so that it may leave all the rest.
    tail = b"." + data[-3:]
    return len(data) - len(tail) + sse.text_cut(tail, len(tail))


def _encoder(stream: Stream) -> Callable[[bytes], bytes]:
    if stream.is_json:
        return sse.data_json
    return sse.data_text if stream.is_text else sse.data_binary
