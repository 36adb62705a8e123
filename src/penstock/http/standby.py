"""The application of a node that owns nothing: it forwards requests to the node that does, and says
of itself that it lives."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from penstock.errors import NotOwner, PenstockError
from penstock.http.documents import document
from penstock.http.forwarding.forwarder import Forwarder, kept
from penstock.http.forwarding.owners import Address, Peer, unowned
from penstock.http.message import Request, Response
from penstock.http.metrics import Metrics
from penstock.http.problems import problem

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from penstock.http.forwarding.hop import Hops

_READS: Final = frozenset(("GET", "HEAD"))


class Standby:
    """An Application that forwards to the owner, one hop. `not_owner` returns the error for the
    time when there is none."""

    def __init__(
        self,
        hops: Hops,
        not_owner: Callable[[], NotOwner],
        metrics: Callable[[], Iterable[Metric]],
    ) -> None:
        self._hops = hops
        self._not_owner = not_owner
        self._metrics = Metrics([metrics])
        self._owner: Peer | None = None
        self._epoch = -1
        self._forwarder = Forwarder(_NoOthers(), hops)
        self._forwarded = 0
        self._reads: set[asyncio.Future[Response]] = set()
        self._is_draining = False

    @property
    def forwarded(self) -> int:
        """Requests that were sent to the owner."""
        return self._forwarded + self._forwarder.relayed

    def follow(self, epoch: int, name: str | None, peer: str | None) -> None:
        """Note who owns the streams. What waits for an owner before is answered that it is gone:
        it may be frozen, and never say so itself."""
        owner = None
        if name is not None and peer:
            host, _, port = peer.rpartition(":")
            owner = Peer(name, Address(host=host, port=int(port)))
        if (epoch, owner) == (self._epoch, self._owner):
            return
        self.close()
        self._epoch, self._owner = epoch, owner
        self._forwarder = Forwarder(_NoOthers(), self._hops)

    def close(self) -> None:
        """Forward nothing any more, and wait for nobody."""
        self._owner = None
        self._forwarded += self._forwarder.relayed
        self._forwarder.close()
        self._forwarder.relayed = 0

    # -- Application

    def refuse(self, head: Request) -> Response | None:
        if self._owner is None and head.path not in _OWN:
            return problem(self._not_owner())
        return None

    def unreadable(self, error: PenstockError) -> Response:
        return problem(error)

    def handle(self, request: Request) -> Response | Awaitable[Response]:
        own = _OWN.get(request.path)
        return self._forward(kept(request)) if own is None else own(self, kept(request))

    def drain(self) -> None:
        """Let no read wait any longer. Writes are answered as soon as the owner has done them."""
        self._is_draining = True
        for read in list(self._reads):
            read.cancel()

    # -- what it does

    async def _forward(self, request: Request) -> Response:
        owner = self._owner
        if owner is None:
            return problem(self._not_owner())
        work = asyncio.ensure_future(self._forwarder.forward(owner, request))
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

    def _alive(self, request: Request) -> Response:
        return document({"status": "ok", "role": "standby"})

    def _ready(self, request: Request) -> Response:
        """A standby takes requests for as long as there is an owner to forward them to."""
        if self._owner is not None and not self._is_draining:
            return document({"status": "ok", "role": "standby"})
        reason = {
            "status": "unavailable",
            "reason": self._not_owner().detail,
            "role": "standby",
        }
        return document(reason, 503)

    async def _show_metrics(self, request: Request) -> Response:
        """Show the metrics of this node to whom the owner would show its own."""
        question = kept(request)
        question.method = "HEAD"
        if (await self._forward(question)).status >= 400:
            return await self._forward(request)  # the owner says why
        return await self._metrics.get("", request)


_OWN: Final[dict[bytes, Callable[[Standby, Request], Response | Awaitable[Response]]]] = {
    b"/healthz": Standby._alive,
    b"/readyz": Standby._ready,
    b"/metrics": Standby._show_metrics,
}
"""What is asked of the node itself."""


class _NoOthers:
    """Owners for a forwarder that is told whom to ask."""

    name = ""

    def owner(self, path: str) -> Peer | None:
        raise unowned("Nobody else is known.")

    def peers(self) -> Sequence[Peer]:
        return []

    def peer(self, name: str) -> Peer | None:
        raise unowned(f"There is no {name}.")
