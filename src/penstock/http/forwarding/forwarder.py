"""Sends requests to peers over kept-alive connections, and returns their responses.

Knows addresses and bytes; which peer a request belongs to is decided elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING, Final, Protocol

from penstock.http.forwarding.hop import HEADER, OWNER, Hops
from penstock.http.forwarding.owners import Address, Peer, unowned
from penstock.http.forwarding.peer_connection import PeerConnection
from penstock.http.forwarding.relay import CutOff
from penstock.http.message import Request, Response
from penstock.http.sender import NOWHERE, Sender

if TYPE_CHECKING:
    from penstock.http.forwarding.owners import Owners

IDLE_MAX: Final = 64
"""Connections to one peer that wait for a request."""
CONNECT_S: Final = 5.0
ANSWER_S: Final = 1.0
"""How long an answer may take to come from a peer that has nothing any more. It is refused there
at once, or was waited for before the peer let go."""

_DROPPED: Final = frozenset(
    {
        HEADER,
        b"connection",
        b"content-length",
        b"expect",
        b"http2-settings",
        b"keep-alive",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_WITH_LENGTH: Final = frozenset({"POST", "PUT"})


class Fills(Protocol):
    """Whoever reads old bytes itself, where a peer has only planned the body of a response."""

    async def fill(self, response: Response) -> Response | None:
        """Return a response with its body; None if the peer has to send that, too."""


class Forwarder:
    """The connections to all peers. Belongs to one event loop."""

    __slots__ = (
        "_idle",
        "_is_closed",
        "_left",
        "_open",
        "_owners",
        "filler",
        "hops",
        "relayed",
    )

    def __init__(self, owners: Owners, hops: Hops) -> None:
        self._owners = owners
        self.hops = hops
        self._idle: dict[Address, list[PeerConnection]] = {}
        self._open: dict[PeerConnection, Address] = {}
        self._left: dict[Address, float] = {}  # peers that have nothing, and since when
        self._is_closed = False
        self.filler: Fills | None = None
        self.relayed = 0
        """Requests that were sent to peers."""

    async def forward(self, peer: Peer, request: Request, *, is_local: bool = False) -> Response:
        """Return the response of a peer to a request of a client.

        A peer that is not the owner may name the one that is, which is asked then: once. An answer
        whose OWNER is this process itself is returned as it is. `request` is not a transport's
        own, which drops the body: see `kept`.
        """
        response = await self._filled(peer, request, is_local=is_local)
        name = owner_named(response)
        if name is None or name == self._owners.name:
            return response
        owner = self._owners.peer(name)
        assert owner is not None
        return await self._filled(owner, request, is_local=True)

    async def _filled(self, peer: Peer, request: Request, *, is_local: bool) -> Response:
        filler = self.filler
        if filler is None or request.method != "GET":
            return await self._sent(peer, request, is_local=is_local)
        response = await self._sent(peer, request, is_local=is_local, fills=True)
        filled = await filler.fill(response)
        if filled is None:
            filled = await self._sent(peer, request, is_local=is_local)
        return filled

    async def _sent(
        self, peer: Peer, request: Request, *, is_local: bool, fills: bool = False
    ) -> Response:
        hop = self.hops.value(request.sender, is_local=is_local, to=peer.name, fills=fills)
        message = encode(request, hop)
        return await self.send(peer, message, is_head=request.method == "HEAD")

    async def ask(
        self,
        peer: Peer,
        method: str,
        path: bytes,
        body: bytes = b"",
        *,
        query: bytes = b"",
        headers: dict[bytes, bytes] | None = None,
        sender: Sender = NOWHERE,
    ) -> Response:
        """Return the response of a peer to a request of this process itself."""
        request = Request(
            method, path, query, {b"host": b"localhost", **(headers or {})}, body, sender
        )
        return await self._sent(peer, request, is_local=True)

    async def send(self, peer: Peer, message: bytes, *, is_head: bool = False) -> Response:
        """Send a whole request; NotOwner if the peer is not there, or goes away meanwhile."""
        self.relayed += 1
        is_unsent = True
        try:
            connection = await self._connection(self.address(peer))
            is_unsent = False
            return await connection.exchange(message, is_head=is_head)
        except (CutOff, OSError, TimeoutError):
            error = unowned(
                f"{peer.name or 'A node'} owns what was asked for, and is not there or went away."
            )
            error.is_unsent = is_unsent
            raise error from None

    def address(self, peer: Peer) -> Address:
        """Return where a peer is now."""
        return peer.address

    async def _connection(self, address: Address) -> PeerConnection:
        idle = self._idle.get(address)
        while idle:
            connection = idle.pop()
            if connection.is_open:
                return connection
        loop = asyncio.get_running_loop()
        connection = PeerConnection(self._free, self._lost)
        async with asyncio.timeout(CONNECT_S):
            if address.path:
                await loop.create_unix_connection(lambda: connection, address.path)
            else:
                await loop.create_connection(lambda: connection, address.host, address.port)
        self._open[connection] = address
        return connection

    def _free(self, connection: PeerConnection) -> None:
        address = self._open.get(connection)
        if address is None:
            return
        idle = self._idle.setdefault(address, [])
        if self._is_closed or len(idle) >= IDLE_MAX:
            connection.abort()
        else:
            idle.append(connection)

    def _lost(self, connection: PeerConnection) -> None:
        address = self._open.pop(connection, None)
        idle = None if address is None else self._idle.get(address)
        if idle and connection in idle:
            idle.remove(connection)

    def keep(self, owners: Collection[Address], living: Collection[Address]) -> None:
        """Use the connections to owners again, and no others. A peer that lives and has nothing any
        more may still answer what it was asked; nobody is waited for anywhere else: a peer that is
        gone may be frozen, and never say so."""
        now = asyncio.get_running_loop().time()
        left = {address for address in self._open.values() if address not in owners}
        self._left = {address: self._left.get(address, now) for address in left}
        for address in left:
            self.drop_idle(address)
        for connection, address in list(self._open.items()):
            if address in left and (address not in living or now >= self._left[address] + ANSWER_S):
                connection.abort()

    def drop_idle(self, address: Address) -> None:
        """Use no connection again that is open to an address: nothing came over one of them."""
        for connection in self._idle.pop(address, []):
            connection.abort()

    def close(self) -> None:
        """Cut all connections; responses that are being relayed end with them."""
        self._is_closed = True
        for connection in list(self._open):
            connection.abort()


def owner_named(response: Response) -> str | None:
    """Return the name of the owner in a `not-owner` answer of a peer."""
    if response.status != 503:
        return None
    return next((value.decode() for name, value in response.headers if name == OWNER), None)


def kept(request: Request, query: bytes | None = None) -> Request:
    """Return a copy of a request that is still whole when its transport has dropped the body, which
    it does as soon as a handler returns.

    `query` stands in for that of the request, from which a credential may have been taken."""
    copy = Request(
        request.method,
        request.path,
        request.query if query is None else query,
        request.headers,
        request.body,
        request.sender,
    )
    copy.principal, copy.route, copy.id = request.principal, request.route, request.id
    return copy


def encode(request: Request, hop: bytes) -> bytes:
    """Return a request as its bytes on the way to a peer."""
    query = request.query
    target = b"%b?%b" % (request.path, query) if query else request.path
    headers = request.headers
    # Without a Host it can only be a request of HTTP/1.0.
    version, lines = (b"1.1", []) if b"host" in headers else (b"1.0", [b"connection: keep-alive"])
    lines += [b"%b: %b" % item for item in headers.items() if item[0] not in _DROPPED]
    lines.append(b"%b: %b" % (HEADER, hop))
    if request.body or request.method in _WITH_LENGTH:
        lines.append(b"content-length: %d" % len(request.body))
    first = b"%b %b HTTP/%b" % (request.method.encode(), target, version)
    return b"\r\n".join((first, *lines, b"", request.body))
