"""One kept-alive connection to a peer: a request out, its response in, one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, NamedTuple, cast

import httptools

from penstock.http.forwarding.relay import (
    CutOff,
    Incoming,
    NoBody,
    RelayedEvents,
    RelayedRange,
)
from penstock.http.message import Body, Headers, Response

WHOLE_BYTES: Final = 256 * 1024
"""Up to this size a body is awaited and passed on in one piece."""

# What the transport that answers the client says itself.
_DROPPED: Final = frozenset(
    {
        b"connection",
        b"content-length",
        b"date",
        b"keep-alive",
        b"transfer-encoding",
        b"x-request-id",
    }
)


class Head(NamedTuple):
    """The head of a response. A `length` of None is a body that ends when it ends."""

    status: int
    headers: Headers
    length: int | None


class PeerConnection(asyncio.Protocol):
    """`on_free` is called when a response is complete and another request may follow, `on_lost`
    when the connection is gone."""

    __slots__ = (
        "_body",
        "_head",
        "_headers",
        "_is_chunked",
        "_is_head",
        "_length",
        "_on_free",
        "_on_lost",
        "_parser",
        "_paused",
        "_rest",
        "_transport",
    )

    def __init__(
        self,
        on_free: Callable[[PeerConnection], None],
        on_lost: Callable[[PeerConnection], None],
    ) -> None:
        self._on_free = on_free
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._head: asyncio.Future[Head] | None = None
        self._headers: Headers = []
        self._length: int | None = None
        self._rest = 0
        self._is_chunked = False
        self._body: Incoming | None = None
        self._is_head = False
        self._paused = False

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, message: bytes, *, is_head: bool) -> Response:
        """Send a whole request and return the response; CutOff if the peer goes away before its
        head is there."""
        transport = self._transport
        if transport is None or transport.is_closing():
            raise CutOff
        self._parser = httptools.HttpResponseParser(self)
        self._head = asyncio.get_running_loop().create_future()
        self._is_head = is_head
        self._headers = []
        self._length = None
        self._rest = 0
        self._is_chunked = False
        body = self._body = Incoming(self)
        transport.write(message)
        try:
            head = await self._head
            content = await _content(head, body, is_head=is_head)
        except BaseException:
            self.abort()
            raise
        return Response(head.status, head.headers, content)

    # -- Source

    def pause(self) -> None:
        if not self._paused and self.is_open:
            self._paused = True
            assert self._transport is not None
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._paused and self.is_open:
            self._paused = False
            assert self._transport is not None
            self._transport.resume_reading()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's classes, so this is a cast, not a check.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            self.abort()  # Nothing was asked.
            return
        if self._rest:
            # The rest of a body of known length is nothing to parse, and so not to copy, either.
            if len(data) > self._rest:
                self.abort()
                return
            self.on_body(data)
            if not self._rest:
                self.on_message_complete()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        head, body = self._head, self._body
        self._head = self._body = None
        self._on_lost(self)
        if head is not None and not head.done():
            head.set_exception(CutOff())
            head.exception()  # retrieved: whoever waited for it may have gone
        if body is not None:
            # Without a length and chunks, as for a client of HTTP/1.0, the end is the end.
            if exc is None and self._length is None and not self._is_chunked:
                body.end()
            else:
                body.fail()

    # -- httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"content-length":
            self._length = int(value)
        elif name == b"transfer-encoding":
            self._is_chunked = True
        if name not in _DROPPED:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            self._headers = []
            return
        head = Head(status, self._headers, self._length)
        self._rest = self._length or 0
        if self._head is not None and not self._head.done():
            self._head.set_result(head)
        if self._is_head:
            # The parser would wait for a body; the next response gets a new parser.
            self.on_message_complete()

    def on_body(self, data: bytes) -> None:
        if self._length is not None:
            self._rest -= len(data)
        if self._body is not None:
            self._body.feed(data)

    def on_message_complete(self) -> None:
        body, parser = self._body, self._parser
        if body is None or self._head is None or not self._head.done():
            return
        self._rest = 0
        keeps = parser.should_keep_alive()
        self._parser = self._head = self._body = None
        self.resume()
        body.end()
        if keeps and self.is_open:
            self._on_free(self)
        else:
            self.abort()


async def _content(head: Head, body: Incoming, *, is_head: bool) -> Body:
    """Return the body of a response. The connection may have its next request by now."""
    length = head.length
    if is_head:
        return NoBody(length) if length else b""
    if body.is_ended or (length is not None and length <= WHOLE_BYTES):
        return await body.whole()
    return RelayedEvents(body) if length is None else RelayedRange(body, length)
