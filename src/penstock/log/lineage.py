"""Which stream holds a position: a fork reads what it inherited from its sources.

Positions continue through a fork: those before its fork point belong to its source, and are
spelled with the source's generation. Pure functions on streams; nothing is read here.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.errors import StreamTrimmed
from penstock.limits import OFFSET_PART_MAX
from penstock.log.stream import Stream, StreamInfo


def source_of(stream: Stream) -> Stream:
    assert stream.source is not None, f"{stream.path} is active without its source"
    return stream.source


def owner(stream: Stream, position: int) -> Stream:
    """Return the stream that holds the byte at `position` of `stream`."""
    while position < stream.own_start:
        stream = source_of(stream)
    return stream


def owner_of_ordinal(stream: Stream, ordinal: int) -> Stream:
    """Return the stream that holds message `ordinal` of a JSON stream."""
    while stream.fork is not None and ordinal < stream.fork.ordinal:
        stream = source_of(stream)
    return stream


def owner_at_time(stream: Stream, time_us: int) -> tuple[Stream, int]:
    """Return the stream that holds the first append from `time_us` on, and where it ends for
    `stream`."""
    bound = stream.tail
    while stream.fork is not None and time_us <= stream.created_us:
        bound = min(bound, stream.own_start)
        stream = source_of(stream)
    return stream, bound


def spans(stream: Stream, start: int, end: int) -> list[tuple[Stream, int, int]]:
    """Return the range [start, end) in parts that each lie in one stream, in order."""
    parts: list[tuple[Stream, int, int]] = []
    while start < stream.own_start:
        if end > stream.own_start:
            parts.append((stream, stream.own_start, end))
            end = stream.own_start
        stream = source_of(stream)
    parts.append((stream, start, end))
    parts.reverse()
    return parts


def ancestors(stream: Stream) -> Iterator[Stream]:
    """Yield the stream, its source, the source of that, and so on."""
    each: Stream | None = stream
    while each is not None:
        yield each
        each = each.source


def inherited(stream: Stream) -> dict[int, int]:
    """Return the generations that a stream inherits from, each with the position where it ends for
    the stream: those of the sources of a fork, and those before and after a restore."""
    generations = {generation: OFFSET_PART_MAX for _, generation in stream.renewals}
    end = stream.own_start
    while stream.fork is not None:
        stream = source_of(stream)
        generations[stream.id] = end
        generations.update((generation, end) for _, generation in stream.renewals)
        end = min(end, stream.own_start)
    return generations


def generation_at(stream: Stream | StreamInfo, position: int) -> int:
    """Return the generation of a position of this stream itself: its id, unless the store was
    restored and the position is of the time afterwards."""
    generation = stream.id
    for start, renewal in stream.renewals:
        if position > start:
            generation = renewal
    return generation


def is_generation(stream: Stream, generation: int) -> bool:
    """Whether positions of this stream itself are, or were, spelled with a generation."""
    return generation == stream.id or any(generation == each for _, each in stream.renewals)


def token(stream: Stream, position: int) -> str:
    """Return the offset that clients see for a position of this stream."""
    while position < stream.own_start:
        stream = source_of(stream)
    if stream.renewals:
        return f"{generation_at(stream, position):016d}_{position:016d}"
    return stream.offset_prefix + str(position).zfill(16)


def spellings(stream: Stream, position: int) -> list[str]:
    """Return every offset for a position: a fork point also has those of the sources."""
    stream = owner(stream, position)
    offsets = [token(stream, position)]
    while stream.fork is not None and position == stream.own_start:
        stream = source_of(stream)
        offsets.append(f"{generation_at(stream, position):016d}_{position:016d}")
    return offsets


def trimmed(stream: Stream, what: str = "The offset") -> StreamTrimmed:
    """Return the error for a read of what is no longer retained."""
    earliest = token(stream, stream.earliest)
    return StreamTrimmed(
        f"{what} is before the earliest retained offset, {earliest}. Read from there or from -1.",
        Stream_Earliest_Offset=earliest,
    )
