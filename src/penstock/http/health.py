"""`/healthz` (the process answers), `/readyz` (recovered and writable) and the index at `/`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import __version__
from penstock.http.documents import document
from penstock.http.message import Request, Response

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
        return document({"status": "ok"})

    def ready(self, path: str, request: Request) -> Response:
        """503 takes the server out of rotation; reads may well still work."""
        health = self._engine.health()
        if self.draining:
            return document({"status": "unavailable", "reason": "The server is stopping."}, 503)
        if not (health.ready and health.writable):
            return document({"status": "unavailable", "reason": health.reason}, 503)
        return document({"status": "ok"})

    def index(self, path: str, request: Request) -> Response:
        return document(_INDEX)
