"""The output half of a native connection: runs a request, writes its answer, closes.

Answers wait for futures without a task; bodies from the log go out under back-pressure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from math import inf
from typing import TYPE_CHECKING, Any

from penstock.http.message import EventBody, Later, RangeBody, Response
from penstock.http.native.connections import log
from penstock.http.native.request_head import Received
from penstock.http.native.request_parser import Reader
from penstock.http.native.response_encoder import CLOSE, KEEP, KEEP_HTTP_1_0
from penstock.http.native.sse_connection import EventConnection
from penstock.http.problems import error_response, unsafe_headers

if TYPE_CHECKING:
    from penstock.http.native.connections import Hub

_CHUNKED = b"transfer-encoding: chunked\r\n"
# Up to this size head and body go out in one piece; above, copying them together costs more.
_TOGETHER_BYTES = 64 * 1024


class Answering(asyncio.Protocol):
    """What answers need of a connection; the input half is its subclass."""

    __slots__ = (
        "_accounted",
        "_closing",
        "_current",
        "_drained",
        "_eof",
        "_hub",
        "_keep",
        "_paused",
        "_reader",
        "_reading",
        "_render",
        "_sending",
        "_task",
        "_transport",
        "deadline",
    )

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._transport: asyncio.Transport | None = None
        self._reader: Reader
        self._current: Received | None = None  # the request being answered
        self._render: Callable[[asyncio.Future[Any]], Response] | None = None
        self._task: asyncio.Task[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._accounted = 0  # body bytes counted in the hub's budget
        self._keep = True
        self._reading = True
        self._paused = False
        self._sending = False
        self._closing = False
        self._eof = False
        self.deadline = inf

    def _continue(self) -> None:
        """An answer is out that was not given at once: go on with the next request."""
        raise TypeError(f"{type(self).__name__} defines no _continue()")

    def _leave(self) -> None:
        """The transport has gone, or belongs to somebody else: give back what is held."""
        raise TypeError(f"{type(self).__name__} defines no _leave()")

    def _run(self, request: Received) -> None:
        self._current = request
        response = request.refusal
        if response is None:
            try:
                answer = self._hub.app.handle(request)
            except Exception as error:  # noqa: BLE001 - becomes the answer
                answer = error_response(error, request)
            request.body = b""
            if answer.__class__ is Later:
                assert isinstance(answer, Later)
                if not answer.future.done():
                    self._render = answer.render
                    answer.future.add_done_callback(self._later)
                    return
                response = answer.render(answer.future)
            elif isinstance(answer, Response):
                response = answer
            else:
                self._task = self._hub.loop.create_task(self._wait(request, answer))
                return
        self._respond(response)

    def _later(self, future: asyncio.Future[Any]) -> None:
        render, self._render = self._render, None
        if self._transport is None or render is None:
            if not future.cancelled():
                future.exception()  # nobody is left to be told
            return
        self._respond(render(future))
        self._continue()

    async def _wait(self, request: Received, answer: Awaitable[Response]) -> None:
        try:
            response = await answer
        except Exception as error:  # noqa: BLE001 - becomes the answer
            response = error_response(error, request)
        self._task = None
        if self._transport is not None:
            self._respond(response)
            self._continue()
        elif isinstance(response.body, RangeBody):
            response.body.close()

    def _respond(self, response: Response) -> None:
        request, transport = self._current, self._transport
        assert request is not None
        assert transport is not None
        keep = request.keep_alive and not self._hub.draining
        if self._eof and not self._reader.ready:
            keep = False
        self._keep = keep
        after = (KEEP_HTTP_1_0 if request.http_1_0 else KEEP) if keep else CLOSE
        body = response.body
        if request.method == "HEAD":
            transport.write(self._hub.encoder.whole(response, after, head_only=True))
            if isinstance(body, RangeBody):
                body.close()
        elif isinstance(body, bytes):
            if len(body) <= _TOGETHER_BYTES:
                transport.write(self._hub.encoder.whole(response, after))
            else:
                transport.write(self._hub.encoder.whole(response, after, head_only=True))
                transport.write(body)
        elif isinstance(body, RangeBody):
            self._respond_range(response, body, after)
            return
        else:
            self._become_events(request, response, body)
            return
        self._answered()

    def _respond_range(self, response: Response, body: RangeBody, after: bytes) -> None:
        assert self._current is not None
        try:
            first = body.first()
        except Exception as error:  # noqa: BLE001 - becomes the answer
            body.close()
            self._respond(error_response(error, self._current))
            return
        if first is not None and len(first) == body.length:
            body.close()
            self._respond(Response(response.status, response.headers, first))
        else:
            send = self._send(self._current, response, body, first, after)
            self._task = self._hub.loop.create_task(send)

    async def _send(
        self,
        request: Received,
        response: Response,
        body: RangeBody,
        first: bytes | None,
        after: bytes,
    ) -> None:
        """Send a body piece by piece; the next is read only when the last has gone out."""
        self._sending = True
        self.deadline = inf
        pieces = body.pieces()
        sent = 0
        failure: Response | None = None
        try:
            # Before the head: a failure now is still a clean answer.
            piece = await anext(pieces, b"") if first is None else first
            head = self._hub.encoder.head(response, after, b"content-length: %d\r\n" % body.length)
            if head is None:
                failure = unsafe_headers()
            else:
                self._write(head)
                while piece:
                    sent += len(piece)
                    self._write(piece)
                    if self._paused:
                        await self._room()
                    piece = await anext(pieces, b"")
        except Exception as error:  # noqa: BLE001 - becomes the answer
            failure = error_response(error, request)
        finally:
            body.close()
            if hasattr(pieces, "aclose"):
                await pieces.aclose()
        self._task = None
        self._sending = False
        if self._transport is None:
            return
        if failure is not None and sent == 0:
            self._respond(failure)
        elif sent == body.length:
            self._answered()
        else:
            if failure is None:
                log.error("%d of %d body bytes: %r", sent, body.length, request.path)
            self.cut()  # the only way left to tell the client
            return
        self._continue()

    async def _room(self) -> None:
        self._drained = self._hub.loop.create_future()
        try:
            await self._drained
        finally:
            self._drained = None

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _answered(self) -> None:
        self._current = None
        self.deadline = inf
        if not self._keep:
            self._close()

    def _become_events(self, request: Received, response: Response, body: EventBody) -> None:
        """Hand the transport over to an EventConnection; this object is done."""
        chunked = not request.http_1_0
        head = self._hub.encoder.head(response, CLOSE, _CHUNKED if chunked else b"")
        if head is None:
            self._respond(unsafe_headers())
            return
        transport = self._transport
        assert transport is not None
        self._read(True)
        self._current = None
        self._leave()
        EventConnection(self._hub, transport, body, chunked=chunked).start(head)

    # Endings

    def _close(self) -> None:
        transport = self._transport
        assert transport is not None
        self._closing = True
        self.deadline = self._hub.now + max(self._hub.linger_s, self._hub.stall_s)
        if self._accounted:
            self._hub.account(-self._accounted)
            self._accounted = 0
        if self._reader.truncated and not self._eof:
            # Closing with input unread resets the connection, and the client may lose the
            # answer: say that no more will come and let the client close.
            self._read(True)
            transport.write_eof()
            self.deadline = self._hub.now + self._hub.linger_s
        else:
            transport.close()

    def cut(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _read(self, on: bool) -> None:
        if on is self._reading or self._transport is None or self._transport.is_closing():
            return
        self._reading = on
        if on:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()
