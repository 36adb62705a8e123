"""The Application of a node: a request goes to the shard that it is about, here or elsewhere; what
is asked of the node itself is answered here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final

from penstock.http.documents import document
from penstock.http.forwarding import merging
from penstock.http.forwarding.forwarder import kept
from penstock.http.message import Request, Response
from penstock.http.metrics import Metrics, render, text_response
from penstock.http.problems import problem

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from penstock.errors import PenstockError
    from penstock.http.cluster.front import Front
    from penstock.http.cluster.host import ShardHost
    from penstock.http.cluster.relays import Relays
    from penstock.http.cluster.shards import LocalShards
    from penstock.log.cluster.node import Node


class NodeApp:
    """An Application over the shards of a node. Requests about shards that are elsewhere are
    forwarded by `front`; live reads of their streams are answered by `relays`."""

    def __init__(
        self,
        node: Node,
        shards: LocalShards,
        front: Front,
        relays: Relays,
        metrics: Callable[[], Iterable[Metric]],
    ) -> None:
        self._node = node
        self._shards = shards
        self._front = front
        self._relays = relays
        self._metrics = Metrics([metrics])
        self._leaving: list[ShardHost] = []
        self._counted: list[Metric] = []  # by shards that have left: counters never fall
        self._is_draining = False

    # -- Application

    def refuse(self, head: Request) -> Response | None:
        if head.path in _OWN and head.method in _READS:
            return None
        host = self._shards.best(head.path)
        return None if host is None else host.public.refuse(head)

    def handle(self, request: Request) -> Response | Awaitable[Response]:
        own = _OWN.get(request.path)
        if own is not None and request.method in _READS:
            return own(self, kept(request))
        host = self._shards.of(request)
        if host is None and request.route is not None:
            # The shard that has let it in has moved on; the next one looks at it anew.
            request.route = None
            response = self.refuse(request)
            if response is not None:
                return response
            host = self._shards.of(request)
        if host is None:
            if self._relays.takes(request):
                return self._relays.answer(kept(request))
            return self._front.forward(kept(request))
        return host.during(host.public.handle(request))

    def unreadable(self, error: PenstockError) -> Response:
        return problem(error)

    def drain(self) -> None:
        """Let no read wait any longer."""
        self._is_draining = True
        self._front.drain()
        self._relays.drain()
        for host in self._shards.hosts.values():
            host.app.drain()

    # -- shards that leave

    def leaves(self, host: ShardHost) -> None:
        """Note that a shard is being closed: what it counts is still shown."""
        self._leaving.append(host)

    def has_left(self, host: ShardHost) -> None:
        self._leaving.remove(host)
        self._counted = merging.counters((self._counted, host.app.collect()))

    # -- about the node

    @property
    def _role(self) -> str:
        return "owner" if self._shards.hosts else "standby"

    def _unready(self) -> str | None:
        """Return why the node takes no requests; None if it does."""
        if self._is_draining:
            return "The node is stopping."
        if not self._node.sees():
            return "PostgreSQL does not answer this node."
        if not self._node.has_all_owners():
            return "Nobody owns a part of the streams at the moment."
        return None

    def _alive(self, request: Request) -> Response:
        return document({"status": "ok", "role": self._role})

    def _ready(self, request: Request) -> Response:
        """Any node takes any request for as long as every shard has an owner."""
        reason = self._unready()
        if reason is None:
            return document({"status": "ok", "role": self._role})
        return document({"status": "unavailable", "reason": reason, "role": self._role}, 503)

    async def _show_metrics(self, request: Request) -> Response:
        """Show the metrics of this node to whom its shards, or another node, would show theirs."""
        host = next(iter(self._shards.hosts.values()), None)
        question = kept(request)
        if host is not None:
            refusal = host.app.refuse(question)
            if refusal is not None:
                return refusal
        else:
            question.method = "HEAD"
            if (await self._front.forward(question)).status >= 400:
                return await self._front.forward(request)  # the owner says why
        response = text_response(await asyncio.to_thread(render, await self.collect()))
        return response if host is None else host.app.traffic.count(request.method, response)

    async def collect(self) -> list[Metric]:
        """Return the metrics of this node and of all its shards."""
        parts = [self._metrics.all()]
        for host in list(self._shards.hosts.values()):
            parts.append(list(host.app.collect()))
            await asyncio.sleep(0)  # each takes a millisecond or so
        left = [self._counted, *(list(host.app.collect()) for host in self._leaving)]
        return await asyncio.to_thread(_merged, parts, left)

    def collect_last(self) -> list[Metric]:
        """Return the metrics of this node when all shards have left."""
        return _merged([self._metrics.all()], [self._counted])


def _merged(parts: list[list[Metric]], left: list[list[Metric]]) -> list[Metric]:
    return merging.families([*parts, merging.counters(left)], of_one_process=True)


_OWN: Final[dict[bytes, Callable[[NodeApp, Request], Response | Awaitable[Response]]]] = {
    b"/healthz": NodeApp._alive,
    b"/readyz": NodeApp._ready,
    b"/metrics": NodeApp._show_metrics,
}
"""What is asked of the node itself."""
_READS: Final = frozenset(("GET", "HEAD"))
