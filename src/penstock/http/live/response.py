"""The base of responses that stay open: the sink, the channel, and the task of a reader that is
behind.

Knows nothing of what is written: the channel and its encoder decide that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from penstock.http.message import EventBody, Sink


class Owner(Protocol):
    """What a reader leaves when its response ends: its channel, or the group of its streams."""

    published_s: float
    """The loop's time of the last shared frame."""

    def remove(self, reader: Any) -> None: ...


class LiveReader(EventBody):
    """One open response. A server holds thousands of idle ones: slots only, no task."""

    __slots__ = ("__weakref__", "catch_up", "channel", "on_leave", "sink")

    def __init__(self) -> None:
        self.sink: Sink | None = None
        self.channel: Owner | None = None
        self.catch_up: CatchUp | None = None
        self.on_leave: Callable[[LiveReader], None] | None = None

    def drained(self) -> None:
        if self.catch_up is not None:
            self.catch_up.drained()

    def detach(self) -> None:
        self.sink = None
        self._leave()

    def finish(self) -> None:
        """End the response cleanly: the client resumes after the last message it has."""
        sink, self.sink = self.sink, None
        self._leave()
        if sink is not None:
            sink.close()

    def abort(self) -> None:
        """Cut the connection, so that the client does not take the response for a whole one."""
        sink, self.sink = self.sink, None
        self._leave()
        if sink is not None:
            sink.abort()

    def _leave(self) -> None:
        channel, self.channel = self.channel, None
        if self.on_leave is not None:
            self.on_leave(self)
        if self.catch_up is not None:
            self.catch_up.cancel()
            self.catch_up = None
        if channel is not None:
            channel.remove(self)


class CatchUp:
    """The task of a reader that is behind, and its wait for a congested sink."""

    __slots__ = ("_room", "task")

    def __init__(self) -> None:
        self._room: asyncio.Future[None] | None = None
        self.task: asyncio.Task[None] | None = None

    async def room(self) -> None:
        """Wait until the sink has room again."""
        self._room = asyncio.get_running_loop().create_future()
        await self._room

    def drained(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def cancel(self) -> None:
        # The task itself may end its reader; its loop then stops by itself.
        if self.task is not None and self.task is not asyncio.current_task():
            self.task.cancel()
