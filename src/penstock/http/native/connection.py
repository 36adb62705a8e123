"""One native connection: what comes in, in which order it runs, and how long it may take.

Parsing is in reader.py, answering in answering.py, what a request means in the Application.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING, cast

from penstock.errors import Overloaded, PenstockError, RequestTimeout
from penstock.http.native.answering import Answering
from penstock.http.native.connections import REFUSED_MAX
from penstock.http.native.request_head import Received
from penstock.http.native.request_parser import BODY, IDLE, Reader
from penstock.http.native.response_encoder import CONTINUE

if TYPE_CHECKING:
    from penstock.http.native.connections import Hub


class Connection(Answering):
    """The hot path makes no task and no timer: bytes in, `handle`, one write."""

    __slots__ = ("_held", "_mark")

    def __init__(self, hub: Hub) -> None:
        super().__init__(hub)
        self._held = b""  # input that waits until the queue is shorter
        self._mark = 0  # which message and phase `deadline` belongs to

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's classes, so this is a cast, not a check.
        transport = cast(asyncio.Transport, transport)
        hub = self._hub
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self._reader = Reader(hub.limits, hub.refuse, peer[0] if peer else "")
        self.deadline = hub.now + hub.header_s
        excess = hub.count() - hub.connections_max
        hub.connections.add(self)
        if excess >= REFUSED_MAX:
            transport.abort()
        elif excess >= 0 or hub.draining:
            self._give_up(Overloaded("Too many connections; retry later.", Retry_After="1"))

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return  # read on only to let the client take its answer
        if self._held:
            self._held += data
        elif self._current is not None or self._paused or not self._reader.is_idle:
            self._feed(data)
        elif (request := self._hub.heads.recall(data)) is not None:
            self._repeat(request, data)
        else:
            self._feed(data)
            self._hub.heads.keep(data, self._reader.last)

    def _repeat(self, request: Received, data: bytes) -> None:
        """A whole request whose headers were parsed before."""
        request.peer = self._reader.peer
        if request.route is None or self._hub.is_rate_limited:
            request.refusal = self._hub.refuse(request)
            self._hub.heads.keep_again(data, request)
        self._run(request)
        if self._current is not None:
            self.deadline = inf
        elif self._transport is not None:
            self._settle()

    def eof_received(self) -> bool:
        self._eof = True
        # A client may close its side and still wait for its answers, but one that has gone looks
        # the same: an append is finished for it, a read that waits is not kept for long.
        if self._task is not None and not self._sending:
            self.deadline = self._hub.now + self._hub.eof_s
        return not self._closing and (self._current is not None or bool(self._reader.ready))

    def pause_writing(self) -> None:
        self._paused = True
        self._hub.stalled(self)

    def resume_writing(self) -> None:
        self._paused = False
        self._hub.flowing(self)
        if self._drained is not None:
            if not self._drained.done():
                self._drained.set_result(None)
        elif self._current is None and not self._closing:
            self._continue()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        if self._task is not None:
            self._task.cancel()

    def _leave(self) -> None:
        hub = self._hub
        self._transport = None
        self.deadline = inf
        self._reader.release()
        hub.flowing(self)
        hub.fed(self)
        if self._accounted:
            hub.account(-self._accounted)
            self._accounted = 0
        hub.connections.discard(self)
        hub.left()

    # Input

    def _feed(self, data: bytes) -> None:
        reader = self._reader
        while True:
            try:
                rest = reader.feed(data, self._hub.pipeline_max)
            except PenstockError as error:
                reader.give_up(self._hub.app.unreadable(error))
                rest = b""
            self._advance()
            if self._transport is None:
                return
            if not rest or len(reader.ready) > self._hub.pipeline_max:
                break
            data = rest
        self._held = rest
        self._settle()

    def _settle(self) -> None:
        """After any step: the deadline, the receive budget, and whether to go on reading."""
        if self._closing:
            return
        reader, hub = self._reader, self._hub
        phase = reader.phase
        if phase != IDLE:
            mark = reader.begun * 4 + phase
            if mark != self._mark:
                self._mark = mark
                self.deadline = hub.now + (hub.body_s if phase == BODY else hub.header_s)
            if reader.continue_due and self._current is None and not reader.ready:
                reader.continue_due = False
                assert self._transport is not None
                self._transport.write(CONTINUE)
        elif self._current is not None or reader.ready:
            self.deadline = inf
        elif self.deadline == inf:
            self.deadline = hub.now + hub.keepalive_s
        room = True
        if reader.held_bytes != self._accounted:
            room = hub.account(reader.held_bytes - self._accounted)
            self._accounted = reader.held_bytes
            if not room and phase == BODY:
                hub.starved(self)
                self.deadline = inf  # the wait is ours, not the client's
                self._read(False)
                return
        busy = len(reader.ready) > hub.pipeline_max or bool(self._held)
        if busy is self._reading:
            self._read(not busy)

    def _advance(self) -> None:
        """Start the next request, and the ones after it while answers come at once."""
        ready = self._reader.ready
        while ready and self._current is None and not self._paused and not self._closing:
            self._run(self._reader.take())
            if self._transport is None:
                return

    def _continue(self) -> None:
        """An answer is out that was not given at once, or there is room again: go on."""
        self._advance()
        if self._transport is None or self._closing:
            return
        if self._held and len(self._reader.ready) * 2 <= self._hub.pipeline_max:
            data, self._held = self._held, b""
            self._feed(data)
        else:
            self._settle()

    # Endings

    def _give_up(self, error: PenstockError) -> None:
        """Answer what came before, then `error`, then close."""
        self._reader.give_up(self._hub.app.unreadable(error))
        self._held = b""
        self._continue()

    # Hub

    def overdue(self) -> None:
        """The deadline has passed."""
        if self._closing or (self._eof and self._current is not None):
            self.cut()
        elif self._reader.phase == IDLE:
            self._closing = True
            self.deadline = self._hub.now + self._hub.linger_s
            if self._transport is not None:
                self._transport.close()
        else:
            what = "body" if self._reader.phase == BODY else "headers"
            self.deadline = inf
            self._give_up(RequestTimeout(f"The request {what} took too long to arrive."))

    def overloaded(self) -> None:
        """There was no room for the body for too long."""
        self._give_up(Overloaded("Too many request bodies are being received.", Retry_After="1"))

    def resume(self) -> None:
        """There is room for more of the body."""
        self._mark = 0
        self._continue()

    def drain(self) -> None:
        """The server stops: close now if nothing is going on, else after the last answer."""
        reader = self._reader
        if self._closing or self._transport is None:
            return
        if self._current is None and not reader.ready and reader.phase == IDLE:
            self._closing = True
            self.deadline = self._hub.now + self._hub.linger_s
            self._transport.close()

    def taken(self) -> int:
        return 0 if self._transport is None else -self._transport.get_write_buffer_size()
