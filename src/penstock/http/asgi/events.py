"""Open responses over ASGI: a sink with a buffer, and the loop that sends it.

Knows ASGI messages; nothing of streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from penstock.http.message import EventBody

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

CONGESTED_BYTES = 64 * 1024
"""A sink with more unsent bytes is congested; the native transport has the same limit."""


class AsgiSink:
    """A buffer of what an EventBody has written and the client has not yet read.

    `ended` is set when the body ends the response, cleanly or `aborted`, and `disconnected` when
    the client has gone or reads nothing.
    """

    __slots__ = ("_buffer", "_bytes", "_sending", "_wake", "aborted", "disconnected", "ended")

    def __init__(self) -> None:
        self._buffer: list[bytes] = []
        self._bytes = 0
        self._wake = asyncio.Event()
        self._sending: asyncio.Timeout | None = None
        self.ended = False
        self.aborted = False
        self.disconnected = False

    def write(self, data: bytes) -> None:
        if not self.ended and data:
            self._buffer.append(data)
            self._bytes += len(data)
            self._wake.set()

    def close(self) -> None:
        self.ended = True
        self._wake.set()

    def abort(self) -> None:
        self.ended = self.aborted = True
        self._interrupt()

    @property
    def congested(self) -> bool:
        return self._bytes > CONGESTED_BYTES

    @property
    def buffered(self) -> int:
        return self._bytes

    def disconnect(self) -> None:
        """Stop sending: the client has gone."""
        self.disconnected = True
        self._interrupt()

    def _interrupt(self) -> None:
        self._wake.set()
        if self._sending is not None:
            self._sending.reschedule(asyncio.get_running_loop().time())

    async def flush(self, send: Send, *, stall_s: float) -> bool:
        """Send the buffer, after waiting for something to send; False at the end."""
        if not self._buffer and not self.ended and not self.disconnected:
            self._wake.clear()
            await self._wake.wait()
        if self.aborted or self.disconnected or not self._buffer:
            return False
        data = b"".join(self._buffer)
        self._buffer.clear()
        async with asyncio.timeout(stall_s) as self._sending:
            await send({"type": "http.response.body", "body": data, "more_body": True})
        self._sending = None
        self._bytes -= len(data)
        return True


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_events(
    start: Message, body: EventBody, receive: Receive, send: Send, *, stall_s: float
) -> None:
    """Send one open response until the body, the client or the time limit ends it."""
    await send(start)
    sink = AsgiSink()
    body.attach(sink)
    watching = asyncio.ensure_future(wait_for_disconnect(receive))
    watching.add_done_callback(lambda _: sink.disconnect())
    try:
        while await sink.flush(send, stall_s=stall_s):
            if not sink.congested:
                body.drained()
    except TimeoutError:
        sink.disconnected = True
    finally:
        watching.cancel()
        if not sink.ended:
            sink.ended = True
            body.detach()
    # An incomplete response makes the server cut the connection: ASGI has no other way.
    if not sink.disconnected and not sink.aborted:
        await send({"type": "http.response.body", "body": b""})
