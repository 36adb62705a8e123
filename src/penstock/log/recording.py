"""A recording of what is appended to a stream while something longer goes on beside it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.log.stream import Stream


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
        """Whether the recording differs from the stream: a batch failed, or it was trimmed."""
        stream = self.stream
        has_moved = self._end != stream.pending_tail or self.earliest != stream.pending_earliest
        return self._is_broken or has_moved

    def add(self, start: int, payload: bytes) -> None:
        self._is_broken = self._is_broken or start != self._end
        self._end = start + len(payload)
        self.parts.append(payload)
