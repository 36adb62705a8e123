"""A connection before its first request: the header of a proxy in front, then TLS.

Used only where a server has one of these; a plain connection begins as a Connection.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, cast

from penstock.errors import BadRequest
from penstock.http.native import proxy_header
from penstock.http.native.connection import Connection
from penstock.http.native.connections import REFUSED_MAX, REFUSED_PER_ADDRESS_MAX, log
from penstock.http.native.noted_connection import connection_class
from penstock.http.native.proxy_header import InvalidProxyHeader
from penstock.http.native.tls_transport import TlsTransport
from penstock.http.sender import HTTPS, NOWHERE

if TYPE_CHECKING:
    from penstock.http.native.connections import ConnectionTable
    from penstock.http.sender import Certificate

_HANDSHAKE = 0x16  # the first byte of every TLS connection


class Opening(asyncio.Protocol):
    """Reads what comes before HTTP, and hands the transport on. The table counts it until then."""

    __slots__ = ("_needs_header", "_received", "_sender", "_table", "_transport", "deadline")

    def __init__(self, table: ConnectionTable) -> None:
        self._table = table
        self._transport: asyncio.Transport | None = None
        self._sender = NOWHERE
        self._received = b""
        self._needs_header = False
        self.deadline = inf

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        table = self._table
        self._transport = cast(asyncio.Transport, transport)
        if table.count() - table.connections_max >= REFUSED_MAX:
            self._transport.abort()
            return
        self._sender = table.sender(self._transport)
        self._needs_header = table.expects_proxy_header and self._sender.is_proxy
        if not self._needs_header and table.tls is None:
            self._hand_over(b"")
            return
        table.opening.add(self)
        if not self._sender.is_proxy:
            too_many = table.opened(self._transport, self._sender.peer)
            if too_many > REFUSED_PER_ADDRESS_MAX:
                self._transport.abort()
                return
        self.deadline = table.now + (table.header_s if self._needs_header else table.handshake_s)

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        data = self._received = self._received + data
        if self._needs_header:
            try:
                header = proxy_header.parse(data)
            except InvalidProxyHeader as error:
                log.warning("dropped a connection from %s: %s", self._sender.peer, error)
                transport.abort()
                return
            if header is None:
                return
            self._needs_header = False
            self._received = data = data[header.size :]
            self._believe(header)
            self.deadline = self._table.now + self._table.handshake_s
        if self._table.tls is None:
            self._hand_over(data)
        elif data[:1] == bytes((_HANDSHAKE,)):
            self._leave()
            context = self._table.tls.context
            peer = "" if self._sender.is_proxy else self._sender.peer
            TlsTransport(self._table, transport, context, self._established, peer=peer).start(data)
        elif data:
            self._answer_plainly(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._leave()
            self._table.connection_gone()

    # The steps

    def _believe(self, header: proxy_header.ProxyHeader) -> None:
        table = self._table
        peer = self._sender.peer if header.peer is None else header.peer
        is_proxy = header.peer is None or table.proxies.trusts(peer)
        self._sender = replace(self._sender, peer=peer, is_proxy=is_proxy)
        if header.is_tls:
            self._sender = replace(self._sender, scheme=HTTPS)

    def _leave(self) -> None:
        """Be counted no more: the transport has gone, or belongs to another protocol."""
        self._table.closed(self._transport)
        self._transport = None
        self._received = b""
        self.deadline = inf
        self._table.opening.discard(self)

    def _established(
        self, transport: TlsTransport, certificate: Certificate | None
    ) -> asyncio.Protocol:
        sender = replace(self._sender, scheme=HTTPS, certificate=certificate)
        return cast(asyncio.Protocol, connection_class(self._table)(self._table, sender))

    def _hand_over(self, data: bytes) -> Connection:
        transport = self._transport
        assert transport is not None
        self._leave()
        connection = connection_class(self._table)(self._table, self._sender)
        transport.set_protocol(cast(asyncio.BaseProtocol, connection))
        connection.connection_made(transport)
        if data and not transport.is_closing():
            connection.data_received(data)
        return connection

    def _answer_plainly(self, data: bytes) -> None:
        """Tell a client that speaks plain HTTP what to do; drop one that speaks neither."""
        assert self._transport is not None
        if data[:1].isalpha():
            self._hand_over(b"").refuse(
                BadRequest("This port serves HTTPS only; use a URL that begins with `https://`.")
            )
        else:
            self._transport.close()

    # What the table calls

    def overdue(self) -> None:
        """What comes before HTTP has taken too long."""
        self.cut()

    def cut(self) -> None:
        if self._transport is not None:
            self._transport.abort()
