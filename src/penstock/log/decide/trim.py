"""Decides what a stream no longer retains: everything before a message boundary.

Readers are told of it at once; bytes go later, whole segments at a time, and positions never move.
"""

from __future__ import annotations

import asyncio

from penstock.errors import OffsetBeyondTail, PenstockError
from penstock.log import mutations
from penstock.log.decide.context import gone
from penstock.log.decide.fork import Forking
from penstock.log.lineage import token
from penstock.log.ranges import check_generation
from penstock.log.requests import Trimmed
from penstock.log.stream import Stream
from penstock.protocol.offsets import NOW, Offset, parse_offset


class Trimming(Forking):
    def trim(self, path: str, before: str) -> asyncio.Future[Trimmed]:
        """Retain nothing before the offset `before`; what has gone already is no error."""
        self._check_running()
        stream = self._living(path, self._clock.now_us())
        if stream.deleting:
            return self._refuse(stream, gone(stream))
        try:
            position = _position(stream, before)
        except PenstockError as error:
            return self._refuse(stream, error)
        if position <= stream.pending_earliest:
            return self._answer(stream, _earliest(stream))
        if position == stream.pending_tail or not stream.is_json:
            ordinal = stream.pending_count if stream.is_json else 0
            return self.trim_at(stream, position, ordinal)
        task = self._loop.create_task(self._trim_later(stream, before))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _trim_later(self, stream: Stream, before: str) -> Trimmed:
        """The same where the log has to be looked into for the message that starts there."""
        position = await self._ranges.position(stream, before)
        ordinal = await self._ranges.ordinal(stream, position)
        return await self.trim_at(stream, position, ordinal)

    def trim_at(self, stream: Stream, position: int, ordinal: int) -> asyncio.Future[Trimmed]:
        """Trim at a boundary whose message is known to be number `ordinal` (0 for bytes)."""
        self._check_running()
        if self._streams.pending(stream.path) is not stream or stream.deleting:
            return self._refuse(stream, gone(stream))
        if position <= stream.pending_earliest:
            return self._answer(stream, _earliest(stream))
        stream.pending_earliest, stream.pending_earliest_ordinal = position, ordinal
        now = self._clock.now_us()
        return self._submit(
            mutations.Trim(
                stream, _earliest(stream), position=position, ordinal=ordinal, time_us=now
            )
        )


def _position(stream: Stream, before: str) -> int:
    parsed = parse_offset(before)
    if parsed == NOW:
        return stream.pending_tail
    if not isinstance(parsed, Offset) or parsed == (0, 0):
        return stream.pending_earliest
    check_generation(stream, parsed)
    if parsed.position > stream.pending_tail:
        raise OffsetBeyondTail(
            f"{before} is beyond the tail, {token(stream, stream.pending_tail)}; "
            "use offsets as the server returned them"
        )
    return parsed.position


def _earliest(stream: Stream) -> Trimmed:
    return Trimmed(token(stream, stream.pending_earliest), stream.pending_earliest_ordinal)
