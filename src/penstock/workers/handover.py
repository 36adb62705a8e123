"""Connections that go from one worker to another with their socket, so that later requests of the
client need no hop.

A connection is handed over with a whole request and nothing else in flight. The bytes of the
request go along, and the other worker goes on as if the client had connected to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from penstock.http.forwarding.routed_app import Forward
from penstock.http.native.connection import Connection
from penstock.http.native.noted_connection import NotedConnection
from penstock.http.native.request_parser import IDLE
from penstock.workers.sockets import private_socket

if TYPE_CHECKING:
    from penstock.http.native.connections import ConnectionTable
    from penstock.http.native.request_head import NativeRequest

log = logging.getLogger("penstock.workers")

HANDOVERS_MAX: Final = 4
"""Times that a connection changes hands: one that asks for the streams of many workers stays, and
its requests are forwarded."""
REQUEST_BYTES_MAX: Final = 32 * 1024
"""Bytes of a request that goes along; a longer one is forwarded."""
TAKEN_PER_TURN: Final = 64
"""Connections that are taken before others get the event loop."""

_HEAD: Final = struct.Struct("!B")  # how often the connection has changed hands
_DROPPED: Final = frozenset({b"content-length", b"expect", b"transfer-encoding"})


class Giver:
    """Sends connections to the other workers."""

    __slots__ = ("_path_of", "_sockets", "given")

    def __init__(self, path_of: Callable[[str], str]) -> None:
        self._path_of = path_of
        self._sockets: dict[str, socket.socket] = {}
        self.given = 0

    def give(self, name: str, fd: int, data: bytes, times: int) -> bool:
        """Send a connection to a worker; False if it does not take it now."""
        try:
            sock = self._sockets.get(name)
            if sock is None:
                sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                sock.setblocking(False)
                sock.connect(self._path_of(name))
                self._sockets[name] = sock
            socket.send_fds(sock, [_HEAD.pack(times) + data], [fd])
        except BlockingIOError:
            return False
        except OSError:
            # The worker has gone, or is another process by now.
            with contextlib.suppress(KeyError):
                self._sockets.pop(name).close()
            return False
        self.given += 1
        return True

    def close(self) -> None:
        for sock in self._sockets.values():
            sock.close()


class Taker:
    """Takes connections from the other workers into a table."""

    __slots__ = ("_giver", "_loop", "_sock", "_table", "_tasks", "taken")

    def __init__(self, path: str, table: ConnectionTable, giver: Giver) -> None:
        self._table = table
        self._giver = giver
        self._loop = table.loop
        self._sock = private_socket(path, socket.SOCK_DGRAM)
        self._loop.add_reader(self._sock.fileno(), self._readable)
        self._tasks: set[asyncio.Task[None]] = set()
        self.taken = 0

    def _readable(self) -> None:
        for _ in range(TAKEN_PER_TURN):
            try:
                data, fds, _, _ = socket.recv_fds(self._sock, _HEAD.size + REQUEST_BYTES_MAX, 1)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                log.error("cannot take a connection of another worker: %s", error)
                return
            for fd in fds:
                self.taken += 1
                task = self._loop.create_task(self._adopt(socket.socket(fileno=fd), data))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _adopt(self, sock: socket.socket, data: bytes) -> None:
        (times,) = _HEAD.unpack_from(data)
        sock.setblocking(False)
        first = data[_HEAD.size :]
        try:
            await self._loop.connect_accepted_socket(
                lambda: Arrival(connect(self._giver, self._table, times=times), first), sock
            )
        except OSError:
            sock.close()  # The client has gone meanwhile.

    def close(self) -> None:
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()


class Arrival(asyncio.Protocol):
    """A connection that has just been taken: it begins with bytes that were read before."""

    __slots__ = ("_connection", "_first")

    def __init__(self, connection: Connection, first: bytes) -> None:
        self._connection = connection
        self._first = first

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        flow = cast(asyncio.Transport, transport)
        flow.set_protocol(cast(asyncio.BaseProtocol, self._connection))
        self._connection.connection_made(flow)
        if not flow.is_closing():
            self._connection.data_received(self._first)


class _Gone(asyncio.Protocol):
    """The protocol of a transport whose connection belongs to another worker."""


class _Handing(Connection):
    """A Connection that goes to the worker that owns what is asked for."""

    __slots__ = ()
    giver: Giver
    times: int

    def _run(self, request: NativeRequest) -> None:
        route = request.route
        if route is not None and route[0].__class__ is Forward and self._is_alone(request):
            data = encode(request, route[0].query)
            if len(data) <= REQUEST_BYTES_MAX and self._give(route[0].peer.name, data):
                return
        super()._run(request)

    def _is_alone(self, request: NativeRequest) -> bool:
        """Whether nothing but this request is going on, so that the socket can change hands."""
        parser, transport = self._parser, self._transport
        return (
            self.times < HANDOVERS_MAX
            and transport is not None
            and request.keep_alive
            and request.refusal is None
            and not (request.http_1_0 or parser.ready or self._unparsed or self._eof)
            and parser.phase == IDLE
            and not parser.finished
            and not (self._closing or self._paused or self._table.draining)
            and transport.get_write_buffer_size() == 0
        )

    def _give(self, name: str, data: bytes) -> bool:
        transport = self._transport
        assert transport is not None
        sock = transport.get_extra_info("socket")
        if sock is None or not self.giver.give(name, sock.fileno(), data, self.times + 1):
            return False
        self._table.closed(transport)
        self._release()
        transport.set_protocol(_Gone())
        transport.abort()  # closes this process's descriptor; the connection goes on elsewhere
        return True


class HandedConnection(_Handing):
    """One whose requests are not written down."""

    __slots__ = ("giver", "times")

    def __init__(self, table: ConnectionTable, giver: Giver, times: int = 0) -> None:
        super().__init__(table)
        self.giver = giver
        self.times = times


class NotedHandedConnection(_Handing, NotedConnection):
    """One whose requests are written down, by the worker that answers them."""

    __slots__ = ("giver", "times")

    def __init__(self, table: ConnectionTable, giver: Giver, times: int = 0) -> None:
        super().__init__(table)
        self.giver = giver
        self.times = times


def connect(giver: Giver, table: ConnectionTable, *, times: int = 0) -> Connection:
    """Return a new connection of a table."""
    if table.exchanges is None:
        return HandedConnection(table, giver, times)
    return NotedHandedConnection(table, giver, times)


def encode(request: NativeRequest, query: bytes | None) -> bytes:
    """Return a request as the client could have sent it, for the worker that takes it."""
    query = request.query if query is None else query
    target = b"%b?%b" % (request.path, query) if query else request.path
    lines = [b"%b: %b" % item for item in request.headers.items() if item[0] not in _DROPPED]
    if request.body or b"content-length" in request.headers:
        lines.append(b"content-length: %d" % len(request.body))
    first = b"%b %b HTTP/1.1" % (request.method.encode(), target)
    return b"\r\n".join((first, *lines, b"", request.body))
