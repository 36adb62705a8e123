"""Decides trims: nothing before a message boundary is retained any more.

Readers see it at once; the bytes go later, whole segments at a time, and positions never move.
"""

from __future__ import annotations

import asyncio

from penstock.errors import OffsetBeyondTail, PenstockError
from penstock.log.decide.context import Context, gone
from penstock.log.decide.delete import living_stream
from penstock.log.lineage import token
from penstock.log.mutations import TrimMutation
from penstock.log.ranges import check_generation
from penstock.log.requests import Trimmed
from penstock.log.stream import Stream
from penstock.protocol.offsets import NOW, Offset, parse_offset


def trim_stream(context: Context, path: str, before: str) -> asyncio.Future[Trimmed]:
    """Retain nothing before the offset `before`. It is no error if that is gone already."""
    context.check_running()
    stream = living_stream(context, path, context.clock.now_us())
    if stream.deleting:
        return context.refuse(stream, gone(stream))
    try:
        position = _position(stream, before)
    except PenstockError as error:
        return context.refuse(stream, error)
    if position <= stream.pending_earliest:
        return context.answer(stream, _earliest(stream))
    if position == stream.pending_tail or not stream.is_json:
        ordinal = stream.pending_count if stream.is_json else 0
        return trim_at(context, stream, position, ordinal)
    return context.run(_trim_later(context, stream, before))


async def _trim_later(context: Context, stream: Stream, before: str) -> Trimmed:
    """Trim where the log has to be read for the message that starts there."""
    position = await context.ranges.position(stream, before)
    ordinal = await context.ranges.ordinal(stream, position)
    return await trim_at(context, stream, position, ordinal)


def trim_at(
    context: Context, stream: Stream, position: int, ordinal: int
) -> asyncio.Future[Trimmed]:
    """Trim at a boundary where message `ordinal` starts (0 for a stream of bytes)."""
    context.check_running()
    if context.streams.pending(stream.path) is not stream or stream.deleting:
        return context.refuse(stream, gone(stream))
    if position <= stream.pending_earliest:
        return context.answer(stream, _earliest(stream))
    stream.pending_earliest, stream.pending_earliest_ordinal = position, ordinal
    now_us = context.clock.now_us()
    return context.submit(
        TrimMutation(stream, _earliest(stream), position=position, ordinal=ordinal, time_us=now_us)
    )


def _position(stream: Stream, before: str) -> int:
    offset = parse_offset(before)
    if offset == NOW:
        return stream.pending_tail
    if not isinstance(offset, Offset) or offset == (0, 0):
        return stream.pending_earliest
    check_generation(stream, offset)
    if offset.position > stream.pending_tail:
        raise OffsetBeyondTail(
            f"{before} is beyond the tail, {token(stream, stream.pending_tail)}. "
            "Use offsets as the server returned them."
        )
    return offset.position


def _earliest(stream: Stream) -> Trimmed:
    return Trimmed(token(stream, stream.pending_earliest), stream.pending_earliest_ordinal)
