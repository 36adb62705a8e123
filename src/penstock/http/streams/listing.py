"""`GET /v1/streams`: the streams of this server in the order of their paths, page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.access.rules import Verb
from penstock.http.documents import document
from penstock.http.message import Request, Response
from penstock.http.permission import principal_of
from penstock.http.query import parse_count, parse_query
from penstock.http.router import RESERVED
from penstock.log.lineage import generation_at
from penstock.protocol.headers import format_expires_at
from penstock.protocol.offsets import Offset

if TYPE_CHECKING:
    from penstock.access.principal import Principal
    from penstock.config.settings import Settings
    from penstock.log.engine import Engine
    from penstock.log.stream import StreamInfo

LIMIT_DEFAULT = 100
SCANNED_MAX = 10_000
"""Streams that are looked at for one page."""

_PARAMETERS = frozenset({"prefix", "after", "limit"})


class Listing:
    """The listing. Pages are cut by path, not by number, so that streams may come and go between
    two of them."""

    __slots__ = ("_engine", "_limit_max")

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._limit_max = settings.list_limit_max

    async def get(self, path: str, request: Request) -> Response:
        query = parse_query(request.query, _PARAMETERS)
        limit = min(LIMIT_DEFAULT, self._limit_max)
        if "limit" in query:
            limit = parse_count("limit", query["limit"], maximum=self._limit_max)
        infos, end = await self._visible(
            principal_of(request), query.get("prefix", ""), query.get("after", ""), limit
        )
        return document({"streams": [_entry(info) for info in infos], "next": end})

    async def _visible(
        self, principal: Principal, prefix: str, after: str, limit: int
    ) -> tuple[list[StreamInfo], str | None]:
        """Return up to `limit` streams that a principal may list, and the path after which the next
        page begins, if there may be one.

        Streams that only the server reads are left out. A page may have fewer: the number of
        streams that are looked at for it is limited, too.
        """
        infos: list[StreamInfo] = []
        scanned = 0
        for start in _starts(principal, prefix):
            at = after
            while True:
                # One more than the limit shows whether there is a next page.
                page = await self._engine.list_streams(start, at, limit + 1)
                scanned += len(page)
                for info in page:
                    if is_visible(principal, info.path):
                        if len(infos) == limit:
                            return infos, infos[-1].path
                        infos.append(info)
                if len(page) <= limit:
                    break
                at = page[-1].path
                if scanned >= SCANNED_MAX:
                    return infos, at
        return infos, None


def is_visible(principal: Principal, path: str) -> bool:
    """Whether a principal may list a stream; nobody lists those that only the server reads."""
    return not path.startswith(f"{RESERVED}/") and principal.may(Verb.LIST, path)


def _starts(principal: Principal, prefix: str) -> list[str]:
    """Return the prefixes, in order and without overlap, of what a principal may list below one."""
    if principal.is_root:
        return [prefix]
    starts: list[str] = []
    for allowed in principal.rules.prefixes(Verb.LIST):
        start = allowed if allowed.startswith(prefix) else prefix
        if start.startswith(allowed) and not (starts and start.startswith(starts[-1])):
            starts.append(start)
    return starts


def _entry(info: StreamInfo) -> dict[str, Any]:
    expires_at_us = info.expires_at_us
    return {
        "path": info.path,
        "offset": Offset(generation_at(info, info.tail), info.tail).token,
        "content_type": info.content_type,
        "messages": info.messages - info.earliest_ordinal,
        "bytes": info.tail - info.earliest,
        "trimmed": info.earliest_ordinal,
        "closed": info.closed,
        "created_at": format_expires_at(info.created_us),
        "touched_at": format_expires_at(info.touched_us),
        "ttl": info.ttl_s,
        "expires_at": None if expires_at_us is None else format_expires_at(expires_at_us),
        "forked_from": info.forked_from,
    }
