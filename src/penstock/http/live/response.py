"""Responses that stay open: their sink, the channel that writes to them, and the task that they
have while they are behind. An SSE response among them.

What is written to one, and when, is decided by its channel.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from penstock.http.message import EventBody, Sink

if TYPE_CHECKING:
    from penstock.http.streams.live import Live
    from penstock.log.stream import Stream


class Reader(EventBody):
    """One response. Idle ones are kept by the thousand: slots only, no task."""

    __slots__ = ("catch_up", "channel", "sink")

    def __init__(self) -> None:
        self.sink: Sink | None = None
        self.channel: Any = None  # each kind of reader has its own
        self.catch_up: CatchUp | None = None

    def drained(self) -> None:
        if self.catch_up is not None:
            self.catch_up.drained()

    def detach(self) -> None:
        self.sink = None
        self._leave()

    def finish(self) -> None:
        """End the response cleanly: the client goes on from what it has got."""
        sink, self.sink = self.sink, None
        self._leave()
        if sink is not None:
            sink.close()

    def abort(self) -> None:
        sink, self.sink = self.sink, None
        self._leave()
        if sink is not None:
            sink.abort()

    def _leave(self) -> None:
        channel, self.channel = self.channel, None
        if self.catch_up is not None:
            self.catch_up.cancel()
            self.catch_up = None
        if channel is not None:
            channel.remove(self)


class EventReader(Reader):
    """One SSE response, at a place in its stream."""

    __slots__ = ("cursor", "deadline", "live", "position", "stream")

    def __init__(self, live: Live, stream: Stream, position: int, cursor: int) -> None:
        super().__init__()
        self.live = live
        self.stream = stream
        self.position = position  # up to where it was written; for joined readers the channel knows
        self.cursor = cursor  # never below the client's own; 0 follows the clock
        self.deadline = 0.0

    def attach(self, sink: Sink) -> None:
        self.sink = sink
        self.live.attached(self)


class CatchUp:
    """The task of a reader that is behind, and the place where it waits for a slow client."""

    __slots__ = ("_room", "task")

    def __init__(self) -> None:
        self._room: asyncio.Future[None] | None = None
        self.task: asyncio.Task[None] | None = None

    async def room(self) -> None:
        self._room = asyncio.get_running_loop().create_future()
        await self._room

    def drained(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def cancel(self) -> None:
        if self.task is not None and self.task is not asyncio.current_task():
            self.task.cancel()
