"""The table of native connections: their limits, the sweep for deadlines, the receive budget.

One timer serves every connection, so that a request or an idle reader costs none.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Protocol

from penstock.errors import TooManyConnections
from penstock.http.message import Application, Request, Response
from penstock.http.native.head_cache import HeadCache
from penstock.http.native.request_parser import ParserLimits
from penstock.http.native.response_encoder import ResponseEncoder
from penstock.http.origins import fixed_headers, origin_lines
from penstock.http.problems import error_response
from penstock.http.rates import counts_requests, site
from penstock.http.sender import Proxies, Sender, plain_address
from penstock.http.traffic import Traffic

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.http.exchange import Exchanges
    from penstock.http.native.connection import Connection
    from penstock.http.native.opening import Opening
    from penstock.http.native.sse_connection import EventConnection
    from penstock.http.native.tls import Tls
    from penstock.http.native.tls_transport import TlsTransport

log = logging.getLogger("penstock.http")

# How long a body may wait for room in the receive budget before it gets a 503.
ROOM_GRACE_S = 2.0
# How long a closed connection is read on, so that the client can take the last response.
LINGER_S = 5.0
# How long a read may still take when its client has closed its side of the connection.
EOF_GRACE_S = 1.0
# Connections above connections_max that may linger with their 503 at the same time.
REFUSED_MAX = 256
# The same, of connections above connections_per_address_max from one address with their 429.
REFUSED_PER_ADDRESS_MAX = 8
# Above so many requests a second, only one of UNMEASURED_BUSY + 1 (a power of two) is measured.
BUSY_REQUESTS_PER_S = 2000
UNMEASURED_BUSY = 7


def too_many_connections() -> TooManyConnections:
    return TooManyConnections(
        "Too many connections from one address (connections_per_address_max). Close some, send "
        "several requests over each, or retry shortly.",
        Retry_After="1",
    )


class Writing(Protocol):
    """A connection with unsent bytes."""

    def progress(self) -> int:
        """Return a number that grows when the client takes bytes."""

    def cut(self) -> None: ...


class ConnectionTable:
    """All connections of a native server, and what they share. Belongs to one event loop."""

    __slots__ = (
        "_addresses",
        "_empty",
        "_last_turn",
        "_per_address",
        "_per_address_max",
        "_receive_bytes",
        "_receive_bytes_max",
        "_stalled",
        "_tick_s",
        "_timer",
        "_waiting",
        "answered",
        "app",
        "body_s",
        "connections",
        "connections_max",
        "draining",
        "encoder",
        "eof_s",
        "events",
        "exchanges",
        "expects_proxy_header",
        "handshake_s",
        "header_s",
        "heads",
        "is_rate_limited",
        "keepalive_s",
        "limits",
        "linger_s",
        "loop",
        "now",
        "opening",
        "origin_lines",
        "pipeline_max",
        "proxies",
        "stall_s",
        "tls",
        "turn",
        "unmeasured",
    )

    def __init__(
        self,
        app: Application,
        settings: Settings,
        loop: asyncio.AbstractEventLoop,
        tls: Tls | None = None,
        *,
        traffic: Traffic | None = None,
        exchanges: Exchanges | None = None,
    ) -> None:
        self.app = app
        self.answered = (traffic or Traffic()).routes.answered
        self.exchanges = exchanges
        self.turn = 0  # requests so far
        self.unmeasured = 0  # of so many and one more requests, one is measured
        self._last_turn = 0
        self.loop = loop
        self.limits = ParserLimits(settings)
        self.encoder = ResponseEncoder(fixed_headers(settings))
        self.origin_lines = origin_lines(settings)
        self.is_rate_limited = counts_requests(settings)
        self._per_address_max = settings.connections_per_address_max
        self._addresses: dict[asyncio.BaseTransport, str] = {}
        self._per_address: dict[str, int] = {}
        self.heads = HeadCache(line_bytes_max=settings.request_line_bytes_max)
        self.tls = tls
        self.proxies = Proxies(settings.trusted_proxies)
        self.expects_proxy_header = settings.proxy_protocol
        self.opening: set[Opening | TlsTransport] = set()  # before their first request
        self.connections: set[Connection] = set()
        self.events: set[EventConnection] = set()
        self.connections_max = settings.connections_max
        self.pipeline_max = settings.pipeline_max
        self.draining = False
        self._empty = asyncio.Event()
        shortest = min(
            settings.header_timeout_s,
            settings.body_timeout_s,
            settings.keepalive_timeout_s,
            settings.write_stall_timeout_s,
            settings.tls_handshake_timeout_s,
        )
        tick_s = self._tick_s = min(0.5, max(0.01, shortest / 4))
        # Deadlines are counted from the last tick, so one tick is added: never early, a bit late.
        self.header_s = settings.header_timeout_s + tick_s
        self.body_s = settings.body_timeout_s + tick_s
        self.handshake_s = settings.tls_handshake_timeout_s + tick_s
        self.keepalive_s = settings.keepalive_timeout_s + tick_s
        self.stall_s = settings.write_stall_timeout_s + tick_s
        self.linger_s = LINGER_S + tick_s
        self.eof_s = EOF_GRACE_S + tick_s
        self.now = loop.time()
        self._receive_bytes = 0
        self._receive_bytes_max = settings.receive_bytes_max
        self._waiting: dict[Connection, float] = {}
        self._stalled: dict[Writing, tuple[int, float]] = {}
        self._timer: asyncio.TimerHandle | None = loop.call_later(tick_s, self._tick)

    def sender(self, transport: asyncio.Transport) -> Sender:
        """Return where the requests of a connection come from, if nothing else says it."""
        address = transport.get_extra_info("peername")
        peer = plain_address(address[0]) if address else ""
        return Sender(peer, is_proxy=self.proxies.trusts(peer))

    def refuse(self, head: Request) -> Response | None:
        head.sender = self.proxies.client(head.sender, head.headers)
        try:
            return self.app.refuse(head)
        except Exception as error:  # noqa: BLE001 - becomes the response
            return error_response(error, head)

    # The connections

    def count(self) -> int:
        return len(self.connections) + len(self.events) + len(self.opening)

    def opened(self, transport: asyncio.BaseTransport, peer: str) -> int:
        """Count a connection from an address; return how many too many there are from there."""
        if not self._per_address_max:
            return 0
        address = self._addresses[transport] = site(peer)
        count = self._per_address[address] = self._per_address.get(address, 0) + 1
        return count - self._per_address_max

    def closed(self, transport: asyncio.BaseTransport | None) -> None:
        """Note that a transport is gone, whichever protocol it belonged to at the end."""
        if not self._per_address_max or transport is None:
            return
        address = self._addresses.pop(transport, None)
        if address is None:
            return
        count = self._per_address[address] - 1
        if count:
            self._per_address[address] = count
        else:
            del self._per_address[address]

    def connection_gone(self) -> None:
        """Note that a connection has gone from `connections`, `events` or `opening`."""
        if not self.count():
            self._empty.set()

    async def emptied(self, timeout_s: float) -> bool:
        """Wait until all connections are gone; return whether they are."""
        if self.count():
            self._empty.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), timeout_s)
        return not self.count()

    def drain(self) -> None:
        """Begin to stop: idle connections close, live readers end, responses say close."""
        self.draining = True
        self.app.drain()
        for events in list(self.events):
            events.finish()
        for connection in list(self.connections):
            connection.drain()
        for opening in list(self.opening):
            opening.cut()

    def stop(self) -> None:
        """Cut the remaining connections and end the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for each in (*self.events, *self.connections, *self.opening):
            each.cut()

    # The sweep

    def _tick(self) -> None:
        self._timer = self.loop.call_later(self._tick_s, self._tick)
        self.measure_some()
        self.sweep()

    def measure_some(self) -> None:
        """Choose how many requests are measured, by how many there were since the last call: where
        there are many, one stands for several, and measuring costs them next to nothing."""
        is_busy = self.turn - self._last_turn > BUSY_REQUESTS_PER_S * self._tick_s
        self.unmeasured = UNMEASURED_BUSY if is_busy else 0
        self._last_turn = self.turn

    def sweep(self) -> None:
        """Enforce every deadline that has passed."""
        now = self.now = self.loop.time()
        for connection in [each for each in self.connections if each.deadline <= now]:
            connection.overdue()
        for opening in [each for each in self.opening if each.deadline <= now]:
            opening.overdue()
        for writing, (progress, deadline) in list(self._stalled.items()):
            current = writing.progress()
            if current > progress:
                self._stalled[writing] = (current, now + self.stall_s)
            elif deadline <= now:
                self._stalled.pop(writing, None)
                writing.cut()
        if self._waiting:
            self.resume_waiting()

    def stalled(self, writing: Writing) -> None:
        """Note that the client of `writing` is behind: from now on it must take bytes in time."""
        self._stalled[writing] = (writing.progress(), self.now + self.stall_s)

    def flowing(self, writing: Writing) -> None:
        self._stalled.pop(writing, None)

    # The receive budget

    def account(self, change: int) -> bool:
        """Count body bytes held (or released); False while there is no room for more."""
        self._receive_bytes += change
        has_room = self._receive_bytes <= self._receive_bytes_max
        if change < 0 and has_room and self._waiting:
            self.loop.call_soon(self.resume_waiting)
        return has_room

    def wait_for_room(self, connection: Connection) -> None:
        """Note that `connection` has stopped reading until the budget has room."""
        self._waiting.setdefault(connection, self.now + self._tick_s + ROOM_GRACE_S)

    def stop_waiting(self, connection: Connection) -> None:
        self._waiting.pop(connection, None)

    def resume_waiting(self) -> None:
        """Resume those that wait, oldest first; refuse those whose grace has passed."""
        for connection, deadline in list(self._waiting.items()):
            if self._receive_bytes <= self._receive_bytes_max:
                self._waiting.pop(connection, None)
                connection.resume()
            elif deadline <= self.now:
                self._waiting.pop(connection, None)
                connection.overloaded()
