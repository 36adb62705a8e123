"""`/v1/schema/<stream>`: declares a JSON stream a state stream, says how it is declared, and
takes the declaration back."""

from __future__ import annotations

from collections.abc import Awaitable
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from penstock.errors import Conflict, NotJsonStream, SchemaNotFound
from penstock.http.documents import not_modified, tagged
from penstock.http.headers import JSON_TYPE, NO_CACHE
from penstock.http.message import Headers, Request, Response
from penstock.log.decide.context import not_found
from penstock.state.declaration import META, Declaration, Mode, decode, encode, parse_document
from penstock.stp.declaration import META as TABLES

if TYPE_CHECKING:
    from penstock.http.compression import Compressor
    from penstock.log.engine import Engine
    from penstock.log.stream import Stream
    from penstock.state.server.indexer import StateIndexer


class Schema:
    __slots__ = ("_compressor", "_engine", "_keeper")

    def __init__(self, engine: Engine, keeper: StateIndexer, compressor: Compressor) -> None:
        self._engine = engine
        self._keeper = keeper
        self._compressor = compressor

    def put(self, path: str, request: Request) -> Awaitable[Response]:
        """201 for a stream's first declaration, 200 for a later one, or for the same again."""
        # Taken now: a transport lets go of the body when it has the answer, be it a later one.
        mode, types = parse_document(request.body)
        return self._declare(path, mode, types)

    async def _declare(self, path: str, mode: Mode, types: dict[str, Any]) -> Response:
        stream = self._engine.find(path, touch=False)
        # Decided on what is pending: another declaration may be on its way to the disk.
        pending = self._engine.pending(stream)
        if pending.deleting:
            raise not_found(path)
        need_json(stream)
        known = pending.meta.get(META)
        old = None if known is None else decode(known)
        if old is not None and old.says(mode, types):
            new = old
        else:
            new = Declaration(
                version=1 if old is None else old.version + 1,
                mode=mode,
                types=types,
                offset=self._engine.token(stream, pending.tail),
                ordinal=pending.ordinal,
            )
        await self._engine.set_meta(path, META, encode(new) if new is not old else known)
        self._keeper.follow(stream)
        return Response(
            201 if old is None else 200, [*_headers(stream, new), JSON_TYPE], encode(new)
        )

    async def get(self, path: str, request: Request) -> Response:
        stream = self._engine.find(path, touch=False)
        value = stream.meta.get(META)
        if value is None:
            raise _not_declared(path)
        tag = _tag(stream, value)
        same = not_modified(request, [NO_CACHE], tag)
        if same is not None:
            return same
        return await tagged(self._compressor, request, [NO_CACHE], tag, value)

    async def delete(self, path: str, request: Request) -> Response:
        """204 when the stream is like any other again; what is in it stays as it is."""
        stream = self._engine.find(path, touch=False)
        pending = self._engine.pending(stream)
        if pending.deleting:
            raise not_found(path)
        if TABLES in pending.meta:
            raise Conflict(
                f"{path!r} is read as a table, which needs its declaration; DELETE the stream to "
                "remove both."
            )
        is_declared = META in pending.meta
        if not is_declared and META not in stream.meta:
            raise _not_declared(path)
        # If somebody else's removal is on its way, this waits until it is durable.
        await self._engine.set_meta(path, META, None)
        if not is_declared:
            raise _not_declared(path)
        self._keeper.forget(stream)
        return Response(204, [NO_CACHE])


def need_json(stream: Stream) -> None:
    if not stream.is_json:
        raise NotJsonStream(
            f"{stream.path!r} is a stream of {stream.config.content_type}; only application/json "
            "streams have state."
        )


def _headers(stream: Stream, declaration: Declaration) -> Headers:
    return [(b"etag", _tag(stream, encode(declaration)).encode()), NO_CACHE]


def _tag(stream: Stream, value: bytes) -> str:
    """By content: versions begin again when a stream is undeclared and declared anew."""
    return f'"{stream.id}:{blake2b(value, digest_size=12).hexdigest()}"'


def _not_declared(path: str) -> SchemaNotFound:
    return SchemaNotFound(
        f"{path!r} is not declared a state stream; PUT a declaration to /v1/schema/{path}."
    )
