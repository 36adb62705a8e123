"""Keeps the state index in step with the log, apart from the append path.

Runs on the event loop, with a thread for the database. A stream is watched only while it has
something new, so that it does not count as being read.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.errors import (
    InternalError,
    Overloaded,
    PenstockError,
    ShuttingDown,
    StreamNotFound,
    StreamTrimmed,
)
from penstock.log.disk.files import Files
from penstock.log.lineage import inherited
from penstock.state.declaration import META
from penstock.state.server.deadlines import Deadline
from penstock.state.server.index import IndexFault, StateIndex, is_passing

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.log.engine import Engine
    from penstock.log.stream import Stream

T = TypeVar("T")

FILE: Final = Path("state") / "index.sqlite"
PIECE_BYTES: Final = 256 * 1024
BATCH_BYTES: Final = 1024 * 1024
"""Bytes indexed in one transaction: larger ones cost less, but make other streams wait."""
WAIT_S: Final = 10.0
"""How long a reader waits for the index to reach its position."""
RETRY_S: Final = 1.0
FOLDS_MAX: Final = 4
"""Streams that are folded for an answer at the same time, and those that are remembered: each takes
memory."""
FOLD_AGE_S: Final = 20.0
"""How long a fold is remembered after it was made or gone on with."""
SWEEP_STREAMS: Final = 20
"""Streams checked for each new one, so that deleted streams leave the index faster than new ones
enter it."""

_log = logging.getLogger("penstock.state")


class StateIndexer:
    """The indexer of all declared streams of an engine."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._path = None if settings.memory else Path(settings.data_dir) / FILE
        self._index: StateIndex | None = None
        self._thread = ThreadPoolExecutor(1, "penstock-state")
        self._follows: dict[int, _Follow] = {}
        self._queue: dict[int, _Follow] = {}
        self._task: asyncio.Task[None] | None = None
        self._swept = 0
        # Streams whose rows were checked against this log, because the folder may have been
        # restored, each with the position of its first row: what a trim has removed from the log
        # must be removed here too.
        self._checked: dict[int, int] = {}
        self._folding = asyncio.Semaphore(FOLDS_MAX)
        self._folds: dict[int, _Fold] = {}
        self._closed = False
        self.on_deadline: Callable[[Deadline], None] = lambda _: None
        self.skipped = 0
        self.indexed_bytes = 0

    def start(self) -> None:
        """Open the index on disk: catch up, and drop the streams that are gone."""
        if self._path is None:
            return
        # A crash may come before a stream that was just declared is in the index.
        for stream in self._engine.active_streams():
            if META in stream.meta:
                self.follow(stream)
        if not Files().exists(self._path):
            return
        try:
            index = self._opened()
            for stream_id, path in index.streams():
                indexed = self.find(stream_id, path)
                if indexed is None:
                    index.drop(stream_id)
                else:
                    self.follow(indexed)
            for deadline in index.deadlines():
                self.on_deadline(deadline)
        except IndexFault as error:  # the streams can be served without it
            _log.error("the state index cannot be opened: %s", error)

    def close(self) -> None:
        """Abandon what is being indexed and stop; the next start catches up."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        if self._index is not None:
            self._index.interrupt()
        self._thread.shutdown(cancel_futures=True)
        for stream_id in list(self._folds):
            self._folds.pop(stream_id).index.close()
        for follow in list(self._follows.values()):
            self._engine.unwatch(follow.stream, follow)
            follow.fail(ShuttingDown("The server is stopping; try again.", Retry_After="1"))
        if self._index is not None:
            self._index.close()
            self._index = None

    # -- streams and queries

    def accepted(self, stream: Stream) -> None:
        """Watch a stream whose append was accepted, until it is durable."""
        follow = self._follow(stream)
        if not follow.watching:
            follow.watching = True
            self._engine.watch(stream, follow)

    def follow(self, stream: Stream) -> None:
        """Bring the index up to the tail of a stream."""
        self._enqueue(self._follow(stream))

    def forget(self, stream: Stream) -> None:
        """Drop a stream that is not declared any more."""
        self._checked.pop(stream.id, None)
        self.follow(stream)

    async def reach(self, stream: Stream, position: int) -> None:
        """Wait until a stream is indexed up to `position`."""
        follow = self._follow(stream)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        follow.waiters.append((position, waiter))
        self._enqueue(follow)
        try:
            await asyncio.wait_for(waiter, WAIT_S)
        except TimeoutError:
            raise _behind() from None

    async def answer(
        self, stream: Stream, at: int, question: Callable[[StateIndex], T | None]
    ) -> T:
        """Return the answer of the index for a declared stream at a position, once it is there."""
        try:
            if self._checked.get(stream.id, stream.earliest) < stream.earliest:
                await self._prune(stream)
            answer = await self.ask(question) if stream.id in self._checked else None
            if answer is None:
                await self.reach(stream, at)
                answer = await self.ask(question)
        except IndexFault as error:
            _log.error("the state index failed: %s", error)
            self._checked.pop(stream.id, None)
            self.follow(stream)  # meets the fault as well, and repairs it
            answer = None
        if answer is None:
            raise _behind()
        return answer

    async def fold(self, stream: Stream, at: int, question: Callable[[StateIndex], T | None]) -> T:
        """Return the answer for a stream that is not indexed: its events are read now, or were for
        another position a short time ago."""
        async with self._folding:
            # Taken out while it is used: one request at a time.
            fold = self._folds.pop(stream.id, None)
            if fold is None or fold.first != stream.earliest:
                fold = await self._begin_fold(stream, fold)
            try:
                while fold.position < at:
                    start = fold.position
                    fold.position = await self._fold_on(fold.index, stream, start, at)
                answer = await self._work(lambda: question(fold.index))
            except BaseException:
                fold.index.close()
                raise
        self._remember(stream, fold)
        assert answer is not None
        return answer

    async def _begin_fold(self, stream: Stream, old: _Fold | None) -> _Fold:
        if old is not None:  # the stream was trimmed since
            old.index.close()
        start, ordinal = stream.earliest, stream.earliest_ordinal
        index = await self._work(lambda: StateIndex(None))
        try:
            await self._work(lambda: index.begin(stream.id, stream.path, start, ordinal))
        except BaseException:
            index.close()
            raise
        return _Fold(index, start, start)

    def _remember(self, stream: Stream, fold: _Fold) -> None:
        """Keep a fold for a while: whoever looks at one position soon looks at others."""
        other = self._folds.pop(stream.id, None)
        if other is not None:
            other.index.close()
        while len(self._folds) >= FOLDS_MAX:
            self._folds.pop(next(iter(self._folds))).index.close()
        if self._closed:
            fold.index.close()
            return
        self._folds[stream.id] = fold
        asyncio.get_running_loop().call_later(FOLD_AGE_S, self._forget_fold, stream.id, fold)

    def _forget_fold(self, stream_id: int, fold: _Fold) -> None:
        if self._folds.get(stream_id) is fold:
            self._folds.pop(stream_id).index.close()

    async def _fold_on(self, index: StateIndex, stream: Stream, start: int, at: int) -> int:
        end = await self._engine.plan(stream, start, max_bytes=BATCH_BYTES, until=at)
        wire = await self.read(stream, start, end)
        await self._work(lambda: index.apply(stream.id, start, wire, inherited(stream)))
        return end

    async def ask(self, question: Callable[[StateIndex], T]) -> T:
        """Put a question to the index, in its thread."""
        return await self._work(lambda: question(self._opened()))

    async def _work(self, job: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, job)

    async def read(self, stream: Stream, start: int, end: int) -> bytes:
        """Return the bytes [start, end), read in the pieces that the engine allows."""
        parts = []
        while start < end:
            stop = min(start + PIECE_BYTES, end)
            piece = self._engine.read_now(stream, start, stop)
            if piece is None:
                piece = await self._engine.read(stream, start, stop)
            parts.append(piece)
            start = stop
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def lag(self) -> tuple[int, int]:
        """Return the number of streams whose index is behind, and the bytes by which it is."""
        behind = [
            follow.stream.tail - (follow.position or 0)
            for follow in self._follows.values()
            if follow.position != follow.stream.tail
        ]
        return len(behind), sum(behind)

    # -- indexing

    def _follow(self, stream: Stream) -> _Follow:
        follow = self._follows.get(stream.id)
        if follow is None:
            follow = self._follows[stream.id] = _Follow(stream, self)
        return follow

    def _enqueue(self, follow: _Follow) -> None:
        if self._closed:
            return
        self._queue[follow.stream.id] = follow
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        """Index one batch of each queued stream in turn."""
        while self._queue:
            follow = self._queue.pop(next(iter(self._queue)))
            try:
                await self._step(follow)
            except PenstockError as error:
                behind = (follow.position or 0) < follow.stream.earliest
                if isinstance(error, StreamTrimmed) and behind and not follow.stream.is_gone:
                    self._queue[follow.stream.id] = follow  # trimmed while it was read
                    continue
                if not follow.stream.is_gone:
                    _log.error("cannot index %s: %s", follow.stream.path, error.detail)
                self._give_up(follow, error)
            except IndexFault as error:
                _log.error("the state index failed, trying again: %s", error)
                self._queue[follow.stream.id] = follow
                await self._repair(error)
            except Exception:  # noqa: BLE001 - one stream must not stop the indexing of all
                _log.exception("cannot index %s", follow.stream.path)
                failure = InternalError("The state index failed. The server's log has the reason.")
                self._give_up(follow, failure)

    def _give_up(self, follow: _Follow, error: PenstockError) -> None:
        """Fail the waiters of a stream; the next append or query tries again."""
        self._follows.pop(follow.stream.id, None)
        follow.watching = False
        self._engine.unwatch(follow.stream, follow)
        follow.fail(error)

    async def _step(self, follow: _Follow) -> None:
        stream = follow.stream
        await self._drop_if_gone(stream)
        if META not in stream.meta and await self._drop(follow):
            return
        if follow.position is None or follow.position < stream.earliest:
            follow.position = await self._resume(stream)
            await self._drop_if_gone(stream)  # if deleted meanwhile, its rows may be swept
        elif self._checked.get(stream.id, stream.earliest) < stream.earliest:
            await self._prune(stream)
        start = follow.position
        if start < stream.tail:
            end = await self._engine.plan(stream, start, max_bytes=BATCH_BYTES)
            wire = await self.read(stream, start, end)
            skipped, deadline_us = await self.ask(
                lambda index: self._apply(index, stream, start, wire)
            )
            self.skipped += skipped
            if deadline_us is not None:
                self.on_deadline(Deadline(stream.id, stream.path, deadline_us))
            self.indexed_bytes += end - start
            follow.position = end
        follow.arrived()
        if follow.position < stream.tail:
            self._queue[stream.id] = follow
        elif follow.is_idle:
            self._follows.pop(stream.id, None)

    async def _drop_if_gone(self, stream: Stream) -> None:
        if stream.is_gone:
            await self.ask(lambda index: index.drop(stream.id))
            raise StreamNotFound(f"{stream.path!r} was deleted.")

    def _apply(
        self, index: StateIndex, stream: Stream, start: int, wire: bytes
    ) -> tuple[int, int | None]:
        """Index messages; return how many were no events, and the earliest deadline of an
        entity."""
        before = index.odd_timestamps
        skipped = index.apply(stream.id, start, wire, inherited(stream))
        if start < stream.earliest:
            # Trimmed since it was read; that was pruned before these rows were there.
            index.prune(stream.id, stream.earliest)
        if index.odd_timestamps > before:
            odd = index.odd_timestamps - before
            _log.warning("%s: timestamps of %d events are not RFC 3339", stream.path, odd)
        return skipped, index.applied_deadline_us

    async def _drop(self, follow: _Follow) -> bool:
        """Drop a stream that was undeclared; return false if it has been declared again since."""
        stream = follow.stream
        follow.position = None
        await self.ask(lambda index: index.drop(stream.id))
        if META in stream.meta:
            return False
        self._queue.pop(stream.id, None)
        self._give_up(follow, _undeclared(stream))
        return True

    async def _resume(self, stream: Stream) -> int:
        """Return the indexed position if it matches the log; else begin again."""
        progress = await self.ask(lambda index: index.progress(stream.id))
        first, ordinal = stream.earliest, stream.earliest_ordinal
        if progress is not None and first <= progress.position <= stream.tail:
            end = progress.position
            if await self._mark(stream, end, progress.mark_bytes) == progress.mark_crc:
                self._checked[stream.id] = progress.first
                if progress.first < first:
                    await self._prune(stream)
                return end
        await self._sweep()  # before it has rows: it may be undeclared meanwhile
        await self.ask(lambda index: index.begin(stream.id, stream.path, first, ordinal))
        self._checked[stream.id] = first
        return first

    async def _mark(self, stream: Stream, end: int, size: int) -> int | None:
        """Return the checksum of the last message before `end`; None if it was trimmed."""
        try:
            return zlib.crc32(await self.read(stream, end - size, end) if size else b"")
        except StreamTrimmed:
            return None

    async def _prune(self, stream: Stream) -> None:
        """Remove the rows of events that were trimmed from the log."""
        first = stream.earliest
        await self.ask(lambda index: index.prune(stream.id, first))
        self._checked[stream.id] = first

    async def _sweep(self) -> None:
        """Drop streams that were deleted, or undeclared, while they were not watched."""
        streams = await self.ask(lambda index: index.streams(self._swept, SWEEP_STREAMS))
        self._swept = streams[-1][0] if len(streams) == SWEEP_STREAMS else 0
        for stream_id, path in streams:
            if self.find(stream_id, path) is None:
                follow = self._follows.get(stream_id)
                if follow is not None:
                    follow.position = None  # it may be declared again before its turn
                # mypy cannot infer the type of a lambda with a default.
                await self.ask(lambda index, gone=stream_id: index.drop(gone))  # type: ignore[misc]

    async def _repair(self, error: Exception) -> None:
        """Recreate a broken database; wait if the disk is full."""
        self._checked.clear()
        for follow in self._follows.values():
            follow.position = None
        if self._path is not None and not is_passing(error):
            try:
                await self.ask(lambda index: index.recreate())
                return
            except IndexFault as again:
                _log.error("the state index cannot be recreated: %s", again)
        await asyncio.sleep(RETRY_S)

    def find(self, stream_id: int, path: str) -> Stream | None:
        """Return the stream, if it is still the one that was indexed."""
        try:
            stream = self._engine.find(path, touch=False)
        except PenstockError:
            return None
        return stream if stream.id == stream_id and META in stream.meta else None

    def _opened(self) -> StateIndex:
        if self._index is None:
            self._index = StateIndex(self._path)
        return self._index


class _Fold:
    """A stream that is not declared, folded in memory from its first event up to a position."""

    __slots__ = ("first", "index", "position")

    def __init__(self, index: StateIndex, first: int, position: int) -> None:
        self.index = index
        self.first = first
        self.position = position


class _Follow:
    """A stream that the index catches up with; watches it while appends are pending."""

    __slots__ = ("_indexer", "position", "stream", "waiters", "watching")

    def __init__(self, stream: Stream, indexer: StateIndexer) -> None:
        self.stream = stream
        self._indexer = indexer
        self.position: int | None = None
        self.waiters: list[tuple[int, asyncio.Future[None]]] = []
        self.watching = False

    @property
    def is_idle(self) -> bool:
        return not self.watching and not self.waiters

    def advanced(self, start: int, end: int, wire: bytes, closed: bool) -> None:
        engine = self._indexer._engine
        if self.watching and engine.is_settled(self.stream):
            self.watching = False
            engine.unwatch(self.stream, self)
        self._indexer._enqueue(self)

    def ended(self) -> None:
        self.watching = False
        self._indexer._enqueue(self)

    def arrived(self) -> None:
        """Wake the waiters whose position is reached."""
        waiting, self.waiters = self.waiters, []
        for target, waiter in waiting:
            if waiter.done():
                continue
            if self.position is not None and self.position >= target:
                waiter.set_result(None)
            else:
                self.waiters.append((target, waiter))

    def fail(self, error: Any) -> None:
        waiting, self.waiters = self.waiters, []
        for _, waiter in waiting:
            if not waiter.done():
                waiter.set_exception(error)


def _behind() -> Overloaded:
    return Overloaded(
        "The state index is still catching up with the stream; try again.", Retry_After="1"
    )


def _undeclared(stream: Stream) -> Overloaded:
    return Overloaded(f"{stream.path!r} has just been undeclared; try again.", Retry_After="1")
