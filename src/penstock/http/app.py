"""The transport-free core: a request value in, a response value out.

Wires the dialects together, sends each request to its handler and turns errors into responses.
Knows no sockets and no files.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from penstock.access.authenticator import Access
from penstock.access.jwt import open_jwt
from penstock.clock import SYSTEM_CLOCK
from penstock.egress import Egress
from penstock.errors import Forbidden, MethodNotAllowed, PenstockError, RouteNotFound
from penstock.http.access.dialect import AccessDialect
from penstock.http.access_log import OFF, AccessLog
from penstock.http.activity import ActivityDialect
from penstock.http.audit import AuditDialect
from penstock.http.cluster_state import ClusterDialect
from penstock.http.compression import Compressor
from penstock.http.console.dialect import ConsoleDialect
from penstock.http.dialect import Dialect, Services
from penstock.http.docs.dialect import DocsDialect
from penstock.http.elsewhere import Elsewhere
from penstock.http.endpoint import Answer, Handler
from penstock.http.exchange import exchanges_for
from penstock.http.fetching import Fetching
from penstock.http.guard import Guard
from penstock.http.health import Health
from penstock.http.live.readers import LiveReaders
from penstock.http.live.response import LiveReader
from penstock.http.maintenance.dialect import MaintenanceDialect
from penstock.http.message import Later, Request, Response
from penstock.http.openapi.route import OpenApi
from penstock.http.otel.telemetry import open_telemetry
from penstock.http.peers.dialect import PeerDialect
from penstock.http.pipelines.dialect import PipelineDialect
from penstock.http.proxy.dialect import ProxyDialect
from penstock.http.route_stats import OTHER, RouteStats
from penstock.http.router import Router
from penstock.http.state.dialect import StateDialect
from penstock.http.streams.dialect import StreamDialect
from penstock.http.subscriptions.dialect import SubscriptionDialect
from penstock.http.tables.dialect import TableDialect
from penstock.http.traffic import Traffic
from penstock.http.watchdog import LoopWatchdog
from penstock.log import open_engine

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from penstock.access.jwt import JwtAccess
    from penstock.clock import Clock
    from penstock.config.settings import Settings
    from penstock.log.engine import Engine

AUDIT_FLUSH_S = 1.0
"""How long a stop waits for the last events of the audit log."""

# The commit thread and the loop hand the interpreter to each other; at the default of 5 ms the
# hand-over dominates the latency of an append.
SWITCH_INTERVAL_S = 0.0005


async def open_app(
    settings: Settings,
    *,
    engine: Engine | None = None,
    elsewhere: Callable[[Engine], Elsewhere] | None = None,
    watchdog: LoopWatchdog | None = None,
) -> App:
    """Open the store, recover what is in it, and return the App over it.

    `engine` has the store, if it is not the one of the settings. `elsewhere` says what belongs to
    other processes, if there are any. `watchdog` is that of the event loop, if it has one.
    """
    engine = engine or open_engine(settings)
    await engine.start()
    try:
        parts = None if elsewhere is None else elsewhere(engine)
        app = App(engine, settings, elsewhere=parts, watchdog=watchdog)
        try:
            await app.tokens.load()
        except BaseException:
            app.close()
            raise
        if watchdog is None:
            app.watchdog.start()
        return app
    except BaseException:
        await engine.stop()
        raise


def shorten_switch_interval() -> None:
    """Let threads of this process hand the interpreter over sooner than by default."""
    sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))


class App:
    """The dialects of one server over one engine."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        *,
        clock: Clock = SYSTEM_CLOCK,
        elsewhere: Elsewhere | None = None,
        watchdog: LoopWatchdog | None = None,
    ) -> None:
        self.engine = engine
        self.watchdog = watchdog or LoopWatchdog(stall_s=settings.loop_stall_ms / 1000)
        self._owns_watchdog = watchdog is None
        self.access = Access(settings)
        self._guard = Guard(settings, self.access)
        self._rates = self._guard.rates
        self._fetching = Fetching(engine) if engine.needs_fetch else None
        self.readers = LiveReaders(settings)
        self.traffic = Traffic()
        self.access_log = None if settings.access_log == OFF else AccessLog(settings)
        self.telemetry = open_telemetry(settings)
        self.exchanges = exchanges_for(self.access_log, self.telemetry)
        self.compressor = Compressor(settings.compress_bytes_min)
        self.egress = Egress(settings)
        self.egress.tracer = self.telemetry
        self._jwt = self._open_jwt(settings, clock)
        services = Services(
            engine=engine,
            settings=settings,
            clock=clock,
            traffic=self.traffic,
            compressor=self.compressor,
            egress=self.egress,
            access=self.access,
            readers=self.readers,
            streams=None if elsewhere is None else elsewhere.streams,
            owns=None if elsewhere is None else elsewhere.owns,
            part="" if elsewhere is None else elsewhere.part,
            listed=None if elsewhere is None else elsewhere.listed,
        )
        self._dialects = self._open_dialects(services)
        self.openapi = OpenApi(services, self._dialects, self.templates)
        self._dialects.append(self.openapi)
        self._start()
        self._refusals = [refuse for dialect in self._dialects for refuse in dialect.refusals()]
        routes = [dialect.routes() for dialect in self._dialects]
        self._router = Router(routes, path_bytes_max=settings.path_bytes_max)
        self.traffic.routes.all += self._router.stats

    def _start(self) -> None:
        for dialect in self._dialects:
            for check in dialect.checks():
                self.engine.add_check(
                    check.meta, check.check, closes=check.closes, overtakes=check.overtakes
                )
        for dialect in self._dialects:
            dialect.start()
        if self._jwt is not None:
            self._jwt.start()
        if self.access_log is not None:
            self.access_log.start()
        if self.telemetry is not None:
            self.telemetry.start(self._collected)

    async def _collected(self) -> list[Metric]:
        return list(self._health.collect())

    def _open_dialects(self, services: Services) -> list[Dialect]:
        self.state = StateDialect(services)
        self.streams = StreamDialect(services, self.state.compactor)
        tables = TableDialect(services, self.state.indexer)
        peers = PeerDialect(services, self.state.indexer, tables.directory)
        subscriptions = SubscriptionDialect(services)
        self.tables = tables.directory
        self.hub = peers.hub
        self.subscriptions = subscriptions.service
        self.tokens = AccessDialect(services)
        self._audit = AuditDialect(
            services, get=self.streams.modes.get, head=self.streams.modes.head
        )
        self.audit = self._audit.log
        self.activity = ActivityDialect(services, self.watchdog, tables.live)
        self._maintenance = MaintenanceDialect(services)
        others: list[Dialect] = [
            self.state,
            self.streams,
            tables,
            peers,
            subscriptions,
            self.tokens,
            self._audit,
            self.activity,
            ClusterDialect(services),
            PipelineDialect(services),
            ProxyDialect(services),
            self._maintenance,
        ]
        health = self._health = Health(
            services,
            others,
            self.watchdog,
            tables=tables.live,
            access_log=self.access_log,
            telemetry=self.telemetry,
        )
        docs = DocsDialect(services, lambda: self.openapi.document())
        return [*others, health, ConsoleDialect(services, health.index), docs]

    def _open_jwt(self, settings: Settings, clock: Clock) -> JwtAccess | None:
        jwt = open_jwt(settings, self.egress, clock=clock)
        if jwt is not None:
            self.access.add_bearer(jwt.principal)
            self.access.require()
        return jwt

    def refuse(self, head: Request) -> Response | None:
        """Return the response to a request that needs no body: preflight, 401, 403, 404, 405, 413,
        415, 421, 429.

        None lets the request in.
        """
        try:
            response = self._guard.refuse(head)
            if response is None:
                head.route = self._admit(head)
                for refuse in self._refusals:
                    response = refuse(head)
                    if response is not None:
                        break
                else:
                    return None
        except Exception as error:  # noqa: BLE001 - becomes the response
            response = self.traffic.failed(error, head)
        return self.traffic.count(head.method, response)

    def _admit(self, head: Request) -> tuple[Handler, str, RouteStats | None]:
        """Return the handler of a request that may use it, the path, and where it is counted."""
        try:
            endpoint, path = self._router.find(head)
        except (RouteNotFound, MethodNotAllowed) as error:
            raise self._guard.unknown_route(head, error) from None
        try:
            self._guard.admit(head, endpoint, path)
        except Forbidden as error:
            self._audit.refused(endpoint, head, path, error)
            raise
        handler = self._audit.handler(endpoint, head) if endpoint.action else endpoint.handler
        return handler, path, endpoint.stats

    def is_public(self, head: Request) -> bool:
        """Whether everybody is let in to what a request asks for."""
        try:
            endpoint, _ = self._router.find(head)
            return endpoint.needs(head).is_public
        except PenstockError:
            return False

    def add_metrics(self, source: Callable[[], Iterable[Metric]]) -> None:
        """Show more metrics beside those of the dialects."""
        self._health.add_metrics(source)

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of all dialects."""
        return self._health.collect()

    def templates(self) -> dict[str, tuple[str, ...]]:
        """Return the methods that are served at each path."""
        return self._router.templates()

    def unreadable(self, error: PenstockError) -> Response:
        """Return the response to input that never became a request."""
        return self.traffic.count(OTHER, self.traffic.failed(error))

    def handle(self, request: Request) -> Answer:
        """Answer a request that was not refused. Never raises."""
        try:
            if request.method == "OPTIONS":
                answer: Answer = self._guard.origins.preflight(request)
            else:
                handler, path, _ = request.route or self._admit(request)
                if self._rates is not None:
                    self._rates.received(request)
                # Nothing is fetched, nor waited for, where the store is on this machine.
                if self._fetching is not None:
                    self._fetching.check(request)
                    if self._fetching.is_needed(path, request):
                        return self._fetch(handler, path, request, request.body)
                answer = handler(path, request)
        except Exception as error:  # noqa: BLE001 - becomes the response
            answer = self.traffic.failed(error, request)
        if answer.__class__ is Later:
            return answer  # counts itself when it is rendered
        if isinstance(answer, Response):
            return self._finished(request, answer)
        assert isinstance(answer, Coroutine)
        return self._finish(request, answer)

    async def _fetch(self, handler: Handler, path: str, request: Request, body: bytes) -> Response:
        """Answer a request after the streams that it is about have been fetched. A transport lets
        go of the body when `handle` returns."""
        assert self._fetching is not None
        try:
            await self._fetching.fetch(path, request)
            request.body = body
            answer = handler(path, request)
            request.body = b""
        except Exception as error:  # noqa: BLE001 - becomes the response
            answer = self.traffic.failed(error, request)
        if isinstance(answer, Later):
            return await answer  # counts itself when it is rendered
        if isinstance(answer, Response):
            return self._finished(request, answer)
        assert isinstance(answer, Coroutine)
        return await self._finish(request, answer)

    def drain(self) -> None:
        """The server is stopping: let no request wait any longer."""
        self.engine.drain()
        for dialect in self._dialects:
            dialect.drain()

    def close(self) -> None:
        """Drain, then release tasks and threads; the engine goes on."""
        self.drain()
        for dialect in reversed(self._dialects):
            dialect.close()
        self.readers.close()
        if self._jwt is not None:
            self._jwt.close()
        self.compressor.close()
        if self._owns_watchdog:
            self.watchdog.close()
        if self.access_log is not None:
            self.access_log.close()
        if self.telemetry is not None:
            self.telemetry.close(self._health.collect)

    async def stop(self, *, timeout_s: float | None = None) -> None:
        """Close the App and stop its engine: the store is free for another process.

        After `timeout_s` nothing more is waited for; what was acknowledged is durable.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(AUDIT_FLUSH_S):
                await self.audit.flush()
        with contextlib.suppress(TimeoutError):
            await self._maintenance.wait()
        left_s = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        await self.engine.stop(timeout_s=left_s)

    async def _finish(self, request: Request, answer: Coroutine[Any, Any, Response]) -> Response:
        try:
            response = await answer
            if request.method == "GET":
                self._guard.check_still(request)
        except Exception as error:  # noqa: BLE001 - becomes the response
            response = self.traffic.failed(error, request)
        return self._finished(request, response)

    def _finished(self, request: Request, response: Response) -> Response:
        if self._fetching is not None:
            error = self._fetching.doubt(request, response)
            if error is not None:
                response = self.traffic.failed(error, request)
        # The body of a response to HEAD is never attached.
        if isinstance(response.body, LiveReader) and request.method != "HEAD":
            try:
                self.readers.add(request, response.body)
            except PenstockError as error:
                response = self.traffic.failed(error)
        return self.traffic.count(request.method, response)
