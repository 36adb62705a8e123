"""Which worker owns a path: the hash of the path, over the number of workers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from penstock.http.forwarding.owners import Address, Peer, unowned
from penstock.protocol.shards import shard_of


def worker_name(index: int) -> str:
    return f"worker-{index}"


def requests_socket(folder: str, index: int) -> str:
    """Return the path of the socket where a worker takes requests of its siblings."""
    return str(Path(folder) / f"{index}.http")


def connections_socket(folder: str, index: int) -> str:
    """Return the path of the socket where a worker takes connections from its siblings."""
    return str(Path(folder) / f"{index}.fd")


class HashOwners:
    """The owners of all paths among the workers of one server, as `forwarding` asks for them."""

    __slots__ = ("_count", "_index", "_peers", "name")

    def __init__(self, index: int, count: int, sockets: str) -> None:
        self._index = index
        self._count = count
        self.name = worker_name(index)
        self._peers = [
            Peer(worker_name(each), Address(path=requests_socket(sockets, each)))
            for each in range(count)
        ]

    def owner(self, path: str) -> Peer | None:
        index = shard_of(path, self._count)
        return None if index == self._index else self._peers[index]

    def peers(self) -> Sequence[Peer]:
        return [peer for peer in self._peers if peer.name != self.name]

    def peer(self, name: str) -> Peer | None:
        # A cluster that was exported names its shards: shard 3 is worker 3.
        name = name.replace("shard-", "worker-")
        for peer in self._peers:
            if peer.name == name:
                return None if name == self.name else peer
        raise unowned(f"There is no {name}.")

    def first(self) -> Peer | None:
        """Return the worker that keeps what there is once for the whole server."""
        return None if self._index == 0 else self._peers[0]
