"""What every decision about a stream needs, in one object, and answers in the order of decisions.

Decisions are made on pending state by one owner, the event loop; an answer that rests on pending
state waits until that state is durable. If a batch fails, pending state is durable state again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from penstock.clock import Clock
from penstock.config.settings import Settings
from penstock.errors import PenstockError, StreamNotFound, StreamSoftDeleted
from penstock.log.active import ActiveStreams
from penstock.log.decide.waiting import WaitingAppends, shutting_down
from penstock.log.mutations import Barrier, Mutation
from penstock.log.quotas import Quotas
from penstock.log.ranges import Ranges
from penstock.log.stats import EngineStats
from penstock.log.store import Store
from penstock.log.stream import Stream
from penstock.protocol.json_mode import SLICE_BYTES, check_sizes, frame

T = TypeVar("T")


class Context:
    """The collaborators of all decisions. Belongs to the event loop that made it."""

    __slots__ = (
        "_framing",
        "_message_bytes_max",
        "_tasks",
        "clock",
        "is_stopping",
        "loop",
        "quotas",
        "ranges",
        "settings",
        "stats",
        "store",
        "streams",
        "waiting",
    )

    def __init__(
        self,
        streams: ActiveStreams,
        store: Store,
        settings: Settings,
        stats: EngineStats,
        *,
        clock: Clock,
        ranges: Ranges,
        quotas: Quotas | None = None,
    ) -> None:
        self.streams = streams
        self.store = store
        self.settings = settings
        self.stats = stats
        self.clock = clock
        self.ranges = ranges
        self.quotas = quotas
        self.loop = asyncio.get_running_loop()
        self.waiting = WaitingAppends(bytes_max=settings.append_queue_bytes_max)
        self.is_stopping = False
        self._message_bytes_max = settings.message_bytes_max
        self._tasks: set[asyncio.Task[object]] = set()
        # One thread: with more of them the event loop would have to compete for the interpreter.
        self._framing = ThreadPoolExecutor(1, thread_name_prefix="penstock-frame")

    def stop(self) -> None:
        """Take no new changes from now on; those that are queued are finished."""
        self.is_stopping = True
        self.waiting.end()
        self._framing.shutdown(wait=False, cancel_futures=True)

    def check_running(self) -> None:
        """Raise ShuttingDown if the server is stopping."""
        if self.is_stopping:
            raise shutting_down()

    def admit(self, size: int) -> None:
        """Raise if the server is stopping or the store cannot take `size` more bytes."""
        if self.is_stopping:
            raise shutting_down()
        self.store.admit(size)

    def frame(self, body: bytes, *, is_json: bool, allow_empty: bool) -> tuple[bytes, int]:
        """Return the body in wire shape, and the number of its messages."""
        if is_json and body:
            framed = frame(body, allow_empty=allow_empty, depth_max=self.settings.json_depth_max)
            if self._message_bytes_max:
                check_sizes(framed[0], self._message_bytes_max)
            return framed
        return body, 1 if body else 0

    async def frame_later(self, body: bytes, *, allow_empty: bool) -> tuple[bytes, int]:
        """Return a large body of JSON in wire shape, without holding up the event loop."""
        if self.is_stopping:
            raise shutting_down()
        job = partial(self.frame, body, is_json=True, allow_empty=allow_empty)
        return await self.loop.run_in_executor(self._framing, job)

    def run(self, decision: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a decision that has to read the log first."""
        task = self.loop.create_task(decision)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- answers in the order of decisions

    def submit(self, mutation: Mutation) -> asyncio.Future[T]:
        """Hand a decided mutation to the store; the future has its result once it is durable."""
        future: asyncio.Future[T] = mutation.as_future(self.loop)
        self.send(mutation)
        return future

    def send(self, mutation: Mutation) -> None:
        """Hand a decided mutation to the store; it is its own receipt."""
        mutation.stream.in_flight += 1
        self.store.submit(mutation)

    def _await_turn(self, barrier: Barrier) -> asyncio.Future[T]:
        """Let a barrier have its turn behind everything that was submitted before."""
        future: asyncio.Future[T] = barrier.as_future(self.loop)
        self.store.submit(barrier)
        return future

    def answer(self, stream: Stream, result: T) -> asyncio.Future[T]:
        """Answer without a change, as soon as the pending state of `stream` is durable."""
        if stream.in_flight:
            return self._await_turn(Barrier(result))
        future: asyncio.Future[T] = self.loop.create_future()
        future.set_result(result)
        return future

    def refuse(self, stream: Stream, error: PenstockError) -> asyncio.Future[T]:
        """Refuse a request, as soon as the pending state of `stream` is durable: raises `error` if
        it is already."""
        if not stream.in_flight:
            raise error
        refusal: asyncio.Future[T] = self.loop.create_future()

        def refuse(barrier: asyncio.Future[None]) -> None:
            if not refusal.done():
                refusal.set_exception(barrier.exception() or error)

        barrier: asyncio.Future[None] = self._await_turn(Barrier())
        barrier.add_done_callback(refuse)
        return refusal


def is_large(body: bytes, *, is_json: bool) -> bool:
    """Whether a body is to be framed off the event loop."""
    return is_json and len(body) > SLICE_BYTES


def gone(stream: Stream) -> StreamNotFound | StreamSoftDeleted:
    """Return why a stream that is being deleted, or is soft-deleted, takes no more changes."""
    return soft_deleted(stream) if stream.pending_soft_deleted else StreamNotFound.at(stream.path)


def soft_deleted(stream: Stream) -> StreamSoftDeleted:
    return StreamSoftDeleted(
        f"The stream at {stream.path!r} was deleted; its data is kept only for the forks made "
        "from it. Read one of those, or use another path."
    )
