"""A node of a cluster as a server: a standby until it owns the streams, and again when it does not.

Each role has a server of its own on the same socket, so that nothing of a former owner is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from penstock import __version__
from penstock.clock import SYSTEM_CLOCK
from penstock.errors import ClusterUnavailable, NotOwner
from penstock.http.exposure import check_exposure
from penstock.http.native.server import Server, url_of
from penstock.http.shutdown import StopClock
from penstock.http.standby import Standby
from penstock.log.cluster.node import Node
from penstock.log.cluster.store import ClusterStore
from penstock.log.engine import Engine

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.http.app import App
    from penstock.http.native.tls import Tls

log = logging.getLogger("penstock.http")

CHANGE_S: Final = 0.5
"""How long requests of the former role may finish."""


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

    async def run(self, on_ready: Callable[[Server], None]) -> None:
        """Serve until the node is stopped; `on_ready` is called when it listens."""
        await self.node.join(__version__)
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
        server = Server(Standby(self.node.not_owner), self._settings, self._tls)
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
            await self._cancel(opening)
            await server.stop(self._clock())

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
            server = Server(
                app, self._settings, self._tls, traffic=app.traffic, exchanges=app.exchanges
            )
            await server.start(self._listening.dup())
            try:
                await _first(lost, self._stopping)
            finally:
                await server.stop(self._clock())
        finally:
            stop_s = self._stopping.result().checkpoint_s() if self._stopping.done() else None
            await app.stop(timeout_s=stop_s if store.is_owner else 0)

    def _clock(self) -> StopClock:
        return self._stopping.result() if self._stopping.done() else StopClock(CHANGE_S)


async def _first(*futures: asyncio.Future[Any]) -> None:
    """Return when one of some futures is done."""
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


def _nothing(server: Server) -> None:
    """The node has said already that it listens."""
