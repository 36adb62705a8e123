"""`…/__ds/successor`: the stream that a closed one goes on in, for writers that come too late.

Parses documents and renders answers. It is told only of a stream that is closed: one that is to be
closed can be given its successor before.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

import msgspec

from penstock.errors import InvalidJson
from penstock.http.message import Headers, Request, Response
from penstock.http.router import parse_source
from penstock.http.streams import NO_STORE
from penstock.log.stream import SUCCESSOR

if TYPE_CHECKING:
    from penstock.config import Settings
    from penstock.log.engine import Engine

PREFIX = "/v1/stream/"


class Wanted(msgspec.Struct, forbid_unknown_fields=True):
    location: str


class Successor:
    __slots__ = ("_engine", "_settings")

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings

    def get(self, path: str, request: Request) -> Response:
        return self._answer(path)

    async def _set(self, path: str, value: bytes | None) -> Response:
        await self._engine.set_meta(path, SUCCESSOR, value)
        return Response(204) if value is None else self._answer(path)

    def put(self, path: str, request: Request) -> Awaitable[Response]:
        try:
            wanted = msgspec.json.decode(request.body, type=Wanted)
            found = parse_source(
                wanted.location.encode("ascii").decode(), bytes_max=self._settings.path_bytes_max
            )
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
            raise InvalidJson(
                f'Send {{"location": "/v1/stream/<path>"}} as JSON, percent-encoded: {error}'
            ) from None
        return self._set(path, (PREFIX + found).encode())

    def drop(self, path: str, request: Request) -> Awaitable[Response]:
        return self._set(path, None)

    def _answer(self, path: str) -> Response:
        found = self._engine.find(path, touch=False).meta.get(SUCCESSOR)
        headers: Headers = [(b"content-type", b"application/json"), NO_STORE]
        content = {"location": None if found is None else found.decode()}
        return Response(200, headers, msgspec.json.encode(content))
