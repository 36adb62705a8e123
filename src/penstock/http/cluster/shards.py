"""The shards that this node owns, as requests find them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.errors import PenstockError
from penstock.protocol.headers import parse_stream_path
from penstock.protocol.shards import shard_of

if TYPE_CHECKING:
    from penstock.http.cluster.host import ShardHost
    from penstock.http.message import Request
    from penstock.http.route_stats import RouteStats

_PREFIXES: Final = (
    b"/v1/stream/",
    b"/v1/state/",
    b"/v1/table/",
    b"/v1/schema/",
    b"/v1/proxy/",
    b"/v1/follow/",
)
_CONTROL: Final = b"/__ds/"
_OWN: Final = b"__ds"
PATH_BYTES_MAX: Final = 4096
"""A longer path is refused by whichever shard it reaches."""


def shard_of_request(path: bytes, shards: int) -> int | None:
    """Return the shard that the stream of a request belongs to; None if it is about no stream. The
    shard that lets it in has the last word."""
    for prefix in _PREFIXES:
        if path.startswith(prefix):
            raw, mark, _ = path[len(prefix) :].partition(_CONTROL)
            if not raw or (mark and raw == _OWN):
                return None
            try:
                return shard_of(parse_stream_path(raw, bytes_max=PATH_BYTES_MAX), shards)
            except PenstockError:
                return None
    return None


class LocalShards:
    """The open shards of a node. Belongs to its event loop."""

    def __init__(self, shards: int) -> None:
        self._count = shards
        self.hosts: dict[int, ShardHost] = {}
        self._private: dict[str, ShardHost] = {}
        self._by_route: dict[RouteStats, ShardHost] = {}

    def add_private(self, host: ShardHost) -> None:
        """Let other shards ask one that is being opened."""
        self._private[host.name] = host

    def add(self, host: ShardHost) -> None:
        self.hosts[host.shard] = self._private[host.name] = host
        for stats in host.app.traffic.routes.all:
            self._by_route[stats] = host

    def remove(self, host: ShardHost) -> None:
        if self.hosts.get(host.shard) is host:
            del self.hosts[host.shard]
        if self._private.get(host.name) is host:
            del self._private[host.name]
        self._by_route = {stats: each for stats, each in self._by_route.items() if each is not host}

    def named(self, name: str) -> ShardHost | None:
        """Return the shard of a name, if it is here and answers others."""
        return self._private.get(name)

    def best(self, path: bytes) -> ShardHost | None:
        """Return the shard that a request is about, if it is here; any for one that is about no
        stream, or about all."""
        shard = shard_of_request(path, self._count)
        if shard is None:
            return next(iter(self.hosts.values()), None)
        return self.hosts.get(shard)

    def of(self, request: Request) -> ShardHost | None:
        """Return the shard that has let a request in; None if it is not here any more."""
        route = request.route
        return self.best(request.path) if route is None else self._by_route.get(route[2])
