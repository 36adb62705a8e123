"""Appends that a check has put off: one queue per stream, decided in the order of their arrival.

Knows when an append is decided again, and nothing of how.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial

from penstock.errors import Overloaded, ShuttingDown
from penstock.log.requests import Appended, NotYet, Ready
from penstock.log.stream import Stream

Decide = Callable[[], asyncio.Future[Appended]]
"""Decides the append now; raises what refuses it, or NotYet."""


def shutting_down() -> ShuttingDown:
    return ShuttingDown("The server is stopping. Try again shortly.", Retry_After="1")


class _Waiter:
    """One append in a queue; `blocks` is whether later appends queue behind it."""

    __slots__ = ("blocks", "decide", "future", "size")

    def __init__(
        self, decide: Decide, size: int, future: asyncio.Future[Appended], *, blocks: bool
    ) -> None:
        self.decide = decide
        self.size = size
        self.future = future
        self.blocks = blocks


class _Queue:
    """The waiting appends of one stream, and the task that waits for what the first one needs."""

    __slots__ = ("is_releasing", "task", "waiters")

    def __init__(self) -> None:
        self.waiters: deque[_Waiter] = deque()
        self.task: asyncio.Task[None] | None = None
        self.is_releasing = False


class WaitingAppends:
    """The waiting appends of all streams; `queues` is empty while nothing waits."""

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._loop = asyncio.get_running_loop()
        self.queues: dict[Stream, _Queue] = {}
        self._has_ended = False

    def blocks(self, stream: Stream) -> bool:
        """Whether an append that arrives now queues behind those that wait."""
        queue = self.queues.get(stream)
        # Whatever arrives behind an append that blocks is marked to block as well, so the first
        # and the last of a queue tell for all between them.
        return queue is not None and (queue.waiters[0].blocks or queue.waiters[-1].blocks)

    def add(
        self, stream: Stream, size: int, decide: Decide, later: NotYet | None
    ) -> asyncio.Future[Appended]:
        """Queue an append with a body of `size` bytes. `later` is what its check has raised, None
        if the check was not asked yet."""
        if self._has_ended:
            raise shutting_down()
        if self._bytes and self._bytes + size > self._bytes_max:
            raise Overloaded(
                "Too many bytes of appends wait already (append_queue_bytes_max). Try again.",
                Retry_After="1",
            )
        self._bytes += size
        future: asyncio.Future[Appended] = self._loop.create_future()
        blocks = later is None or later.blocks or self.blocks(stream)
        queue = self.queues.get(stream)
        if queue is None:
            queue = self.queues[stream] = _Queue()
        queue.waiters.append(_Waiter(decide, size, future, blocks=blocks))
        if queue.task is None and later is not None:
            self._wait(stream, queue, later.ready)
        return future

    def release(self, stream: Stream) -> None:
        """Decide all waiting appends of a stream now, because it takes no more."""
        queue = self.queues.get(stream)
        if queue is None or queue.is_releasing:
            return
        if queue.task is not None:
            # After the first step of the task, so that what it awaits has begun and can clean up.
            self._loop.call_soon(queue.task.cancel)
            queue.task = None
        self._release(stream, queue)

    def end(self) -> None:
        """Refuse all waiting appends, and from now on those that would have to wait."""
        self._has_ended = True
        for stream in list(self.queues):
            self.release(stream)

    def _wait(self, stream: Stream, queue: _Queue, ready: Ready) -> None:
        queue.task = self._loop.create_task(self._until_ready(stream, queue, ready()))

    async def _until_ready(self, stream: Stream, queue: _Queue, ready: Awaitable[None]) -> None:
        failure: Exception | None = None
        try:
            await ready
        except Exception as error:  # noqa: BLE001 - becomes the answer
            failure = error
        if queue.task is not asyncio.current_task():
            return  # the queue was released meanwhile
        if failure is not None:
            self._pop(queue, failure)
        # In the same step, while what the check has learned still holds.
        self._release(stream, queue)

    def _release(self, stream: Stream, queue: _Queue) -> None:
        """Decide the appends of a queue one after the other, until one has to wait again."""
        queue.is_releasing = True
        try:
            while queue.waiters:
                first = queue.waiters[0]
                if first.future.done():  # the caller has cancelled it
                    self._pop(queue, None)
                    continue
                try:
                    decided = first.decide()
                except NotYet as later:
                    if not self._has_ended:
                        first.blocks = later.blocks
                        self._wait(stream, queue, later.ready)
                        return
                    self._pop(queue, shutting_down())
                except Exception as error:  # noqa: BLE001 - becomes the answer
                    self._pop(queue, error)
                else:
                    self._pop(queue, None)
                    decided.add_done_callback(partial(_copy_result, first.future))
            del self.queues[stream]
        finally:
            queue.is_releasing = False

    def _pop(self, queue: _Queue, error: Exception | None) -> None:
        first = queue.waiters.popleft()
        self._bytes -= first.size
        if error is not None:
            _refuse(first.future, error)


def _copy_result(future: asyncio.Future[Appended], decided: asyncio.Future[Appended]) -> None:
    if decided.cancelled():
        future.cancel()
    elif (error := decided.exception()) is not None:
        _refuse(future, error)
    elif not future.done():
        future.set_result(decided.result())


def _refuse(future: asyncio.Future[Appended], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
        # Counts as retrieved: a client that has disconnected never asks for it.
        future.exception()
