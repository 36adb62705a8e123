"""Connections whose requests are written down, by an access log or as traces.

Classes of their own, so that those of a server that writes nothing down pay nothing for it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from mypy_extensions import mypyc_attr

from penstock.http.exchange import Exchange
from penstock.http.message import EventBody, Response
from penstock.http.native.connection import Connection
from penstock.http.native.range_sending import size_of
from penstock.http.native.sse_connection import EventConnection

if TYPE_CHECKING:
    from penstock.http.native.connections import ConnectionTable
    from penstock.http.native.request_head import NativeRequest


def connection_class(table: ConnectionTable) -> type[Connection]:
    """Return the class of the connections of a table."""
    return Connection if table.exchanges is None else NotedConnection


@mypyc_attr(allow_interpreted_subclasses=True)  # of workers, which hand connections over
class NotedConnection(Connection):
    """A Connection that has an Exchange for each request."""

    __slots__ = ("_exchange",)
    _exchange: Exchange | None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._exchange = None
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        super().connection_lost(exc)

    def _run(self, request: NativeRequest) -> None:
        assert self._table.exchanges is not None
        exchange = self._exchange = self._table.exchanges.begin(request, len(request.body))
        super()._run(request)
        render = self._render
        if render is not None:
            exchange.waits()
            self._render = lambda future: exchange.answered(render(future))

    def _answer(self, request: NativeRequest, response: Response) -> None:
        assert self._exchange is not None
        super()._answer(request, self._exchange.answered(response))

    def range_begins(self) -> None:
        if self._exchange is not None:
            self._exchange.sent = 0
        super().range_begins()

    def range_piece(self, piece: bytes | list[bytes | memoryview]) -> asyncio.Future[None] | None:
        drained = super().range_piece(piece)
        if self._exchange is not None:
            self._exchange.sent += size_of(piece)
        return drained

    def _finish_response(self) -> None:
        self._end()
        super()._finish_response()

    def _events(
        self, transport: asyncio.Transport, body: EventBody, *, chunked: bool
    ) -> EventConnection:
        exchange, self._exchange = self._exchange, None
        assert exchange is not None
        return NotedEventConnection(
            self._table, transport, body, chunked=chunked, exchange=exchange
        )

    def _end(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.end()


class NotedEventConnection(EventConnection):
    """An EventConnection that counts its bytes, and ends the Exchange of its request."""

    __slots__ = ("_exchange",)

    def __init__(
        self,
        table: ConnectionTable,
        transport: asyncio.Transport,
        body: EventBody,
        *,
        chunked: bool,
        exchange: Exchange,
    ) -> None:
        super().__init__(table, transport, body, chunked=chunked)
        self._exchange = exchange

    def write(self, data: bytes) -> None:
        if self._body is not None:
            self._exchange.sent += len(data)
        super().write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._exchange.end()
