"""Handlers that refuse the streams which the server itself writes: its registries and its mirrors.

Clients may not create, declare, compact or delete them. A check in the log refuses appends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import MirrorReadOnly, PenstockError, StreamNotFound
from penstock.http.endpoint import Answer, Handler
from penstock.http.message import Request
from penstock.stp.server.registry import OWNER, SERVER

if TYPE_CHECKING:
    from penstock.log.engine import Engine
    from penstock.log.stream import Stream

RESERVED = "__stp"


def not_reserved(handler: Handler) -> Handler:
    """Return the handler for all paths but the server's own."""

    def handle(path: str, request: Request) -> Answer:
        if path == RESERVED or path.startswith(RESERVED + "/"):
            raise MirrorReadOnly(f"Only the server writes to `{RESERVED}`; it can be read.")
        return handler(path, request)

    return handle


def not_server_owned(engine: Engine, handler: Handler) -> Handler:
    """Return the handler for all streams but those of the server's own records."""

    def handle(path: str, request: Request) -> Answer:
        _check_not_server_owned(engine, path)
        return handler(path, request)

    return not_reserved(handle)


def _check_not_server_owned(engine: Engine, path: str) -> None:
    try:
        stream = engine.find(path, touch=False)
    except PenstockError:
        return  # The handler finds out as well, and says so.
    if stream.meta.get(OWNER) == SERVER:
        raise MirrorReadOnly(f"Only the server writes to {path!r}; it can be read.")


def is_owned(stream: Stream) -> bool:
    """Whether the server itself writes to a stream, and relies on its history."""
    return OWNER in stream.meta


def not_owned(engine: Engine, handler: Handler) -> Handler:
    """Return the handler for all streams that the server does not write to itself."""

    def handle(path: str, request: Request) -> Answer:
        _check_not_server_owned(engine, path)
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
