"""Finds message boundaries: where an offset points, where a read ends, how a range is split.

In a JSON stream a message ends with a line feed and nowhere else; in a byte stream every byte is a
boundary. Cost follows the bytes looked at, never the length of the stream.
"""

from __future__ import annotations

from penstock.errors import (
    InvalidOffset,
    OffsetBeyondTail,
    OffsetNotAligned,
    StreamRecreated,
    StreamTrimmed,
)
from penstock.log.store import Store
from penstock.log.stream import Stream
from penstock.protocol.offsets import NOW, START, Offset, parse_offset

WINDOW_BYTES = 64 * 1024


class Ranges:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def position(self, stream: Stream, offset: str) -> int:
        """The byte position a client's offset stands for."""
        parsed = parse_offset(offset)
        if parsed == START:
            return stream.earliest
        if parsed == NOW:
            return stream.tail
        assert isinstance(parsed, Offset)
        if parsed == (0, 0):
            return stream.earliest
        self._check_generation(stream, parsed)
        position = parsed.position
        if position > stream.tail:
            raise OffsetBeyondTail(
                f"{offset} is beyond the tail, {Offset(stream.id, stream.tail).token}; "
                "use offsets as the server returned them"
            )
        if position < stream.earliest:
            raise StreamTrimmed(f"{offset} is before the earliest retained offset")
        if not await self.is_boundary(stream, position):
            raise OffsetNotAligned(
                f"{offset} is inside a message; use offsets as the server returned them"
            )
        return position

    def _check_generation(self, stream: Stream, offset: Offset) -> None:
        if offset.generation > stream.id:
            raise InvalidOffset(
                f"{offset.token} was never given out for this stream; "
                "use offsets as the server returned them"
            )
        if offset.generation < stream.id:
            raise StreamRecreated(
                f"{offset.token} belongs to a stream that was deleted; the one now at this path "
                "is another: start again from -1"
            )

    async def is_boundary(self, stream: Stream, position: int) -> bool:
        if not stream.is_json or position in (stream.earliest, stream.tail):
            return True
        return await self._store.read(stream, position - 1, position) == b"\n"

    async def plan(
        self, stream: Stream, start: int, max_bytes: int, until: int | None, count: int | None
    ) -> int:
        """Where a read from `start` ends: at most `max_bytes` and `count` messages (1 or more) on,
        but at least one message."""
        bound = stream.tail if until is None else min(until, stream.tail)
        limit = start + max_bytes
        if limit >= bound:
            end = max(start, bound)
        elif not stream.is_json:
            end = limit
        else:
            end = await self._boundary_before(stream, start, limit)
            if end == start:
                end = await self._boundary_after(stream, limit, bound)
        return end if count is None else await self._after_messages(stream, start, end, count)

    async def _after_messages(self, stream: Stream, start: int, bound: int, count: int) -> int:
        """Where the `count`th message from `start` ends, or `bound` if there are fewer."""
        position = start
        while position < bound:
            window = await self._store.read(stream, position, min(position + WINDOW_BYTES, bound))
            lines = window.count(b"\n")
            if lines >= count:
                return position + _nth_line_end(window, count)
            count -= lines
            position += len(window)
        return bound

    async def _boundary_before(self, stream: Stream, start: int, limit: int) -> int:
        """The last boundary in (start, limit], or `start`."""
        end = limit
        while end > start:
            begin = max(start, end - WINDOW_BYTES)
            at = (await self._store.read(stream, begin, end)).rfind(b"\n")
            if at >= 0:
                return begin + at + 1
            end = begin
        return start

    async def _boundary_after(self, stream: Stream, position: int, bound: int) -> int:
        """The first boundary after `position`, or `bound`."""
        while position < bound:
            stop = min(position + WINDOW_BYTES, bound)
            at = (await self._store.read(stream, position, stop)).find(b"\n")
            if at >= 0:
                return position + at + 1
            position = stop
        return bound

    async def splits(self, stream: Stream, parts: int, start: int, end: int) -> list[int]:
        """Boundaries that cut [start, end) into at most `parts` ranges of about equal bytes."""
        result = [start]
        for part in range(1, parts):
            position = start + (end - start) * part // parts
            if stream.is_json and position > start:
                position = await self._boundary_after(stream, position - 1, end)
            if result[-1] < position < end:
                result.append(position)
        if end > start:
            result.append(end)
        return result

    async def ordinal(self, stream: Stream, position: int) -> int:
        """How many messages of a JSON stream end at or before a message boundary."""
        if position == stream.tail:
            return stream.count
        at, ordinal = await self._store.seek_position(stream, position)
        while at < position:
            window = await self._store.read(stream, at, min(at + WINDOW_BYTES, position))
            ordinal += window.count(b"\n")
            at += len(window)
        return ordinal

    async def seek(self, stream: Stream, ordinal: int) -> int:
        """Where message `ordinal` of a JSON stream starts; the tail if there is none yet."""
        if ordinal >= stream.count:
            return stream.tail
        position, at = await self._store.seek_ordinal(stream, ordinal)
        if at == ordinal:
            return position
        return await self._after_messages(stream, position, stream.tail, ordinal - at)


def _nth_line_end(window: bytes, count: int) -> int:
    """Position after the `count`th line feed, found by halving instead of line by line."""
    low, high = 0, len(window)
    while high - low > 1:
        middle = (low + high) // 2
        lines = window.count(b"\n", low, middle)
        if lines >= count:
            high = middle
        else:
            count -= lines
            low = middle
    return low + 1
