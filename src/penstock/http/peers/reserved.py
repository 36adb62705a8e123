"""Keeps clients from making, declaring, compacting or deleting what the server itself writes: its
registry and its mirrors. Appends to them are refused in the log, by a check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import MirrorReadOnly, StreamNotFound
from penstock.http.message import Request
from penstock.http.router import Answer, Handler
from penstock.stp.server.registry import OWNER

if TYPE_CHECKING:
    from penstock.log.engine import Engine
    from penstock.log.stream import Stream

RESERVED = "__stp"


def not_reserved(handler: Handler) -> Handler:
    """The same handler, for all paths but the server's own."""

    def handle(path: str, request: Request) -> Answer:
        if path == RESERVED or path.startswith(RESERVED + "/"):
            raise MirrorReadOnly(f"`{RESERVED}` is written by the server itself; read it only.")
        return handler(path, request)

    return handle


def is_owned(stream: Stream) -> bool:
    """Whether the server itself writes to a stream, and relies on its history."""
    return OWNER in stream.meta


def not_owned(engine: Engine, handler: Handler) -> Handler:
    """The same handler, for all streams that the server does not write to itself."""

    def handle(path: str, request: Request) -> Answer:
        try:
            stream = engine.find(path, touch=False)
        except StreamNotFound:
            return handler(path, request)
        if is_owned(stream):
            raise MirrorReadOnly(
                f"{path!r} is a mirror; end its following with DELETE /v1/follow/{path} first."
            )
        return handler(path, request)

    return not_reserved(handle)
