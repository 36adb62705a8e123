"""`/healthz` (the process answers), `/readyz` (recovered and writable) and the index at `/`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from penstock import __version__
from penstock.http.message import Request, Response
from penstock.http.streams import NO_STORE

if TYPE_CHECKING:
    from penstock.log.engine import Engine

_INDEX = {
    "name": "penstock",
    "version": __version__,
    "streams": "/v1/stream/{path}",
    "listing": "/v1/streams?prefix=&after=&limit=",
    "state": "/v1/state/{path}?type=&key=&prefix=&offset=&history=&after=&limit=",
    "schema": "/v1/schema/{path}",
    "tables": "/v1/table/{path}?since_id=&timeout=&view=",
    "notify": "/v1/notify/{name}",
    "follow": "/v1/follow/{path}",
    "subscriptions": "/v1/stream/__ds/subscriptions/{id}",
    "keys": "/v1/stream/__ds/jwks.json",
    "health": "/healthz",
    "ready": "/readyz",
    "metrics": "/metrics",
}


class Health:
    __slots__ = ("_engine", "draining")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.draining = False

    def alive(self, path: str, request: Request) -> Response:
        return _json(200, {"status": "ok"})

    def ready(self, path: str, request: Request) -> Response:
        """503 takes the server out of rotation; reads may well still work."""
        health = self._engine.health()
        if self.draining:
            return _json(503, {"status": "unavailable", "reason": "The server is stopping."})
        if not (health.ready and health.writable):
            return _json(503, {"status": "unavailable", "reason": health.reason})
        return _json(200, {"status": "ok"})

    def index(self, path: str, request: Request) -> Response:
        return _json(200, _INDEX)


def _json(status: int, content: dict[str, Any]) -> Response:
    headers = [(b"content-type", b"application/json"), NO_STORE]
    return Response(status, headers, msgspec.json.encode(content))
