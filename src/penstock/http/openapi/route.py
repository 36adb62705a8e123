"""`GET /openapi.json`: the document, built when it is first asked for and then remembered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from penstock.http.compression import encode
from penstock.http.dialect import Dialect, Routes, Services
from penstock.http.documents import not_modified
from penstock.http.endpoint import public, readable
from penstock.http.headers import JSON_TYPE, NO_CACHE, VARY, weak
from penstock.http.message import Headers, Request, Response
from penstock.http.openapi.document import Templates, build
from penstock.http.openapi.model import Description

PATH = b"/openapi.json"


class Rendered(NamedTuple):
    """The document as bytes, and its tag."""

    body: bytes
    tag: str


class OpenApi(Dialect):
    """The resource. `templates` returns what the router serves, `others` are all dialects."""

    def __init__(
        self,
        services: Services,
        others: Iterable[Dialect],
        templates: Callable[[], Templates],
    ) -> None:
        self._access = services.access
        self._compressor = services.compressor
        self._others = list(others)
        self._templates = templates
        self._rendered: asyncio.Future[Rendered] | None = None
        self._encoded: dict[str, bytes] = {}

    def routes(self) -> Routes:
        return Routes(fixed={PATH: readable(public(self.get))})

    def describe(self) -> Description:
        from penstock.http.openapi.operations import describe

        return describe()

    def document(self) -> dict[str, Any]:
        """Return the document of the routes that this server has."""
        described = [dialect.describe() for dialect in (*self._others, self)]
        whole = Description(
            [operation for each in described for operation in each.operations],
            {name: schema for each in described for name, schema in each.components.items()},
        )
        return build(self._templates(), whole, is_open=self._access.is_open)

    async def get(self, path: str, request: Request) -> Response:
        rendered = await self._render()
        unchanged = not_modified(request, [NO_CACHE], rendered.tag)
        if unchanged is not None:
            return unchanged
        coding = self._compressor.choose(request.headers.get(b"accept-encoding"))
        headers: Headers = [NO_CACHE, VARY, JSON_TYPE]
        if coding is None:
            return Response(200, [*headers, (b"etag", rendered.tag.encode())], rendered.body)
        headers += [(b"content-encoding", coding.encode()), (b"etag", weak(rendered.tag))]
        return Response(200, headers, await self._encode(coding, rendered.body))

    async def _render(self) -> Rendered:
        """Return the document; the first request builds it, off the loop."""
        if self._rendered is None:
            self._rendered = asyncio.ensure_future(asyncio.to_thread(self._build))
        # Shielded: a client that leaves must not cancel what others wait for.
        return await asyncio.shield(self._rendered)

    def _build(self) -> Rendered:
        body = msgspec.json.encode(self.document())
        return Rendered(body, f'"{blake2b(body, digest_size=12).hexdigest()}"')

    async def _encode(self, coding: str, body: bytes) -> bytes:
        if coding not in self._encoded:
            self._encoded[coding] = await asyncio.to_thread(encode, coding, body)
        return self._encoded[coding]
