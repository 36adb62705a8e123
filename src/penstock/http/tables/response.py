"""One streamed answer of a table: its place among the rows, its sink, and how long it waits.

What is written to it, and when, is decided by its channel.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from penstock.http.live.response import Reader
from penstock.http.message import Sink

if TYPE_CHECKING:
    from penstock.http.compression import StreamEncoder
    from penstock.http.tables.live import TableChannel, TableLive
    from penstock.log.stream import Stream
    from penstock.stp.server.table_view import RowCursor, TableView


class TableReader(Reader):
    """`place` is None for one that has seen more than there is. One that does not wait has an end,
    `until`; `first` are rows that come before those of the log."""

    __slots__ = (
        "_moved",
        "_timer",
        "first",
        "live",
        "packer",
        "place",
        "since_id",
        "stop_at",
        "timeout_s",
        "until",
        "view",
    )

    def __init__(
        self,
        live: TableLive,
        view: TableView,
        place: RowCursor | None,
        *,
        since_id: int,
        timeout_s: float,
        until: int | None,
        first: AsyncIterator[bytes] | None = None,
        packer: StreamEncoder | None = None,
    ) -> None:
        super().__init__()
        self.live = live
        self.view = view
        self.place = place
        self.since_id = since_id
        self.timeout_s = timeout_s
        self.until = until
        self.first = first
        self.packer = packer
        self.stop_at = 0.0
        self._moved = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def is_done(self) -> bool:
        place = self.place
        return self.until is not None and place is not None and place.position >= self.until

    def is_caught_up(self, stream: Stream) -> bool:
        place = self.place
        return (
            self.until is None
            and self.first is None
            and place is not None
            and place.position >= stream.tail
        )

    async def write(self, data: bytes) -> None:
        self._moved = asyncio.get_running_loop().time()
        if self.packer is not None:
            data = await self.packer.pack(data)
        if data and self.sink is not None:
            self.sink.write(data)

    async def end(self) -> None:
        """All rows are written: finish what is packed, then the answer."""
        if self.packer is not None and self.sink is not None:
            self.sink.write(self.packer.end())
        self.finish()

    # EventBody

    def attach(self, sink: Sink) -> None:
        self.sink = sink
        loop = asyncio.get_running_loop()
        now = self._moved = loop.time()
        self.stop_at = now + self.timeout_s
        if self.until is None:
            self._timer = loop.call_later(min(self.timeout_s, self.live.idle_s), self._overdue)
        self.live.attached(self)

    def finish(self) -> None:
        """One that promised all rows up to an end, and has not sent them, is cut off instead."""
        if self.until is not None and not self.is_done():
            self.abort()
        else:
            super().finish()

    def _overdue(self) -> None:
        """Time to look whether the reader has waited long enough."""
        self._timer = None
        loop = asyncio.get_running_loop()
        now, idle_s = loop.time(), self.live.idle_s
        if self.catch_up is not None:
            # It is being served: what it asked for is not cut off, however slowly it takes it.
            wait_s = idle_s
        else:
            channel: TableChannel | None = self.channel
            moved = self._moved if channel is None else max(self._moved, channel.moved)
            wait_s = min(self.stop_at - now, moved + idle_s - now)
            if wait_s <= 0:
                self.finish()
                return
        self._timer = loop.call_later(wait_s, self._overdue)

    def _leave(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        super()._leave()
