"""The body of a peer's response on its way to the client: whole, piece by piece, or without an end.

The peer is read no faster than the client reads; if either goes away, so does the other half.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Final, Protocol

from penstock.http.message import EventBody, RangeBody, Sink

BUFFER_BYTES: Final = 256 * 1024
"""Bytes of a body that wait here for the client before the peer is read no further."""


class Source(Protocol):
    """The connection that a body arrives on."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def abort(self) -> None:
        """Nobody wants the rest."""


class CutOff(Exception):
    """The peer went away in the middle of a body."""


class Incoming:
    """A body as it arrives. Its consumer is one of the classes below, or `whole`."""

    __slots__ = ("_failed", "_pieces", "_size", "_source", "_waiter", "events", "is_ended")

    def __init__(self, source: Source) -> None:
        self._source = source
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._waiter: asyncio.Future[None] | None = None
        self._failed = False
        self.is_ended = False
        self.events: RelayedEvents | None = None
        """Who gets everything at once instead of asking for it."""

    # -- called by the connection

    def feed(self, data: bytes) -> None:
        if self.events is not None:
            self.events.received(data)
            return
        self._pieces.append(data)
        self._size += len(data)
        if self._size > BUFFER_BYTES:
            self._source.pause()
        self._wake()

    def end(self) -> None:
        self.is_ended = True
        if self.events is not None:
            self.events.ended()
        self._wake()

    def fail(self) -> None:
        """The peer is gone; without effect after the end."""
        if self.is_ended:
            return
        self._failed = True
        if self.events is not None:
            self.events.failed()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- called by the consumer

    async def piece(self) -> bytes:
        """Return the next bytes, as they came: no more than one read of a socket. Nothing after the
        last; CutOff if the peer is gone."""
        while not self._pieces:
            if self.is_ended:
                return b""
            if self._failed:
                raise CutOff
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        data = self._pieces.popleft()
        self._size -= len(data)
        if self._size <= BUFFER_BYTES:
            self._source.resume()
        return data

    def take_all(self) -> list[bytes | memoryview] | None:
        """Return what has arrived, in the pieces that it came in; None if that is nothing."""
        if not self._pieces:
            return None
        pieces: list[bytes | memoryview] = list(self._pieces)
        self._pieces.clear()
        self._size = 0
        self._source.resume()
        return pieces

    async def whole(self) -> bytes:
        parts = []
        while data := await self.piece():
            parts.append(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def pending(self) -> bytes:
        """Return what has arrived and was not taken yet."""
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        return data

    @property
    def has_failed(self) -> bool:
        return self._failed

    def abandon(self) -> None:
        """Drop the rest: nobody reads it."""
        if not self.is_ended:
            self._source.abort()

    def pause(self) -> None:
        self._source.pause()

    def resume(self) -> None:
        self._source.resume()


class RelayedRange(RangeBody):
    """A body of known length."""

    __slots__ = ("_incoming",)

    def __init__(self, incoming: Incoming, length: int) -> None:
        self._incoming = incoming
        self.length = length

    def parts(self) -> list[bytes | memoryview] | None:
        return self._incoming.take_all()

    async def pieces(self) -> AsyncIterator[bytes]:
        while data := await self._incoming.piece():
            yield data

    def close(self) -> None:
        self._incoming.abandon()


class NoBody(RangeBody):
    """The body that a response to HEAD does not have, of which only the length is known."""

    __slots__ = ()

    def __init__(self, length: int) -> None:
        self.length = length


class RelayedEvents(EventBody):
    """A live response. Its bytes go to the client as they come."""

    __slots__ = ("_incoming", "_sink")

    def __init__(self, incoming: Incoming) -> None:
        self._incoming = incoming
        self._sink: Sink | None = None

    def attach(self, sink: Sink) -> None:
        self._sink = sink
        self._incoming.events = self
        data = self._incoming.pending()
        if data:
            self.received(data)
        if self._incoming.is_ended:
            self.ended()
        elif self._incoming.has_failed:
            self.failed()
        else:
            self._incoming.resume()

    def drained(self) -> None:
        self._incoming.resume()

    def finish(self) -> None:
        # The peer has the last frame, and this process stops: the client comes again elsewhere.
        sink, self._sink = self._sink, None
        self._incoming.abandon()
        if sink is not None:
            sink.close()

    def detach(self) -> None:
        self._sink = None
        self._incoming.abandon()

    # -- called by Incoming

    def received(self, data: bytes) -> None:
        sink = self._sink
        if sink is None:
            return
        sink.write(data)
        if sink.congested:
            self._incoming.pause()

    def ended(self) -> None:
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.close()

    def failed(self) -> None:
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.abort()
