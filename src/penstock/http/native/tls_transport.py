"""TLS on one connection: a transport for the protocol above it, a protocol for the socket's.

Knows records, alerts and how a session ends; nothing of HTTP. It buffers nothing: flow control is
that of the socket's transport. Event loops have TLS of their own, but none that can begin with
bytes which were read before, and none that says that no more will come and reads on.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import ssl
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any, cast

from penstock.http.sender import Certificate

if TYPE_CHECKING:
    from penstock.http.native.connections import ConnectionTable

log = logging.getLogger("penstock.http")

# More than a record has: a read returns at most one.
_READ_BYTES = 64 * 1024
_COMMON_NAME = "commonName"

Established = Callable[["TlsTransport", Certificate | None], asyncio.Protocol]


class TlsTransport(asyncio.Transport, asyncio.Protocol):
    """Shakes hands, then calls `established` for the protocol that the connection is for.

    The table counts it until then, and cuts it at its deadline.
    """

    __slots__ = (
        "_established",
        "_has_ended",
        "_incoming",
        "_outgoing",
        "_peer",
        "_protocol",
        "_ssl",
        "_table",
        "_transport",
        "deadline",
    )

    def __init__(
        self,
        table: ConnectionTable,
        transport: asyncio.Transport,
        context: ssl.SSLContext,
        established: Established,
        *,
        peer: str = "",
    ) -> None:
        super().__init__()
        self._table = table
        self._transport = transport
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._established: Established | None = established
        self._peer = peer  # counted while the handshake goes on; empty for a proxy
        self._protocol: asyncio.Protocol | None = None
        self._has_ended = False  # nothing more is written, and what comes in is dropped
        self.deadline = table.now + table.handshake_s

    def start(self, data: bytes) -> None:
        """Take over the socket's transport, from which `data` was read already."""
        self._table.opening.add(self)
        if self._peer:
            self._table.opened(self, self._peer)
        self._transport.set_protocol(self)
        self.data_received(data)

    # asyncio.Protocol, for the socket's transport

    def data_received(self, data: bytes) -> None:
        if self._has_ended:
            return
        self._incoming.write(data)
        if self._protocol is None:
            self._shake_hands()
        else:
            self._read()

    def eof_received(self) -> bool:
        # A session that was cut off looks the same: HTTP knows how long each request is.
        return self._protocol is not None and bool(self._protocol.eof_received())

    def pause_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_ended = True
        self._established = None
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            protocol.connection_lost(exc)
        elif self in self._table.opening:
            self._leave()
            self._table.connection_gone()

    # The session

    def _shake_hands(self) -> None:
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except ssl.SSLError as error:
            self._fail(error)
            return
        established, self._established = self._established, None
        assert established is not None
        self._flush()
        self._leave()
        self._protocol = established(self, _certificate(self._ssl))
        self._protocol.connection_made(self)
        if self._incoming.pending and not self._has_ended:
            self._read()

    def _leave(self) -> None:
        """Be counted no more: the connection is another protocol's, or gone."""
        self.deadline = inf
        self._table.opening.discard(self)
        self._table.closed(self)

    def _fail(self, error: ssl.SSLError) -> None:
        """End a handshake that cannot succeed, with the alert that says why.

        Closing with input unread would reset the connection, and the client could lose the alert.
        """
        log.debug("TLS handshake with %s failed: %s", self.get_extra_info("peername"), error.reason)
        self._has_ended = True
        self.deadline = self._table.now + self._table.linger_s
        self._flush()
        if not self._transport.is_closing():
            self._transport.write_eof()

    def _read(self) -> None:
        """Hand over everything that has arrived whole, as one piece."""
        session, incoming = self._ssl, self._incoming
        pieces: list[bytes] = []
        is_over = is_broken = False
        try:
            while True:
                piece = session.read(_READ_BYTES)
                if not piece:
                    is_over = True  # the client has ended its side of the session
                    break
                pieces.append(piece)
                if not incoming.pending:
                    break
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            log.debug("TLS with %s failed: %s", self.get_extra_info("peername"), error.reason)
            is_broken = True
        if self._outgoing.pending:
            self._flush()
        if pieces and self._protocol is not None:
            self._protocol.data_received(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if is_broken:
            self.abort()
        elif is_over and self._protocol is not None and not self._protocol.eof_received():
            self.close()

    def _flush(self) -> None:
        data = self._outgoing.read()
        if data:
            self._transport.write(data)

    def _end(self) -> None:
        """Tell the client that nothing more comes; its own farewell is not waited for."""
        self._has_ended = True
        try:
            self._ssl.unwrap()
        except (ssl.SSLError, ValueError):
            pass  # its alert is in the buffer all the same, if one can be sent at all
        self._flush()

    # asyncio.Transport, for the protocol above

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._has_ended or not data:
            return
        try:
            sent, size = self._ssl.write(data), len(data)
            if sent < size:
                view = memoryview(data)
                while sent < size:  # a record at a time
                    sent += self._ssl.write(view[sent:])
        except ssl.SSLError as error:
            log.debug("TLS with %s failed: %s", self.get_extra_info("peername"), error.reason)
            self.abort()
            return
        self._transport.write(self._outgoing.read())

    def write_eof(self) -> None:
        if not self._has_ended:
            self._end()
            self._transport.write_eof()

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        if not self._has_ended:
            self._end()
        self._transport.close()

    def abort(self) -> None:
        self._has_ended = True
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def is_reading(self) -> bool:
        return self._transport.is_reading()

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.Protocol, protocol)  # a Connection is one by its methods

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self if self._protocol is None else self._protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ssl_object":
            return self._ssl
        return self._transport.get_extra_info(name, default)

    # What the table calls

    def overdue(self) -> None:
        """The handshake has taken too long, or the client has not closed after a failed one."""
        self.abort()

    def cut(self) -> None:
        self.abort()


def _certificate(session: ssl.SSLObject) -> Certificate | None:
    """Return the certificate that the client has shown; the handshake has verified it."""
    encoded = session.getpeercert(binary_form=True)
    if not encoded:
        return None
    # The type stubs know no values but strings; these are sequences of pairs.
    fields: dict[str, Any] = session.getpeercert() or {}
    subject = [pair for part in fields.get("subject", ()) for pair in part]
    common = [value for name, value in subject if name == _COMMON_NAME]
    names = fields.get("subjectAltName", ())

    def of(kind: str) -> tuple[str, ...]:
        return tuple(value for name, value in names if name == kind)

    return Certificate(
        common_name=common[0] if common else "",
        dns=of("DNS"),
        uris=of("URI"),
        emails=of("email"),
        sha256=hashlib.sha256(encoded).hexdigest(),
    )
