"""A response that is the bytes of a stream as they are recorded, until the recording ends."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from penstock.errors import PenstockError, StreamNotFound
from penstock.http.live.response import CatchUp, LiveReader
from penstock.http.message import Sink

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.log.engine import Engine
    from penstock.log.stream import Stream

PIECE_BYTES: Final = 64 * 1024

log = logging.getLogger("penstock.proxy")


class Bodies:
    """The open bodies of a server."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.published_s = 0.0
        self._open: set[RecordedBody] = set()

    def add(self, body: RecordedBody) -> None:
        """Watch the stream of a body: its current object, since an idle stream may have left memory
        while the head was sent."""
        current = self.engine.find(body.stream.path, touch=False)
        if current.id != body.stream.id:
            raise StreamNotFound.at(current.path)
        body.stream = current
        self._open.add(body)
        self.engine.watch(current, body)

    def remove(self, body: RecordedBody) -> None:
        self._open.discard(body)
        self.engine.unwatch(body.stream, body)

    def close(self) -> None:
        for body in list(self._open):
            body.finish()


class RecordedBody(LiveReader):
    """The watcher of one stream, and the task that writes what it has. `is_whole` says at the end
    of the stream whether that is the end of the response as well."""

    __slots__ = ("_bodies", "_is_whole", "_moved", "_position", "stream")

    def __init__(
        self, bodies: Bodies, stream: Stream, position: int, is_whole: Callable[[Stream], bool]
    ) -> None:
        super().__init__()
        self.stream = stream
        self._bodies = bodies
        self._position = position
        self._is_whole = is_whole
        self._moved = asyncio.Event()

    def attach(self, sink: Sink) -> None:
        self.sink = sink
        try:
            self._bodies.add(self)
        except StreamNotFound:
            self.abort()
            return
        self.channel = self._bodies
        self.catch_up = CatchUp()
        self.catch_up.task = asyncio.get_running_loop().create_task(self._run(sink))

    def finish(self) -> None:
        """Cut the response, because the server stops: it is not whole."""
        self.abort()

    # -- called by the engine, in a commit

    def advanced(self, start: int, end: int, wire: bytes, closed: bool) -> None:
        self._moved.set()

    def ended(self) -> None:
        self._moved.set()

    # -- the task

    async def _run(self, sink: Sink) -> None:
        try:
            while self.sink is sink:
                self._moved.clear()
                stream = self.stream
                if stream.is_gone or self._position < stream.earliest:
                    break
                if self._position < stream.tail:
                    await self._write(sink)
                elif not stream.closed:
                    await self._moved.wait()
                elif self._is_whole(stream):
                    LiveReader.finish(self)
                    return
                else:
                    break
        except PenstockError as error:  # the log cannot be read
            log.warning("the recording at %r cannot be sent: %s", self.stream.path, error)
        self.abort()

    async def _write(self, sink: Sink) -> None:
        start = self._position
        end = min(self.stream.tail, start + PIECE_BYTES)
        data = await self._bodies.engine.read_range(self.stream, start, end)
        self._position = end
        if self.sink is sink:
            sink.write(data)
            if sink.congested:
                assert self.catch_up is not None
                await self.catch_up.room()
