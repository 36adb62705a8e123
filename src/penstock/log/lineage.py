"""Which stream holds a position: a fork reads what it inherited from the streams it came from.

Positions run on through a fork: those before its fork point are its source's, and keep the
spelling that the source gave them. Pure functions on streams; nothing is read here.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.errors import StreamTrimmed
from penstock.log.stream import Stream


def source_of(stream: Stream) -> Stream:
    assert stream.source is not None, f"{stream.path} is active without its source"
    return stream.source


def owner(stream: Stream, position: int) -> Stream:
    """The stream that holds the byte at `position`, as seen from `stream`."""
    while position < stream.own_start:
        stream = source_of(stream)
    return stream


def owner_of_ordinal(stream: Stream, ordinal: int) -> Stream:
    """The stream that holds message `ordinal` of a JSON stream."""
    while stream.fork is not None and ordinal < stream.fork.ordinal:
        stream = source_of(stream)
    return stream


def owner_at_time(stream: Stream, time_us: int) -> tuple[Stream, int]:
    """The stream that holds what was appended from `time_us` on, and where it ends for `stream`."""
    bound = stream.tail
    while stream.fork is not None and time_us <= stream.created_us:
        bound = min(bound, stream.own_start)
        stream = source_of(stream)
    return stream, bound


def spans(stream: Stream, start: int, end: int) -> list[tuple[Stream, int, int]]:
    """The range [start, end) in parts that each lie in one stream, in order."""
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
    """The stream, its source, that one's source, and so on."""
    each: Stream | None = stream
    while each is not None:
        yield each
        each = each.source


def token(stream: Stream, position: int) -> str:
    """How a position of this stream is spelled to clients."""
    while position < stream.own_start:
        stream = source_of(stream)
    return f"{stream.id:016d}_{position:016d}"


def spellings(stream: Stream, position: int) -> list[str]:
    """Every spelling of a position: where a fork begins it has its source's as well."""
    stream = owner(stream, position)
    found = [token(stream, position)]
    while stream.fork is not None and position == stream.own_start:
        stream = source_of(stream)
        found.append(f"{stream.id:016d}_{position:016d}")
    return found


def trimmed(stream: Stream, what: str = "the offset") -> StreamTrimmed:
    """The answer to whoever asks for what is retained no more."""
    earliest = token(stream, stream.earliest)
    return StreamTrimmed(
        f"{what} is before the earliest retained offset, {earliest}: read on from there or from -1",
        Stream_Earliest_Offset=earliest,
    )
