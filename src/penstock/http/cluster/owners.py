"""Which node a path belongs to: the hash of the path names its shard, the last look at the database
the node that owns it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock.http.cluster.hold import held
from penstock.http.forwarding.forwarder import Forwarder
from penstock.http.forwarding.owners import Address, Peer, unowned
from penstock.protocol.shards import shard_of

if TYPE_CHECKING:
    from penstock.http.forwarding.hop import Hops
    from penstock.http.message import Response
    from penstock.log.cluster.node import Node

NOWHERE: Final = Address()
"""The address of a shard that nobody owns."""


def shard_name(shard: int) -> str:
    return f"shard-{shard}"


def shard_number(name: str) -> int:
    return int(name.rpartition("-")[2])


def parse_address(text: str | None) -> Address:
    host, _, port = (text or "").rpartition(":")
    return Address(host=host, port=int(port)) if host and port.isdigit() else NOWHERE


def address_of(node: Node, shard: int) -> Address:
    """Return where the owner of a shard takes what others forward."""
    holding = node.holdings.get(shard)
    if holding is not None and holding.claim is not None:
        return parse_address(node.peer)
    view = node.views.get(shard)
    return NOWHERE if view is None or view.node is None else parse_address(view.seen.peer)


class ShardOwners:
    """The owners of all paths among the shards of a cluster, as `forwarding` asks one of them."""

    __slots__ = ("_index", "_node", "name")

    def __init__(self, node: Node, index: int) -> None:
        self._node = node
        self._index = index
        self.name = shard_name(index)

    def _peer(self, shard: int) -> Peer:
        return Peer(shard_name(shard), address_of(self._node, shard))

    def owner(self, path: str) -> Peer | None:
        shard = shard_of(path, self._node.about.shards)
        return None if shard == self._index else self._peer(shard)

    def peers(self) -> Sequence[Peer]:
        return [
            self._peer(shard) for shard in range(self._node.about.shards) if shard != self._index
        ]

    def peer(self, name: str) -> Peer | None:
        kind, _, number = name.rpartition("-")
        # A folder of workers that was imported names them: worker 3 is shard 3.
        is_known = kind in ("shard", "worker") and number.isdigit()
        if not is_known or int(number) >= self._node.about.shards:
            raise unowned(f"There is no {name}.")
        return None if int(number) == self._index else self._peer(int(number))

    def first(self) -> Peer | None:
        """Return the shard that keeps what there is once for the whole cluster."""
        return None if self._index == 0 else self._peer(0)


class ShardForwarder(Forwarder):
    """Finds a shard where it is now: it moves, and is waited for meanwhile."""

    __slots__ = ("_hold_s", "_node")

    def __init__(self, node: Node, owners: ShardOwners, hops: Hops, *, hold_s: float) -> None:
        super().__init__(owners, hops)
        self._node = node
        self._hold_s = hold_s

    async def send(self, peer: Peer, message: bytes, *, is_head: bool = False) -> Response:
        send = super().send
        return await held(self._node, self._hold_s, lambda: send(peer, message, is_head=is_head))

    def address(self, peer: Peer) -> Address:
        owner = self._owners.peer(peer.name)
        address = peer.address if owner is None else owner.address
        if address == NOWHERE:
            error = unowned(f"No node of the cluster owns {peer.name} at the moment.")
            error.is_unsent = True
            raise error
        return address
