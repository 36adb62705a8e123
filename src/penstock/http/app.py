"""The transport-free core: a request value in, a response value out.

Puts the resources together, sends each request to its handler and turns what goes wrong into an
answer. Knows no sockets and no files.
"""

from __future__ import annotations

import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from penstock.clock import SYSTEM_CLOCK
from penstock.errors import (
    BodyTooLarge,
    InvalidOffset,
    InvalidParameter,
    PenstockError,
    RateLimited,
    Unauthorized,
)
from penstock.http.compression import Compressor
from penstock.http.guard import Guard, preflight
from penstock.http.health import Health
from penstock.http.hub_metrics import HubCollector
from penstock.http.message import Later, Request, Response
from penstock.http.metrics import Metrics
from penstock.http.peers import notify
from penstock.http.peers.follow import Follow
from penstock.http.peers.notify import Notify
from penstock.http.peers.reserved import is_owned, not_owned, not_reserved
from penstock.http.query import parse_query
from penstock.http.router import Answer, Methods, Router
from penstock.http.state.schema import Schema
from penstock.http.state.state import State
from penstock.http.streams.listing import Listing
from penstock.http.streams.live import Live
from penstock.http.streams.read import Reads
from penstock.http.streams.resource import Streams
from penstock.http.streams.retention import Keeping
from penstock.http.streams.successor import Successor, leads_on
from penstock.http.subscription_metrics import SubscriptionCollector
from penstock.http.subscriptions import resource, webhook_keys
from penstock.http.subscriptions.resource import Subscriptions as SubscriptionResource
from penstock.http.table_metrics import TableCollector
from penstock.http.tables.declare import TableDeclarations
from penstock.http.tables.live import TableLive
from penstock.http.tables.read import TableReads
from penstock.http.tables.resource import Tables
from penstock.http.traffic import OTHER, Traffic
from penstock.log import open_engine
from penstock.log.stream import SUCCESSOR
from penstock.state.declaration import META, Checks
from penstock.state.server.compaction import Compactor
from penstock.state.server.indexer import StateIndexer
from penstock.stp import declaration as table_declaration
from penstock.stp.server.checks import TableChecks
from penstock.stp.server.notify_hub import Hub
from penstock.stp.server.resets import Resets
from penstock.stp.server.tables import TableDirectory
from penstock.subscriptions.service import Subscriptions

if TYPE_CHECKING:
    from penstock.clock import Clock
    from penstock.config.settings import Settings
    from penstock.log.engine import Engine

_PARAMETERS = frozenset({"offset", "live", "cursor", "until", "count", "splits", "bytes"})
_BOUNDS = ("until", "count", "splits")
_PUBLIC = frozenset({b"/healthz", b"/readyz"})
# The commit thread and the loop hand the interpreter to each other; at the default of 5 ms the
# hand-over dominates the latency of an append.
SWITCH_INTERVAL_S = 0.0005
_GUARDED = {error.status: error.code for error in (Unauthorized, RateLimited, BodyTooLarge)}


async def open_app(settings: Settings) -> App:
    """Open the store, recover what is in it, and return the App over it."""
    engine = open_engine(settings)
    await engine.start()
    try:
        return App(engine, settings)
    except BaseException:
        await engine.stop()
        raise


def shorten_switch_interval() -> None:
    """Let threads of this process hand the interpreter over sooner than by default."""
    sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))


class App:
    """One server's worth of resources over one engine."""

    def __init__(self, engine: Engine, settings: Settings, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._engine = engine
        self._guard = Guard(settings)
        self.traffic = Traffic()
        self._compressor = Compressor(settings.compress_bytes_min)
        self._reads = Reads(engine, settings, self._compressor, self.traffic, clock=clock)
        self._live = Live(engine, settings, self._reads, self.traffic, clock=clock)
        self._health = Health(engine)
        streams = Streams(engine, settings, self.traffic)
        self._keeper = StateIndexer(engine, settings)
        checks = Checks(self._keeper.accepted)
        engine.add_check(META, checks)
        self._keeper.start()
        schema = Schema(engine, self._keeper, self._compressor)
        compactor = Compactor(engine, self._keeper, settings, spares=is_owned)
        engine.retention.compact = compactor.consider
        keeping = Keeping(engine, compactor)
        successor = Successor(engine, settings)
        engine.add_check(SUCCESSOR, successor.check, closes=True, overtakes=leads_on)
        table_checks = TableChecks(Resets(self._keeper, settings), clock=clock)
        engine.add_check(table_declaration.META, table_checks)
        self.tables = TableDirectory(engine, self._keeper, settings)
        self._table_live = TableLive(engine, settings, self.traffic)
        declarations = TableDeclarations(engine, self._keeper, clock=clock)
        tables = Tables(self.tables, declarations, settings, clock=clock)
        table_reads = TableReads(self.tables, self._table_live, self._compressor)
        metrics = Metrics(engine, self.traffic, self._keeper, checks)
        self.hub = Hub(engine, self._keeper, settings, self.tables, clock=clock)
        self.hub.start()
        self._notify = Notify(self.hub, settings, clock=clock)
        follow = Follow(self.hub, settings)
        self.subscriptions = Subscriptions(engine, settings, self.hub.egress, clock=clock)
        self.subscriptions.start()
        subscription = SubscriptionResource(self.subscriptions, settings)
        keys = webhook_keys.WebhookKeys(self.subscriptions)
        metrics.add(HubCollector(self.hub))
        metrics.add(SubscriptionCollector(self.subscriptions))
        metrics.add(TableCollector(tables, self._table_live, table_checks, self.tables.cache))
        self._router = Router(
            streams={
                "GET": self._read,
                "HEAD": streams.head,
                "POST": streams.append,
                "PUT": not_reserved(streams.create),
                "DELETE": not_owned(engine, streams.delete),
            },
            fixed={
                b"/": _readable(self._health.index),
                b"/healthz": _readable(self._health.alive),
                b"/readyz": _readable(self._health.ready),
                b"/metrics": _readable(metrics.get),
                b"/v1/streams": _readable(Listing(engine, settings).get),
                resource.LIST: _readable(subscription.listing),
                webhook_keys.JWKS: _readable(keys.jwks),
                webhook_keys.ROTATE: {"POST": keys.rotate},
            },
            about={
                b"/v1/schema/": {
                    **_readable(schema.get),
                    "PUT": not_reserved(schema.put),
                    "DELETE": not_reserved(schema.delete),
                },
                b"/v1/state/": _readable(State(engine, self._keeper, self._compressor).get),
                b"/v1/table/": {
                    **_readable(table_reads.get),
                    "PUT": not_reserved(tables.put),
                    "POST": tables.post,
                    "DELETE": tables.delete,
                },
                notify.PREFIX: {"POST": self._notify.post},
                resource.PREFIX: {
                    **_readable(subscription.get),
                    "PUT": subscription.put,
                    "POST": subscription.post,
                    "DELETE": subscription.delete,
                },
                b"/v1/follow/": {
                    **_readable(follow.get),
                    "PUT": not_reserved(follow.put),
                    "DELETE": follow.delete,
                },
            },
            behind={
                "trim": {"POST": not_reserved(keeping.trim)},
                "compact": {"POST": not_owned(engine, keeping.compact)},
                "retention": {
                    **_readable(keeping.policy),
                    "PUT": not_reserved(keeping.set_policy),
                    "DELETE": not_reserved(keeping.drop_policy),
                },
                "successor": {
                    **_readable(successor.get),
                    "PUT": not_owned(engine, successor.put),
                    "DELETE": not_owned(engine, successor.drop),
                },
            },
            path_bytes_max=settings.path_bytes_max,
        )

    def refuse(self, head: Request) -> Response | None:
        """The answer to a request that needs no body: preflight, 401, 404, 405, 413, 429."""
        try:
            # A Notify may show other keys than the server's token.
            is_notify = head.path.startswith(notify.PREFIX)
            is_public = is_notify or head.path in _PUBLIC or resource.is_public(head)
            response = self._guard.refuse(head, public=is_public)
            if response is None and is_notify:
                response = self._notify.refuse(head)
            if response is None:
                head.route = self._router.find(head)
                return None
            if response.status in _GUARDED:
                self.traffic.count_error(_GUARDED[response.status])
        except Exception as error:  # noqa: BLE001 - becomes the answer
            response = self.traffic.failed(error)
        return self.traffic.count(head.method, response)

    def unreadable(self, error: PenstockError) -> Response:
        """The answer to input that never became a request."""
        return self.traffic.count(OTHER, self.traffic.failed(error))

    def handle(self, request: Request) -> Answer:
        """Answer a request that was not refused. Never raises."""
        try:
            if request.method == "OPTIONS":
                answer: Answer = preflight()
            else:
                handler, path = request.route or self._router.find(request)
                answer = handler(path, request)
        except Exception as error:  # noqa: BLE001 - becomes the answer
            answer = self.traffic.failed(error)
        if answer.__class__ is Later:
            return answer  # counts itself when it is rendered
        if isinstance(answer, Response):
            return self.traffic.count(request.method, answer)
        assert isinstance(answer, Coroutine)
        return self._finish(request.method, answer)

    def drain(self) -> None:
        """The server is stopping: nobody waits any longer."""
        self._health.draining = True
        self._engine.drain()
        self._live.drain()
        self._table_live.drain()

    def close(self) -> None:
        self.drain()
        self.subscriptions.close()
        self.hub.close()
        self._keeper.close()
        self._compressor.close()

    async def stop(self) -> None:
        """Close the App and stop its engine: the store is free for another process."""
        self.close()
        await self._engine.stop()

    async def _finish(self, method: str, answer: Coroutine[Any, Any, Response]) -> Response:
        try:
            response = await answer
        except Exception as error:  # noqa: BLE001 - becomes the answer
            response = self.traffic.failed(error)
        return self.traffic.count(method, response)

    def _read(self, path: str, request: Request) -> Answer:
        query = parse_query(request.query, _PARAMETERS)
        offset = query.get("offset")
        if offset == "":
            raise InvalidOffset(
                "`offset` is empty; leave it out to read from the start, or use -1 or now."
            )
        live = query.get("live")
        if live is None:
            # In every mode a read keeps the stream alive, also one that is answered with 304.
            return self._reads.catch_up(self._engine.find(path, touch=True), request, query)
        if live not in ("long-poll", "sse"):
            raise InvalidParameter("`live` is long-poll or sse; leave it out for a catch-up read.")
        if offset is None:
            raise InvalidParameter("A live read needs `offset`: a Stream-Next-Offset, -1 or now.")
        for name in _BOUNDS:
            if name in query:
                raise InvalidParameter(f"`{name}` bounds a read; a live read has no end.")
        stream = self._engine.find(path, touch=True)
        cursor = query.get("cursor")
        if live == "sse":
            return self._live.events(stream, offset, cursor)
        return self._live.long_poll(stream, request, offset, cursor)


def _readable(get: Any) -> Methods:
    return {"GET": get, "HEAD": get}
