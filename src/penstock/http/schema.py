"""`/v1/schema/<stream>`: declares a JSON stream a state stream, and says how it is declared."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from penstock.errors import NotJsonStream, SchemaNotFound
from penstock.http.message import Headers, Request, Response
from penstock.http.reads import NO_CACHE
from penstock.log.decisions import not_found
from penstock.protocol import etag
from penstock.state.declaration import META, Declaration, Mode, decode, encode, parse_document

if TYPE_CHECKING:
    from penstock.log.engine import Engine
    from penstock.log.stream import Stream
    from penstock.state.keeper import Keeper


class Schema:
    __slots__ = ("_engine", "_keeper")

    def __init__(self, engine: Engine, keeper: Keeper) -> None:
        self._engine = engine
        self._keeper = keeper

    def put(self, path: str, request: Request) -> Awaitable[Response]:
        """201 for a stream's first declaration, 200 for a later one, or for the same again."""
        # Taken now: a transport lets go of the body when it has the answer, be it a later one.
        mode, types = parse_document(request.body)
        return self._declare(path, mode, types)

    async def _declare(self, path: str, mode: Mode, types: dict[str, Any]) -> Response:
        stream = self._engine.find(path, touch=False)
        if stream.deleting:
            raise not_found(path)
        need_json(stream)
        # Decided on what is pending: another declaration may be on its way to the disk.
        known = stream.pending_meta.get(META)
        old = None if known is None else decode(known)
        if old is not None and old.says(mode, types):
            new = old
        else:
            new = Declaration(
                version=1 if old is None else old.version + 1,
                mode=mode,
                types=types,
                offset=self._engine.token(stream, stream.pending_tail),
                ordinal=stream.pending_count,
            )
        await self._engine.set_meta(path, META, encode(new) if new is not old else known)
        self._keeper.follow(stream)
        return _answer(stream, new, 201 if old is None else 200)

    def get(self, path: str, request: Request) -> Response:
        stream = self._engine.find(path, touch=False)
        value = stream.meta.get(META)
        if value is None:
            raise SchemaNotFound(
                f"{path!r} is not declared a state stream; PUT a declaration to /v1/schema/{path}."
            )
        declaration = decode(value)
        seen = request.headers.get(b"if-none-match")
        if seen is not None and etag.matches(seen.decode("latin-1"), _tag(stream, declaration)):
            return Response(304, [(b"etag", _tag(stream, declaration).encode()), NO_CACHE])
        return _answer(stream, declaration, 200)


def need_json(stream: Stream) -> None:
    if not stream.is_json:
        raise NotJsonStream(
            f"{stream.path!r} is a stream of {stream.config.content_type}; only application/json "
            "streams have state."
        )


def _answer(stream: Stream, declaration: Declaration, status: int) -> Response:
    headers: Headers = [
        (b"content-type", b"application/json"),
        (b"etag", _tag(stream, declaration).encode()),
        NO_CACHE,
    ]
    return Response(status, headers, encode(declaration))


def _tag(stream: Stream, declaration: Declaration) -> str:
    return f'"{stream.id}:v{declaration.version}"'
