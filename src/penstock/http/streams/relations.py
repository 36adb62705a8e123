"""What a stream has to do with others: `…/__ds/producers` are its writers, `…/__ds/forks` the
streams that it was forked from, and those that were forked from it.

Reads only; page by page, in the order of ids or paths.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from penstock.access.rules import Verb
from penstock.http.documents import document
from penstock.http.message import Request, Response
from penstock.http.permission import principal_of
from penstock.http.query import parse_count, parse_query
from penstock.log.lineage import ancestors
from penstock.protocol.headers import format_expires_at

if TYPE_CHECKING:
    from penstock.access.principal import Principal
    from penstock.config.settings import Settings
    from penstock.log.engine import Engine
    from penstock.log.stream import Stream, StreamInfo

LIMIT_DEFAULT = 100

_PARAMETERS = frozenset({"after", "limit"})


class Relations:
    """The two resources."""

    __slots__ = ("_engine", "_limit_max")

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._limit_max = settings.list_limit_max

    async def producers(self, path: str, request: Request) -> Response:
        after, limit = self._page(request)
        stream = self._engine.find(path, touch=False)
        page = await self._engine.list_producers(stream, after, limit + 1)
        return document(
            {
                "producers": [
                    {"id": id, "epoch": state.epoch, "seq": state.seq} for id, state in page[:limit]
                ],
                "total": stream.producer_total,
                "next": page[limit - 1][0] if len(page) > limit else None,
            }
        )

    async def forks(self, path: str, request: Request) -> Response:
        after, limit = self._page(request)
        stream = self._engine.find(path, touch=False)
        principal = principal_of(request)
        page = await self._engine.list_forks(stream, after, limit + 1)
        return document(
            {
                "sources": self._sources(stream, principal),
                "forks": [
                    _fork(info) for info in page[:limit] if principal.may(Verb.READ, info.path)
                ],
                "next": page[limit - 1].path if len(page) > limit else None,
            }
        )

    def _page(self, request: Request) -> tuple[str, int]:
        query = parse_query(request.query, _PARAMETERS)
        limit = min(LIMIT_DEFAULT, self._limit_max)
        if "limit" in query:
            limit = parse_count("limit", query["limit"], maximum=self._limit_max)
        return query.get("after", ""), limit

    def _sources(self, stream: Stream, principal: Principal) -> list[dict[str, Any]]:
        """Return where a stream comes from, the nearest source first; what the principal may not
        read has no path."""
        chain = list(ancestors(stream))
        return [
            {
                "path": source.path if principal.may(Verb.READ, source.path) else None,
                "offset": self._engine.token(source, fork.fork.position),
                "deleted": source.soft_deleted,
            }
            for fork, source in pairwise(chain)
            if fork.fork is not None
        ]


def _fork(info: StreamInfo) -> dict[str, Any]:
    return {
        "path": info.path,
        "messages": info.messages - info.earliest_ordinal,
        "bytes": info.tail - info.earliest,
        "closed": info.closed,
        "created_at": format_expires_at(info.created_us),
    }
