"""`PUT /v1/table/<path>`: declares a table, over a stream that is there or over a new one.

Decided on pending state, and decided again if the stream moves while its history is looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock import limits
from penstock.errors import (
    NotDeclared,
    NotExpressible,
    Overloaded,
    StreamClosed,
    StreamNotFound,
    TableExists,
)
from penstock.http.headers import JSON_TYPE, NO_CACHE, location
from penstock.http.message import Headers, Request, Response
from penstock.http.state.schema import need_json
from penstock.log.decide.context import not_found
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
    from penstock.log.engine import Engine
    from penstock.log.stream import Stream
    from penstock.state.server.indexer import StateIndexer

ATTEMPTS_MAX: Final = 100
"""How often a stream may move under the hands of who declares a table of it."""
STRING: Final[dict[str, Any]] = {"schema": {"type": "string"}}


class TableDeclarations:
    def __init__(self, engine: Engine, keeper: StateIndexer, *, clock: Clock) -> None:
        self._engine = engine
        self._keeper = keeper
        self._clock = clock

    async def put(self, path: str, request: Request, body: bytes) -> Response:
        """201 for a new table, 200 for the same again, 409 for another."""
        table, wanted = parse_document(body)
        if wanted is not None:
            wanted = parse_stream_path(wanted.encode(), bytes_max=limits.PATH_BYTES_MAX)
        stream_path, name = table_location(path, wanted)
        for other, other_name in table_locations(path):
            if (other, other_name) != (stream_path, name):
                self._check_free(path, other, other_name)
        stream = await self._stream(stream_path)
        history = NOTHING
        for _ in range(ATTEMPTS_MAX):
            known = self._known(stream)
            if name in known:
                return await self._again(stream, name, known[name], table)
            # Now, so that nothing is appended between the look at the stream and the decision.
            if history.position == self._engine.pending(stream).tail:
                undone = await self._undone(stream, history)
                if history.position == self._engine.pending(stream).tail:
                    await self._declare(stream, name, table, history, undone)
                    created = [(b"location", location(request))]
                    return _answer(stream, name, table, 201, created)
            await self._engine.wait(stream, history.position, 1.0)
            history = await inspect(self._engine, self._keeper, stream, table, history)
            if stream.deleted:
                raise not_found(stream_path)
        raise Overloaded("The stream does not rest long enough to be declared; try again.")

    async def _stream(self, path: str) -> Stream:
        try:
            stream = self._engine.find(path, touch=False)
        except StreamNotFound:
            config = StreamConfig("application/json", None, None)
            await self._engine.create(path, config, b"", closed=False)
            stream = self._engine.find(path, touch=False)
        if self._engine.pending(stream).deleting:
            raise not_found(path)
        need_json(stream)
        return stream

    def _known(self, stream: Stream) -> dict[str, Table]:
        value = self._engine.pending(stream).meta.get(META)
        return {} if value is None else decode(value)

    def _check_free(self, path: str, stream_path: str, name: str) -> None:
        """One path is one table."""
        try:
            stream = self._engine.find(stream_path, touch=False)
        except StreamNotFound:
            return
        if name in self._known(stream):
            raise TableExists(
                f"{path!r} is already a table of the stream {stream_path!r}; give that as `stream`."
            )

    async def _again(self, stream: Stream, name: str, known: Table, wanted: Table) -> Response:
        difference = differs(known, wanted)
        # The answer rests on what is pending, and is given when that is durable.
        value = self._engine.pending(stream).meta[META]
        await self._engine.set_meta(stream.path, META, value)
        if difference is not None:
            raise TableExists(
                f"The table is there with another `{difference}`: "
                f"{getattr(known, difference)!r}, not {getattr(wanted, difference)!r}."
            )
        return _answer(stream, name, known, 200, [])

    async def _undone(self, stream: Stream, history: History) -> list[tuple[str, str]]:
        """Keys that an old reset took away: rows have yet to say so."""
        if not history.has_resets:
            return []
        at = history.position
        return await self._keeper.answer(
            stream,
            at,
            lambda index: index.ask(
                stream.id, at, lambda db, _: row_numbers.undone_keys(db, stream.id, DELETE)
            ),
        )

    async def _declare(
        self,
        stream: Stream,
        name: str,
        table: Table,
        history: History,
        undone: list[tuple[str, str]],
    ) -> None:
        """Everything in one step: nothing comes between its parts."""
        known = self._known(stream)
        if len(known) >= limits.TABLES_PER_STREAM_MAX:
            raise TableExists(
                f"{stream.path!r} has {len(known)} tables, as many as one stream can have."
            )
        declared = self._state_declaration(stream, table, history)
        engine, path = self._engine, stream.path
        if undone and engine.pending(stream).closed:
            raise StreamClosed(
                "The stream is closed, and keys that a reset took away cannot be deleted as rows."
            )
        if declared is not None:
            engine.set_meta(path, state.META, declared)
        if undone:
            now = format_expires_at(self._clock.now_us())
            events = [
                event_json(type, Change("-", key), timestamp=now, codec="text")
                for type, key in undone
            ]
            body = b"[" + b",".join(events) + b"]"
            engine.append(path, Append(body, "application/json", False, None, None, None))
        await engine.set_meta(path, META, encode({**known, name: table}))
        self._keeper.follow(stream)

    def _state_declaration(self, stream: Stream, table: Table, history: History) -> bytes | None:
        """What a stream has to say of its types to be this table; None if it does already."""
        pending = self._engine.pending(stream)
        value = pending.meta.get(state.META)
        if value is None:
            if pending.ordinal:
                raise NotDeclared(
                    f"{stream.path!r} has events but is not declared a state stream: "
                    f"PUT /v1/schema/{stream.path} first."
                )
            types = {table.type: STRING} if table.record == "text" else {}
            return self._evolved(stream, 1, "reject", types)
        if table.record == "json":
            return None
        known = state.decode(value)
        entry = known.types.get(table.type)
        if entry is None and history.changes == 0:
            return self._evolved(
                stream, known.version + 1, known.mode, {**known.types, table.type: STRING}
            )
        if entry is None or not allows_only_strings(entry["schema"]):
            raise NotExpressible(
                f"A table of text needs a schema that says that {table.type!r} is a string: "
                f'declare {{"type": "string"}} for it with PUT /v1/schema/{stream.path}, or '
                'the table with "record": "json".'
            )
        return None

    def _evolved(
        self, stream: Stream, version: int, mode: state.Mode, types: dict[str, Any]
    ) -> bytes:
        pending = self._engine.pending(stream)
        return state.encode(
            state.Declaration(
                version=version,
                mode=mode,
                types=types,
                offset=self._engine.token(stream, pending.tail),
                ordinal=pending.ordinal,
            )
        )


def _answer(stream: Stream, name: str, table: Table, status: int, more: Headers) -> Response:
    path = f"{stream.path}/{name}" if name else stream.path
    document = {"table": path, "stream": stream.path, **msgspec.to_builtins(table)}
    headers: Headers = [JSON_TYPE, NO_CACHE, *more]
    return Response(status, headers, msgspec.json.encode(document))
