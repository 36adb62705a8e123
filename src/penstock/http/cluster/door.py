"""The Application at the address for nodes: what they forward to the shards of this one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from penstock.errors import NotOwner, PenstockError
from penstock.http.cluster.front import POKE
from penstock.http.cluster.hold import ELSEWHERE
from penstock.http.forwarding.hop import HEADER
from penstock.http.forwarding.owners import unowned
from penstock.http.message import Request, Response
from penstock.http.problems import error_response, problem

if TYPE_CHECKING:
    from penstock.http.cluster.host import ShardHost
    from penstock.http.cluster.shards import LocalShards
    from penstock.http.forwarding.hop import Hop, Hops
    from penstock.http.message import Application


def _elsewhere() -> Response:
    """Return the answer to a request for a shard that is not here; nothing was done."""
    error = unowned("This node does not own the shard that was asked for.")
    error.headers[ELSEWHERE.decode()] = "1"
    return problem(error)


async def _planned_later(host: ShardHost, answer: Awaitable[Response]) -> Response:
    return host.planned(await answer)


class Door:
    """Lets in what nodes forward: to the shard that a request names, which forwards nothing again,
    or, if it names none, to the one that it is about. `on_poke` is called when another node has
    released a shard."""

    def __init__(self, hops: Hops, shards: LocalShards, on_poke: Callable[[], None]) -> None:
        self._hops = hops
        self._shards = shards
        self._on_poke = on_poke

    def _hop(self, request: Request) -> Hop | None:
        value = request.headers.get(HEADER)
        return None if value is None else self._hops.parse(value)

    def refuse(self, head: Request) -> Response | None:
        hop = self._hop(head)
        if hop is None:
            return problem(NotOwner("Only nodes of this cluster are answered here."))
        head.sender = hop.sender
        app: Application | None
        if hop.to == POKE:
            self._on_poke()
            return Response(204, [])
        if hop.to:
            host = self._shards.named(hop.to)
            app = None if host is None else host.private
        else:
            host = self._shards.best(head.path)
            app = None if host is None else host.public
        return _elsewhere() if app is None else app.refuse(head)

    def handle(self, request: Request) -> Response | Awaitable[Response]:
        hop = self._hop(request)
        assert hop is not None
        app: Application | None
        if hop.to:
            host = self._shards.named(hop.to)
            app = None if host is None else host.private
        else:
            host = self._shards.of(request)
            app = None if host is None else host.public
        if host is None or app is None:
            return _elsewhere()
        answer = host.during(app.handle(request))
        if not hop.fills:
            return answer
        if isinstance(answer, Response):
            return host.planned(answer)
        return _planned_later(host, answer)

    def unreadable(self, error: PenstockError) -> Response:
        return error_response(error)

    def drain(self) -> None:
        """The shards are drained at the public address."""
