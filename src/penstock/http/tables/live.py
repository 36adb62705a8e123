"""Answers of tables that are streamed: rows from the log, then new ones as they come, until a
reader has waited long enough.

New rows are encoded once and written to all who are up to date. Knows views of tables and sinks;
nothing of requests.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.http.live.response import CatchUp
from penstock.http.tables.response import TableReader
from penstock.stp.server.table_view import RowCursor

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.http.traffic import Traffic
    from penstock.log.engine import Engine
    from penstock.log.stream import Stream
    from penstock.stp.server.table_view import TableView

PUBLISH_BYTES_MAX = 256 * 1024
"""A commit with more is read from the log by each reader, at its own pace."""


class TableLive:
    """One per App: every table that somebody reads."""

    def __init__(self, engine: Engine, settings: Settings, traffic: Traffic) -> None:
        self.engine = engine
        self.traffic = traffic
        self.timeout_s = settings.table_timeout_s
        self.idle_s = settings.table_idle_s
        self.buffer_bytes_max = settings.sse_buffer_bytes_max
        self._channels: dict[tuple[int, str], TableChannel] = {}
        self.draining = False
        self.readers = 0
        self.dropped = 0
        self.rows_bytes = 0

    def attached(self, reader: TableReader) -> None:
        if self.draining:
            reader.finish()
            return
        key = (reader.view.stream.id, reader.view.name)
        channel = self._channels.get(key)
        if channel is None:
            channel = self._channels[key] = TableChannel(self, reader.view)
        self.readers += 1
        reader.channel = channel
        channel.add(reader)

    def forget(self, channel: TableChannel) -> None:
        """Nobody reads there any more."""
        view = channel.view
        if self._channels.get((view.stream.id, view.name)) is channel:
            del self._channels[view.stream.id, view.name]
            self.engine.unwatch(view.stream, channel)

    def drain(self) -> None:
        """End every answer; new ones do not wait."""
        self.draining = True
        for channel in list(self._channels.values()):
            channel.finish_readers()


class TableChannel:
    """The engine's watcher for one table, and everybody who reads it."""

    def __init__(self, live: TableLive, view: TableView) -> None:
        self.view = view
        self.moved = 0.0  # when rows were last written to all
        self._live = live
        # Joined readers have all been sent everything up to the tail; `_behind` have yet to get
        # there, or wait for a SeqNo that is far ahead.
        self._joined: dict[TableReader, None] = {}
        self._behind: dict[TableReader, None] = {}
        self._sent = view.stream.tail
        self._ordinal = view.stream.count
        live.engine.watch(view.stream, self)

    # What the engine calls.

    def advanced(self, start: int, end: int, wire: bytes, closed: bool) -> None:
        stream = self.view.stream
        if self._joined:
            if start == self._sent and len(wire) <= PUBLISH_BYTES_MAX:
                try:
                    self._publish(wire)
                except Exception as error:  # noqa: BLE001 - the commit it is told of is done
                    self._live.traffic.failed(error)
                    for reader in list(self._joined):
                        reader.abort()
            else:
                self._resume_joined()
        self._sent, self._ordinal = end, stream.count
        for reader in [reader for reader in self._behind if reader.catch_up is None]:
            self.bring_up(reader)
        if closed:
            for reader in list(self._joined):
                reader.finish()

    def ended(self) -> None:
        """The stream is gone."""
        self.finish_readers()

    # What readers call.

    def add(self, reader: TableReader) -> None:
        self._behind[reader] = None
        self.bring_up(reader)

    def remove(self, reader: TableReader) -> None:
        self._joined.pop(reader, None)
        self._behind.pop(reader, None)
        self._live.readers -= 1
        if not self._joined and not self._behind:
            self._live.forget(self)

    def finish_readers(self) -> None:
        for reader in [*self._joined, *self._behind]:
            reader.finish()

    def bring_up(self, reader: TableReader) -> None:
        stream = self.view.stream
        if stream.deleted:
            reader.finish()
        elif reader.place is None and reader.since_id >= stream.count:
            # Rows that it has are not sent again, so it waits for those after them.
            if stream.closed:
                reader.finish()
        elif reader.is_caught_up(stream):
            self._join(reader)
        else:
            reader.catch_up = CatchUp()
            reader.catch_up.task = asyncio.get_running_loop().create_task(
                self._catch_up(reader, reader.catch_up)
            )

    async def _catch_up(self, reader: TableReader, catch_up: CatchUp) -> None:
        stream = self.view.stream
        try:
            await self._send_first(reader, catch_up)
            while reader.catch_up is catch_up and (sink := reader.sink) is not None:
                if sink.congested:
                    await catch_up.room()
                elif stream.deleted:
                    reader.finish()
                elif reader.is_done():
                    await reader.end()
                elif reader.is_caught_up(stream):
                    self._join(reader)
                else:
                    await self._send_on(reader, stream)
        except Exception as error:  # noqa: BLE001 - no answer can carry it any more
            self._live.traffic.failed(error)
            reader.abort()

    async def _send_first(self, reader: TableReader, catch_up: CatchUp) -> None:
        """What comes before the rows from a place on: the live ones."""
        if reader.first is not None:
            first, reader.first = reader.first, None
            async for data in first:
                while reader.sink is not None and reader.sink.congested:
                    await catch_up.room()
                if reader.sink is None:
                    return
                await reader.write(data)

    async def _send_on(self, reader: TableReader, stream: Stream) -> None:
        place = reader.place
        if place is None:
            position = await self._live.engine.seek(stream, reader.since_id)
            place = RowCursor(position, reader.since_id)
        until = stream.tail if reader.until is None else reader.until
        block = await self.view.block(place, until)
        if reader.sink is None:
            return
        reader.place = RowCursor.after(block)
        self._live.rows_bytes += len(block.data)
        if block.data:
            await reader.write(block.data)
        else:
            await asyncio.sleep(0)  # reads from memory never wait, and others want a turn too

    def _join(self, reader: TableReader) -> None:
        reader.catch_up = None
        if self.view.stream.closed:
            reader.finish()
            return
        self._behind.pop(reader, None)
        self._joined[reader] = None

    def _publish(self, wire: bytes) -> None:
        rows = self.view.transcoder.rows(wire, self._ordinal)
        if not rows.data:
            return
        live = self._live
        self.moved = asyncio.get_running_loop().time()
        for reader in list(self._joined):
            sink = reader.sink
            if sink is None:
                continue
            if sink.congested and sink.buffered > live.buffer_bytes_max:
                live.dropped += 1
                reader.finish()
                continue
            live.rows_bytes += len(rows.data)
            sink.write(rows.data)

    def _resume_joined(self) -> None:
        """What came is too much, or does not follow what was sent: each goes on from there."""
        readers, self._joined = list(self._joined), {}
        for reader in readers:
            reader.place = RowCursor(self._sent, self._ordinal)
            self._behind[reader] = None
