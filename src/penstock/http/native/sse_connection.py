"""A native connection whose response stays open.

It replaces the Connection when an EventBody starts, and has no parser, request, task or timer, so
that an idle reader takes little memory. Knows the transport; nothing of what is written.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from penstock.http.message import EventBody
from penstock.http.native.connections import log
from penstock.http.native.response_encoder import LAST_CHUNK, chunk

if TYPE_CHECKING:
    from penstock.http.native.connections import ConnectionTable


class EventConnection:
    """The Sink of one EventBody, and an asyncio protocol by its methods.

    Bytes that the client still sends are read and ignored.
    """

    __slots__ = ("_body", "_chunked", "_table", "_transport", "_written", "congested")

    def __init__(
        self,
        table: ConnectionTable,
        transport: asyncio.Transport,
        body: EventBody,
        *,
        chunked: bool,
    ) -> None:
        self._table = table
        self._transport = transport
        self._body: EventBody | None = body
        self._chunked = chunked
        self._written = 0  # bytes written while congested; tells slow clients from stalled ones
        self.congested = False

    def start(self, head: bytes) -> None:
        """Take over the transport, send the head, and let the body write."""
        assert self._body is not None
        self._table.events.add(self)
        self._transport.set_protocol(cast(asyncio.BaseProtocol, self))
        self._transport.write(head)
        try:
            self._body.attach(self)
        except Exception:  # noqa: BLE001 - the head is sent: no error response can follow
            log.exception("event body failed to start")
            self.abort()
        else:
            if self._table.draining:
                self.finish()

    # -- Sink

    def write(self, data: bytes) -> None:
        if self._body is None or not data:  # An empty chunk would end the response.
            return
        if self._chunked:
            data = chunk(data)
        if self.congested:
            self._written += len(data)
        self._transport.write(data)

    def close(self) -> None:
        if self._body is None:
            return
        self._body = None
        if self._chunked:
            self._transport.write(LAST_CHUNK)
        # A client that reads nothing must not keep the closed connection open either.
        self._table.stalled(self)
        self._transport.close()

    def abort(self) -> None:
        self._body = None
        self._transport.abort()

    @property
    def buffered(self) -> int:
        return self._transport.get_write_buffer_size()

    # -- called by the table of connections

    def finish(self) -> None:
        """End the response because the server stops."""
        if self._body is None:
            return
        try:
            self._body.finish()
        except Exception:  # noqa: BLE001 - the other responses must be ended too
            log.exception("event body failed to finish")
            self.abort()

    def progress(self) -> int:
        """Return a number that grows when the client reads bytes."""
        return self._written - self._transport.get_write_buffer_size()

    def cut(self) -> None:
        """Drop the reader; `connection_lost` then detaches the body."""
        self._transport.abort()

    # -- asyncio.Protocol

    def pause_writing(self) -> None:
        self.congested = True
        self._table.stalled(self)

    def resume_writing(self) -> None:
        self.congested = False
        if self._body is not None:
            self._table.flowing(self)
            self._body.drained()

    def data_received(self, data: bytes) -> None:
        """What the client still sends has no meaning."""

    def eof_received(self) -> bool:
        return False  # The client has closed its side: nobody reads the events any more.

    def connection_lost(self, exc: Exception | None) -> None:
        body, self._body = self._body, None
        self._table.closed(self._transport)
        self._table.flowing(self)
        self._table.events.discard(self)
        self._table.connection_gone()
        if body is not None:
            body.detach()
