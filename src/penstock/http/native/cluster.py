"""A node of a cluster as a server: a standby until it owns the streams, and again when it does not.

Each role has servers of its own on the same sockets, one for clients and one for other nodes, so
that nothing of a former owner is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from penstock import __version__
from penstock.clock import SYSTEM_CLOCK
from penstock.errors import ClusterRefused, ClusterUnavailable, NotOwner
from penstock.http.exposure import check_exposure
from penstock.http.forwarding.door import Door
from penstock.http.forwarding.hop import Hops
from penstock.http.native.peer_server import PeerServer
from penstock.http.native.server import Server, listen, url_of
from penstock.http.shutdown import StopClock
from penstock.http.standby import Standby
from penstock.log.cluster.node import Node, View
from penstock.log.cluster.store import ClusterStore
from penstock.log.engine import Engine

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from penstock.config.settings import Settings
    from penstock.http.app import App
    from penstock.http.native.tls import Tls

log = logging.getLogger("penstock.http")

CHANGE_S: Final = 0.5
"""How long requests of the former role may finish."""
_ANY_HOST: Final = frozenset(("", "0.0.0.0", "::"))  # noqa: S104 - what is refused


class ClusterNode:
    def __init__(
        self,
        settings: Settings,
        listening: socket.socket,
        tls: Tls | None,
        stopping: asyncio.Future[StopClock],
    ) -> None:
        self._settings = settings
        self._listening = listening
        self._tls = tls
        self._stopping = stopping
        self.node = Node(settings)
        self.node.url = self.node.url or url_of(listening, is_tls=tls is not None)
        self._forwarded = 0
        self._standby: Standby | None = None

    def _listen_for_peers(self) -> socket.socket:
        """Return the socket for other nodes, who find it at the host of this node's URL."""
        host = urlsplit(self.node.url).hostname or ""
        if host in _ANY_HOST:
            raise ClusterRefused(
                f"Other nodes cannot reach this one at {self.node.url}. Set cluster_node_url to a "
                "URL with a host that they can."
            )
        peers = listen(self._settings.host, self._settings.cluster_peer_port)
        self.node.peer = f"{host}:{peers.getsockname()[1]}"
        return peers

    async def run(self, on_ready: Callable[[Server], None]) -> None:
        """Serve until the node is stopped; `on_ready` is called when it listens."""
        with contextlib.closing(self._listen_for_peers()) as self._peers:
            await self.node.join(__version__)
            self._hops = Hops(self.node.secret)
            try:
                while not self._stopping.done():
                    app = await self._stand_by(on_ready)
                    on_ready = _nothing
                    if app is not None:
                        await self._own(app)
            finally:
                await self.node.leave()

    async def _stand_by(self, on_ready: Callable[[Server], None]) -> App | None:
        """Serve as a standby until the streams are this node's; None if it is to stop."""
        standby = self._standby = Standby(self._hops, self.node.not_owner, self._metrics)
        self.node.on_look = self._looked
        door = PeerServer(Door(self._hops, None, self.node.not_owner), self._settings)
        await door.start(self._peers.dup())
        server = Server(standby, self._settings, self._tls)
        await server.start(self._listening.dup())
        on_ready(server)
        opening = asyncio.ensure_future(self._open())
        try:
            await _first(opening, self._stopping)
            if opening.done():
                return opening.result()
            return None
        except (NotOwner, ClusterUnavailable) as error:
            log.warning("The streams could not be opened, and are claimed again: %s", error)
            return None
        finally:
            self.node.on_look = None
            await self._cancel(opening)
            if opening.done() and not self._stopping.done():
                standby.close()  # the owner that it knows is none any more
            door.close()
            await server.stop(self._clock())
            standby.close()
            self._forwarded += standby.forwarded
            self._standby = None

    def _looked(self, view: View) -> None:
        if self._standby is not None:
            is_other = view.node is not None and view.node != self.node.name
            self._standby.follow(view.epoch, view.node if is_other else None, view.peer)

    async def _open(self) -> App:
        from penstock.http.app import open_app

        store = ClusterStore(self._settings, clock=SYSTEM_CLOCK, node=self.node)
        return await open_app(
            self._settings, engine=Engine(store, self._settings, clock=SYSTEM_CLOCK)
        )

    async def _cancel(self, opening: asyncio.Future[App]) -> None:
        if not opening.done():
            opening.cancel()
            with contextlib.suppress(asyncio.CancelledError, NotOwner, ClusterUnavailable):
                app = await opening
                await app.stop(timeout_s=self._clock().checkpoint_s())

    async def _own(self, app: App) -> None:
        """Serve as the owner until another node is, or this one is to stop."""
        store = app.engine.store
        assert isinstance(store, ClusterStore)
        lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        store.on_lost = lambda _: None if lost.done() else lost.set_result(None)
        if not store.is_owner:
            lost.set_result(None)
        try:
            check_exposure(self._settings, app.access)
            app.add_metrics(self._metrics)
            door = PeerServer(Door(self._hops, app, self.node.not_owner), self._settings)
            await door.start(self._peers.dup())
            server = Server(
                app, self._settings, self._tls, traffic=app.traffic, exchanges=app.exchanges
            )
            await server.start(self._listening.dup())
            try:
                await _first(lost, self._stopping)
            finally:
                clock = self._clock()
                await asyncio.gather(server.stop(clock), door.stop(clock))
        finally:
            stop_s = self._stopping.result().checkpoint_s() if self._stopping.done() else None
            await app.stop(timeout_s=stop_s if store.is_owner else 0)

    def _metrics(self) -> list[Metric]:
        forwarded = self._forwarded
        if self._standby is not None:
            forwarded += self._standby.forwarded
        return [
            GaugeMetricFamily(
                "penstock_cluster_shards_owned",
                "Shards of the cluster that this node owns.",
                value=int(self.node.claim is not None),
            ),
            GaugeMetricFamily(
                "penstock_cluster_lease",
                "1 while this node may say that readers are up to date.",
                value=int(self.node.is_current()),
            ),
            CounterMetricFamily(
                "penstock_cluster_forwarded_requests",
                "Requests that this node sent to the one that owns the stream.",
                value=forwarded,
            ),
        ]

    def _clock(self) -> StopClock:
        return self._stopping.result() if self._stopping.done() else StopClock(CHANGE_S)


async def _first(*futures: asyncio.Future[Any]) -> None:
    """Return when one of some futures is done."""
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


def _nothing(server: Server) -> None:
    """The node has said already that it listens."""
