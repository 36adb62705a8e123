"""A local table that the rows of another are copied into, each once.

The position in the source is the epoch of the mirror's producer, so that it is in the same log
record as the rows and no crash can separate the two. Knows the log; nothing of HTTP.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.errors import InvalidRow
from penstock.log.requests import Append, Writer
from penstock.protocol.headers import Producer
from penstock.state.server import entities
from penstock.state.server.index import StateIndex, StateQuery
from penstock.stp.events import Set, event_json, json_value, to_utc
from penstock.stp.rows import Change, Row

if TYPE_CHECKING:
    from penstock.log.engine import Engine
    from penstock.log.stream import Stream
    from penstock.state.server.indexer import StateIndexer
    from penstock.stp.declaration import Table
    from penstock.stp.server.registry import Follow

POSITION: Final = "stp-position"
"""The meta value with the position after rows that changed nothing."""
LEFT: Final = "stp-left"
"""The meta value with the source that a mirror stopped following, and its tail then."""
HISTORY_MAX: Final = 1000
BATCH_ROWS: Final = 1000
_JSON: Final = "application/json"


class _Event(msgspec.Struct):
    """The members of a change event that a row has."""

    headers: dict[str, msgspec.Raw]
    value: msgspec.Raw = msgspec.Raw(b"")


class Mirror:
    def __init__(
        self,
        engine: Engine,
        indexer: StateIndexer,
        follow: Follow,
        stream: Stream,
        table: Table,
        *,
        on_rows: Callable[[list[Row]], None] | None = None,
    ) -> None:
        """`on_rows` is called with rows that have changed the mirror, when they are durable."""
        self._on_rows = on_rows
        self._engine = engine
        self._indexer = indexer
        self._follow = follow
        self._stream = stream
        self._table = table
        self._producer = producer_id(follow.surl)
        self.appended = 0
        self.unchanged = 0

    @property
    def size(self) -> int:
        """The bytes of the mirror's stream, with those that were trimmed."""
        return self._stream.tail

    async def apply(self, rows: list[Row], now: str) -> None:
        """Append the changes of some rows and the position after them, in one record."""
        if not rows:
            return
        position = rows[-1].seqno
        if not await self._append(rows, now, Producer(self._producer, position, 0)):
            await self._save_position(position)

    async def replace(self, live: dict[str, Row], position: int, now: str) -> None:
        """Make the mirror what the source is at a position, when its history has a gap.

        The position is written last: after a crash before that, the same rows change nothing.
        """
        rows = sorted(live.values(), key=lambda row: row.seqno)
        rows += [Row(position, now, "-", key) for key in await self._keys() if key not in live]
        for start in range(0, len(rows), BATCH_ROWS):
            await self._append(rows[start : start + BATCH_ROWS], now, None)
        await self._save_position(position)

    async def _append(self, rows: list[Row], now: str, producer: Producer | None) -> bool:
        """Append the changes of some rows; return False if there are none."""
        changes = await self._changes(rows)
        self.unchanged += len(rows) - len(changes)
        if not changes:
            return False
        table = self._table
        events = [
            event_json(
                table.type,
                Change(row.action, row.key, row.record),
                timestamp=to_utc(row.timestamp) or now,
                codec=table.record,
                operation=operation,
            )
            for row, operation in changes
        ]
        body = b"[" + b",".join(events) + b"]"
        request = Append(body, _JSON, False, producer, None, None, Writer.SERVER)
        await self._engine.append(self._stream.path, request)
        self.appended += len(changes)
        if self._on_rows is not None:
            self._on_rows([row for row, _ in changes])
        return True

    async def _save_position(self, position: int) -> None:
        value = msgspec.json.encode({"producer": self._producer, "seqno": position})
        await self._engine.set_meta(self._stream.path, POSITION, value)

    async def _changes(self, rows: list[Row]) -> list[tuple[Row, Set]]:
        """Return the rows that change the mirror, in their order, each with the operation that a
        `+` row is. Nobody else writes to the mirror, so that its durable state decides."""
        records = await self._records({row.key for row in rows})
        changes: list[tuple[Row, Set]] = []
        for row in rows:
            record = self._canonical(row.record) if row.action == "+" else None
            if records.get(row.key) == record or await self._is_echo(row, record):
                continue
            changes.append((row, "insert" if records.get(row.key) is None else "update"))
            records[row.key] = record
        return changes

    def _canonical(self, record: str) -> bytes:
        """Return a record as JSON, so that equal records are equal bytes."""
        if self._table.record == "text":
            return msgspec.json.encode(record)
        try:
            return json_value(record)
        except InvalidRow as error:
            raise InvalidRow(f"A row of the source: {error.detail}", field=error.field) from None

    async def _records(self, keys: set[str]) -> dict[str, bytes | None]:
        """Return the record of each key that the mirror has."""
        stream, at = self._stream, self._stream.tail
        if not at:
            return {}
        existing = await self._indexer.answer(
            stream,
            at,
            lambda index: index.ask(
                stream.id, at, lambda db, _: entities.find(db, stream.id, self._table.type, keys)
            ),
        )
        records: dict[str, bytes | None] = {}
        for key, entity in existing.items():
            value = entity.value
            if value is None:
                value = bytes((await self._event(entity.position, entity.length)).value)
            records[key] = msgspec.json.format(value, indent=-1)
        return records

    async def _keys(self) -> list[str]:
        """Return all keys that the mirror has."""
        stream, at = self._stream, self._stream.tail
        if not at:
            return []
        type = self._table.type
        return await self._indexer.answer(
            stream,
            at,
            lambda index: index.ask(
                stream.id, at, lambda db, _: entities.keys(db, stream.id, type)
            ),
        )

    async def _is_echo(self, row: Row, record: bytes | None) -> bool:
        """Whether a row is one of the table's own that came back through a ring of followers.

        Only a table that had rows before it followed can get such rows. They are recognised by
        their key, record and timestamp, which no mirror changes.
        """
        end = self._follow.own_bytes
        if not end:
            return False
        if self._stream.earliest:
            # A trim has deleted rows of its own, which may have come back once and been appended.
            # Those are compared as well, or the rows would go round for ever.
            end = self._stream.tail
        wanted = StateQuery(
            self._stream.id, end, type=self._table.type, key=row.key, limit=HISTORY_MAX
        )
        after = -1
        while True:
            ask = partial(StateIndex.history, query=wanted, after=after)
            steps = await self._indexer.answer(self._stream, end, ask)
            for step in steps[:HISTORY_MAX]:
                event = await self._event(step.position, step.length)
                if _same(event, row, record):
                    return True
            if len(steps) <= HISTORY_MAX:
                return False
            after = steps[HISTORY_MAX - 1].position

    async def _event(self, position: int, length: int) -> _Event:
        wire = await self._indexer.read(self._stream, position, position + length)
        return msgspec.json.decode(wire.rstrip(b",\n"), type=_Event)


def producer_id(surl: str) -> str:
    """Return the producer of a source: each source has its own position."""
    return "stp-follow-" + hashlib.sha256(surl.encode()).hexdigest()[:16]


def position(engine: Engine, stream: Stream, surl: str) -> int:
    """Return the last SeqNo of a source that is durable in a stream."""
    producer = producer_id(surl)
    state = stream.producers.get(producer) or engine.store.load_producer(stream, producer)
    seqno = 0 if state is None else state.epoch
    stored = stream.meta.get(POSITION)
    if stored is not None:
        value = msgspec.json.decode(stored)
        if value["producer"] == producer:
            seqno = max(seqno, value["seqno"])
    return seqno


def left(stream: Stream, surl: str) -> bytes:
    """Return the value of LEFT for a stream that stops following `surl` now."""
    return msgspec.json.encode([producer_id(surl), stream.tail])


def has_left(stream: Stream, surl: str) -> bool:
    """Whether a stream has not changed since it stopped following this source."""
    return stream.meta.get(LEFT) == left(stream, surl)


def has_followed(stream: Stream, surl: str) -> bool:
    """Whether a stream has stopped following this source."""
    value = stream.meta.get(LEFT)
    return value is not None and bool(msgspec.json.decode(value)[0] == producer_id(surl))


def _same(event: _Event, row: Row, record: bytes | None) -> bool:
    timestamp = event.headers.get("timestamp")
    if timestamp is None or to_utc(msgspec.json.decode(timestamp)) != to_utc(row.timestamp):
        return False
    if bytes(event.headers["operation"]) == b'"delete"':
        return record is None
    return record is not None and msgspec.json.format(bytes(event.value), indent=-1) == record
