"""One native connection: what comes in, in which order it runs, how its responses go out, and how
long each of these may take.

Parsing is in request_parser.py, encoding in response_encoder.py, what a request means in the
Application.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

from mypy_extensions import mypyc_attr

from penstock.errors import Overloaded, PenstockError, RequestTimeout
from penstock.http.exchange import REQUEST_ID, request_id
from penstock.http.message import EventBody, Later, RangeBody, Response
from penstock.http.native import unsent
from penstock.http.native.connections import (
    REFUSED_MAX,
    REFUSED_PER_ADDRESS_MAX,
    log,
    too_many_connections,
)
from penstock.http.native.range_sending import send_range
from penstock.http.native.request_parser import BODY, IDLE, RequestParser
from penstock.http.native.response_encoder import CLOSE, CONTINUE, KEEP, KEEP_HTTP_1_0
from penstock.http.native.sse_connection import EventConnection
from penstock.http.problems import error_response, unsafe_headers
from penstock.log.receipt import Receipt

if TYPE_CHECKING:
    from penstock.http.native.connections import ConnectionTable
    from penstock.http.native.request_head import NativeRequest
    from penstock.http.sender import Sender

_CHUNKED = b"transfer-encoding: chunked\r\n"
# Up to this size head and body go out in one piece; above, copying them together costs more.
_TOGETHER_BYTES = 64 * 1024
# How much of what lies in memory anyway may wait in the transport when the next piece is added.
_PARTS_BYTES = 512 * 1024
# Requests that are answered at once before other connections get a turn.
_TURN_REQUESTS = 32


@mypyc_attr(allow_interpreted_subclasses=True)  # of workers, which hand connections over
class Connection:
    """An asyncio protocol by its methods. It has no base class, so that it can be compiled.

    The hot path makes no task and no timer: bytes in, `handle`, one write.
    """

    __slots__ = (
        "_body_bytes",
        "_closing",
        "_current",
        "_drained",
        "_eof",
        "_is_checked",
        "_keep_alive",
        "_may_hold_more",
        "_parser",
        "_paused",
        "_phase",
        "_reading",
        "_received",
        "_render",
        "_sender",
        "_sending",
        "_started_s",
        "_table",
        "_task",
        "_transport",
        "_unparsed",
        "_yielded",
        "deadline",
    )

    def __init__(self, table: ConnectionTable, sender: Sender | None = None) -> None:
        self._table = table
        self._sender = sender
        self._is_checked = table.is_rate_limited  # no request is let in because of its head alone
        self._transport: asyncio.Transport | None = None
        self._parser: RequestParser
        self._unparsed = b""  # input that waits until fewer requests are queued
        self._current: NativeRequest | None = None  # the request being answered
        self._received = 0  # the bytes of its body
        self._started_s = 0.0  # 0 if it is not measured
        self._render: Callable[[Any], Response] | None = None
        self._task: asyncio.Task[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._body_bytes = 0  # how many body bytes the table's receive budget counts for us
        self._keep_alive = True
        self._reading = True
        self._paused = False
        self._sending = False
        self._closing = False
        self._eof = False
        self._yielded = False  # goes on in the next turn of the event loop
        self._may_hold_more = False  # the kernel, of a large body
        self._phase = 0  # which message and phase of it `deadline` belongs to
        self.deadline = inf

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's classes, so this is a cast, not a check.
        transport = cast(asyncio.Transport, transport)
        table = self._table
        self._transport = transport
        sender = self._sender or table.sender(transport)
        self._parser = RequestParser(table.limits, table.refuse, sender)
        if sender.certificate is not None or sender.is_proxy:
            self._is_checked = True
        self.deadline = table.now + table.header_s
        excess = table.count() - table.connections_max
        table.connections.add(self)
        # The clients of a proxy share its address.
        too_many = 0 if sender.is_proxy else table.opened(transport, sender.peer)
        if excess >= REFUSED_MAX or too_many > REFUSED_PER_ADDRESS_MAX:
            transport.abort()
        elif too_many > 0:
            self._give_up(too_many_connections())
        elif excess >= 0 or table.draining:
            self._give_up(
                Overloaded("Too many connections (connections_max); retry later.", Retry_After="1")
            )

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return  # read on only to let the client take its response
        if self._unparsed:
            self._unparsed += data
        elif self._current is not None or self._paused or not self._parser.is_idle:
            self._feed(data)
        elif (request := self._table.heads.match(data)) is not None:
            self._run_cached(request, data)
        else:
            self._feed(data)
            self._table.heads.add(data, self._parser.last, is_shared=not self._is_checked)

    def eof_received(self) -> bool:
        self._eof = True
        # A client may close its side and still wait for its responses, but one that has gone looks
        # the same: an append is finished for it, a read that waits does not go on for long.
        if self._task is not None and not self._sending:
            self.deadline = self._table.now + self._table.eof_s
        has_more = self._current is not None or bool(self._parser.ready or self._unparsed)
        return not self._closing and has_more

    def pause_writing(self) -> None:
        self._paused = True
        self._table.stalled(self)

    def resume_writing(self) -> None:
        self._paused = False
        self._table.flowing(self)
        if self._drained is not None:
            if not self._drained.done():
                self._drained.set_result(None)
        elif self._current is None and not self._closing:
            self._continue()

    def connection_lost(self, exc: Exception | None) -> None:
        self._table.closed(self._transport)
        self._release()
        if self._task is not None:
            self._task.cancel()

    # Input

    def _run_cached(self, request: NativeRequest, data: bytes) -> None:
        """Run a whole request whose headers were parsed before."""
        request.sender = self._parser.sender
        table, principal = self._table, request.principal
        if principal is None or self._is_checked or principal.until_s <= table.now:
            request.principal = None
            request.refusal = table.refuse(request)
            if not self._is_checked:
                table.heads.add_head(data, request)
        self._run(request)
        if self._current is not None:
            self.deadline = inf
        elif self._transport is not None:
            self._settle()

    def _feed(self, data: bytes) -> None:
        parser = self._parser
        try:
            self._unparsed = parser.feed(data, self._table.pipeline_max)
        except PenstockError as error:
            parser.end_with(self._table.app.unreadable(error))
        self._advance()
        if self._transport is None:
            return
        if self._unparsed and self._current is None and not self._paused:
            self._yield()
        self._settle()

    def _settle(self) -> None:
        """Set the deadline, count body bytes, and decide whether to go on reading."""
        if self._closing:
            return
        parser, table = self._parser, self._table
        phase = parser.phase
        if phase != IDLE:
            numbered = parser.begun * 4 + phase
            if numbered != self._phase:
                self._phase = numbered
                self.deadline = table.now + (table.body_s if phase == BODY else table.header_s)
            if parser.continue_due and self._current is None and not parser.ready:
                parser.continue_due = False
                assert self._transport is not None
                self._transport.write(CONTINUE)
        elif self._current is not None or parser.ready:
            self.deadline = inf
        elif self.deadline == inf:
            self.deadline = table.now + table.keepalive_s
        if parser.held_bytes != self._body_bytes:
            has_room = table.account(parser.held_bytes - self._body_bytes)
            self._body_bytes = parser.held_bytes
            if not has_room and phase == BODY:
                table.wait_for_room(self)
                self.deadline = inf  # the wait is ours, not the client's
                self._set_reading(False)
                return
        busy = len(parser.ready) > table.pipeline_max or bool(self._unparsed)
        if busy is self._reading:
            self._set_reading(not busy)

    def _set_reading(self, on: bool) -> None:
        if on is self._reading or self._transport is None or self._transport.is_closing():
            return
        self._reading = on
        if on:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    # Order

    def _advance(self) -> None:
        """Run the next request, and the ones after it while responses come at once."""
        ready = self._parser.ready
        requests = 0
        while ready and self._current is None and not self._paused and not self._closing:
            if requests == _TURN_REQUESTS:
                self._yield()
                return
            requests += 1
            self._run(self._parser.pop())
            if self._transport is None:
                return

    def _yield(self) -> None:
        """Go on in the next turn of the event loop, after others had theirs."""
        if not self._yielded:
            self._yielded = True
            self._table.loop.call_soon(self._resume_turn)

    def _resume_turn(self) -> None:
        self._yielded = False
        if self._transport is not None and self._current is None and not self._closing:
            self._continue()

    def _continue(self) -> None:
        """Go on: a response that did not come at once is out, or there is room again."""
        self._advance()
        if self._transport is None or self._closing:
            return
        if self._unparsed and len(self._parser.ready) * 2 <= self._table.pipeline_max:
            data, self._unparsed = self._unparsed, b""
            self._feed(data)
        else:
            self._settle()

    def _run(self, request: NativeRequest) -> None:
        self._current = request
        table = self._table
        turn = table.turn = table.turn + 1
        if turn & table.unmeasured:
            self._started_s = 0.0
        else:
            self._started_s = perf_counter()
            self._received = len(request.body)
        response = request.refusal
        if response is None:
            try:
                answer = self._table.app.handle(request)
            except Exception as error:  # noqa: BLE001 - becomes the response
                answer = error_response(error, request)
            request.body = b""
            if answer.__class__ is Later:
                assert isinstance(answer, Later)
                receipt = answer.receipt
                if receipt is not None and not receipt.is_done:
                    self._render = answer.render
                    receipt.then(self._resolved)
                    return
                if receipt is None and not answer.future.done():
                    self._render = answer.render
                    answer.future.add_done_callback(self._resolved)
                    return
                response = answer.render(receipt or answer.future)
            elif isinstance(answer, Response):
                response = answer
            else:
                self._task = self._table.loop.create_task(self._wait(request, answer))
                return
        self._answer(request, response)

    def _resolved(self, answer: Any) -> None:
        """Respond to a request whose Later has its result, a future or a receipt."""
        render, self._render = self._render, None
        if self._transport is None or render is None:
            if not isinstance(answer, Receipt) and not answer.cancelled():
                answer.exception()  # retrieved, so that asyncio does not log it
            return
        request, response = self._current, render(answer)
        assert request is not None
        if self._started_s:
            self._measured(request, response)
        self._respond(response)
        self._continue()

    async def _wait(self, request: NativeRequest, answer: Awaitable[Response]) -> None:
        try:
            response = await answer
        except Exception as error:  # noqa: BLE001 - becomes the response
            response = error_response(error, request)
        self._task = None
        if self._transport is not None:
            self._answer(request, response)
            self._continue()
        elif isinstance(response.body, RangeBody):
            response.body.close()

    # Output

    def _answer(self, request: NativeRequest, response: Response) -> None:
        if self._started_s:
            self._measured(request, response)
        self._respond(response)

    def _measured(self, request: NativeRequest, response: Response) -> None:
        """Count how long a request took, and how large it was."""
        table = self._table
        seconds = perf_counter() - self._started_s
        table.answered(request, response, seconds, self._received, table.unmeasured + 1)

    def _respond(self, response: Response) -> None:
        request, transport = self._current, self._transport
        assert request is not None
        assert transport is not None
        keep_alive = request.keep_alive and not self._table.draining
        if self._eof and not self._parser.ready:
            keep_alive = False
        self._keep_alive = keep_alive
        after = (KEEP_HTTP_1_0 if request.http_1_0 else KEEP) if keep_alive else CLOSE
        if self._table.origin_lines:
            after += self._origin_lines(request)
        if request.id is not None or REQUEST_ID in request.headers:
            after += _id_line(request)
        body, encoder = response.body, self._table.encoder
        if request.method == "HEAD":
            transport.write(encoder.whole(response, after, head_only=True))
            if isinstance(body, RangeBody):
                body.close()
        elif isinstance(body, bytes):
            if len(body) <= _TOGETHER_BYTES:
                transport.write(encoder.whole(response, after))
            else:
                transport.write(encoder.whole(response, after, head_only=True))
                transport.write(body)
        elif isinstance(body, RangeBody):
            self._respond_range(response, body, after)
            return
        else:
            self._become_events(request, response, body)
            return
        self._finish_response()

    def _origin_lines(self, request: NativeRequest) -> bytes:
        """Return the header lines that let the page of `request` read its response."""
        return self._table.origin_lines.get(request.headers.get(b"origin", b""), b"")

    def _respond_range(self, response: Response, body: RangeBody, after: bytes) -> None:
        assert self._current is not None
        try:
            first: bytes | list[bytes | memoryview] | None = self.range_views(body)
            if first is None:
                first = body.first()
        except Exception as error:  # noqa: BLE001 - becomes the response
            body.close()
            self._respond(error_response(error, self._current))
            return
        if isinstance(first, bytes) and len(first) == body.length:
            body.close()
            self._respond(Response(response.status, response.headers, first))
        else:
            send = send_range(self, self._current, response, body, first, after)
            self._task = self._table.loop.create_task(send)

    def range_begins(self) -> None:
        """A body goes out piece by piece from now on."""
        self._sending = True
        self.deadline = inf

    def range_head(self, response: Response, after: bytes, length: int) -> bool:
        """Write the head of a body that follows in pieces; False if its headers are unsafe."""
        if length >= unsent.LARGE_BYTES and not self._may_hold_more and self._transport is not None:
            self._may_hold_more = True
            unsent.limit_of(self._transport, unsent.BYTES_OF_LARGE)
        framing = b"content-length: %d\r\n" % length
        head = self._table.encoder.head(response, after, framing)
        if head is not None:
            self._write(head)
        return head is not None

    def range_views(self, body: RangeBody) -> list[bytes | memoryview] | None:
        """Return the next piece of a body where it lies, if the kernel sends it from there: TLS
        would look at each byte first."""
        transport = self._transport
        if transport is None or transport.get_extra_info("ssl_object") is not None:
            return None
        return body.parts()

    def range_piece(self, piece: bytes | list[bytes | memoryview]) -> asyncio.Future[None] | None:
        """Write a piece of a body; return what to wait for before the next."""
        if isinstance(piece, bytes):
            self._write(piece)
        else:
            self._write_parts(piece)
        if not self._paused:
            return None
        self._drained = self._table.loop.create_future()
        return self._drained

    def range_drained(self) -> None:
        self._drained = None

    def range_ends(self, sent: int, length: int, failure: Response | None) -> None:
        """Finish a response whose body went out piece by piece; cut the connection if it is
        short."""
        request = self._current
        self._task = None
        self._sending = False
        if self._transport is None:
            return
        self._transport.set_write_buffer_limits()
        if failure is not None and sent == 0:
            self._respond(failure)
        elif sent == length:
            self._finish_response()
        else:
            if failure is None and request is not None:
                log.error("%d of %d body bytes: %r", sent, length, request.path)
            self.cut()  # the only way to show the client that the body is short
            return
        self._continue()

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _write_parts(self, parts: list[bytes | memoryview]) -> None:
        if self._transport is not None:
            # Nothing is copied, so the next piece may wait in the transport before the last one has
            # gone: the socket is never idle.
            self._transport.set_write_buffer_limits(high=_PARTS_BYTES, low=_PARTS_BYTES // 2)
            self._transport.writelines(parts)

    def _finish_response(self) -> None:
        self._current = None
        self.deadline = inf
        if not self._keep_alive:
            self._close()

    def _become_events(self, request: NativeRequest, response: Response, body: EventBody) -> None:
        """Hand the transport over to an EventConnection; this object is done."""
        chunked = not request.http_1_0
        after = CLOSE + self._origin_lines(request) + _id_line(request)
        head = self._table.encoder.head(response, after, _CHUNKED if chunked else b"")
        if head is None:
            self._respond(unsafe_headers())
            return
        transport = self._transport
        assert transport is not None
        if self._may_hold_more:
            unsent.limit_of(transport, unsent.BYTES)
        self._set_reading(True)
        self._current = None
        self._release()
        self._events(transport, body, chunked=chunked).start(head)

    def _events(
        self, transport: asyncio.Transport, body: EventBody, *, chunked: bool
    ) -> EventConnection:
        return EventConnection(self._table, transport, body, chunked=chunked)

    # Endings

    def refuse(self, error: PenstockError) -> None:
        """Answer with `error` whatever the client sends, and close."""
        self._give_up(error)

    def _give_up(self, error: PenstockError) -> None:
        """Answer what came before, then `error`, then close."""
        self._parser.end_with(self._table.app.unreadable(error))
        self._unparsed = b""
        self._continue()

    def _close(self) -> None:
        transport, table = self._transport, self._table
        assert transport is not None
        self._closing = True
        self.deadline = table.now + max(table.linger_s, table.stall_s)
        self._uncount_body()
        if self._parser.truncated and not self._eof:
            # Closing with input unread resets the connection, and the client may lose the
            # response: say that no more will come and let the client close.
            self._set_reading(True)
            transport.write_eof()
            self.deadline = table.now + table.linger_s
        else:
            transport.close()

    def _close_idle(self) -> None:
        self._closing = True
        self.deadline = self._table.now + self._table.linger_s
        if self._transport is not None:
            self._transport.close()

    def cut(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _release(self) -> None:
        """Give back what is held: the transport has gone, or belongs to another protocol."""
        table = self._table
        self._transport = None
        self.deadline = inf
        self._parser.release()
        table.flowing(self)
        table.stop_waiting(self)
        self._uncount_body()
        table.connections.discard(self)
        table.connection_gone()

    def _uncount_body(self) -> None:
        if self._body_bytes:
            self._table.account(-self._body_bytes)
            self._body_bytes = 0

    # What the table calls

    def overdue(self) -> None:
        """The deadline has passed."""
        if self._closing or (self._eof and self._current is not None):
            self.cut()
        elif self._parser.phase == IDLE:
            self._close_idle()
        else:
            part = "body" if self._parser.phase == BODY else "headers"
            self.deadline = inf
            self._give_up(RequestTimeout(f"The request {part} took too long to arrive."))

    def overloaded(self) -> None:
        """There was no room for the body for too long."""
        self._give_up(
            Overloaded(
                "Too many request bodies are being received (receive_bytes_max); retry later.",
                Retry_After="1",
            )
        )

    def resume(self) -> None:
        """There is room for more of the body."""
        self._phase = 0
        self._continue()

    def drain(self) -> None:
        """The server stops: close now if nothing is going on, else after the last response."""
        if self._closing or self._transport is None:
            return
        is_idle = self._parser.phase == IDLE and not (self._parser.ready or self._unparsed)
        if self._current is None and is_idle:
            self._close_idle()

    def progress(self) -> int:
        return 0 if self._transport is None else -self._transport.get_write_buffer_size()


def _id_line(request: NativeRequest) -> bytes:
    """Return the header line with the id of a request; nothing if it has none."""
    value = request_id(request)
    return b"" if value is None else b"x-request-id: %b\r\n" % value
