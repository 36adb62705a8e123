"""Compaction: replaces the history of a stream by its live state: a snapshot-start, an insert for
every entity, a snapshot-end.

The state is read from the index while appends go on. Later changes are added at the end, in one
step with the decision of the log, so that no newer change is undone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from penstock.errors import (
    NotCompactable,
    NotStateStream,
    Overloaded,
    StateTooLarge,
    StreamTrimmed,
)
from penstock.log.lineage import inherited
from penstock.log.spans import spans
from penstock.protocol.json_mode import SLICE_BYTES, slices
from penstock.protocol.lifecycle import stream_closed
from penstock.state import events
from penstock.state.declaration import META
from penstock.state.server.index_batch import Batch

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.log.engine import Engine
    from penstock.log.recording import Recording
    from penstock.log.stream import Stream
    from penstock.state.server.indexer import StateIndexer

ATTEMPTS: Final = 5
SPAN_BYTES: Final = 1024 * 1024
GAP_BYTES: Final = 4 * 1024
"""Reading so many unneeded bytes is cheaper than a second read."""
GROWTH: Final = 1.1
"""The growth of a log after which its state is measured again."""
MEASURED_MAX: Final = 10_000

_SIZE: Final = "SELECT coalesce(sum(length), 0) FROM entities WHERE stream = ?"
_LOCATIONS: Final = """SELECT type, key, position, length FROM entities WHERE stream = ?
ORDER BY position"""
_PROGRESS: Final = "SELECT position, ordinal, skip_until FROM streams WHERE id = ?"
_START: Final = events.snapshot_start().to_json() + b",\n"
_END: Final = events.snapshot_end().to_json() + b",\n"
_INSERT_TEXT: Final = b'"insert"'
_INSERT: Final = msgspec.Raw(_INSERT_TEXT)
_split: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode: Final = msgspec.json.Encoder().encode

Lines = dict[tuple[str, str], bytes]


class Compacted(NamedTuple):
    """The result of a compaction: the earliest offset, the number of entities, and their bytes."""

    earliest: str
    entities: int
    bytes: int


class _Base(NamedTuple):
    """The state at the indexed position: the events that set its entities."""

    position: int
    ordinal: int
    skip_until: int
    locations: list[tuple[str, str, int, int]]


class _Progress(NamedTuple):
    """How far the later changes of a stream are applied to its base state."""

    stream: int
    position: int
    ordinal: int
    skip_until: int
    inherited: Mapping[int, int]
    """The generations that a fork inherits from, and where each of them ends."""
    positions: dict[tuple[str, str], int]
    """Where each entity was set; shared by all steps."""

    def after(self, wire: bytes, lines: Lines) -> _Progress:
        """Apply the changes in the wire bytes that follow to the state; return what comes next."""
        batch = Batch(
            self.stream, self.position, self.ordinal, self.skip_until, inherited=self.inherited
        )
        batch.add_all(wire)
        positions = self.positions
        if batch.resets:
            for entity in [each for each in lines if positions[each] < batch.floor]:
                del lines[entity]
        for entity, last in batch.entities.items():
            # Removed first, so that the order stays that of the log.
            lines.pop(entity, None)
            if last is not None:
                start = last.position - self.position
                lines[entity] = as_insert(wire[start : start + last.length])
                positions[entity] = last.position
        return self._replace(
            position=batch.position, ordinal=batch.ordinal, skip_until=batch.skip_until
        )


class Compactor:
    def __init__(
        self,
        engine: Engine,
        indexer: StateIndexer,
        settings: Settings,
        *,
        spares: Callable[[Stream], bool],
    ) -> None:
        """`spares` returns whether a stream must not be compacted by a policy."""
        self._engine = engine
        self._indexer = indexer
        self._spares = spares
        self._bytes_max = settings.snapshot_bytes_max
        self._log_bytes_min = settings.compact_bytes_min
        self._running: dict[int, asyncio.Task[Compacted]] = {}
        self._measured: dict[int, int] = {}

    async def compact(self, stream: Stream) -> Compacted:
        """Compact a stream; calls while it runs get the same result."""
        if META not in stream.meta:
            raise NotStateStream(
                f"Only the history of a state stream can be replaced by its state; declare it with "
                f"PUT /v1/schema/{stream.path}, or trim it."
            )
        task = self._running.get(stream.id)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._compact(stream))
            self._running[stream.id] = task
            task.add_done_callback(lambda done: self._done(stream.id, done))
        return await asyncio.shield(task)

    def _done(self, stream_id: int, task: asyncio.Task[Compacted]) -> None:
        del self._running[stream_id]
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it if the caller is gone

    async def consider(self, stream: Stream, ratio: int) -> bool:
        """Compact a stream if its log is at least `ratio` times its live state."""
        size = stream.tail - stream.earliest
        if META not in stream.meta or stream.closed or self._spares(stream):
            return False
        if size < self._log_bytes_min:
            return False
        if size < self._measured.get(stream.id, 0) * GROWTH:
            return False
        live = await self._indexer.answer(
            stream,
            stream.tail,
            lambda index: index.ask(
                stream.id,
                stream.tail,
                lambda db, _: (int(db.execute(_SIZE, (stream.id,)).fetchone()[0]),),
            ),
        )
        if size < ratio * max(live[0], 1):
            if len(self._measured) >= MEASURED_MAX:
                self._measured.clear()
            self._measured[stream.id] = size
            return False
        self._measured.pop(stream.id, None)
        await self.compact(stream)
        return True

    async def _compact(self, stream: Stream) -> Compacted:
        for _ in range(ATTEMPTS):
            try:
                done = await self._attempt(stream)
            except StreamTrimmed:  # the state has changed while it was read
                continue
            if done is not None:
                return done
        raise Overloaded(
            f"{stream.path!r} was trimmed, or could not be written, in each attempt to compact it; "
            "try again.",
            Retry_After="1",
        )

    async def _attempt(self, stream: Stream) -> Compacted | None:
        """Compact once; return None if the stream was trimmed or failed meanwhile."""
        pending = self._engine.pending(stream)
        if pending.closed:
            raise stream_closed(self._engine.token(stream, pending.tail))
        earliest = stream.earliest
        base = await self._base(stream)
        lines = await self._lines(stream, base)
        recording = self._engine.record(stream)
        try:
            await recording.ready
            state, parts = await self._catch_up(stream, recording, base, lines)
            # There is no await from here to the decision.
            if recording.is_broken or recording.earliest != earliest:
                return None
            recent = b"".join(recording.parts[parts:])
            if recent:
                state = state.after(recent, lines)
            tail = self._engine.pending(stream).tail
            if state.skip_until > tail:
                raise NotCompactable(
                    "A reset names an offset ahead, up to which events do not count. Compact the "
                    "stream when its tail is past that offset."
                )
            payload = b"".join([_START, *lines.values(), _END])
            self._check_size(len(payload))
            before = tail - earliest
            deciding = self._engine.snapshot(recording, payload, len(lines) + 2)
            self._indexer.accepted(stream)
        finally:
            self._engine.stop_recording(recording)
        trimmed = await deciding
        self._engine.stats.compacted_bytes += before
        return Compacted(trimmed.offset, len(lines), len(payload))

    async def _catch_up(
        self, stream: Stream, recording: Recording, base: _Base, lines: Lines
    ) -> tuple[_Progress, int]:
        """Apply what came after the base state, off the event loop, until little is left: return
        how far that is, and how many recorded parts it includes."""
        positions = {(type, key): position for type, key, position, _ in base.locations}
        state = _Progress(
            stream.id, base.position, base.ordinal, base.skip_until, inherited(stream), positions
        )
        parts = 0
        wire = b""
        if recording.start > base.position:
            wire = await self._indexer.read(stream, base.position, recording.start)
        while True:
            for piece in slices(wire):
                state = await asyncio.to_thread(state.after, piece, lines)
            recent = recording.parts[parts:]
            if recording.is_broken or sum(map(len, recent)) <= SLICE_BYTES:
                return state, parts
            wire = b"".join(recent)
            parts += len(recent)

    async def _base(self, stream: Stream) -> _Base:
        at = stream.tail

        def question(db: Any, _: object) -> _Base:
            self._check_size(int(db.execute(_SIZE, (stream.id,)).fetchone()[0]))
            position, ordinal, skip_until = db.execute(_PROGRESS, (stream.id,)).fetchone()
            locations = db.execute(_LOCATIONS, (stream.id,)).fetchall()
            return _Base(position, ordinal, skip_until, locations)

        return await self._indexer.answer(
            stream, at, lambda index: index.ask(stream.id, at, question)
        )

    def _check_size(self, size: int) -> None:
        if size > self._bytes_max:
            raise StateTooLarge(
                f"The live state has {size} bytes, more than the {self._bytes_max} of "
                "snapshot_bytes_max that are written in one step. Raise the setting, or have a "
                "pipeline write the stream anew: `penstock pipeline rewrite FILE STREAM --to NEW`."
            )

    async def _lines(self, stream: Stream, base: _Base) -> Lines:
        """Return the base state as inserts, in the order of the log."""
        lines: Lines = {}
        positions = [position for *_, position, _ in base.locations]
        lengths = [length for *_, length in base.locations]
        for span in spans(positions, lengths, span_bytes_max=SPAN_BYTES, gap_bytes_max=GAP_BYTES):
            wire = await self._indexer.read(stream, span.start, span.end)
            locations = base.locations[span.first : span.stop]
            lines.update(await asyncio.to_thread(_inserts, wire, span.start, locations))
        return lines


def _inserts(wire: bytes, start: int, locations: list[tuple[str, str, int, int]]) -> Lines:
    return {
        (type, key): as_insert(wire[position - start : position - start + length])
        for type, key, position, length in locations
    }


def as_insert(line: bytes) -> bytes:
    """Return the event that set an entity as an insert: everything but its old value stays."""
    fields = _split(line[:-2])
    headers = _split(fields["headers"])
    if bytes(headers["operation"]) == _INSERT_TEXT and "old_value" not in fields:
        return line
    fields.pop("old_value", None)
    headers["operation"] = _INSERT
    fields["headers"] = msgspec.Raw(_encode(headers))
    return _encode(fields) + b",\n"
