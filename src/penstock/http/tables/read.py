"""`GET /v1/table/<path>`: the rows of a table after a SeqNo, its last rows, or those of its live
keys.

Decides where an answer starts and whether it ends at the tail or waits there; the rows come from
the view, and streaming them is the channel's business.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.errors import InvalidParameter, NotAcceptable
from penstock.http.bodies import SMALL_BYTES_MAX
from penstock.http.compression import StreamEncoder, encode
from penstock.http.headers import CLOSED, NO_CACHE, VARY_TABLE, has_tag, weak
from penstock.http.message import Headers, Request, Response
from penstock.http.query import parse_query
from penstock.http.tables.response import TableReader
from penstock.stp.content_type import accepts
from penstock.stp.rows import parse_since_id
from penstock.stp.server.table_view import RowCursor

if TYPE_CHECKING:
    from penstock.http.compression import Compressor
    from penstock.http.tables.live import TableLive
    from penstock.stp.server.table_view import TableExtent, TableView
    from penstock.stp.server.tables import TableDirectory

_PARAMETERS: Final = frozenset({"since_id", "timeout", "view"})
_SECONDS: Final = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,6})?", re.ASCII)


class Asked(NamedTuple):
    """What a reader wants. `timeout_s` 0 is an answer without waiting."""

    since_id: int
    timeout_s: float
    active: bool


class TableReads:
    def __init__(self, tables: TableDirectory, live: TableLive, compressor: Compressor) -> None:
        self._tables = tables
        self._live = live
        self._compressor = compressor

    async def get(self, path: str, request: Request) -> Response:
        asked = self._asked(request)
        view = self._tables.find(path, touch=True)
        _negotiate(view, request)
        if asked.active:
            return await self._active(view, asked, request)
        standing = await view.extent(counted=asked.since_id < 0)
        place = await view.cursor(asked.since_id, standing)
        headers = self._headers(view, standing)
        if self._waits(view, asked):
            return self._waiting(view, place, asked, headers, request)
        if place is None:
            place = RowCursor(standing.position, standing.messages)
        tag = f'"{view.stream.id}:r{place.ordinal}:{standing.messages}{_end(view, standing)}"'
        if (seen := _unchanged(request, tag, headers)) is not None:
            return seen
        return await self._now(view, place, standing, None, request, headers, tag)

    async def _active(self, view: TableView, asked: Asked, request: Request) -> Response:
        active = await view.active()
        standing = active.extent
        headers = self._headers(view, standing)
        place, first = RowCursor(standing.position, standing.messages), view.active_rows(active)
        if self._waits(view, asked):
            return self._waiting(view, place, asked, headers, request, first)
        tag = f'"{view.stream.id}:a{standing.messages}{_end(view, standing)}"'
        if (seen := _unchanged(request, tag, headers)) is not None:
            return seen
        size = sum(active.lengths)
        return await self._now(view, place, standing, first, request, headers, tag, size)

    def _asked(self, request: Request) -> Asked:
        query = parse_query(request.query, _PARAMETERS)
        since_id = parse_since_id(query.get("since_id"))
        view = query.get("view")
        if view not in (None, "active"):
            raise InvalidParameter("`view` is active; leave it out for all rows.")
        if view is not None and since_id != 0:
            raise InvalidParameter(
                "`view=active` is a whole state: leave `since_id` out, and go on from "
                "STP-Last-SeqNo without `view`."
            )
        timeout_s, given = self._live.timeout_s, query.get("timeout")
        if given is not None:
            if _SECONDS.fullmatch(given) is None:
                raise InvalidParameter("`timeout` is a number of seconds; 0 is not to wait.")
            timeout_s = min(timeout_s, float(given))
        return Asked(since_id, timeout_s, view is not None)

    def _waits(self, view: TableView, asked: Asked) -> bool:
        return asked.timeout_s > 0 and not view.stream.closed and not self._live.draining

    def _headers(self, view: TableView, standing: TableExtent) -> Headers:
        headers: Headers = [
            (b"content-type", view.table.content_type.encode()),
            (b"stp-last-seqno", b"%d" % standing.last),
            NO_CACHE,
            VARY_TABLE,
        ]
        if view.stream.closed:
            headers.append(CLOSED)
        return headers

    def _waiting(
        self,
        view: TableView,
        place: RowCursor | None,
        asked: Asked,
        headers: Headers,
        request: Request,
        first: AsyncIterator[bytes] | None = None,
    ) -> Response:
        if request.method == "HEAD":
            return Response(200, headers)
        headers.append((b"x-accel-buffering", b"no"))
        reader = TableReader(
            self._live,
            view,
            place,
            since_id=asked.since_id,
            timeout_s=asked.timeout_s,
            until=None,
            first=first,
        )
        return Response(200, headers, reader)

    async def _now(
        self,
        view: TableView,
        place: RowCursor,
        standing: TableExtent,
        first: AsyncIterator[bytes] | None,
        request: Request,
        headers: Headers,
        tag: str,
        size: int | None = None,
    ) -> Response:
        """An answer that ends where the table stood when it was asked for."""
        if request.method == "HEAD":
            return Response(200, [*headers, (b"etag", tag.encode())])
        size = standing.position - place.position if size is None else size
        coding = self._compressor.choose(request.headers.get(b"accept-encoding"))
        if size > SMALL_BYTES_MAX:
            packer = None
            if coding is not None:
                packer = StreamEncoder(coding)
                headers.append((b"content-encoding", coding.encode()))
            headers.append((b"etag", weak(tag) if packer else tag.encode()))
            reader = TableReader(
                self._live,
                view,
                place,
                since_id=0,
                timeout_s=0,
                until=standing.position,
                first=first,
                packer=packer,
            )
            return Response(200, headers, reader)
        data = await _whole(view, place, standing, first)
        self._live.rows_bytes += len(data)
        if coding is not None and self._compressor.applies(view.table.content_type, len(data)):
            headers += [(b"content-encoding", coding.encode()), (b"etag", weak(tag))]
            return Response(200, headers, encode(coding, data))
        headers.append((b"etag", tag.encode()))
        return Response(200, headers, data)


async def _whole(
    view: TableView, place: RowCursor, standing: TableExtent, first: AsyncIterator[bytes] | None
) -> bytes:
    parts = [] if first is None else [data async for data in first]
    while place.position < standing.position:
        block = await view.block(place, standing.position)
        parts.append(block.data)
        place = RowCursor.after(block)
    return b"".join(parts)


def _negotiate(view: TableView, request: Request) -> None:
    table = view.table
    raw = request.headers.get(b"accept")
    if raw is None or raw == b"*/*":
        return
    if not accepts(raw.decode("latin-1"), table.schema, table.version):
        raise NotAcceptable(
            f"The table has {table.content_type}; ask for that, or leave Accept out."
        )


def _end(view: TableView, standing: TableExtent) -> str:
    """Closing changes the tag, so that a 304 cannot hide the end of a table."""
    return ":c" if view.stream.closed and standing.position == view.stream.tail else ""


def _unchanged(request: Request, tag: str, headers: Headers) -> Response | None:
    if not has_tag(request, tag):
        return None
    kept = [header for header in headers if header[0] != b"content-type"]
    return Response(304, [*kept, (b"etag", tag.encode())])
