"""`GET /v1/streams`: the streams of this server in the order of their paths, page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.http.documents import document
from penstock.http.message import Request, Response
from penstock.http.query import parse_count, parse_query
from penstock.http.router import RESERVED
from penstock.protocol.headers import format_expires_at
from penstock.protocol.offsets import Offset

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.log.engine import Engine
    from penstock.log.stream import StreamInfo

LIMIT_DEFAULT = 100

_PARAMETERS = frozenset({"prefix", "after", "limit"})


class Listing:
    """The listing. Pages are cut by path, not by number, so that streams may come and go between
    two of them."""

    __slots__ = ("_engine", "_limit_max")

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._limit_max = settings.list_limit_max

    def get(self, path: str, request: Request) -> Response:
        query = parse_query(request.query, _PARAMETERS)
        limit = min(LIMIT_DEFAULT, self._limit_max)
        if "limit" in query:
            limit = parse_count("limit", query["limit"], maximum=self._limit_max)
        # One more than the limit shows whether there is a next page.
        infos = self._visible(query.get("prefix", ""), query.get("after", ""), limit + 1)
        page = infos[:limit]
        content = {
            "streams": [_entry(info) for info in page],
            "next": page[-1].path if len(infos) > limit else None,
        }
        return document(content)

    def _visible(self, prefix: str, after: str, limit: int) -> list[StreamInfo]:
        """Return up to `limit` streams, without those that only the server reads."""
        infos: list[StreamInfo] = []
        while True:
            page = self._engine.list_streams(prefix, after, limit)
            infos += [info for info in page if not info.path.startswith(f"{RESERVED}/")]
            if len(page) < limit or len(infos) >= limit:
                return infos[:limit]
            after = page[-1].path


def _entry(info: StreamInfo) -> dict[str, Any]:
    expires_at_us = info.expires_at_us
    return {
        "path": info.path,
        "offset": Offset(info.id, info.tail).token,
        "content_type": info.content_type,
        "messages": info.messages - info.earliest_ordinal,
        "bytes": info.tail - info.earliest,
        "trimmed": info.earliest_ordinal,
        "closed": info.closed,
        "created_at": format_expires_at(info.created_us),
        "ttl": info.ttl_s,
        "expires_at": None if expires_at_us is None else format_expires_at(expires_at_us),
        "forked_from": info.forked_from,
    }
