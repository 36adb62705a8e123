"""The server at the address for peers: other processes that forward requests to this one.

They keep their connections for as long as both live, and say whom each request comes from.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

from penstock.http.message import Application
from penstock.http.native.connection import Connection
from penstock.http.native.connections import ConnectionTable
from penstock.http.native.response_encoder import ResponseEncoder
from penstock.http.sender import Sender

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.http.shutdown import StopClock

PEER: Final = Sender(is_proxy=True)
"""The sender of connections from peers: their requests are looked at one by one."""
FOREVER_S: Final = 10.0**9
BACKLOG: Final = 1024


class PeerServer:
    """An Application for peers, on a socket that only they are to reach."""

    def __init__(self, app: Application, settings: Settings) -> None:
        kept = replace(
            settings,
            keepalive_timeout_s=FOREVER_S,
            connections_per_address_max=0,
            proxy_protocol=False,
        )
        self._table = ConnectionTable(app, kept, asyncio.get_running_loop())
        # What the process that answers the client adds itself.
        self._table.encoder = ResponseEncoder([])
        self._table.origin_lines = {}
        self._server: asyncio.Server | None = None

    async def start(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        is_unix = sock.family == getattr(socket, "AF_UNIX", None)
        create = loop.create_unix_server if is_unix else loop.create_server
        self._server = await create(self._connect, sock=sock, backlog=BACKLOG)

    def _connect(self) -> asyncio.Protocol:
        return cast(asyncio.Protocol, Connection(self._table, PEER))

    def accept_no_more(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def stop(self, clock: StopClock) -> None:
        """Let requests in flight finish, end live responses, and cut the rest."""
        self.accept_no_more()
        self._table.drain()
        await self._table.emptied(clock.drain_s())
        self._table.stop()

    async def until_left(self, timeout_s: float) -> None:
        """Wait until peers have closed their connections: what they send meanwhile is answered."""
        await self._table.emptied(timeout_s)

    def close(self) -> None:
        """Cut all connections."""
        self.accept_no_more()
        self._table.stop()
