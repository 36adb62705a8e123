"""When the recent bytes of a stream were appended, by position: finer than the index of the log,
in memory only, bounded.

Pure and without I/O. Belongs to the event loop.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Final

MARKS_MAX: Final = 256
"""Marks that a stream holds, of 16 bytes each. Beyond that every second one of the older half goes:
old times become coarser, those of the last appends stay as they are."""
UNKNOWN: Final = -1


class AppendTimes:
    """Marks (time, position): everything before the position was appended before the time.

    Each append that is in a later millisecond than the one before it makes a mark. With fewer marks
    that statement stays true of those that are left, so they can be thinned out.
    """

    __slots__ = ("_positions", "_times", "last_ms")

    def __init__(self, last_ms: int) -> None:
        self.last_ms = last_ms
        """No byte was appended after this millisecond; UNKNOWN if that cannot be said."""
        self._times: array[int] | None = None
        self._positions: array[int] | None = None

    def add(self, time_ms: int, position: int) -> None:
        """Mark an append at `position`; `time_ms` is after `last_ms`."""
        times, positions = self._times, self._positions
        if times is None or positions is None:
            times, positions = self._times, self._positions = array("q"), array("q")
        elif len(times) >= MARKS_MAX:
            del times[: MARKS_MAX // 2 : 2], positions[: MARKS_MAX // 2 : 2]
        times.append((time_ms if self.last_ms == UNKNOWN else self.last_ms) + 1)
        positions.append(position)
        self.last_ms = time_ms

    def seek(self, time_ms: int) -> int | None:
        """Return the last marked position before which everything is older than `time_ms`; None if
        no mark says so."""
        if self._times is None or self._positions is None:
            return None
        index = bisect_right(self._times, time_ms) - 1
        return None if index < 0 else self._positions[index]
