"""Readers that follow the log of one stream, each at its position: the part of their encoders that
reads the log.

Knows the log's reads; in what form a piece is written is a subclass's decision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

from penstock.errors import StreamTrimmed
from penstock.http.bodies import read_range
from penstock.http.live.channel import Progress
from penstock.http.live.response import LiveReader

if TYPE_CHECKING:
    from penstock.http.message import Sink
    from penstock.log.engine import Engine
    from penstock.log.stream import Stream

PIECE_BYTES: Final = 64 * 1024
"""The size of what a reader that is behind is sent at a time, and so what a stalled one holds."""
PUBLISH_BYTES_MAX: Final = 1024 * 1024
"""A commit with more, such as a snapshot, is read from the log by each reader at its own pace."""


class LogReader(LiveReader):
    """One open response, at a position of its stream: everything before was written."""

    __slots__ = ("position", "stream")

    def __init__(self, stream: Stream, position: int) -> None:
        super().__init__()
        self.stream = stream
        self.position = position


R = TypeVar("R", bound=LogReader)


class LogEncoder(Generic[R]):
    """Joined readers have everything up to `_sent`."""

    __slots__ = ("_engine", "_sent", "_stream", "publish_bytes_max")

    def __init__(self, engine: Engine, stream: Stream) -> None:
        self.publish_bytes_max = PUBLISH_BYTES_MAX
        self._engine = engine
        self._stream = stream
        self._sent = stream.tail

    def is_level(self, reader: R) -> bool:
        return reader.position == self._sent

    def rewind(self, reader: R) -> None:
        reader.position = self._sent

    def is_lost(self, reader: R) -> bool:
        return self._stream.is_gone or reader.position < self._stream.earliest

    def send_now(self, reader: R, sink: Sink) -> Progress:
        stream = self._stream
        missing = stream.tail - reader.position
        if missing > PIECE_BYTES or sink.congested:
            return Progress.BEHIND
        wire = self._engine.read_now(stream, reader.position, stream.tail) if missing else b""
        if wire is None:
            return Progress.BEHIND
        return self._write(reader, sink, wire, stream.tail)

    async def send(self, reader: R, sink: Sink) -> Progress:
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

    def _write(self, reader: R, sink: Sink, wire: bytes, end: int) -> Progress:
        """Write the bytes before `end`; UP_TO_DATE if that is the tail."""
        raise TypeError(f"{type(self).__name__} defines no _write()")
