"""`GET /v1/table/<path>`: the rows of a table after a SeqNo, its last rows, or those of its live
keys.

Decides where a response starts and whether it ends at the tail or waits there; the rows come from
the view, and the channel streams them.
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
from penstock.log.lineage import generation_at
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


class TableQuery(NamedTuple):
    """The parameters of a read. `timeout_s` 0 is a response without waiting."""

    since_id: int
    timeout_s: float
    active: bool


class TableReads:
    """Reads of tables."""

    def __init__(self, tables: TableDirectory, live: TableLive, compressor: Compressor) -> None:
        self._tables = tables
        self._live = live
        self._compressor = compressor

    async def get(self, path: str, request: Request) -> Response:
        query = self._query(request)
        view = self._tables.find(path, touch=True)
        _negotiate(view, request)
        if query.active:
            return await self._active(view, query, request)
        extent = await view.extent(counted=query.since_id < 0)
        cursor = await view.cursor(query.since_id, extent)
        headers = self._headers(view, extent)
        if self._waits(view, query):
            return self._waiting(view, cursor, query, headers, request)
        if cursor is None:
            cursor = RowCursor(extent.position, extent.messages)
        tag = _tag(view, extent, f"r{cursor.ordinal}:{extent.messages}")
        if (unchanged := _not_modified(request, tag, headers)) is not None:
            return unchanged
        return await self._bounded(view, cursor, extent, None, request, headers, tag)

    async def _active(self, view: TableView, query: TableQuery, request: Request) -> Response:
        active = await view.active()
        extent = active.extent
        headers = self._headers(view, extent)
        cursor, first = RowCursor(extent.position, extent.messages), view.active_rows(active)
        if self._waits(view, query):
            return self._waiting(view, cursor, query, headers, request, first)
        tag = _tag(view, extent, f"a{extent.messages}")
        if (unchanged := _not_modified(request, tag, headers)) is not None:
            return unchanged
        size = sum(active.lengths)
        return await self._bounded(view, cursor, extent, first, request, headers, tag, size)

    def _query(self, request: Request) -> TableQuery:
        parameters = parse_query(request.query, _PARAMETERS)
        since_id = parse_since_id(parameters.get("since_id"))
        view = parameters.get("view")
        if view not in (None, "active"):
            raise InvalidParameter("`view` must be active; leave it out for all rows.")
        if view is not None and since_id != 0:
            raise InvalidParameter(
                "`view=active` is a whole state: leave `since_id` out, and go on from "
                "STP-Last-SeqNo without `view`."
            )
        timeout_s, text = self._live.timeout_s, parameters.get("timeout")
        if text is not None:
            if _SECONDS.fullmatch(text) is None:
                raise InvalidParameter(
                    "`timeout` must be a number of seconds; 0 responds without waiting."
                )
            timeout_s = min(timeout_s, float(text))
        return TableQuery(since_id, timeout_s, view is not None)

    def _waits(self, view: TableView, query: TableQuery) -> bool:
        return query.timeout_s > 0 and not view.stream.closed and not self._live.draining

    def _headers(self, view: TableView, extent: TableExtent) -> Headers:
        headers: Headers = [
            (b"content-type", view.table.content_type.encode()),
            (b"stp-last-seqno", b"%d" % extent.last),
            NO_CACHE,
            VARY_TABLE,
        ]
        if view.stream.closed:
            headers.append(CLOSED)
        return headers

    def _waiting(
        self,
        view: TableView,
        cursor: RowCursor | None,
        query: TableQuery,
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
            cursor,
            since_id=query.since_id,
            timeout_s=query.timeout_s,
            until=None,
            first=first,
        )
        return Response(200, headers, reader)

    async def _bounded(
        self,
        view: TableView,
        cursor: RowCursor,
        extent: TableExtent,
        first: AsyncIterator[bytes] | None,
        request: Request,
        headers: Headers,
        tag: str,
        size: int | None = None,
    ) -> Response:
        """Return a response that ends at `extent`."""
        if request.method == "HEAD":
            return Response(200, [*headers, (b"etag", tag.encode())])
        size = extent.position - cursor.position if size is None else size
        coding = self._compressor.choose(request.headers.get(b"accept-encoding"))
        if size > SMALL_BYTES_MAX:
            encoder = None
            if coding is not None:
                encoder = StreamEncoder(coding)
                headers.append((b"content-encoding", coding.encode()))
            headers.append((b"etag", weak(tag) if encoder else tag.encode()))
            reader = TableReader(
                self._live,
                view,
                cursor,
                since_id=0,
                timeout_s=0,
                until=extent.position,
                first=first,
                encoder=encoder,
            )
            return Response(200, headers, reader)
        data = await _whole(view, cursor, extent, first)
        self._live.rows_bytes += len(data)
        if coding is not None and self._compressor.applies(view.table.content_type, len(data)):
            headers += [(b"content-encoding", coding.encode()), (b"etag", weak(tag))]
            return Response(200, headers, encode(coding, data))
        headers.append((b"etag", tag.encode()))
        return Response(200, headers, data)


async def _whole(
    view: TableView, cursor: RowCursor, extent: TableExtent, first: AsyncIterator[bytes] | None
) -> bytes:
    parts = [] if first is None else [data async for data in first]
    while cursor.position < extent.position:
        block = await view.block(cursor, extent.position)
        parts.append(block.data)
        cursor = RowCursor.after(block)
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


def _tag(view: TableView, extent: TableExtent, rows: str) -> str:
    """Return the tag of rows; closing changes it, so that a 304 cannot hide a table's end."""
    end = ":c" if view.stream.closed and extent.position == view.stream.tail else ""
    return f'"{generation_at(view.stream, extent.position)}:{rows}{end}"'


def _not_modified(request: Request, tag: str, headers: Headers) -> Response | None:
    if not has_tag(request, tag):
        return None
    without_type = [header for header in headers if header[0] != b"content-type"]
    return Response(304, [*without_type, (b"etag", tag.encode())])
