"""`PUT /v1/table/<path>`: declares a table over an existing stream or a new one.

A declaration is decided on pending state, and decided again if the stream moves while its history
is inspected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from penstock import limits
from penstock.access.rules import Verb
from penstock.errors import (
    NotDeclared,
    NotExpressible,
    Overloaded,
    StreamClosed,
    StreamNotFound,
    TableExists,
    TailMoved,
)
from penstock.http.headers import JSON_TYPE, NO_CACHE, location
from penstock.http.message import Headers, Request, Response
from penstock.http.permission import require
from penstock.http.state.schema import need_json
from penstock.log.requests import Append
from penstock.protocol.headers import format_expires_at, parse_stream_path
from penstock.protocol.lifecycle import StreamConfig
from penstock.state import declaration as state
from penstock.state.server import row_numbers
from penstock.state.server.index_batch import DELETE
from penstock.stp.declaration import (
    META,
    Table,
    allows_only_strings,
    decode,
    differs,
    encode,
    parse_document,
    table_location,
    table_locations,
)
from penstock.stp.events import event_json
from penstock.stp.rows import Change
from penstock.stp.server.history import NOTHING, History, inspect

if TYPE_CHECKING:
    from penstock.clock import Clock
    from penstock.log.stream import Stream
    from penstock.stp.server.tables import TableDirectory

ATTEMPTS_MAX: Final = 100
"""How often a stream may move while a table of it is being declared."""
STRING: Final[dict[str, Any]] = {"schema": {"type": "string"}}


class Plan(NamedTuple):
    """The meta values of a stream with the table; `state` is None if that one does not change."""

    state: bytes | None
    tables: bytes


class TableDeclarations:
    """Declares tables."""

    def __init__(self, tables: TableDirectory, *, clock: Clock, public_url: str) -> None:
        self._directory = tables
        self._engine = tables.engine
        self._indexer = tables.indexer
        self._clock = clock
        self._public_url = public_url.rstrip("/")

    async def put(self, path: str, request: Request, body: bytes) -> Response:
        """Return 201 for a new table, 200 for the same again; raise TableExists for another."""
        table, named_stream = parse_document(body)
        if named_stream is not None:
            named_stream = parse_stream_path(named_stream.encode(), bytes_max=limits.PATH_BYTES_MAX)
        stream_path, name = table_location(path, named_stream)
        if stream_path != path:
            require(request, Verb.ADMIN, stream_path)
        for other, other_name in table_locations(path):
            if (other, other_name) != (stream_path, name):
                self._check_free(path, other, other_name)
        stream = await self._stream(stream_path)
        history = NOTHING
        for _ in range(ATTEMPTS_MAX):
            existing = self._tables(stream)
            if name in existing:
                return await self._again(stream, name, existing[name], table)
            # Checked and declared in one step: nothing is appended between the two.
            if history.position == self._engine.pending(stream).tail:
                undone = await self._undone(stream, history)
                planned = self._plan(stream, name, table, history)
                if undone:
                    await self._delete(stream, history, undone)
                elif history.position == self._engine.pending(stream).tail:
                    await self._declare(stream, planned)
                    created = [(b"location", location(request, self._public_url))]
                    return _response(stream, name, table, 201, created)
            await self._engine.wait(stream, history.position, 1.0)
            history = await inspect(self._engine, self._indexer, stream, table, history)
            self._engine.changeable(stream)
        raise Overloaded("The stream does not rest long enough to be declared; try again.")

    async def _stream(self, path: str) -> Stream:
        try:
            stream = self._engine.find(path, touch=False)
        except StreamNotFound:
            config = StreamConfig("application/json", None, None)
            await self._engine.create(path, config, b"", closed=False)
            stream = self._engine.find(path, touch=False)
        self._engine.changeable(stream)
        need_json(stream)
        return stream

    def _tables(self, stream: Stream) -> dict[str, Table]:
        value = self._engine.pending(stream).meta.get(META)
        return {} if value is None else decode(value)

    def _check_free(self, path: str, stream_path: str, name: str) -> None:
        """Raise TableExists if another stream has a table at `path`."""
        try:
            stream = self._engine.find(stream_path, touch=False)
        except StreamNotFound:
            return
        if name in self._tables(stream):
            raise TableExists(
                f"{path!r} is already a table of the stream {stream_path!r}; send that as `stream`."
            )

    async def _again(self, stream: Stream, name: str, existing: Table, declared: Table) -> Response:
        difference = differs(existing, declared)
        # The response depends on what is pending, and is sent when that is durable.
        value = self._engine.pending(stream).meta[META]
        await self._engine.set_meta(stream.path, META, value)
        if difference is not None:
            raise TableExists(
                f"The table exists with another `{difference}`: "
                f"{getattr(existing, difference)!r}, not {getattr(declared, difference)!r}."
            )
        return _response(stream, name, existing, 200, [])

    async def _undone(self, stream: Stream, history: History) -> list[tuple[str, str]]:
        """Return the keys that an old reset removed and no row says so yet."""
        if not history.has_resets:
            return []
        at = history.position
        return await self._indexer.answer(
            stream,
            at,
            lambda index: index.ask(
                stream.id, at, lambda db, _: row_numbers.undone_keys(db, stream.id, DELETE)
            ),
        )

    async def _delete(
        self, stream: Stream, history: History, undone: list[tuple[str, str]]
    ) -> None:
        """Append rows that delete the keys, unless the stream has moved."""
        if self._engine.pending(stream).closed:
            raise StreamClosed(
                "The stream is closed, and keys that a reset removed cannot be deleted as rows."
            )
        now = format_expires_at(self._clock.now_us())
        events = [
            event_json(type, Change("-", key), timestamp=now, codec="text") for type, key in undone
        ]
        body = b"[" + b",".join(events) + b"]"
        expected = self._engine.token(stream, history.position)
        try:
            await self._engine.append(
                stream.path, Append(body, "application/json", expected=expected)
            )
        except TailMoved:
            pass  # a key may exist again: the history is inspected once more

    def _plan(self, stream: Stream, name: str, table: Table, history: History) -> Plan:
        """Return the meta values that declare the table; raise if it cannot be declared."""
        existing = self._tables(stream)
        if len(existing) >= limits.TABLES_PER_STREAM_MAX:
            raise TableExists(
                f"{stream.path!r} has {len(existing)} tables, as many as one stream can have."
            )
        declared = self._state_declaration(stream, table, history)
        return Plan(declared, encode({**existing, name: table}))

    async def _declare(self, stream: Stream, planned: Plan) -> None:
        """Declare the table in one step, so that nothing is appended between its parts."""
        if planned.state is not None:
            self._engine.set_meta(stream.path, state.META, planned.state)
        await self._engine.set_meta(stream.path, META, planned.tables)
        self._indexer.follow(stream)
        self._directory.declared_new(stream)

    def _state_declaration(self, stream: Stream, table: Table, history: History) -> bytes | None:
        """Return the declaration that the stream needs for this table; None if it has it."""
        pending = self._engine.pending(stream)
        value = pending.meta.get(state.META)
        if value is None:
            if pending.ordinal:
                raise NotDeclared(
                    f"{stream.path!r} has events but is not declared a state stream: "
                    f"PUT /v1/schema/{stream.path} first."
                )
            types = {table.type: STRING} if table.record == "text" else {}
            return self._evolved(stream, 1, state.Document("reject", types, "keep"))
        if table.record == "json":
            return None
        current = state.decode(value)
        entry = current.types.get(table.type)
        if entry is None and history.changes == 0:
            types = {**current.types, table.type: STRING}
            document = state.Document(current.mode, types, current.unknown_types)
            return self._evolved(stream, current.version + 1, document)
        if entry is None or not allows_only_strings(entry["schema"]):
            raise NotExpressible(
                f"A table of text needs a schema that says that {table.type!r} is a string: "
                f'declare {{"type": "string"}} for it with PUT /v1/schema/{stream.path}, or '
                'the table with "record": "json".'
            )
        return None

    def _evolved(self, stream: Stream, version: int, document: state.Document) -> bytes:
        pending = self._engine.pending(stream)
        return state.encode(
            state.Declaration(
                version=version,
                mode=document.mode,
                types=document.types,
                unknown_types=document.unknown_types,
                offset=self._engine.token(stream, pending.tail),
                ordinal=pending.ordinal,
            )
        )


def _response(stream: Stream, name: str, table: Table, status: int, more: Headers) -> Response:
    path = f"{stream.path}/{name}" if name else stream.path
    document = {"table": path, "stream": stream.path, **msgspec.to_builtins(table)}
    headers: Headers = [JSON_TYPE, NO_CACHE, *more]
    return Response(status, headers, msgspec.json.encode(document))
