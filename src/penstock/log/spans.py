"""Which neighbours in the log are read together: messages by position, as few reads as pay off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

GAP_BYTES_MAX: Final = 2 * 1024
"""Reading this much that nobody asked for is cheaper than a second read."""


class Span(NamedTuple):
    """The messages [first, stop) of a sequence, and the bytes [start, end) that hold them."""

    first: int
    stop: int
    start: int
    end: int


def spans(
    positions: Sequence[int],
    lengths: Sequence[int],
    *,
    span_bytes_max: int,
    gap_bytes_max: int | None = None,
) -> Iterator[Span]:
    """Yield spans that hold all messages, whose positions ascend.

    A span has no gap of more than `gap_bytes_max` (GAP_BYTES_MAX) between its messages and no more
    than `span_bytes_max` bytes, unless its only message is longer.
    """
    gap_bytes_max = GAP_BYTES_MAX if gap_bytes_max is None else gap_bytes_max
    first, total = 0, len(positions)
    while first < total:
        start = positions[first]
        end = start + lengths[first]
        stop = first + 1
        while stop < total:
            position, stop_end = positions[stop], positions[stop] + lengths[stop]
            if position - end > gap_bytes_max or stop_end - start > span_bytes_max:
                break
            end = stop_end
            stop += 1
        yield Span(first, stop, start, end)
        first = stop
