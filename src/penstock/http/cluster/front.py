"""The way of a request from a node that owns nothing to one that owns its shard: one hop there, and
its answer back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock.errors import PenstockError
from penstock.http.cluster.hold import held
from penstock.http.cluster.owners import NOWHERE, address_of, parse_address
from penstock.http.cluster.shards import shard_of_request
from penstock.http.forwarding.forwarder import Forwarder
from penstock.http.forwarding.owners import Peer, unowned
from penstock.http.problems import problem

if TYPE_CHECKING:
    from penstock.http.forwarding.hop import Hops
    from penstock.http.forwarding.owners import Address
    from penstock.http.message import Request, Response
    from penstock.log.cluster.node import Node

_READS: Final = frozenset(("GET", "HEAD"))
ANY: Final = ""
"""The name of a peer that may answer by any of its shards."""
POKE: Final = "look"
"""The name of a peer that is only told to look at the shards: one of them was released."""
POKE_S: Final = 1.0
"""How long a node may take to answer that it was told."""


class Front:
    """Forwards requests to nodes that own something."""

    def __init__(self, node: Node, hops: Hops, *, hold_s: float) -> None:
        self._node = node
        self._hold_s = hold_s
        self.forwarder = Forwarder(_NoOthers(), hops)
        self._reads: set[asyncio.Future[Response]] = set()
        self._is_draining = False

    @property
    def forwarded(self) -> int:
        return self.forwarder.relayed

    def keep(self, owners: set[Address], living: set[Address]) -> None:
        """Wait for nobody at another address any more."""
        self.forwarder.keep(owners, living)

    def close(self) -> None:
        self.forwarder.close()

    def drain(self) -> None:
        """Let no read wait any longer. Writes are answered as soon as their owner has done them."""
        self._is_draining = True
        for read in list(self._reads):
            read.cancel()

    async def poke(self) -> None:
        """Tell all nodes that live to look at the shards. Those that miss it look soon anyway."""
        own = parse_address(self._node.peer)
        others = {parse_address(peer) for peer in self._node.living_peers} - {NOWHERE, own}
        await asyncio.gather(*(self.reaches(address) for address in others))

    async def reaches(self, address: Address) -> bool:
        """Tell a node to look at the shards; return whether it has answered."""
        try:
            async with asyncio.timeout(POKE_S):
                await self.forwarder.ask(Peer(POKE, address), "POST", b"/")
        except (PenstockError, TimeoutError):
            return False
        return True

    async def _send(self, request: Request) -> Response:
        shard = shard_of_request(request.path, self._node.about.shards) or 0
        address = address_of(self._node, shard)
        if address == NOWHERE:
            error = self._node.not_owner(shard)
            error.is_unsent = True
            raise error
        return await self.forwarder.forward(Peer(ANY, address), request)

    async def forward(self, request: Request) -> Response:
        """Return the answer of the owner; a problem if there is none. Never raises."""
        work = asyncio.ensure_future(held(self._node, self._hold_s, lambda: self._send(request)))
        if request.method in _READS:
            self._reads.add(work)
        try:
            return await work
        except PenstockError as error:
            return problem(error)
        except asyncio.CancelledError:
            if self._is_draining and work.cancelled():
                return problem(unowned("The node that was asked is stopping."))
            raise
        finally:
            self._reads.discard(work)


class _NoOthers:
    """Owners for a forwarder that is told whom to ask."""

    name = ANY

    def owner(self, path: str) -> Peer | None:
        raise unowned("Nobody else is known.")

    def peers(self) -> Sequence[Peer]:
        return []

    def peer(self, name: str) -> Peer | None:
        raise unowned(f"There is no {name}.")
