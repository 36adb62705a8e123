"""One shard on the node that owns it: its store, its engine, its App, its part in the cluster."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.clock import SYSTEM_CLOCK
from penstock.http.access_log import OFF
from penstock.http.cluster.filling import PlannedBody
from penstock.http.cluster.owners import ShardForwarder, ShardOwners, shard_name
from penstock.http.cluster.planning import planned
from penstock.http.exposure import check_exposure
from penstock.http.forwarding.control import Control, ControlApp
from penstock.http.forwarding.part import Part
from penstock.http.forwarding.tails import Tails
from penstock.log.cluster.node import Holding
from penstock.log.cluster.store import ClusterStore
from penstock.log.engine import Engine

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.http.app import App
    from penstock.http.forwarding.forwarder import Fills
    from penstock.http.forwarding.hop import Hops
    from penstock.http.forwarding.owners import Address
    from penstock.http.message import Application, Response
    from penstock.http.watchdog import LoopWatchdog
    from penstock.log.cluster.connections import Connections
    from penstock.log.cluster.node import Node

HANDOVER_S: Final = 10.0
"""How long a shard may take to finish what it has begun when another node is to have it."""
UNDER_WAY_S: Final = 1.0
"""How long answers under way are waited for before a shard is closed."""


class ShardHost:
    """`public` answers clients, `private` other shards; both are there once it is open."""

    def __init__(
        self,
        settings: Settings,
        node: Node,
        shard: int,
        connections: Connections,
        hops: Hops,
        filler: Fills,
        watchdog: LoopWatchdog,
        on_lost: Callable[[], None],
    ) -> None:
        self._node = node
        self.shard = shard
        self.name = shard_name(shard)
        self._settings = settings_of(settings, shard, node.about.shards)
        self._connections = connections
        self._hops = hops
        self._filler = filler
        self._watchdog = watchdog
        self._on_lost = on_lost
        self.part: Part | None = None
        self.app: App
        self.public: Application
        self.private: Application | None = None
        self._under_way = 0
        self._is_idle = asyncio.Event()

    async def open(self) -> bool:
        """Claim the shard and open it; False if another node was quicker. Other shards may be
        answered then, and clients after `join`."""
        from penstock.http.app import open_app

        node, settings = self._node, self._settings
        holding = Holding(node, self.shard, self._connections.sessions)
        store = self._store = ClusterStore(
            settings, clock=SYSTEM_CLOCK, holding=holding, connections=self._connections
        )
        try:
            if await holding.try_claim(store.fenced) is None:
                holding.forget()
                return False
        except BaseException:
            holding.forget()
            raise
        store.on_lost = lambda _: self._on_lost()
        engine = Engine(store, settings, clock=SYSTEM_CLOCK)
        if node.about.shards == 1:
            self.app = await open_app(settings, engine=engine, watchdog=self._watchdog)
            self.public = self.app
            control = Control()
            self._tails = Tails(engine, self.app.streams.reads, settings, self.app.traffic, control)
            self.private = ControlApp(control)
        else:
            owners = ShardOwners(node, self.shard)
            forwarder = ShardForwarder(node, owners, self._hops, hold_s=settings.cluster_hold_s)
            forwarder.filler = self._filler
            self.part = Part(settings, owners, forwarder, owners.first())
            self.app = await open_app(
                settings, engine=engine, elsewhere=self.part.elsewhere, watchdog=self._watchdog
            )
        if self.part is not None:
            try:
                await self.part.attach(self.app)
            except BaseException:
                await self.app.stop(timeout_s=0)
                raise
            self.public, self.private = self.part.public, self.part.private
        return True

    async def join(self) -> None:
        """Learn what other shards store, and wait for those that have to say it. If that fails, or
        is given up, the shard is released."""
        try:
            if self.part is not None:
                await self.part.join()
            check_exposure(self._settings, self.app.access)
        except BaseException:
            await self.close(timeout_s=HANDOVER_S)
            raise

    @property
    def is_owner(self) -> bool:
        return self._store.is_owner

    @property
    def forwarded(self) -> int:
        return 0 if self.part is None else self.part.forwarder.relayed

    def keep(self, owners: set[Address], living: set[Address]) -> None:
        """Wait for nobody at another address any more."""
        if self.part is not None:
            self.part.forwarder.keep(owners, living)

    def during(self, answer: Response | Awaitable[Response]) -> Response | Awaitable[Response]:
        """Note an answer that takes its time: a shard is handed over when they are done."""
        if not isinstance(answer, Coroutine):
            return answer
        self._under_way += 1
        return self._until_done(answer)

    async def _until_done(self, answer: Awaitable[Response]) -> Response:
        try:
            return await answer
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._is_idle.set()

    def planned(self, response: Response) -> Response:
        """Return a response for a node that reads old bytes itself."""
        if isinstance(response.body, PlannedBody):
            return response.body.replanned(response)  # of a stream that lives on a third node
        return planned(response, self.app.engine, self.name)

    async def close(self, *, timeout_s: float | None) -> None:
        """Answer what is waiting, finish, checkpoint and release the shard."""
        self.app.drain()
        self.app.readers.finish()
        if self.part is not None:
            self.part.drain()
        else:
            self._tails.drain()
        if self._under_way and self.is_owner and timeout_s != 0:
            self._is_idle.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(UNDER_WAY_S):
                    await self._is_idle.wait()
        if self.part is not None:
            self.part.close()
        await self.app.stop(timeout_s=timeout_s if self.is_owner else 0)


def settings_of(settings: Settings, shard: int, shards: int) -> Settings:
    """Return the settings of a shard: what there is once for a node is not its own."""
    folder = Path(settings.data_dir)
    if shards > 1:
        folder = folder / shard_name(shard)
    return replace(settings, data_dir=folder, access_log=OFF, otel=False, otel_endpoint="")
