"""The resources about the server itself: the index at `/`, `/healthz` (the process answers),
`/readyz` (recovered and writable) and `/metrics`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from penstock import __version__
from penstock.access.rules import Verb
from penstock.http.dialect import Dialect, Routes, Services
from penstock.http.documents import document
from penstock.http.endpoint import on_server, public, readable
from penstock.http.message import Request, Response
from penstock.http.metrics import (
    Metrics,
    access_log_metrics,
    build_metrics,
    egress_metrics,
    log_metrics,
    loop_metrics,
    request_metrics,
    route_metrics,
    store_metrics,
    tier_metrics,
)

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from penstock.http.access_log import AccessLog
    from penstock.http.otel.telemetry import Telemetry
    from penstock.http.tables.live import TableLive
    from penstock.http.watchdog import LoopWatchdog

_INDEX = {
    "name": "penstock",
    "version": __version__,
    "streams": "/v1/stream/{path}",
    "listing": "/v1/streams?prefix=&after=&limit=",
    "live": "/v1/streams/live?stream=&match=",
    "state": "/v1/state/{path}?type=&key=&prefix=&offset=&at=&history=&after=&limit=",
    "schema": "/v1/schema/{path}",
    "schemas": "/v1/schema?after=&limit=",
    "tables": "/v1/table/{path}?since_id=&timeout=&view=",
    "notify": "/v1/notify/{name}",
    "follow": "/v1/follow/{path}",
    "mirrors": "/v1/follow?after=&limit=",
    "nurls": "/v1/nurls",
    "subscriptions": "/v1/stream/__ds/subscriptions/{id}",
    "keys": "/v1/stream/__ds/jwks.json",
    "tokens": "/v1/tokens",
    "link": "/v1/link",
    "session": "/v1/session",
    "audit": "/v1/audit",
    "pipelines": "/v1/pipelines",
    "health": "/healthz",
    "ready": "/readyz",
    "metrics": "/metrics",
    "activity": "/v1/activity?since=&limit=&sort=",
    "cluster": "/v1/cluster",
    "openapi": "/openapi.json",
    "docs": "/docs",
    "problems": "/problems/{code}",
    "console": "/console",
}


class Health(Dialect):
    """`others` are the dialects whose metrics are shown beside those of the server itself."""

    def __init__(
        self,
        services: Services,
        others: Iterable[Dialect],
        watchdog: LoopWatchdog,
        *,
        tables: TableLive,
        access_log: AccessLog | None,
        telemetry: Telemetry | None,
    ) -> None:
        self._services = services
        self._tables = tables
        self._access_log = access_log
        self._telemetry = telemetry
        self._watchdog = watchdog
        self._metrics = Metrics([self.metrics, *(dialect.metrics for dialect in others)])
        self._draining = False

    def routes(self) -> Routes:
        return Routes(
            fixed={
                b"/": readable(public(self.index)),
                b"/healthz": readable(public(self.alive)),
                b"/readyz": readable(public(self.ready)),
                b"/metrics": readable(on_server(Verb.READ, "metrics", self._metrics.get)),
            }
        )

    def metrics(self) -> Iterable[Metric]:
        services = self._services
        yield from build_metrics(services.settings, is_ready=self._unready() is None)
        yield from request_metrics(services.traffic, self._tables.readers)
        yield from route_metrics(services.traffic.routes.all)
        if self._access_log is not None:
            yield from access_log_metrics(self._access_log)
        if self._telemetry is not None:
            yield from self._telemetry.metrics()
        yield from log_metrics(services.engine)
        yield from store_metrics(services.engine)
        yield from tier_metrics(services.engine)
        yield from egress_metrics(services.egress)
        yield from loop_metrics(self._watchdog)

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of all dialects."""
        return self._metrics.collect()

    def add_metrics(self, source: Callable[[], Iterable[Metric]]) -> None:
        """Show more metrics beside those of the dialects."""
        self._metrics.add(source)

    def drain(self) -> None:
        self._draining = True

    def alive(self, path: str, request: Request) -> Response:
        return document({"status": "ok"})

    def ready(self, path: str, request: Request) -> Response:
        """503 takes the server out of rotation; reads may well still work."""
        reason = self._unready()
        if reason is not None:
            return document({"status": "unavailable", "reason": reason}, 503)
        return document({"status": "ok"})

    def _unready(self) -> str | None:
        """Return why the server takes no writes; None if it does."""
        if self._draining:
            return "The server is stopping."
        health = self._services.engine.health()
        return None if health.ready and health.writable else health.reason or "It is not ready."

    def index(self, path: str, request: Request) -> Response:
        return document(_INDEX)
