"""SSE responses of a stream: the position and the cursor of each reader, and the encoder of their
events.

Knows the log's reads and the form of events; when they are written is the channel's decision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock import limits
from penstock.http.bodies import whole
from penstock.http.live.channel import Frame, Progress
from penstock.http.live.log_reader import LogEncoder, LogReader
from penstock.http.message import Sink
from penstock.protocol import sse
from penstock.protocol.sse import SseForm

if TYPE_CHECKING:
    from penstock.http.streams.live import Live
    from penstock.http.traffic import Traffic
    from penstock.log.engine import Engine
    from penstock.log.stream import Stream
    from penstock.state.filtering import EventFilter

RETRY: Final = sse.retry(limits.SSE_RETRY_MS)


class SseReader(LogReader):
    """One SSE response, at a position of its stream."""

    __slots__ = (
        "cursor",
        "deadline",
        "filter",
        "form",
        "held",
        "live",
        "searched_from",
        "started",
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
        super().__init__(stream, position)
        self.live = live
        self.form = form
        self.filter = event_filter
        self.searched_from = position  # a filter has searched from here for this reader alone
        # The bytes after `position` that wait for the rest of a character. For joined readers the
        # encoder has both.
        self.held = b""
        self.cursor = cursor  # never below the client's own; 0 follows the clock
        self.deadline = 0.0
        self.started = False  # it has got its first frame

    def attach(self, sink: Sink) -> None:
        self.sink = sink
        self.live.attached(self)


class SseEncoder(LogEncoder[SseReader]):
    """The events of one stream in one form.

    `cursor` returns the current cursor, and never one below its argument.
    """

    __slots__ = (
        "_ahead",
        "_cursor",
        "_data",
        "_held",
        "_holds",
        "_traffic",
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
        super().__init__(engine, stream)
        self._traffic = traffic
        self._cursor = cursor
        self._data = _data_event(stream, form)
        self._holds = stream.is_text and not form.base64
        self._ahead: dict[SseReader, None] = {}  # readers whose cursor was ahead of the clock
        # The bytes between `_sent` and the tail: the start of a character whose rest is to come.
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
