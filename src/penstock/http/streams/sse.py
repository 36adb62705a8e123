"""SSE responses of a stream: the position and the cursor of each reader, and the encoder of their
events.

Knows the log's reads and the form of events; when they are written is the channel's decision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock import limits
from penstock.errors import StreamTrimmed
from penstock.http.bodies import read_range, whole
from penstock.http.live.channel import Frame, Progress
from penstock.http.live.response import LiveReader
from penstock.http.message import Sink
from penstock.protocol import sse
from penstock.protocol.sse import SseForm

if TYPE_CHECKING:
    from penstock.http.streams.live import Live
    from penstock.http.traffic import Traffic
    from penstock.log.engine import Engine
    from penstock.log.stream import Stream
    from penstock.state.filtering import EventFilter

PIECE_BYTES: Final = 64 * 1024
"""The size of what a reader that is behind is sent at a time, and so what a stalled one holds."""
PUBLISH_BYTES_MAX: Final = 1024 * 1024
"""A commit with more, such as a snapshot, is read from the log by each reader at its own pace."""
RETRY: Final = sse.retry(limits.SSE_RETRY_MS)


class SseReader(LiveReader):
    """One SSE response, at a position of its stream."""

    __slots__ = (
        "cursor",
        "deadline",
        "filter",
        "form",
        "held",
        "live",
        "position",
        "searched_from",
        "started",
        "stream",
    )

    def __init__(
        self,
        live: Live,
        stream: Stream,
        position: int,
        cursor: int,
        form: SseForm,
        event_filter: EventFilter | None = None,
    ) -> None:
        super().__init__()
        self.live = live
        self.stream = stream
        self.form = form
        self.filter = event_filter
        self.searched_from = position  # a filter has searched from here for this reader alone
        # Everything up to `position` was written; `held` are the bytes after it that wait for the
        # rest of a character. For joined readers the encoder has both.
        self.position = position
        self.held = b""
        self.cursor = cursor  # never below the client's own; 0 follows the clock
        self.deadline = 0.0
        self.started = False  # it has got its first frame

    def attach(self, sink: Sink) -> None:
        self.sink = sink
        self.live.attached(self)


class SseEncoder:
    """The events of one stream in one form.

    `cursor` returns the current cursor, and never one below its argument.
    """

    __slots__ = (
        "_ahead",
        "_cursor",
        "_data",
        "_engine",
        "_held",
        "_holds",
        "_sent",
        "_stream",
        "_traffic",
        "publish_bytes_max",
    )

    def __init__(
        self,
        engine: Engine,
        traffic: Traffic,
        stream: Stream,
        form: SseForm,
        *,
        cursor: Callable[[int], int],
    ) -> None:
        self.publish_bytes_max = PUBLISH_BYTES_MAX
        self._engine = engine
        self._traffic = traffic
        self._stream = stream
        self._cursor = cursor
        self._data = _data_event(stream, form)
        self._holds = stream.is_text and not form.base64
        self._ahead: dict[SseReader, None] = {}  # readers whose cursor was ahead of the clock
        # Joined readers have everything up to `_sent`. `_held` are the bytes between that and the
        # tail: the start of a character whose rest is yet to come.
        self._sent = stream.tail
        self._held = b""

    def wakes(self, wire: bytes, end: int, closed: bool) -> bool:
        return True

    def publish(self, wire: bytes, end: int, closed: bool) -> Frame[SseReader] | None:
        wire, self._held = self._split(self._held + wire, closed)
        if self._held and not wire:
            return None
        end = self._sent = end - len(self._held)
        offset = self._engine.token(self._stream, end)
        data = self._data(wire, sse.end_at(offset)) if wire else b""
        current = self._cursor(0)
        is_all = self._engine.is_current()
        own = {
            reader: data + _control(offset, reader.cursor, up_to_date=is_all, closed=closed)
            for reader in self._ahead
            if reader.cursor > current
        }
        return Frame(data + _control(offset, current, up_to_date=is_all, closed=closed), own)

    def share(self, reader: SseReader) -> None:
        self._sent, self._held = reader.position, reader.held

    def is_level(self, reader: SseReader) -> bool:
        # One that started inside a character which the others hold back is not.
        return reader.position == self._sent

    def rewind(self, reader: SseReader) -> None:
        reader.position = self._sent

    def is_lost(self, reader: SseReader) -> bool:
        return self._stream.is_gone or reader.position < self._stream.earliest

    def send_now(self, reader: SseReader, sink: Sink) -> Progress:
        stream = self._stream
        missing = stream.tail - reader.position
        if missing > PIECE_BYTES or sink.congested:
            return Progress.BEHIND
        wire = self._engine.read_now(stream, reader.position, stream.tail) if missing else b""
        if wire is None:
            return Progress.BEHIND
        return self._write(reader, sink, wire, stream.tail)

    async def send(self, reader: SseReader, sink: Sink) -> Progress:
        engine, stream = self._engine, self._stream
        start, end = reader.position, stream.tail
        try:
            if end - start > PIECE_BYTES:
                end = await engine.plan(stream, start, max_bytes=PIECE_BYTES)
            wire = await read_range(engine, stream, start, end)
            await self.prepare(wire, end)
        except StreamTrimmed:  # while it was being read
            reader.finish()
            return Progress.BEHIND
        if reader.sink is not sink:
            return Progress.BEHIND
        return self._write(reader, sink, wire, end)

    async def prepare(self, wire: bytes, end: int) -> None:
        """Do what takes long about a piece that is written next: the event loop goes on."""

    def added(self, reader: SseReader) -> None:
        self._traffic.sse_readers += 1
        if reader.cursor:
            self._ahead[reader] = None

    def removed(self, reader: SseReader) -> None:
        self._traffic.sse_readers -= 1
        self._ahead.pop(reader, None)

    def dropped(self) -> None:
        self._traffic.sse_dropped += 1

    def written(self, frame: bytes, readers: int) -> None:
        self._traffic.events += readers
        self._traffic.bytes_out += len(frame) * readers

    def _write(self, reader: SseReader, sink: Sink, wire: bytes, end: int) -> Progress:
        """Write one data event, unless there are no bytes, and one control event."""
        is_at_tail = end == self._stream.tail
        closed = is_at_tail and self._stream.closed
        wire, held = self._split(wire, closed)
        end -= len(held)
        cursor = self._cursor(reader.cursor)
        offset = self._engine.token(self._stream, end)
        is_all = is_at_tail and self._engine.is_current()
        frame = _control(offset, cursor, up_to_date=is_all, closed=closed)
        if wire:
            frame = self._data(wire, sse.end_at(offset)) + frame
            self._traffic.events += 1
        if not reader.started:
            reader.started = True
            frame = RETRY + frame
        self._traffic.bytes_out += len(frame)
        reader.position, reader.held = end, held
        sink.write(frame)
        return Progress.UP_TO_DATE if is_at_tail else Progress.BEHIND

    def _split(self, wire: bytes, closed: bool) -> tuple[bytes, bytes]:
        """Return the bytes that can be sent, and those that have to wait for more."""
        if closed or not self._holds:
            return wire, b""
        cut = text_end(wire)
        return wire[:cut], wire[cut:]


def text_end(data: bytes) -> int:
    """Return how many bytes of the text at a tail can be sent: no part of a character, no CR alone.

    The rest is at most three bytes; the next append completes it, or the close sends it.
    """
    if data.endswith(b"\r"):
        return len(data) - 1
    # text_cut always makes progress; the dot is that progress, so that it may leave all the rest.
    tail = b"." + data[-3:]
    return len(data) - len(tail) + sse.text_cut(tail, len(tail))


def form_of(stream: Stream, form: SseForm) -> SseForm:
    """Return the form in which readers of `stream` get its data: bytes are always base64."""
    return form if stream.is_text or stream.is_json else form._replace(base64=True)


def _data_event(stream: Stream, form: SseForm) -> Callable[[bytes, bytes], bytes]:
    """Return the function from the bytes of the log, and the end of the event, to the event."""
    head = sse.MESSAGE if form.message else sse.DATA
    if form.base64:
        return lambda wire, end: sse.data_binary(whole(stream, wire), head=head, end=end)
    encode = sse.data_json if stream.is_json else sse.data_text
    return lambda wire, end: encode(wire, head=head, end=end)


def _control(offset: str, cursor: int, *, up_to_date: bool, closed: bool) -> bytes:
    return sse.control(offset, cursor=str(cursor), up_to_date=up_to_date, closed=closed)
