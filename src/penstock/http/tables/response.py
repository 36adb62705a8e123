"""One streamed response of a table: the position of its reader and how long it waits for rows.

What is written to it, and when, is decided by the channel and its encoder.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from penstock.http.live.response import LiveReader
from penstock.http.message import Sink

if TYPE_CHECKING:
    from penstock.http.compression import StreamEncoder
    from penstock.http.tables.live import TableLive
    from penstock.log.stream import Stream
    from penstock.stp.server.table_view import RowCursor, TableView


CATCH_UP_CHECK_S: Final = 0.05
"""Shortest time between two looks at whether a reader that is behind has caught up."""


class TableReader(LiveReader):
    """One streamed response of a table.

    `cursor` is None for a reader that has seen more rows than there are, up to `since_id`. `until`
    is the position where a response ends that does not wait for new rows; `first` are rows that
    precede those of the log.
    """

    __slots__ = (
        "_timer",
        "_written",
        "cursor",
        "deadline",
        "encoder",
        "first",
        "live",
        "since_id",
        "timeout_s",
        "until",
        "view",
    )

    def __init__(
        self,
        live: TableLive,
        view: TableView,
        cursor: RowCursor | None,
        *,
        since_id: int,
        timeout_s: float,
        until: int | None,
        first: AsyncIterator[bytes] | None = None,
        encoder: StreamEncoder | None = None,
    ) -> None:
        super().__init__()
        self.live = live
        self.view = view
        self.cursor = cursor
        self.since_id = since_id
        self.timeout_s = timeout_s
        self.until = until
        self.first = first
        self.encoder = encoder
        self.deadline = 0.0
        self._written = 0.0  # the loop's time of the last rows that were written to it alone
        self._timer: asyncio.TimerHandle | None = None

    def is_done(self) -> bool:
        """Whether a response that ends at `until` has all its rows."""
        return self.until is not None and self._has_rows(self.until)

    def is_caught_up(self, stream: Stream) -> bool:
        """Whether a response that waits for new rows has all that there are."""
        return self.until is None and self._has_rows(stream.tail)

    def _has_rows(self, end: int) -> bool:
        """Whether the rows up to a position of the log are written, and those before them."""
        cursor = self.cursor
        return self.first is None and cursor is not None and cursor.position >= end

    async def write(self, data: bytes) -> None:
        """Write rows to the sink, compressed if the client asked for that."""
        self._written = asyncio.get_running_loop().time()
        if self.encoder is not None:
            data = await self.encoder.encode(data)
        if data and self.sink is not None:
            self.sink.write(data)

    def end(self) -> None:
        """End a response whose rows are all written, with the last bytes of its compression."""
        if self.encoder is not None and self.sink is not None:
            self.sink.write(self.encoder.end())
        self.finish()

    # EventBody

    def attach(self, sink: Sink) -> None:
        self.sink = sink
        loop = asyncio.get_running_loop()
        now = self._written = loop.time()
        self.deadline = now + self.timeout_s
        if self.until is None:
            self._timer = loop.call_later(min(self.timeout_s, self.live.idle_s), self._check_time)
        self.live.attached(self)

    def finish(self) -> None:
        """End the response; one that promised all rows up to `until` and lacks some is aborted."""
        if self.until is not None and not self.is_done():
            self.abort()
        else:
            super().finish()

    def _check_time(self) -> None:
        """End the response if it has waited long enough, else set the timer again."""
        self._timer = None
        loop = asyncio.get_running_loop()
        now, idle_s = loop.time(), self.live.idle_s
        if self.catch_up is not None:
            # Rows that the client asked for are not cut off, however slowly it takes them. The
            # time that it allowed may be over before they are: look again soon.
            wait_s = min(idle_s, max(self.timeout_s, CATCH_UP_CHECK_S))
        else:
            written = self._written
            if self.channel is not None:
                written = max(written, self.channel.published_s)
            wait_s = min(self.deadline - now, written + idle_s - now)
            if wait_s <= 0:
                self.finish()
                return
        self._timer = loop.call_later(wait_s, self._check_time)

    def _leave(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        super()._leave()
