"""Decides snapshots: messages that stand for everything before them, and take its place.

What such messages are is found out elsewhere, while appends go on; they are recorded here, so that
the last step, on the pending half, can take them in. Knows nothing of what a message means.
"""

from __future__ import annotations

import asyncio

from penstock.errors import Overloaded, PenstockError
from penstock.log import mutations
from penstock.log.decide.context import gone
from penstock.log.decide.trim import Trimming
from penstock.log.lineage import token
from penstock.log.requests import Trimmed
from penstock.log.stream import Stream
from penstock.protocol.lifecycle import stream_closed


class Recording:
    """What is appended to a stream from a moment on, durable or not; `ready` is done when all
    that was pending at that moment is durable."""

    __slots__ = ("_end", "_is_broken", "earliest", "parts", "ready", "start", "stream")

    def __init__(self, stream: Stream, ready: asyncio.Future[None]) -> None:
        self.stream = stream
        self.ready = ready
        self.start = self._end = stream.pending_tail
        self.earliest = stream.pending_earliest
        self.parts: list[bytes] = []
        self._is_broken = False

    @property
    def is_broken(self) -> bool:
        """What was recorded is not what the stream is: a batch failed, or it was trimmed."""
        stream = self.stream
        moved = self._end != stream.pending_tail or self.earliest != stream.pending_earliest
        return self._is_broken or moved

    def add(self, start: int, payload: bytes) -> None:
        self._is_broken = self._is_broken or start != self._end
        self._end = start + len(payload)
        self.parts.append(payload)


class Snapshots(Trimming):
    _recordings: dict[Stream, list[Recording]]

    def record(self, stream: Stream) -> Recording:
        recording = Recording(stream, self._answer(stream, None))
        self._recordings.setdefault(stream, []).append(recording)
        return recording

    def stop_recording(self, recording: Recording) -> None:
        left = [each for each in self._recordings[recording.stream] if each is not recording]
        if left:
            self._recordings[recording.stream] = left
        else:
            del self._recordings[recording.stream]

    def _record(self, stream: Stream, start: int, payload: bytes) -> None:
        for recording in self._recordings.get(stream, ()):
            recording.add(start, payload)

    def snapshot(self, recording: Recording, payload: bytes, count: int) -> asyncio.Future[Trimmed]:
        """In the same step in which the caller has looked at the recording."""
        stream = recording.stream
        self._check_running()
        error: PenstockError | None = None
        if self._streams.pending(stream.path) is not stream or stream.deleting:
            error = gone(stream)
        elif stream.pending_closed:
            error = stream_closed(token(stream, stream.pending_tail))
        elif recording.is_broken:
            error = Overloaded(
                "what was to be compacted has changed meanwhile; try again", Retry_After="1"
            )
        if error is not None:
            return self._refuse(stream, error)
        self._admit(len(payload))
        start, ordinal = stream.pending_tail, stream.pending_count
        stream.pending_tail = start + len(payload)
        stream.pending_count = ordinal + count
        stream.pending_earliest, stream.pending_earliest_ordinal = start, ordinal
        return self._submit(
            mutations.Snapshot(
                stream,
                Trimmed(token(stream, start), ordinal),
                start=start,
                count=count,
                time_us=self._clock.now_us(),
                ordinal=ordinal,
                payload=payload,
            )
        )
