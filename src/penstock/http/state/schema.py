"""`/v1/schema/<stream>`: PUT declares a JSON stream a state stream, GET shows the declaration and
DELETE removes it. `/v1/schema` lists the declared streams."""

from __future__ import annotations

from collections.abc import Awaitable
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import Conflict, NotJsonStream, PenstockError, SchemaNotFound
from penstock.http.documents import document, not_modified, tagged
from penstock.http.headers import JSON_TYPE, NO_CACHE
from penstock.http.message import Headers, Request, Response
from penstock.http.permission import principal_of
from penstock.http.query import parse_count, parse_query
from penstock.http.streams.listing import is_visible
from penstock.state.declaration import META, Declaration, Document, decode, encode, parse_document
from penstock.stp.declaration import META as TABLES

if TYPE_CHECKING:
    from penstock.http.compression import Compressor
    from penstock.log.engine import Engine
    from penstock.log.stream import Stream
    from penstock.state.server.indexer import StateIndexer

LIST: Final = b"/v1/schema"
PAGE_MAX: Final = 1000
"""Streams on one page of the list, unless the request asks for fewer."""
_LISTING: Final = frozenset({"after", "limit"})


class Schema:
    """The declaration of a stream as a resource."""

    __slots__ = ("_compressor", "_engine", "_indexer")

    def __init__(self, engine: Engine, indexer: StateIndexer, compressor: Compressor) -> None:
        self._engine = engine
        self._indexer = indexer
        self._compressor = compressor

    def put(self, path: str, request: Request) -> Awaitable[Response]:
        """Return 201 for a stream's first declaration, 200 for a later one or the same again."""
        # Parsed now: a transport drops the body when this returns, also when that is a coroutine.
        return self._declare(path, parse_document(request.body))

    async def _declare(self, path: str, document: Document) -> Response:
        stream = self._engine.find(path, touch=False)
        # Decided on what is pending: another declaration may be on its way to the disk.
        pending = self._engine.changeable(stream)
        need_json(stream)
        value = pending.meta.get(META)
        old = None if value is None else decode(value)
        if old is not None and old.says(document):
            new = old
        else:
            new = Declaration(
                version=1 if old is None else old.version + 1,
                mode=document.mode,
                types=document.types,
                unknown_types=document.unknown_types,
                offset=self._engine.token(stream, pending.tail),
                ordinal=pending.ordinal,
            )
        await self._engine.set_meta(path, META, encode(new) if new is not old else value)
        self._indexer.follow(stream)
        return Response(
            201 if old is None else 200, [*_headers(stream, new), JSON_TYPE], encode(new)
        )

    async def get(self, path: str, request: Request) -> Response:
        stream = self._engine.find(path, touch=False)
        value = stream.meta.get(META)
        if value is None:
            raise _not_declared(path)
        tag = _tag(stream, value)
        unchanged = not_modified(request, [NO_CACHE], tag)
        if unchanged is not None:
            return unchanged
        return await tagged(self._compressor, request, [NO_CACHE], tag, value)

    async def listing(self, path: str, request: Request) -> Response:
        """Return a page of the declared streams that the principal may list. It may have fewer
        than `limit`: the number of streams that are looked at for it is limited, too."""
        query = parse_query(request.query, _LISTING, strict=True)
        limit = parse_count("limit", query.get("limit", str(PAGE_MAX)), maximum=PAGE_MAX)
        paths = await self._engine.list_meta(META, query.get("after", ""), limit + 1)
        principal = principal_of(request)
        visible = [each for each in paths[:limit] if is_visible(principal, each)]
        for each in visible:
            await self._engine.fetch(each)
        streams = [self._entry(each) for each in visible]
        following = paths[limit - 1] if len(paths) > limit else None
        return document({"streams": [each for each in streams if each], "next": following})

    def _entry(self, path: str) -> dict[str, Any] | None:
        try:
            stream = self._engine.find(path, touch=False)
        except PenstockError:
            return None  # it has expired, or was deleted just now
        if META not in stream.meta:
            return None
        declaration = decode(stream.meta[META])
        return {
            "path": path,
            "types": sorted(declaration.types),
            "version": declaration.version,
            "table": TABLES in stream.meta,
        }

    async def delete(self, path: str, request: Request) -> Response:
        """Return 204 when the stream is like any other again; its messages stay as they are."""
        stream = self._engine.find(path, touch=False)
        pending = self._engine.changeable(stream)
        if TABLES in pending.meta:
            raise Conflict(
                f"{path!r} is read as a table, which needs its declaration; DELETE the stream to "
                "remove both."
            )
        is_declared = META in pending.meta
        if not is_declared and META not in stream.meta:
            raise _not_declared(path)
        # If another removal is pending, this waits until that is durable.
        await self._engine.set_meta(path, META, None)
        if not is_declared:
            raise _not_declared(path)
        self._indexer.forget(stream)
        return Response(204, [NO_CACHE])


def need_json(stream: Stream) -> None:
    """Raise NotJsonStream for a stream that cannot have state."""
    if not stream.is_json:
        raise NotJsonStream(
            f"{stream.path!r} is a stream of {stream.config.content_type}; only application/json "
            "streams have state."
        )


def _headers(stream: Stream, declaration: Declaration) -> Headers:
    return [(b"etag", _tag(stream, encode(declaration)).encode()), NO_CACHE]


def _tag(stream: Stream, value: bytes) -> str:
    """Return a tag by content: versions begin again when a stream is declared anew."""
    return f'"{stream.id}:{blake2b(value, digest_size=12).hexdigest()}"'


def _not_declared(path: str) -> SchemaNotFound:
    return SchemaNotFound(
        f"{path!r} is not declared a state stream; PUT a declaration to /v1/schema/{path}."
    )
