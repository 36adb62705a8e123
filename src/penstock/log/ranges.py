"""Finds message boundaries: where an offset points, where a read ends, how a range is split.

In a JSON stream a message ends with a line feed and nowhere else; in a byte stream every byte is a
boundary. The cost depends on the bytes read, never on the length of the stream.
"""

from __future__ import annotations

import asyncio

from penstock.errors import (
    InvalidOffset,
    OffsetBeyondTail,
    OffsetNotAligned,
    StreamRecreated,
)
from penstock.limits import OFFSET_DIGITS
from penstock.log.append_times import UNKNOWN
from penstock.log.lineage import ancestors, is_generation, owner_at_time, token, trimmed
from penstock.log.store import Store
from penstock.log.stream import Stream
from penstock.protocol.offsets import NOW, START, Offset, parse_offset

WINDOW_BYTES = 64 * 1024
TURN_WINDOWS = 32
"""Windows that are read before other tasks get a turn: reads from memory never wait."""


class Ranges:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._windows = 0

    async def position(self, stream: Stream, offset: str) -> int:
        """Return the byte position of a client's offset."""
        parsed = parse_offset(offset)
        if parsed == START:
            return stream.earliest
        if parsed == NOW:
            return stream.tail
        assert isinstance(parsed, Offset)
        if parsed == (0, 0):
            return stream.earliest
        position = parsed.position
        check_generation(stream, parsed)
        if position > stream.tail:
            raise OffsetBeyondTail(
                f"{offset} is beyond the tail, {token(stream, stream.tail)}. "
                "Use offsets as the server returned them."
            )
        if position < stream.earliest:
            raise trimmed(stream, offset)
        if not await self.is_boundary(stream, position):
            raise OffsetNotAligned(
                f"{offset} is inside a message. Use offsets as the server returned them."
            )
        return position

    def position_in_memory(self, stream: Stream, offset: str) -> int | None:
        """Return the position of an offset in the memory tail of a JSON stream, where most readers
        are. None for any other, and for one that is wrong: `position` decides on those."""
        digits = offset.removeprefix(stream.offset_prefix)
        if not stream.is_json or len(digits) != OFFSET_DIGITS or not digits.isdecimal():
            return None
        position = int(digits)
        first = max(stream.memory.start, stream.own_start, stream.earliest)
        if not first < position < stream.tail or token(stream, position) != offset:
            return None
        return position if stream.memory.read(position - 1, position) == b"\n" else None

    async def read_start(self, stream: Stream, offset: str) -> int:
        """Return where a read from a client's offset starts: at its position, or at the boundary
        one byte before it.

        There are clients that add one to an offset, for "after it". One beyond the tail is
        therefore the tail, and one beyond another boundary of a JSON stream is that boundary: no
        message is shorter than three bytes, so that it cannot mean anything else. More than one
        beyond stays an error: that client has data which the log does not have.
        """
        try:
            return await self.position(stream, offset)
        except (OffsetBeyondTail, OffsetNotAligned):
            parsed = parse_offset(offset)
            assert isinstance(parsed, Offset)
            before = parsed.position - 1
            if before <= stream.tail and await self.is_boundary(stream, before):
                return before
            raise

    async def is_boundary(self, stream: Stream, position: int) -> bool:
        """Whether a message starts at `position`, or would."""
        if not stream.is_json or position in (stream.earliest, stream.tail, stream.own_start):
            return True
        return await self._store.read(stream, position - 1, position) == b"\n"

    async def plan(
        self, stream: Stream, start: int, max_bytes: int, until: int | None, count: int | None
    ) -> int:
        """Return where a read from `start` ends: at most `max_bytes` and `count` messages (1 or
        more) on, but at least one message."""
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
        """Return where the `count`th message from `start` ends, or `bound` if there are fewer."""
        position = start
        while position < bound:
            window = await self._window(stream, position, min(position + WINDOW_BYTES, bound))
            lines = window.count(b"\n")
            if lines >= count:
                return position + _nth_line_end(window, count)
            count -= lines
            position += len(window)
        return bound

    async def boundary_from(self, stream: Stream, position: int) -> int:
        """Return the first boundary at or after `position`."""
        if not stream.is_json or position <= stream.earliest:
            return position
        return await self._boundary_after(stream, position - 1, stream.tail)

    async def boundary_to(self, stream: Stream, start: int, position: int) -> int:
        """Return the last boundary in [start, position]; `start` is one."""
        return await self._boundary_before(stream, start, position) if stream.is_json else position

    async def _boundary_before(self, stream: Stream, start: int, limit: int) -> int:
        """Return the last boundary in (start, limit], or `start`."""
        end = limit
        while end > start:
            begin = max(start, end - WINDOW_BYTES)
            at = (await self._window(stream, begin, end)).rfind(b"\n")
            if at >= 0:
                return begin + at + 1
            end = begin
        return start

    async def _boundary_after(self, stream: Stream, position: int, bound: int) -> int:
        """Return the first boundary after `position`, or `bound`."""
        while position < bound:
            stop = min(position + WINDOW_BYTES, bound)
            at = (await self._window(stream, position, stop)).find(b"\n")
            if at >= 0:
                return position + at + 1
            position = stop
        return bound

    async def splits(self, stream: Stream, parts: int, start: int, end: int) -> list[int]:
        """Return boundaries that cut [start, end) into at most `parts` ranges of about equal
        bytes."""
        result = [start]
        reached = start
        for part in range(1, parts):
            position = start + (end - start) * part // parts
            if position <= reached:
                continue  # in a message that was searched to its end already
            if stream.is_json:
                position = await self._boundary_after(stream, position - 1, end)
            reached = position
            if position < end:
                result.append(position)
        if end > start:
            result.append(end)
        return result

    async def seek(self, stream: Stream, ordinal: int) -> int:
        """Return where message `ordinal` of a JSON stream starts; the tail if there is none yet."""
        if ordinal >= stream.count:
            return stream.tail
        if ordinal < stream.earliest_ordinal:
            raise trimmed(stream, f"message {ordinal}")
        position, at = await self._store.seek_ordinal(stream, ordinal)
        if at == ordinal:
            return position
        return await self._after_messages(stream, position, stream.tail, ordinal - at)

    async def at_time(self, stream: Stream, time_us: int) -> int:
        """Return a boundary before which everything was appended before `time_us`: the last one
        that the times in memory and the index of the log can tell, the tail for a later time."""
        holder, bound = owner_at_time(stream, time_us)
        times, time_ms = holder.times, time_us // 1000
        if times.last_ms != UNKNOWN and time_ms > times.last_ms:
            return max(bound, stream.earliest)
        position = await self.boundary_from(stream, await self._store.seek_time(stream, time_us))
        # What was marked is the start of an append, and so a boundary.
        marked = min(times.seek(time_ms) or 0, bound)
        return max(position, marked, stream.earliest)

    async def last_messages(self, stream: Stream, count: int) -> int:
        """Return where the last `count` messages of a JSON stream start, of those retained."""
        return await self.seek(stream, max(stream.count - count, stream.earliest_ordinal))

    async def last_lines(self, stream: Stream, count: int, *, bytes_max: int) -> int | None:
        """Return where the last `count` lines of text start, of those retained; None if they are
        longer than `bytes_max`. A line feed ends a line; what follows the last one is a line."""
        end, first = stream.tail, max(stream.earliest, stream.tail - bytes_max)
        if count and end > first and await self._window(stream, end - 1, end) == b"\n":
            end -= 1
        while count and end > first:
            begin = max(first, end - WINDOW_BYTES)
            window = await self._window(stream, begin, end)
            lines = window.count(b"\n")
            if lines >= count:
                return begin + _nth_line_end(window, lines - count + 1)
            count -= lines
            end = begin
        if not count:
            return stream.tail
        return stream.earliest if first == stream.earliest else None

    async def ordinal(self, stream: Stream, position: int) -> int:
        """Return the ordinal of the message that starts at `position` of a JSON stream."""
        (ordinal,) = await self.ordinals(stream, [position])
        return ordinal

    async def ordinals(self, stream: Stream, positions: list[int]) -> list[int]:
        """Return the ordinals of the messages that start at these positions, which ascend."""
        result: list[int] = []
        last: tuple[int, int] = (-1, 0)
        for position in positions:
            last = (position, await self._ordinal(stream, position, last))
            result.append(last[1])
        return result

    async def _ordinal(self, stream: Stream, position: int, last: tuple[int, int]) -> int:
        if position == stream.tail:
            return stream.count
        if position == stream.own_start:
            return 0 if stream.fork is None else stream.fork.ordinal
        # From where the last one was, if the index has nothing nearer: a large append is one entry.
        at, ordinal = max(last, await self._store.seek_position(stream, position))
        while at < position:
            stop = min(at + WINDOW_BYTES, position)
            ordinal += (await self._window(stream, at, stop)).count(b"\n")
            at = stop
        return ordinal

    async def _window(self, stream: Stream, start: int, end: int) -> bytes:
        self._windows += 1
        if self._windows % TURN_WINDOWS == 0:
            await asyncio.sleep(0)
        return await self._store.read(stream, start, end)


def check_generation(stream: Stream, offset: Offset) -> None:
    """Refuse an offset of another stream than this one and its sources.

    A fork accepts inherited positions with its own generation too: parallel readers know their
    position in a fork, but not where it left its source.
    """
    if is_generation(stream, offset.generation):
        _check_renewals(stream, offset)
        return
    bound = None
    for each in ancestors(stream):
        if is_generation(each, offset.generation):
            _check_renewals(each, offset)
            if bound is not None and offset.position > bound:
                raise InvalidOffset(
                    f"{offset.token} is after the point where this fork left its source, "
                    f"{Offset(each.id, bound).token}. It belongs to the source alone."
                )
            if offset.position >= each.own_start:
                return
            break
        bound = each.own_start if bound is None else min(bound, each.own_start)
    else:
        if offset.generation < stream.id:
            raise StreamRecreated(
                f"{offset.token} belongs to a stream that was deleted. Another stream is at this "
                "path now: start again from -1."
            )
    raise InvalidOffset(
        f"{offset.token} is not an offset of this stream. Use offsets as the server returned them."
    )


def _check_renewals(stream: Stream, offset: Offset) -> None:
    """Refuse an offset that was handed out after the backup that the store was restored from."""
    for position, generation in stream.renewals:
        if offset.generation < generation and offset.position > position:
            raise StreamRecreated(
                f"{offset.token} is of data that is lost: the server was restored from a backup, "
                f"and the stream went on after {token(stream, position)}. Start again from -1, or "
                "read on from there."
            )


def _nth_line_end(window: bytes, count: int) -> int:
    """Return the position after the `count`th line feed, by bisection instead of line by line."""
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
