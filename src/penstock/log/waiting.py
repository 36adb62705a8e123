"""Appends that a check has put off: a queue per stream, decided in the order they came.

Knows when an append is decided again, and nothing of how.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial

from penstock.errors import Overloaded
from penstock.log.decide.context import shutting_down
from penstock.log.requests import Append, Appended, NotYet, Ready
from penstock.log.stream import Stream

Decide = Callable[[Stream, Append], asyncio.Future[Appended]]
"""Decides an append now; raises what refuses it, or NotYet."""


class _Waiter:
    """One append in a queue; `blocks` says whether appends that come later queue behind it."""

    __slots__ = ("blocks", "future", "request")

    def __init__(self, request: Append, future: asyncio.Future[Appended], *, blocks: bool) -> None:
        self.request = request
        self.future = future
        self.blocks = blocks


class _Queue:
    """The waiting appends of one stream, and the task that waits for what its head waits for."""

    __slots__ = ("is_releasing", "task", "waiters")

    def __init__(self) -> None:
        self.waiters: deque[_Waiter] = deque()
        self.task: asyncio.Task[None] | None = None
        self.is_releasing = False


class Waiting:
    """All waiting appends; `queues` is empty where nothing waits."""

    def __init__(self, decide: Decide, *, bytes_max: int) -> None:
        self._decide = decide
        self._bytes_max = bytes_max
        self._bytes = 0
        self._loop = asyncio.get_running_loop()
        self.queues: dict[Stream, _Queue] = {}
        self._has_ended = False

    def blocks(self, stream: Stream) -> bool:
        """Whether an append that comes now queues behind those that wait."""
        queue = self.queues.get(stream)
        # What came behind an append that blocks is marked like it: both ends tell of all between.
        return queue is not None and (queue.waiters[0].blocks or queue.waiters[-1].blocks)

    def add(
        self, stream: Stream, request: Append, later: NotYet | None
    ) -> asyncio.Future[Appended]:
        """Queue an append; `later` is what its check has raised, None if it was not asked yet."""
        if self._has_ended:
            raise shutting_down()
        size = len(request.body)
        if self._bytes and self._bytes + size > self._bytes_max:
            raise Overloaded("too many bytes of appends wait already; try again", Retry_After="1")
        self._bytes += size
        future: asyncio.Future[Appended] = self._loop.create_future()
        blocks = later is None or later.blocks or self.blocks(stream)
        queue = self.queues.get(stream)
        if queue is None:
            queue = self.queues[stream] = _Queue()
        queue.waiters.append(_Waiter(request, future, blocks=blocks))
        if queue.task is None and later is not None:
            self._wait(stream, queue, later.ready)
        return future

    def release(self, stream: Stream) -> None:
        """Decide all that wait for a stream now: it takes no more appends."""
        queue = self.queues.get(stream)
        if queue is None or queue.is_releasing:
            return
        if queue.task is not None:
            # After its first step, so that what it awaits is begun, and can tidy up.
            self._loop.call_soon(queue.task.cancel)
            queue.task = None
        self._release(stream, queue)

    def end(self) -> None:
        """Refuse all that wait, and from now on all that would have to."""
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
            return  # all that waited were decided meanwhile
        if failure is not None:
            self._pop(queue, failure)
        # In the same step: what the check has found out still holds.
        self._release(stream, queue)

    def _release(self, stream: Stream, queue: _Queue) -> None:
        """Decide one after the other until one has to wait again."""
        queue.is_releasing = True
        try:
            while queue.waiters:
                head = queue.waiters[0]
                if head.future.done():  # whoever asked does not want it any more
                    self._pop(queue, None)
                    continue
                try:
                    deciding = self._decide(stream, head.request)
                except NotYet as later:
                    if not self._has_ended:
                        head.blocks = later.blocks
                        self._wait(stream, queue, later.ready)
                        return
                    self._pop(queue, shutting_down())
                except Exception as error:  # noqa: BLE001 - becomes the answer
                    self._pop(queue, error)
                else:
                    self._pop(queue, None)
                    deciding.add_done_callback(partial(_pass_on, head.future))
            del self.queues[stream]
        finally:
            queue.is_releasing = False

    def _pop(self, queue: _Queue, error: Exception | None) -> None:
        head = queue.waiters.popleft()
        self._bytes -= len(head.request.body)
        if error is not None:
            _refuse(head.future, error)


def _pass_on(future: asyncio.Future[Appended], decided: asyncio.Future[Appended]) -> None:
    if decided.cancelled():
        future.cancel()
    elif (error := decided.exception()) is not None:
        _refuse(future, error)
    elif not future.done():
        future.set_result(decided.result())


def _refuse(future: asyncio.Future[Appended], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # counts as seen: the client may have gone, which is nobody's fault
