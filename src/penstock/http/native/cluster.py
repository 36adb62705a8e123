"""A node of a cluster as a server: it looks who owns what, opens the shards that are its own, hands
over those that are another's, and serves all the time."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from penstock import __version__
from penstock.errors import ClusterRefused, ClusterUnavailable, Damaged, NotOwner, StoreError
from penstock.http.access_log import OFF, AccessLog
from penstock.http.cluster.door import Door
from penstock.http.cluster.filling import Filler
from penstock.http.cluster.front import POKE_S, Front
from penstock.http.cluster.host import HANDOVER_S, ShardHost
from penstock.http.cluster.node_app import NodeApp
from penstock.http.cluster.node_metrics import node_metrics
from penstock.http.cluster.owners import address_of, parse_address
from penstock.http.cluster.relays import Relays
from penstock.http.cluster.shards import LocalShards
from penstock.http.exchange import exchanges_for
from penstock.http.forwarding.hop import Hops
from penstock.http.metrics import (
    access_log_metrics,
    connection_metrics,
    loop_metrics,
    route_metrics,
    tier_stats_metrics,
)
from penstock.http.native.head_cache import HeadCache
from penstock.http.native.peer_server import PeerServer
from penstock.http.native.server import Server, listen, url_of
from penstock.http.otel.telemetry import open_telemetry
from penstock.http.traffic import Traffic
from penstock.http.watchdog import LoopWatchdog
from penstock.log.cluster.connections import Connections
from penstock.log.cluster.database import OutcomeUnknown, Refused
from penstock.log.cluster.node import WATCH_S, Node, assigned

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from penstock.config.settings import Settings
    from penstock.http.native.tls import Tls
    from penstock.http.shutdown import StopClock

log = logging.getLogger("penstock.http")

HANDOVERS: Final = 4
"""Shards that are opened or handed over at a time."""
POKES: Final = 3
"""Pokes in a row that the node with the first shard leaves without an answer, before it counts as
out of reach."""
LEAVE_S: Final = 1.0
"""How long a node that stops waits for others to notice that it has nothing any more."""
REST_S: Final = 5.0
"""When a shard that cannot be opened is tried again."""
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
        self._busy: dict[int, asyncio.Task[None]] = {}
        self._opening: set[asyncio.Task[None]] = set()
        self._starting: set[ShardHost] = set()
        self._resting: dict[int, float] = {}
        self._coming_back: asyncio.Task[None] | None = None
        self._room = asyncio.Semaphore(HANDOVERS)
        self._look_now = asyncio.Event()
        self._failed: asyncio.Future[None] = stopping.get_loop().create_future()
        self._forwarded = self._opened = 0
        self._has_closed = False  # a shard, since the last collection

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
        async with contextlib.AsyncExitStack() as undo:
            peers = undo.enter_context(contextlib.closing(self._listen_for_peers()))
            await self.node.join(__version__, shards=self._settings.cluster_shards)
            undo.push_async_callback(self.node.leave)
            self._open_parts()
            undo.push_async_callback(self._connections.close)
            self._watchdog.start()
            undo.callback(self._watchdog.close)
            door = PeerServer(Door(self._hops, self._shards, self._look_now.set), self._settings)
            undo.callback(door.close)
            await door.start(peers.dup())
            await self._server.start(self._listening.dup())
            on_ready(self._server)
            managing = asyncio.create_task(self._manage())
            try:
                await asyncio.wait(
                    (self._stopping, self._failed), return_when=asyncio.FIRST_COMPLETED
                )
                if self._coming_back is not None:
                    self._coming_back.cancel()
                await self._retire()
            finally:
                managing.cancel()
                for task in self._opening:
                    task.cancel()  # it may wait for another shard
                await asyncio.gather(managing, *self._busy.values(), return_exceptions=True)
                clock = self._stopping.result() if self._stopping.done() else None
                await self._server.stop(clock)
                self._relays.close()
                await self._close_all(timeout_s=None if clock is None else clock.checkpoint_s())
                self._front.close()
                if clock is not None:
                    await door.until_left(min(LEAVE_S, clock.drain_s()))
                if self._access_log is not None:
                    self._access_log.close()
                if self._telemetry is not None:
                    self._telemetry.close(self._app.collect_last)
            if self._failed.done():
                self._failed.result()

    def _open_parts(self) -> None:
        settings, node = self._settings, self.node
        self._hops = Hops(node.about.secret)
        self._connections = Connections(node.open_session, settings)
        self._shards = LocalShards(node.about.shards)
        self._front = Front(node, self._hops, hold_s=settings.cluster_hold_s)
        self._filler = Filler(
            node,
            self._front.forwarder,
            self._connections.extents,
            hold_s=settings.cluster_hold_s,
        )
        self._front.forwarder.filler = self._filler
        self._relays = Relays(node, self._shards, self._front, settings)
        self._access_log = None if settings.access_log == OFF else AccessLog(settings)
        self._telemetry = open_telemetry(settings)
        if self._access_log is not None:
            self._access_log.start()
        self._watchdog = LoopWatchdog(stall_s=settings.loop_stall_ms / 1000)
        self._traffic = Traffic()
        self._app = NodeApp(node, self._shards, self._front, self._relays, self._metrics)
        if self._telemetry is not None:
            self._telemetry.start(self._app.collect)
        self._server = Server(
            self._app,
            settings,
            self._tls,
            traffic=self._traffic,
            exchanges=exchanges_for(self._access_log, self._telemetry),
        )

    # -- which shards are here

    async def _manage(self) -> None:
        """Look at the others, and do what follows from it, until the node stops."""
        while True:
            self._look_now.clear()
            try:
                await self.node.look()
            except (OutcomeUnknown, Refused, ClusterRefused) as error:
                log.warning("This node cannot look at the others: %s", error)
                self.node.end_watching()
            else:
                self._apply()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WATCH_S):
                    await self._look_now.wait()

    def _apply(self) -> None:
        node = self.node
        if node.is_replaced:
            self._fail(
                ClusterRefused(
                    f"Another node has the name {node.name!r}, or this one was silent for a day. "
                    "Give every node its own cluster_node."
                )
            )
            return
        views = node.views.values()
        takeover_s = self._settings.cluster_takeover_s
        owners = {parse_address(view.seen.peer) for view in views if not view.is_free(takeover_s)}
        owners.add(parse_address(node.peer))
        living = {parse_address(peer) for peer in node.living_peers}
        self._front.keep(owners, living)
        # One that is being opened waits for other shards, too.
        for host in (*self._shards.hosts.values(), *self._starting):
            host.keep(owners, living)
        for shard in range(node.about.shards):
            if shard in self._busy:
                continue
            hosted = self._shards.hosts.get(shard)
            if hosted is None:
                if self._is_to_be_opened(shard):
                    self._opening.add(self._begin(shard, self._open(shard)))
            elif not hosted.is_owner:
                self._begin(shard, self._close(hosted, timeout_s=0))
            elif self._is_anothers(shard):
                self._begin(shard, self._hand_over(hosted))

    def _is_to_be_opened(self, shard: int) -> bool:
        """Whether a shard that is not here is to be: it is assigned to this node, or was left
        behind when it was handed over, and is handed over again then."""
        node = self.node
        is_ours = node.wants(shard) or (node.has_left(shard) and not self._stopping.done())
        return is_ours and node.is_free(shard) and not self._rests(shard)

    def _is_anothers(self, shard: int) -> bool:
        """Whether another node that lives is to have a shard. A node that does not see itself among
        the living knows too little to tell."""
        node = self.node
        owner = assigned(shard, node.living)
        is_sure = self._stopping.done() or node.name in node.living
        return is_sure and owner is not None and owner != node.name

    def _rests(self, shard: int) -> bool:
        """Whether a shard could not be opened, and is not to be tried again yet."""
        return asyncio.get_running_loop().time() < self._resting.get(shard, 0.0)

    def _fail(self, error: BaseException) -> None:
        """Stop the node, with an error."""
        if not self._failed.done():
            self._failed.set_exception(error)

    def _begin(self, shard: int, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._busy[shard] = asyncio.create_task(work)

        def ended(_: asyncio.Task[None]) -> None:
            self._busy.pop(shard, None)
            self._look_now.set()
            self._opening.discard(task)
            error = None if task.cancelled() else task.exception()
            if error is not None:
                self._fail(error)
            if not self._busy:
                self._settle()

        task.add_done_callback(ended)
        return task

    def _settle(self) -> None:
        """No shard comes or goes: exclude what there is from later collections, which would hold
        the event loop up for as long as they look at all shards."""
        if self._has_closed:
            self._has_closed = False
            gc.unfreeze()
            gc.collect()
        gc.freeze()

    async def _open(self, shard: int) -> None:
        host = ShardHost(
            self._settings,
            self.node,
            shard,
            self._connections,
            self._hops,
            self._filler,
            self._watchdog,
            self._look_now.set,
        )
        self._starting.add(host)
        try:
            async with self._room:
                if not await host.open():
                    return
            self._shards.add_private(host)
            # Without the room: the shard that it waits for may have to be opened here.
            await self._join(host)
        except BaseException as error:
            self._shards.remove(host)
            if not self._passes(shard, error):
                raise
            return
        finally:
            self._starting.discard(host)
        host.app.egress.tracer = self._telemetry
        self._shards.add(host)
        self._opened += 1
        self._changed()
        # The connections are those of the node: one of its shards has them for all.
        host.app.traffic.connections = partial(self._count_connections, host)
        if self.node.about.shards == 1:
            self._server.table.answered = host.app.traffic.routes.answered

    def _count_connections(self, host: ShardHost) -> int:
        first = next(iter(self._shards.hosts.values()), None)
        return self._server.table.count() if host is first else 0

    async def _join(self, host: ShardHost) -> None:
        """Let a shard learn what the first one stores; ClusterUnavailable if the node that has that
        one does not answer: a node that reaches it has to have the shard."""
        loop = asyncio.get_running_loop()
        joining = asyncio.ensure_future(host.join())
        missed, wait_s = 0, POKE_S
        try:
            while missed < POKES and not joining.done():
                await asyncio.wait((joining,), timeout=wait_s)
                began_s = loop.time()
                if not joining.done():
                    missed = 0 if await self._reaches_first() else missed + 1
                wait_s = max(began_s + POKE_S - loop.time(), 0.0)
            if not joining.done():
                await self._withdraw()
        finally:
            joining.cancel()
            await asyncio.wait((joining,))
        if joining.cancelled():
            raise ClusterUnavailable("The node that has shard 0 cannot be reached from this one.")
        joining.result()

    async def _reaches_first(self) -> bool:
        """Whether nothing lies between this node and the first shard."""
        node = self.node
        view = node.views.get(0)
        if (
            view is None
            or view.node == node.name
            or view.is_free(self._settings.cluster_takeover_s)
        ):
            return True  # it is here, or about to be taken over
        return await self._front.reaches(address_of(node, 0))

    async def _withdraw(self) -> None:
        """Leave shards to nodes that can open them, for as long as this one cannot."""
        log.warning("Shards are left to other nodes: the one with shard 0 cannot be reached.")
        await self.node.retire()
        if self._coming_back is None or self._coming_back.done():
            self._coming_back = asyncio.create_task(self._come_back())

    async def _come_back(self) -> None:
        while True:
            await asyncio.sleep(POKE_S)
            if await self._reaches_first() and await self.node.retire(leaving=False):
                log.info("The node with shard 0 can be reached again.")
                return

    def _passes(self, shard: int, error: BaseException) -> bool:
        """Whether a shard that could not be opened is tried again."""
        if isinstance(
            error, NotOwner | ClusterUnavailable | ClusterRefused | OutcomeUnknown | Refused
        ):
            log.warning("Shard %d could not be opened, and is claimed again: %s", shard, error)
            return True
        if isinstance(error, StoreError | Damaged) and self.node.about.shards > 1:
            # The other shards are served; of this one every node would say the same.
            log.error("Shard %d cannot be opened: %s", shard, error)
            self._resting[shard] = asyncio.get_running_loop().time() + REST_S
            return True
        return False

    async def _hand_over(self, host: ShardHost) -> None:
        """Let another node have a shard. Until it is its turn it is served here."""
        async with self._room:
            await self._close(host, timeout_s=HANDOVER_S)

    async def _close(self, host: ShardHost, *, timeout_s: float | None) -> None:
        """Serve a shard no more, which was lost or is handed over."""
        self._shards.remove(host)
        self._app.leaves(host)
        self._changed()
        self._forwarded += host.forwarded
        await host.close(timeout_s=timeout_s)
        self._app.has_left(host)
        self._has_closed = True
        await self._front.poke()

    def _changed(self) -> None:
        """Requests that were seen before may belong elsewhere now."""
        table = self._server.table
        table.heads = HeadCache(line_bytes_max=self._settings.request_line_bytes_max)

    async def _retire(self) -> None:
        """Hand everything over to the nodes that go on, which serves requests until the end."""
        if not self._stopping.done():
            return
        await self.node.retire()
        clock = self._stopping.result()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(clock.drain_s()):
                while self._shards.hosts or self._busy:
                    others = [name for name in self.node.living if name != self.node.name]
                    if not others:
                        return
                    self._look_now.set()
                    await asyncio.sleep(0.02)

    async def _close_all(self, *, timeout_s: float | None) -> None:
        hosts = list(self._shards.hosts.values())
        await asyncio.gather(*(self._close(host, timeout_s=timeout_s) for host in hosts))

    def _metrics(self) -> list[Metric]:
        hosts = self._shards.hosts.values()
        forwarded = self._forwarded + self._front.forwarded + sum(h.forwarded for h in hosts)
        metrics = node_metrics(
            self.node, self._connections.lane, len(hosts), self._opened, forwarded
        )
        metrics += self._relays.metrics()
        metrics += self._filler.metrics()
        if self._access_log is not None:
            metrics += access_log_metrics(self._access_log)
        if self._telemetry is not None:
            metrics += self._telemetry.metrics()
        if self.node.about.shards > 1:
            metrics += route_metrics(self._traffic.routes.all)
        if self._connections.tier is not None:
            metrics += tier_stats_metrics(self._connections.tier)
        if not hosts:  # which would show them
            metrics += loop_metrics(self._watchdog)
            metrics += connection_metrics(self._traffic)
        return metrics
