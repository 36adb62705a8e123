"""`/v1/table/<path>`: PUT without a key declares a table; PUT and DELETE with a key, and POST with
rows, write to it.

A written row is a change event appended to the table's stream, checked and acknowledged like any
other append.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Final

from penstock import limits
from penstock.errors import (
    BodyTooLarge,
    EmptyBody,
    InvalidParameter,
    InvalidRow,
    UnsupportedType,
)
from penstock.http.headers import append_headers, expected_offset, producer_from, stream_seq_from
from penstock.http.message import Request, Response
from penstock.http.query import parse_query
from penstock.log.requests import Append, Appended, Writer
from penstock.protocol.headers import format_expires_at, media_type
from penstock.stp.content_type import MEDIA
from penstock.stp.events import event_json
from penstock.stp.rows import Change, check_key, check_record, in_batch, parse_changes

if TYPE_CHECKING:
    from penstock.clock import Clock
    from penstock.config.settings import Settings
    from penstock.http.tables.declare import TableDeclarations
    from penstock.stp.declaration import Table
    from penstock.stp.server.live_keys import LiveKeys
    from penstock.stp.server.table_view import TableView
    from penstock.stp.server.tables import TableDirectory

ROW_TYPES: Final = frozenset({"text/tab-separated-values", MEDIA, "text/plain"})

_PARAMETERS: Final = frozenset({"key"})

INLINE_BYTES: Final = 64 * 1024
"""Longer bodies are parsed off the loop."""

Answer = Coroutine[Any, Any, Response]


class Tables:
    """The methods of a table that change something."""

    def __init__(
        self,
        tables: TableDirectory,
        declarations: TableDeclarations,
        live_keys: LiveKeys,
        settings: Settings,
        *,
        clock: Clock,
    ) -> None:
        self._tables = tables
        self._declarations = declarations
        self.live_keys = live_keys
        self._settings = settings
        self._clock = clock
        self.rows_written = 0

    def put(self, path: str, request: Request) -> Answer:
        key = row_key(request)
        if key is None:
            return self._declarations.put(path, request, request.body)
        view = self._tables.find(path, touch=False)
        try:
            record = request.body.decode()
        except UnicodeDecodeError as error:
            raise InvalidRow(
                f"A record must be UTF-8; byte {error.start} of this one is not.", field="record"
            ) from None
        return self._write(view, Change("+", key, record), request)

    def delete(self, path: str, request: Request) -> Answer:
        key = row_key(request)
        if key is None:
            raise InvalidParameter(
                "`key` is missing; it names the row to delete. To remove the table with all its "
                f"rows, DELETE its stream, /v1/stream/{path}."
            )
        view = self._tables.find(path, touch=False)
        return self._write(view, Change("-", key), request)

    def post(self, path: str, request: Request) -> Answer:
        view = self._tables.find(path, touch=False)
        raw_type = request.headers.get(b"content-type")
        if raw_type is not None and media_type(raw_type.decode("latin-1")) not in ROW_TYPES:
            raise UnsupportedType(
                "Rows to write are lines of `+`, key and record, or `-` and key, separated by "
                "tabs: send them as text/tab-separated-values."
            )
        body = request.body
        if len(body) > INLINE_BYTES:
            return self._post_large(view, body, request)
        return self._append(view, *self._parsed(view.table, body), request)

    async def _post_large(self, view: TableView, body: bytes, request: Request) -> Response:
        """Parse and encode the rows off the loop; the append is decided on it."""
        events, rows = await asyncio.to_thread(self._parsed, view.table, body)
        view = self._tables.find(view.path, touch=False)
        return await self._append(view, events, rows, request)

    def _parsed(self, table: Table, body: bytes) -> tuple[bytes, int]:
        """Return the events of the rows in a body as a JSON array, and their number."""
        if body.count(b"\n") > limits.TABLE_ROWS_PER_POST_MAX:
            raise BodyTooLarge(
                f"The body has more than {limits.TABLE_ROWS_PER_POST_MAX} rows: send them in "
                "several requests."
            )
        bytes_max = limits.TABLE_GROWTH_MAX * self._settings.body_bytes_max
        now = format_expires_at(self._clock.now_us())
        pieces: list[bytes] = []
        rows = size = 0
        for lines in _slices(body):
            try:
                changes = parse_changes(lines, escape=table.escape)
                pieces.append(b",".join(_events(table, changes, now)))
            except InvalidRow as error:
                raise _at(error, rows) from None
            rows += len(changes)
            size += len(pieces[-1])
            if size > bytes_max:
                raise BodyTooLarge(
                    f"The rows become events of more than {bytes_max} bytes: send them in several "
                    "requests."
                )
        if not rows:
            raise EmptyBody("The body has no row; send at least one.")
        return b"[%b]" % b",".join(pieces), rows

    def _write(self, view: TableView, change: Change, request: Request) -> Answer:
        now = format_expires_at(self._clock.now_us())
        try:
            (event,) = _events(view.table, [change], now)
        except InvalidRow as error:
            raise InvalidRow(error.detail.removeprefix("Row 0: "), field=error.field) from None
        self.live_keys.want(view.stream, view.table.type, (change.key,))
        return self._append(view, b"[%b]" % event, 1, request)

    def _append(self, view: TableView, events: bytes, rows: int, request: Request) -> Answer:
        """Append now, before anything waits: the transport drops the request's body when this
        returns, and appends are decided in the order of their requests."""
        future = self._tables.engine.append(view.stream.path, self._append_request(events, request))
        return self._written(view, future, rows)

    async def _written(
        self, view: TableView, future: asyncio.Future[Appended], rows: int
    ) -> Response:
        # wait() and not the future itself: a client that leaves must not cancel the append.
        await asyncio.wait((future,))
        appended = future.result()
        response = Response(204, append_headers(appended))
        if appended.duplicate:
            last = (await view.extent()).last
        else:
            first, last = appended.ordinal + 1, appended.ordinal + rows
            self.rows_written += rows
            response.headers.append((b"stp-first-seqno", b"%d" % first))
            if appended.producer is not None:
                response.status = 200
        response.headers.append((b"stp-last-seqno", b"%d" % last))
        return response

    def _append_request(self, body: bytes, request: Request) -> Append:
        headers, settings = request.headers, self._settings
        return Append(
            body,
            "application/json",
            False,
            producer_from(headers, settings),
            stream_seq_from(headers, settings),
            expected_offset(headers),
            Writer.TABLE,
        )


def _slices(body: bytes) -> Iterator[bytes]:
    """Yield the lines of a body in pieces: their rows as objects take many times their bytes."""
    start = 0
    while start < len(body):
        end = body.find(b"\n", start + INLINE_BYTES) + 1 or len(body)
        yield body[start:end]
        start = end


def _events(table: Table, changes: list[Change], now: str) -> list[bytes]:
    """Return the events of rows; the error of a row has its number among them."""
    events: list[bytes] = []
    for index, change in enumerate(changes):
        try:
            check_key(change.key, escape=table.escape)
            if table.record == "text":
                check_record(change.record, escape=table.escape)
            events.append(event_json(table.type, change, timestamp=now, codec=table.record))
        except InvalidRow as error:
            raise in_batch(error, index) from None
    return events


def _at(error: InvalidRow, first: int) -> InvalidRow:
    """Return the error of a row whose slice begins with row `first`."""
    index = error.index or 0
    detail = error.detail.removeprefix(f"Row {index}: ")
    return in_batch(InvalidRow(detail, field=error.field), index + first)


def row_key(request: Request) -> str | None:
    """Return the key that the query names, to the letter; None if it names none."""
    return parse_query(request.query, _PARAMETERS, strict=True).get("key")
