"""One table over the log: its extent, the positions of its rows, and the rows themselves.

Asks the engine for bytes and the state index for numbers; knows no HTTP. A SeqNo is an ordinal of
the stream plus one, so that positions are found through the log's own index; only counting back
through other types needs the state index.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.errors import RowsTrimmed
from penstock.log.spans import spans
from penstock.protocol.headers import format_expires_at
from penstock.state.server import row_numbers
from penstock.stp.server.row_cache import BLOCK_BYTES, Block, BlockCache, Key, after
from penstock.stp.transcode import Transcoder, events_of, parsed

if TYPE_CHECKING:
    from penstock.log.engine import Engine
    from penstock.log.stream import Stream
    from penstock.state.server.indexer import StateIndexer
    from penstock.stp.declaration import Table

SLICE_BYTES: Final = 64 * 1024
"""Bytes of the log that are transcoded at a time. A slice of this size blocks the event loop for
less time than a thread that holds the interpreter would, stays in the processor's cache, and reuses
memory of the allocator."""
INLINE_BYTES: Final = 2 * SLICE_BYTES
"""More bytes than this are transcoded off the event loop."""
GLANCE_BYTES: Final = 4 * 1024
"""Bytes before the tail where the last row is looked for first."""
NEAR_BYTES: Final = 64 * 1024
"""Fewer bytes than this are read rather than asking the index."""
FIRST_BYTES: Final = 32 * 1024
"""Bytes that are transcoded first for a reader that starts inside a block."""
OVERRUN_BYTES: Final = 4 * 1024
"""Bytes read beyond a block, to find the end of its last message with the same read."""


class TableExtent(NamedTuple):
    """A table at a position of its stream, with `messages` before it. `last` is the SeqNo of its
    last row (0 if there is none); `rows` is -1 if the rows are not counted."""

    position: int
    messages: int
    last: int
    rows: int = -1


class RowCursor(NamedTuple):
    """The position of a reader: it has all rows up to SeqNo `ordinal`. `aligned` if a block starts
    there."""

    position: int
    ordinal: int
    aligned: bool = False

    @classmethod
    def after(cls, block: Block) -> RowCursor:
        return cls(block.end, block.end_ordinal, aligned=block.ends_stretch)


class Active(NamedTuple):
    """The positions of the rows of all live keys, at an extent of the table."""

    extent: TableExtent
    positions: array[int]
    lengths: array[int]
    ordinals: array[int]


class TableView:
    def __init__(
        self,
        stream: Stream,
        name: str,
        table: Table,
        *,
        engine: Engine,
        indexer: StateIndexer,
        cache: BlockCache,
    ) -> None:
        self.stream = stream
        self.name = name
        self.table = table
        self.transcoder = Transcoder(table, format_expires_at(stream.created_us))
        self._engine = engine
        self._indexer = indexer
        self._cache = cache
        self._extent = TableExtent(0, 0, 0, 0)
        self._uncounted: TableExtent | None = None
        self._counting = asyncio.Lock()
        self._encoding: dict[int, asyncio.Task[Block]] = {}

    @property
    def path(self) -> str:
        return f"{self.stream.path}/{self.name}" if self.name else self.stream.path

    # -- numbers

    async def extent(self, *, counted: bool = False) -> TableExtent:
        """Return the extent at the tail, or a little further if the tail moves meanwhile."""
        stream = self.stream
        target, messages = stream.tail, stream.count
        if self._extent.position < stream.earliest:
            # What was trimmed counts as rows: a reader that asks for it is told that it is deleted.
            first = stream.earliest_ordinal
            self._extent = TableExtent(stream.earliest, first, first, 0)
        extent = self._extent
        if extent.position >= target:
            return extent
        if not counted or stream.earliest:
            if self._uncounted is not None and self._uncounted.position == target:
                return self._uncounted
            last = await self._last(target, messages)
            if last is not None:
                self._uncounted = TableExtent(target, messages, last)
                return self._uncounted
        async with self._counting:
            if target - self._extent.position > NEAR_BYTES:
                await self._jump()
            while self._extent.position < target:
                await self._count_on(target)
        return self._extent

    async def _last(self, tail: int, messages: int) -> int | None:
        """Return the SeqNo of the last row if it is close to the tail, and 0 if there is no row."""
        for size in (GLANCE_BYTES, NEAR_BYTES):
            start = max(tail - size, self.stream.earliest)
            wire = await self._wire(start, tail)
            lines = wire.split(b",\n")[:-1]
            if start > self.stream.earliest:
                lines = lines[1:]  # The first one may be the end of a message only.
            for back, line in enumerate(reversed(lines)):
                if self.transcoder.is_row(parsed(line)):
                    return messages - back
            if start == self.stream.earliest:
                return self.stream.earliest_ordinal
        return None

    async def _jump(self) -> None:
        """Advance the extent to where the index has counted."""
        stream, type = self.stream, self.table.type
        numbers = await self._indexer.answer(
            stream,
            0,
            lambda index: index.ask(
                stream.id, 0, lambda db, _: row_numbers.count(db, stream.id, type)
            ),
        )
        self._advance(numbers)

    def _advance(self, numbers: row_numbers.Numbers) -> None:
        if numbers.position > self._extent.position:
            self._extent = _extent(numbers)

    async def _count_on(self, target: int) -> None:
        extent = self._extent
        end = await self._engine.plan(
            self.stream, extent.position, max_bytes=BLOCK_BYTES, until=target
        )
        wire = await self._wire(extent.position, end)
        rows, last = await _run_off_loop_if_large(
            len(wire), self.transcoder.counts, wire, extent.messages
        )
        self._extent = TableExtent(
            end, extent.messages + wire.count(b"\n"), last or extent.last, extent.rows + rows
        )

    # -- cursors

    async def cursor(self, since_id: int, extent: TableExtent) -> RowCursor | None:
        """Return where a reader with `since_id` starts; None if that is beyond all rows."""
        first = self.stream.earliest_ordinal
        if since_id < 0:
            find = self._from_end if first == 0 else self._read_back
            return await find(-since_id, extent)
        if since_id == 0:
            return self._start()
        if since_id < first:
            raise RowsTrimmed(
                f"Rows up to SeqNo {first} are no longer kept; read from the start, without "
                "`since_id`.",
                STP_Earliest_SeqNo=str(first + 1),
            )
        if since_id > extent.messages:
            return None
        return RowCursor(await self._engine.seek(self.stream, since_id), since_id)

    def _start(self) -> RowCursor:
        stream = self.stream
        return RowCursor(stream.earliest, stream.earliest_ordinal, aligned=stream.earliest == 0)

    async def _read_back(self, count: int, extent: TableExtent) -> RowCursor:
        """Find the last `count` rows by reading backwards: a trimmed stream has no row numbers."""
        end, ordinal, cut = extent.position, extent.messages, b""
        while end > self.stream.earliest:
            start = max(end - NEAR_BYTES, self.stream.earliest)
            wire = await self._wire(start, end) + cut
            position = end + len(cut)
            cut = b"" if start == self.stream.earliest else wire[: wire.find(b"\n") + 1]
            lines = wire[len(cut) :].split(b"\n")[:-1]
            for line in reversed(lines):
                ordinal -= 1
                position -= len(line) + 1
                count -= self.transcoder.is_row(parsed(line.removesuffix(b",")))
                if count == 0:
                    return RowCursor(position, ordinal)
            end = start
        return self._start()

    async def _from_end(self, count: int, extent: TableExtent) -> RowCursor:
        if count >= extent.rows:
            return self._start()
        if extent.rows == extent.messages:
            ordinal = extent.messages - count
            return RowCursor(await self._engine.seek(self.stream, ordinal), ordinal)
        stream, type, number = self.stream, self.table.type, extent.rows - count
        mark = await self._indexer.answer(
            stream,
            0,
            lambda index: index.ask(
                stream.id,
                0,
                lambda db, _: (
                    row_numbers.mark(db, stream.id, type, number) or row_numbers.Mark(0, 0, 0)
                ),
            ),
        )
        return await self._walk(mark, number, extent)

    async def _walk(self, mark: row_numbers.Mark, number: int, extent: TableExtent) -> RowCursor:
        """Read from a mark of the index to the row with a number."""
        at, position, ordinal = mark
        while position < extent.position:
            end = await self._engine.plan(
                self.stream, position, max_bytes=NEAR_BYTES, until=extent.position
            )
            wire = await self._wire(position, end)
            for line, event in zip(wire.split(b"\n"), events_of(wire), strict=False):
                if self.transcoder.is_row(event):
                    if at == number:
                        return RowCursor(position, ordinal)
                    at += 1
                position += len(line) + 1
                ordinal += 1
        return RowCursor(position, ordinal)

    # -- rows

    async def block(self, cursor: RowCursor, until: int) -> Block:
        """Return the next rows after a cursor, of some messages before `until`."""
        stretch = cursor.position // BLOCK_BYTES
        boundary = (stretch + 1) * BLOCK_BYTES
        until = min(until, self.stream.tail)
        if until <= boundary:
            return await self._encode(cursor, until)
        key = (self.stream.id, self.name, stretch)
        cached = self._cache.get(key)
        if cached is not None:
            if cached.position == cursor.position:
                return cached
            rows = after(cached.data, cursor.ordinal)
            return cached._replace(position=cursor.position, ordinal=cursor.ordinal, data=rows)
        if not cursor.aligned:
            # A small block first: a reader that starts in the middle may need only a few rows.
            return await self._encode(cursor, min(boundary, cursor.position + FIRST_BYTES))
        encoding = self._encoding.get(stretch)
        if encoding is None:
            # Once for all readers that come at the same time, after a restart for example.
            encoding = asyncio.get_running_loop().create_task(self._fill(key, cursor, boundary))
            self._encoding[stretch] = encoding
            encoding.add_done_callback(lambda done: self._filled(stretch, done))
        return await asyncio.shield(encoding)

    async def _fill(self, key: Key, cursor: RowCursor, boundary: int) -> Block:
        block = await self._encode(cursor, boundary)
        self._cache.put(key, block)
        return block

    def _filled(self, stretch: int, encoding: asyncio.Task[Block]) -> None:
        del self._encoding[stretch]
        if not encoding.cancelled():
            encoding.exception()  # Whoever waited has got it.

    async def _encode(self, cursor: RowCursor, boundary: int) -> Block:
        """Encode the messages after a cursor that start before `boundary`."""
        parts: list[bytes] = []
        position, ordinal, _ = cursor
        while position < boundary:
            if parts:
                await asyncio.sleep(0)  # Other tasks get their turn.
            wire = await self._messages(position, min(position + SLICE_BYTES, boundary))
            rows = await _run_off_loop_if_large(len(wire), self.transcoder.rows, wire, ordinal)
            parts.append(rows.data)
            position += len(wire)
            ordinal += rows.messages
        return Block(cursor.position, cursor.ordinal, b"".join(parts), position, ordinal)

    async def _messages(self, start: int, boundary: int) -> memoryview:
        """Return the messages from `start` on that start before `boundary`."""
        tail = self.stream.tail
        end = min(boundary + OVERRUN_BYTES, tail)
        wire = await self._wire(start, end)
        stop = wire.find(b"\n", boundary - start - 1)
        while stop < 0 and end < tail:
            more = await self._wire(end, min(end + BLOCK_BYTES, tail))
            end += len(more)
            wire += more
            stop = wire.find(b"\n", boundary - start - 1)
        return memoryview(wire)[: stop + 1]

    async def active(self) -> Active:
        """Return the positions of the rows of all live keys, once the index is at the tail."""
        stream, type, at = self.stream, self.table.type, self.stream.tail
        numbers, columns = await self._indexer.answer(
            stream,
            at,
            lambda index: index.ask(
                stream.id,
                at,
                lambda db, _: (
                    row_numbers.count(db, stream.id, type),
                    row_numbers.live(db, stream.id, type),
                ),
            ),
        )
        self._advance(numbers)
        return Active(_extent(numbers), *columns)

    async def active_rows(self, active: Active) -> AsyncIterator[bytes]:
        """Yield the rows of all live keys, in the order of SeqNo."""
        for span in spans(active.positions, active.lengths, span_bytes_max=BLOCK_BYTES):
            wire = await self._wire(span.start, span.end)
            positions = active.positions[span.first : span.stop]
            lengths = active.lengths[span.first : span.stop]
            chosen = b"".join(
                [
                    wire[position - span.start : position - span.start + length]
                    for position, length in zip(positions, lengths, strict=True)
                ]
            )
            seqnos = [ordinal + 1 for ordinal in active.ordinals[span.first : span.stop]]
            yield await _run_off_loop_if_large(len(chosen), self.transcoder.rows_at, chosen, seqnos)

    async def _wire(self, start: int, end: int) -> bytes:
        return await self._indexer.read(self.stream, start, end)


def _extent(numbers: row_numbers.Numbers) -> TableExtent:
    return TableExtent(numbers.position, numbers.messages, numbers.ordinal + 1, numbers.changes)


async def _run_off_loop_if_large(size: int, job: Any, *arguments: Any) -> Any:
    if size <= INLINE_BYTES:
        return job(*arguments)
    return await asyncio.to_thread(job, *arguments)
