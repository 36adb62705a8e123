"""What every decision about a stream needs: finding it, and answering in the order of decisions.

Decisions are made on pending state by one owner, the event loop; an answer that rests on pending
state waits until that is durable.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

from penstock.clock import Clock
from penstock.config.settings import Settings
from penstock.errors import PenstockError, ShuttingDown, StreamNotFound, StreamSoftDeleted
from penstock.log.active import ActiveStreams
from penstock.log.mutations import Barrier, Mutation
from penstock.log.ranges import Ranges
from penstock.log.stats import EngineStats
from penstock.log.store import Store
from penstock.log.stream import Stream
from penstock.protocol.json_mode import frame

T = TypeVar("T")


class Decisions:
    def __init__(
        self,
        streams: ActiveStreams,
        store: Store,
        settings: Settings,
        stats: EngineStats,
        *,
        clock: Clock,
    ) -> None:
        self._streams = streams
        self._settings = settings
        self._clock = clock
        self._ranges = Ranges(store)
        self.store = store
        self.stats = stats
        self._stopping = False
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[object]] = set()

    def stop(self) -> None:
        """From now on nothing new is taken; what is queued is finished."""
        self._stopping = True

    def _frame(self, body: bytes, *, in_messages: bool, allow_empty: bool) -> tuple[bytes, int]:
        """The body in wire shape, and how many messages it is."""
        if in_messages and body:
            return frame(body, allow_empty=allow_empty, depth_max=self._settings.json_depth_max)
        return body, 1 if body else 0

    def _admit(self, size: int) -> None:
        self._check_running()
        self.store.admit(size)

    def _check_running(self) -> None:
        if self._stopping:
            raise shutting_down()

    # -- answers in the order of decisions

    def _submit(self, mutation: Mutation) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._loop.create_future()
        mutation.future = future
        if mutation.stream is not None:
            mutation.stream.in_flight += 1
        self.store.submit(mutation)
        return future

    def _answer(self, stream: Stream, result: T) -> asyncio.Future[T]:
        """An answer that rests on pending state is given when that is durable."""
        if stream.in_flight:
            return self._submit(Barrier(result))
        future: asyncio.Future[T] = self._loop.create_future()
        future.set_result(result)
        return future

    def _refuse(self, stream: Stream, error: PenstockError) -> asyncio.Future[T]:
        if not stream.in_flight:
            raise error
        refusal: asyncio.Future[T] = self._loop.create_future()

        def refuse(barrier: asyncio.Future[None]) -> None:
            if not refusal.done():
                refusal.set_exception(barrier.exception() or error)

        barrier: asyncio.Future[None] = self._submit(Barrier())
        barrier.add_done_callback(refuse)
        return refusal


def shutting_down() -> ShuttingDown:
    return ShuttingDown("the server is stopping; try again shortly", Retry_After="1")


def not_found(path: str) -> StreamNotFound:
    return StreamNotFound(f"there is no stream at {path!r}; create it with PUT first")


def gone(stream: Stream) -> StreamNotFound | StreamSoftDeleted:
    """Why a stream that is about to be deleted, or was softly, takes no more changes."""
    return kept_for_forks(stream) if stream.pending_soft_deleted else not_found(stream.path)


def kept_for_forks(stream: Stream) -> StreamSoftDeleted:
    return StreamSoftDeleted(
        f"{stream.path!r} was deleted; its data is kept only for the forks made from it"
    )
