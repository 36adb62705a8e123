"""Comment lines for open SSE responses, so that proxies do not take idle ones for dead.

Knows readers and time; nothing of streams.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from penstock.protocol.sse import COMMENT

if TYPE_CHECKING:
    from penstock.http.live.response import LiveReader
    from penstock.http.traffic import Traffic

TICK_S: Final = 1.0
TURN_READERS_MAX: Final = 500
"""How many readers are written to in one turn of the loop."""


class Comments:
    """Writes a comment to every open reader each `interval_s`; 0 writes none.

    Readers are in a ring of buckets by when they came: each tick serves one bucket, so that there
    is one timer for all of them and their writes are spread over the interval.
    """

    __slots__ = ("_index", "_interval_s", "_ring", "_timer", "_traffic")

    def __init__(self, interval_s: float, traffic: Traffic) -> None:
        self._interval_s = interval_s
        self._traffic = traffic
        self._ring: list[list[LiveReader]] = [[] for _ in range(max(1, int(interval_s / TICK_S)))]
        self._index = 0
        self._timer: asyncio.Handle | None = None

    def add(self, reader: LiveReader) -> None:
        if self._interval_s:
            self._ring[self._index].append(reader)
            if self._timer is None:
                self._wait()

    def close(self) -> None:
        """Write no more."""
        for bucket in self._ring:
            bucket.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._interval_s / len(self._ring), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._index = (self._index + 1) % len(self._ring)
        bucket, self._ring[self._index] = self._ring[self._index], []
        self._serve(bucket)

    def _serve(self, bucket: list[LiveReader]) -> None:
        """Write to the readers of a bucket that are still there, some in each turn of the loop."""
        for reader in bucket[-TURN_READERS_MAX:]:
            if reader.sink is not None:
                self._ring[self._index].append(reader)
                # For one that is slow, more bytes would only add to what it has to read.
                if not reader.sink.congested:
                    reader.sink.write(COMMENT)
                    self._traffic.bytes_out += len(COMMENT)
        del bucket[-TURN_READERS_MAX:]
        if bucket:
            self._timer = asyncio.get_running_loop().call_soon(self._serve, bucket)
        elif any(self._ring):
            self._wait()
        else:
            self._timer = None
