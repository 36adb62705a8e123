"""Decides snapshots: messages that stand for everything before them, and replace it.

Others compute those messages while appends go on. The appends are recorded here, so that the last
step, on the pending half, can take them in. Knows nothing of what a message means.
"""

from __future__ import annotations

import asyncio

from penstock.errors import Overloaded, PenstockError
from penstock.log.decide.context import Context, gone
from penstock.log.lineage import token
from penstock.log.mutations import SnapshotMutation
from penstock.log.recording import Recording
from penstock.log.requests import Trimmed
from penstock.log.stream import Stream
from penstock.protocol.lifecycle import stream_closed


class Snapshots:
    """The recordings that run, and the decision that ends one with a snapshot."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.recordings: dict[Stream, list[Recording]] = {}

    def record(self, stream: Stream) -> Recording:
        """Record what is appended to a stream from now on, until `stop_recording`."""
        recording = Recording(stream, self._context.answer(stream, None))
        self.recordings.setdefault(stream, []).append(recording)
        return recording

    def stop_recording(self, recording: Recording) -> None:
        others = [each for each in self.recordings[recording.stream] if each is not recording]
        if others:
            self.recordings[recording.stream] = others
        else:
            del self.recordings[recording.stream]

    def snapshot(self, recording: Recording, payload: bytes, count: int) -> asyncio.Future[Trimmed]:
        """Append `count` messages that stand for all before them, and trim those. Has to be called
        in the same step of the event loop in which the caller has read the recording."""
        context, stream = self._context, recording.stream
        context.check_running()
        error: PenstockError | None = None
        if context.streams.pending(stream.path) is not stream or stream.deleting:
            error = gone(stream)
        elif stream.pending_closed:
            error = stream_closed(token(stream, stream.pending_tail))
        elif recording.is_broken:
            error = Overloaded(
                "The stream has changed while it was being compacted. Try again.", Retry_After="1"
            )
        if error is not None:
            return context.refuse(stream, error)
        context.admit(len(payload))
        start, ordinal = stream.pending_tail, stream.pending_count
        stream.pending_tail = start + len(payload)
        stream.pending_count = ordinal + count
        stream.pending_earliest, stream.pending_earliest_ordinal = start, ordinal
        return context.submit(
            SnapshotMutation(
                stream,
                Trimmed(token(stream, start), ordinal),
                start=start,
                count=count,
                time_us=context.clock.now_us(),
                ordinal=ordinal,
                payload=payload,
            )
        )
