"""Publish and subscribe within the process: callbacks that follow a stream.

A subscriber is fed from the log by a task of its own, so that it sees durable messages only, in
their order, and a callback that is slow or fails costs no commit anything. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from penstock.errors import PenstockError
from penstock.protocol.json_mode import unframe

if TYPE_CHECKING:
    from penstock.log.engine import Engine
    from penstock.log.stream import Stream

EVENT_BYTES: Final = 256 * 1024
"""Bytes of messages in one event, unless a single message is larger."""
THREADS_MAX: Final = 8
"""Callbacks that are plain functions and run at the same time."""
STOP_S: Final = 1.0
"""How long a stop waits for callbacks that are coroutines to take their cancellation."""

_log = logging.getLogger("penstock.log")

Kind = Literal["messages", "closed", "deleted", "trimmed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEvent:
    """What a callback is called with.

    `messages` has the data between `offset` and `next_offset`. The others are the last event of
    their subscription: `closed` after all messages of a closed stream, `deleted` when the stream
    was deleted or has expired, `trimmed` when messages were trimmed before they were delivered.
    """

    kind: Kind
    path: str
    offset: str
    next_offset: str
    """Where a later subscription continues after this event."""
    data: bytes = b""
    """The messages as a read returns them: a JSON array in a JSON stream, else the bytes."""

    def json(self) -> list[Any]:
        """Return the messages of a JSON stream."""
        return msgspec.json.decode(self.data, type=list[Any]) if self.data else []


Callback = Callable[[StreamEvent], Awaitable[None] | None]
"""A coroutine function, which is awaited on the event loop, or a plain function, which runs in a
thread. It is called again only when it has returned."""


class Subscription:
    """One callback that follows one stream, until it ends or `unsubscribe` is called."""

    def __init__(self, pubsub: PubSub, stream: Stream, position: int, callback: Callback) -> None:
        self.path = stream.path
        self._pubsub = pubsub
        self._stream = stream
        self._position = position
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._moved = asyncio.Event()
        self._is_over = False
        self._ending: asyncio.Future[StreamEvent | None] = self._loop.create_future()
        self._offset = pubsub.engine.token(stream, position)
        self._task: asyncio.Task[None] | None = None

    @property
    def offset(self) -> str:
        """The offset after the last event whose callback has returned: where to resume."""
        return self._offset

    @property
    def active(self) -> bool:
        """Whether the callback may be called again."""
        return not (self._is_over or self._ending.done())

    def unsubscribe(self) -> None:
        """Do not call the callback again; a call that is going on is finished. From any thread."""
        self._is_over = True
        if not self._ending.done():
            self._loop.call_soon_threadsafe(self._moved.set)

    async def wait(self) -> StreamEvent | None:
        """Wait for the end; return the last event, or None after `unsubscribe` or the engine's
        stop. Raises what the callback raised."""
        return await asyncio.shield(self._ending)

    # -- called by the engine, in a commit

    def advanced(self, start: int, end: int, wire: bytes, closed: bool) -> None:
        self._moved.set()

    def ended(self) -> None:
        self._moved.set()

    # -- the task

    def start(self) -> asyncio.Task[None]:
        self._pubsub.engine.watch(self._stream, self)
        self._task = self._loop.create_task(self._run())
        return self._task

    async def _run(self) -> None:
        last: StreamEvent | None = None
        try:
            while not self._is_over and last is None:
                event = await self._next()
                if event is not None and not self._is_over:
                    await self._pubsub.call(self._callback, event)
                    self._offset = event.next_offset
                    last = None if event.kind == "messages" else event
        except Exception as error:  # noqa: BLE001 - of a callback, which may raise anything
            _log.exception("The subscription to %r failed at %s.", self.path, self._offset)
            self._ending.set_exception(error)
            self._ending.exception()  # Retrieved: whoever does not wait reads of it in the log.
        finally:
            self._pubsub.engine.unwatch(self._stream, self)
            if not self._ending.done():
                self._ending.set_result(last)

    async def _next(self) -> StreamEvent | None:
        """Return the next event, as soon as there is one; None if the stream has only moved."""
        stream = self._stream
        self._moved.clear()
        if stream.is_gone:
            return self._event("deleted")
        if self._position < stream.earliest:
            return self._event("trimmed", stream.earliest)
        if self._position < stream.tail:
            try:
                return await self._messages(stream)
            except PenstockError:
                if not self._is_lost:
                    raise
                return None
        if stream.closed:
            return self._event("closed")
        await self._moved.wait()
        return None

    @property
    def _is_lost(self) -> bool:
        """Whether the stream was deleted, or trimmed beyond the position: perhaps during a read."""
        return self._stream.is_gone or self._position < self._stream.earliest

    async def _messages(self, stream: Stream) -> StreamEvent:
        engine, start = self._pubsub.engine, self._position
        end = await engine.plan(stream, start, max_bytes=EVENT_BYTES)
        wire = await engine.read_range(stream, start, end)
        return self._event("messages", end, unframe(wire) if stream.is_json else wire)

    def _event(self, kind: Kind, end: int | None = None, data: bytes = b"") -> StreamEvent:
        token, start = self._pubsub.engine.token, self._position
        if end is not None:
            self._position = end
        return StreamEvent(
            kind=kind,
            path=self.path,
            offset=token(self._stream, start),
            next_offset=token(self._stream, self._position),
            data=data,
        )


class PubSub:
    """All subscriptions of an engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads: ThreadPoolExecutor | None = None

    async def subscribe(self, path: str, callback: Callback, offset: str) -> Subscription:
        engine = self.engine
        await engine.fetch(path)
        stream = engine.find(path, touch=True)
        position = await engine.read_start(stream, offset)
        # The stream may have been evicted meanwhile, or another one may be at its path.
        while (current := engine.find(path, touch=False)) is not stream:
            stream = current
            position = await engine.read_start(stream, offset)
        subscription = Subscription(self, stream, position, callback)
        task = subscription.start()
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return subscription

    async def call(self, callback: Callback, event: StreamEvent) -> None:
        if _is_coroutine(callback):
            result = callback(event)
        else:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(THREADS_MAX, "penstock-pubsub")
            loop = asyncio.get_running_loop()
            result = await loop.run_in_executor(self._threads, callback, event)
        if inspect.isawaitable(result):
            await result

    async def close(self) -> None:
        """End all subscriptions without an event: their offsets say where to resume."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_S)
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None


def _is_coroutine(callback: Callback) -> bool:
    return inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(
        getattr(callback, "__call__", None)  # noqa: B004 - an object whose call is a coroutine
    )
