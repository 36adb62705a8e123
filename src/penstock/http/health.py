"""The resources about the server itself: the index at `/`, `/healthz` (the process answers),
`/readyz` (recovered and writable) and `/metrics`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock import __version__
from penstock.access.rules import Verb
from penstock.http.dialect import Dialect, Routes, Services
from penstock.http.documents import document
from penstock.http.endpoint import on_server, public, readable
from penstock.http.message import Request, Response
from penstock.http.metrics import (
    Metrics,
    egress_metrics,
    log_metrics,
    loop_metrics,
    request_metrics,
    store_metrics,
)

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from penstock.http.watchdog import LoopWatchdog

_INDEX = {
    "name": "penstock",
    "version": __version__,
    "streams": "/v1/stream/{path}",
    "listing": "/v1/streams?prefix=&after=&limit=",
    "live": "/v1/streams/live?stream=&match=",
    "state": "/v1/state/{path}?type=&key=&prefix=&offset=&history=&after=&limit=",
    "schema": "/v1/schema/{path}",
    "tables": "/v1/table/{path}?since_id=&timeout=&view=",
    "notify": "/v1/notify/{name}",
    "follow": "/v1/follow/{path}",
    "nurls": "/v1/nurls",
    "subscriptions": "/v1/stream/__ds/subscriptions/{id}",
    "keys": "/v1/stream/__ds/jwks.json",
    "tokens": "/v1/tokens",
    "link": "/v1/link",
    "session": "/v1/session",
    "audit": "/v1/audit",
    "health": "/healthz",
    "ready": "/readyz",
    "metrics": "/metrics",
    "openapi": "/openapi.json",
}


class Health(Dialect):
    """`others` are the dialects whose metrics are shown beside those of the server itself."""

    def __init__(
        self, services: Services, others: Iterable[Dialect], watchdog: LoopWatchdog
    ) -> None:
        self._services = services
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
        yield from request_metrics(services.traffic)
        yield from log_metrics(services.engine)
        yield from store_metrics(services.engine)
        yield from egress_metrics(services.egress)
        yield from loop_metrics(self._watchdog)

    def drain(self) -> None:
        self._draining = True

    def alive(self, path: str, request: Request) -> Response:
        return document({"status": "ok"})

    def ready(self, path: str, request: Request) -> Response:
        """503 takes the server out of rotation; reads may well still work."""
        health = self._services.engine.health()
        if self._draining:
            return document({"status": "unavailable", "reason": "The server is stopping."}, 503)
        if not (health.ready and health.writable):
            return document({"status": "unavailable", "reason": health.reason}, 503)
        return document({"status": "ok"})

    def index(self, path: str, request: Request) -> Response:
        return document(_INDEX)
