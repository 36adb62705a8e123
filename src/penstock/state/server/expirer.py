"""Appends the deletes of entities that have expired.

Runs on the event loop. The deadlines are in the state index, which is behind the log, so that what
was appended meanwhile is recorded and taken into account: a delete is decided in one step with
everything before it, and never removes a value that has replaced the expired one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.errors import PenstockError
from penstock.log.requests import Append, Writer
from penstock.protocol.json_mode import SLICE_BYTES, slices
from penstock.state import expiry
from penstock.state.server import deadlines
from penstock.state.server.index import IndexFault
from penstock.state.server.index_batch import Batch

if TYPE_CHECKING:
    from penstock.clock import Clock
    from penstock.log.engine import Engine
    from penstock.log.recording import Recording
    from penstock.log.stream import Stream
    from penstock.state.server.indexer import StateIndexer

DELETES_MAX: Final = 1000
"""Deletes in one append: a million entities that expire at once are many appends."""
STREAMS_MAX: Final = 16
"""Streams whose entities are deleted at the same time."""
PAUSE_S_MIN: Final = 0.05
"""Deadlines that are nearer to each other than this are served together."""
PAUSE_S_MAX: Final = 10.0
"""The clock of the machine may be set; it is looked at so often."""
RETRY_S: Final = 1.0
OUTDATED_MAX: Final = 1000
"""Entries of the heap that no longer count, before they are removed."""

_log = logging.getLogger("penstock.state")


class _Due(NamedTuple):
    """Entities that have expired, as of an indexed position."""

    position: int
    entities: list[tuple[str, str]]


class _Later:
    """What was appended after a position: the entities that it changes, and whether it has a
    reset. `parts` of the recording are included."""

    def __init__(self, stream: int, skip_bytes: int) -> None:
        self._stream = stream
        self._skip_bytes = skip_bytes  # of the recording, which are indexed already
        self.parts = 0
        self.entities: set[tuple[str, str]] = set()
        self.has_resets = False

    def add(self, wire: bytes) -> None:
        skipped = min(self._skip_bytes, len(wire))
        self._skip_bytes -= skipped
        if skipped < len(wire):
            batch = Batch(self._stream, 0, 0, 0)
            batch.add_all(wire[skipped:])
            self.entities.update(batch.entities)
            self.has_resets = self.has_resets or bool(batch.resets)


class Expirer:
    """The deadlines of all streams: the first of each, in memory, and a task that waits for it."""

    def __init__(
        self,
        engine: Engine,
        indexer: StateIndexer,
        *,
        clock: Clock,
        spares: Callable[[Stream], bool],
    ) -> None:
        """`spares` returns whether nothing may be appended to a stream by a policy."""
        self._engine = engine
        self._indexer = indexer
        self._clock = clock
        self._spares = spares
        self._first: dict[int, deadlines.Deadline] = {}
        self._heap: list[tuple[int, int]] = []  # (time, stream); outdated entries are skipped
        self._running: dict[int, asyncio.Task[None]] = {}
        self._changed: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.expired = 0

    def close(self) -> None:
        """Stop; what has expired meanwhile is deleted after the next start."""
        self._closed = True
        for task in (self._task, *self._running.values()):
            if task is not None:
                task.cancel()

    def notice(self, deadline: deadlines.Deadline) -> None:
        """Learn of a deadline, which may be the first of its stream."""
        first = self._first.get(deadline.stream)
        if first is None or deadline.time_us < first.time_us:
            self._set(deadline)

    async def expire_due(self) -> None:
        """Delete what has expired by now, of all streams."""
        while not self._closed:
            self._begin()
            if not self._running:
                return
            await asyncio.wait(self._running.values(), return_when=asyncio.FIRST_COMPLETED)

    # -- waiting

    def _set(self, deadline: deadlines.Deadline) -> None:
        if self._closed:
            return
        self._first[deadline.stream] = deadline
        heappush(self._heap, (deadline.time_us, deadline.stream))
        if len(self._heap) > 2 * len(self._first) + OUTDATED_MAX:
            self._heap = sorted((each.time_us, each.stream) for each in self._first.values())
        if self._changed is None:
            self._changed = asyncio.Event()
            self._task = asyncio.get_running_loop().create_task(self._run())
        self._changed.set()

    async def _run(self) -> None:
        assert self._changed is not None
        while True:
            self._changed.clear()
            pause_s = self._pause_s()
            try:
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()
                await asyncio.sleep(PAUSE_S_MIN)
            except TimeoutError:
                pass
            self._begin()

    def _pause_s(self) -> float | None:
        """Return how long nothing expires; None if nothing does."""
        if not self._heap:
            return None
        pause_s = (self._heap[0][0] - self._clock.now_us()) / 1_000_000
        return min(max(pause_s, PAUSE_S_MIN), PAUSE_S_MAX)

    def _begin(self) -> None:
        """Begin with the streams that are due, as many as may run."""
        now_us = self._clock.now_us()
        while self._heap and self._heap[0][0] <= now_us and len(self._running) < STREAMS_MAX:
            time_us, stream_id = heappop(self._heap)
            deadline = self._first.get(stream_id)
            if deadline is None or deadline.time_us != time_us or stream_id in self._running:
                continue
            del self._first[stream_id]
            task = asyncio.get_running_loop().create_task(self._expire(deadline))
            self._running[stream_id] = task
            task.add_done_callback(lambda _, stream_id=stream_id: self._done(stream_id))  # type: ignore[misc]  # mypy cannot infer the type of a lambda with a default

    def _done(self, stream_id: int) -> None:
        del self._running[stream_id]
        deadline = self._first.get(stream_id)
        if deadline is not None:  # noticed while the task ran
            heappush(self._heap, (deadline.time_us, stream_id))
        if self._changed is not None:
            self._changed.set()

    # -- one stream

    async def _expire(self, deadline: deadlines.Deadline) -> None:
        """Delete what has expired of one stream; learn of its next deadline."""
        stream = self._indexer.find(deadline.stream, deadline.path)
        if stream is None:
            return
        try:
            if self._engine.pending(stream).closed or self._spares(stream):
                await self._indexer.ask(lambda index: index.write(deadlines.forget, stream.id))
                return
            await self._delete(stream)
            first = await self._ask(stream, stream.tail, lambda db, _: (_first(db, stream),))
            if first[0] is not None:
                self.notice(deadline._replace(time_us=first[0]))
        except (PenstockError, IndexFault) as error:
            _log.warning("cannot delete what has expired in %s yet: %s", stream.path, error)
            self._retry(deadline)
        except Exception:  # noqa: BLE001 - one stream must not stop the expiry of all
            _log.exception("cannot delete what has expired in %s", stream.path)
            self._retry(deadline)

    def _retry(self, deadline: deadlines.Deadline) -> None:
        retry_us = self._clock.now_us() + int(RETRY_S * 1_000_000)
        self.notice(deadline._replace(time_us=retry_us))

    async def _delete(self, stream: Stream) -> None:
        recording = self._engine.record(stream)
        try:
            await recording.ready
            now_us = self._clock.now_us()
            due = await self._ask(
                stream,
                recording.start,
                lambda db, progress: _Due(
                    progress.position,
                    deadlines.due(
                        db,
                        stream.id,
                        now_us,
                        earliest=recording.earliest,
                        limit=DELETES_MAX,
                    ),
                ),
            )
            later = await self._catch_up(recording, due.position)
            # There is no await from here to the decision.
            if recording.is_broken:
                return
            later.add(b"".join(recording.parts[later.parts :]))
            if later.has_resets:
                return  # the index is asked again when it has seen the reset
            entities = [entity for entity in due.entities if entity not in later.entities]
            if not entities:
                return
            tail = self._engine.token(stream, self._engine.pending(stream).tail)
            deciding = self._engine.append(stream.path, _deletes(entities, now_us, tail))
        finally:
            self._engine.stop_recording(recording)
        await deciding
        self.expired += len(entities)

    async def _catch_up(self, recording: Recording, position: int) -> _Later:
        """Return what was appended after a position, read off the event loop until little is
        left."""
        later = _Later(recording.stream.id, position - recording.start)
        while not recording.is_broken:
            recent = recording.parts[later.parts :]
            if sum(map(len, recent)) <= SLICE_BYTES:
                break
            later.parts += len(recent)
            for piece in slices(b"".join(recent)):
                await asyncio.to_thread(later.add, piece)
        return later

    async def _ask(self, stream: Stream, at: int, question: Callable[[Any, Any], Any]) -> Any:
        return await self._indexer.answer(
            stream, at, lambda index: index.ask(stream.id, at, question)
        )


def _first(db: Any, stream: Stream) -> int | None:
    return deadlines.first(db, stream.id, stream.earliest)


def _deletes(entities: list[tuple[str, str]], now_us: int, tail: str) -> Append:
    """Return the append of deletes. It requires the tail at which it was decided, because a check
    may put it off."""
    events = b",".join([expiry.expired_event(type, key, now_us) for type, key in entities])
    return Append(b"[" + events + b"]", "application/json", False, None, None, tail, Writer.SERVER)
