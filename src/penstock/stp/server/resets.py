"""Which entities are live when a reset is decided, although the index is behind.

While the index is asked, every append to the stream is recorded; the answer of the index with the
recorded changes is the pending state. Runs on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import BodyTooLarge
from penstock.log.requests import NotYet
from penstock.state.event import ChangeEvent
from penstock.state.server import row_numbers
from penstock.stp.transcode import events_of

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.log.stream import Stream
    from penstock.state.server.indexer import StateIndexer

EVENT_BYTES_MIN: Final = 70
"""The smallest size of a delete event, which bounds how many fit into an append."""

Live = dict[tuple[str, str], int]
"""Entities, and the position of the event that has set each."""


class Resets:
    def __init__(self, indexer: StateIndexer, settings: Settings) -> None:
        self._indexer = indexer
        self._bytes_max = settings.body_bytes_max
        self._recordings: dict[int, list[_Recording]] = {}
        self._ready: dict[int, _Recording] = {}

    def record(self, stream: Stream, tail: int, wire: bytes) -> None:
        """Record messages that are about to be appended at the pending tail."""
        for recording in self._recordings.get(stream.id, ()):
            recording.add(tail, wire)

    def live(self, stream: Stream, tail: int) -> Live:
        """Return the live entities at the pending tail; raise NotYet if the index must be asked."""
        recording = self._ready.pop(stream.id, None)
        if recording is None or recording.is_broken(tail):
            # Other appends go on meanwhile, even if the index is far behind.
            raise NotYet(partial(self._begin, stream, tail), blocks=False)
        return recording.live()

    def check_size(self, size: int) -> None:
        if size > self._bytes_max:
            raise BodyTooLarge(
                f"The reset would become deletes of {size} bytes, more than the {self._bytes_max} "
                "of body_bytes_max. Delete the keys in several appends."
            )

    def _begin(self, stream: Stream, tail: int) -> Awaitable[None]:
        """Start to record, from this step on."""
        recording = _Recording(stream, tail)
        self._recordings.setdefault(stream.id, []).append(recording)
        return self._ask(recording)

    async def _ask(self, recording: _Recording) -> None:
        stream = recording.stream
        limit = self._bytes_max // EVENT_BYTES_MIN + 1
        try:
            recording.base = await self._indexer.answer(
                stream,
                recording.start,
                lambda index: index.ask(
                    stream.id,
                    recording.start,
                    lambda db, _: row_numbers.live_keys(db, stream.id, limit),
                ),
            )
            if len(recording.base) >= limit:
                self.check_size(limit * EVENT_BYTES_MIN)
            self._ready[stream.id] = recording
        finally:
            # Later, because the append that waits for this is decided in the same step.
            asyncio.get_running_loop().call_soon(self._forget, recording)

    def _forget(self, recording: _Recording) -> None:
        stream_id = recording.stream.id
        if self._ready.get(stream_id) is recording:
            del self._ready[stream_id]
        remaining = [each for each in self._recordings[stream_id] if each is not recording]
        if remaining:
            self._recordings[stream_id] = remaining
        else:
            del self._recordings[stream_id]


class _Recording:
    """The changes of a stream since a moment: the last one of each entity."""

    __slots__ = ("_changes", "_end", "_is_broken", "base", "start", "stream")

    def __init__(self, stream: Stream, tail: int) -> None:
        self.stream = stream
        self.start = self._end = tail
        self._is_broken = False
        self.base: Live | None = None
        self._changes: dict[tuple[str, str], int | None] = {}  # None: deleted

    def is_broken(self, tail: int) -> bool:
        """Whether a recorded append was refused later, or lost with its batch."""
        return self._is_broken or self._end != tail

    def add(self, tail: int, wire: bytes) -> None:
        self._is_broken = self.is_broken(tail)
        self._end += len(wire)
        event: Any
        for line, event in zip(wire.split(b",\n"), events_of(wire), strict=False):
            if isinstance(event, ChangeEvent):
                self._changes[event.type, event.key] = None if event.operation == "delete" else tail
            tail += len(line) + 2

    def live(self) -> Live:
        assert self.base is not None
        live = dict(self.base)
        for entity, position in self._changes.items():
            live.pop(entity, None)
            if position is not None:
                live[entity] = position
        return live
