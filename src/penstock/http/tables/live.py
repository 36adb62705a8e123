"""Streamed responses of tables: the rows of the log, then new rows as they come.

Knows views of tables and sinks, nothing of requests; when rows are written is the channel's
decision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.http.live.channel import Channels, Frame, Progress
from penstock.http.message import Sink
from penstock.http.tables.response import TableReader
from penstock.stp.server.table_view import RowCursor

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.http.traffic import Traffic
    from penstock.log.engine import Engine
    from penstock.stp.server.table_view import TableView

PUBLISH_BYTES_MAX: Final = 256 * 1024
"""A commit with more bytes of the log is transcoded for each reader, at its own pace."""


class TableLive:
    """The streamed responses of an App's tables, and their counters."""

    def __init__(self, engine: Engine, settings: Settings, traffic: Traffic) -> None:
        self.engine = engine
        self.timeout_s = settings.table_timeout_s
        self.idle_s = settings.table_idle_s
        self.readers = 0
        self.dropped = 0
        self.rows_bytes = 0
        self._channels = Channels(engine, traffic, buffer_bytes_max=settings.sse_buffer_bytes_max)

    @property
    def draining(self) -> bool:
        return self._channels.draining

    def attached(self, reader: TableReader) -> None:
        if self.draining:
            reader.finish()
            return
        view = reader.view
        key = (view.stream.id, view.name)
        channel = self._channels.get(key)
        if channel is None:
            channel = self._channels.open(key, view.stream, RowEncoder(self, view))
        reader.channel = channel
        channel.add(reader)

    def drain(self) -> None:
        """End every response; new ones do not wait."""
        self._channels.drain()


class RowEncoder:
    """The rows of one table."""

    __slots__ = ("_live", "_ordinal", "_sent", "_view", "publish_bytes_max")

    def __init__(self, live: TableLive, view: TableView) -> None:
        self.publish_bytes_max = PUBLISH_BYTES_MAX
        self._live = live
        self._view = view
        # Joined readers have the rows of all messages up to this position and ordinal.
        self._sent = view.stream.tail
        self._ordinal = view.stream.count

    def wakes(self, wire: bytes, end: int, closed: bool) -> bool:
        return True

    def publish(self, wire: bytes, end: int, closed: bool) -> Frame[TableReader] | None:
        rows = self._view.transcoder.rows(wire, self._ordinal)
        self._sent, self._ordinal = end, self._view.stream.count
        return Frame(rows.data, {}) if rows.data else None

    def share(self, reader: TableReader) -> None:
        stream = self._view.stream
        self._sent, self._ordinal = stream.tail, stream.count

    def is_level(self, reader: TableReader) -> bool:
        return True  # Rows are never held back: who is up to date is at the tail.

    def rewind(self, reader: TableReader) -> None:
        reader.cursor = RowCursor(self._sent, self._ordinal)

    def is_lost(self, reader: TableReader) -> bool:
        return self._view.stream.deleted

    def send_now(self, reader: TableReader, sink: Sink) -> Progress:
        stream = self._view.stream
        if reader.cursor is None and reader.since_id >= stream.count:
            return Progress.AHEAD
        return Progress.UP_TO_DATE if reader.is_caught_up(stream) else Progress.BEHIND

    async def send(self, reader: TableReader, sink: Sink) -> Progress:
        if reader.first is not None:
            await self._send_first(reader)
        elif reader.is_done():
            reader.end()
        elif not reader.is_caught_up(self._view.stream):
            await self._send_block(reader)
        return self.send_now(reader, sink)

    def added(self, reader: TableReader) -> None:
        self._live.readers += 1

    def removed(self, reader: TableReader) -> None:
        self._live.readers -= 1

    def dropped(self) -> None:
        self._live.dropped += 1

    def written(self, frame: bytes, readers: int) -> None:
        self._live.rows_bytes += len(frame) * readers

    async def _send_first(self, reader: TableReader) -> None:
        assert reader.first is not None
        rows = await anext(reader.first, None)
        if rows is None:
            reader.first = None
        else:
            await reader.write(rows)

    async def _send_block(self, reader: TableReader) -> None:
        stream, cursor = self._view.stream, reader.cursor
        if cursor is None:
            position = await self._live.engine.seek(stream, reader.since_id)
            cursor = RowCursor(position, reader.since_id)
        until = stream.tail if reader.until is None else reader.until
        block = await self._view.block(cursor, until)
        if reader.sink is None:
            return
        reader.cursor = RowCursor.after(block)
        self._live.rows_bytes += len(block.data)
        if block.data:
            await reader.write(block.data)
