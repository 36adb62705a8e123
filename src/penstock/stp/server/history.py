"""Whether rows can express the events of an existing stream, before it is shown as a table.

Reads the stream once, a piece at a time, off the event loop. Knows the log, and no HTTP.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.errors import BadRequest, InvalidRow, NotExpressible
from penstock.log.lineage import generation_at
from penstock.protocol.offsets import Offset, parse_offset
from penstock.state.event import ControlEvent
from penstock.stp.server.checks import check_event
from penstock.stp.transcode import events_of

if TYPE_CHECKING:
    from penstock.log.engine import Engine
    from penstock.log.stream import Stream
    from penstock.state.server.indexer import StateIndexer
    from penstock.stp.declaration import Table

PIECE_BYTES: Final = 256 * 1024


class History(NamedTuple):
    """A stream up to a position: its messages, its changes of a type, and whether it was reset."""

    position: int
    messages: int
    changes: int
    has_resets: bool


NOTHING: Final = History(0, 0, 0, has_resets=False)


async def inspect(
    engine: Engine, indexer: StateIndexer, stream: Stream, table: Table, history: History
) -> History:
    """Continue `history` to the tail; raise NotExpressible at the first event that is not a row.

    What was trimmed is no part of it.
    """
    until = stream.tail
    while history.position < until:
        if history.position < stream.earliest:
            history = history._replace(position=stream.earliest, messages=stream.earliest_ordinal)
            continue
        end = await engine.plan(stream, history.position, max_bytes=PIECE_BYTES, until=until)
        wire = await indexer.read(stream, history.position, end)
        generation = generation_at(stream, end)
        history = await asyncio.to_thread(_inspect, wire, generation, table, history)
    return history


def _inspect(wire: bytes, generation: int, table: Table, history: History) -> History:
    changes, has_resets, position = history.changes, history.has_resets, history.position
    lines = wire.split(b"\n")
    for index, event in enumerate(events_of(wire)):
        position += len(lines[index]) + 1
        if event is None:
            continue
        seqno = history.messages + index + 1
        if isinstance(event, ControlEvent):
            if event.control == "reset":
                has_resets = True
                _check_reset(event, generation, position, seqno)
        elif event.type == table.type:
            changes += 1
            try:
                check_event(event, table)
            except InvalidRow as error:
                raise NotExpressible(
                    f"Event {seqno} of the stream cannot be a row: {error.detail}"
                ) from None
    messages = history.messages + len(lines) - 1
    return History(history.position + len(wire), messages, changes, has_resets)


def _check_reset(event: ControlEvent, generation: int, position: int, seqno: int) -> None:
    try:
        offset = parse_offset(event.offset or "")
    except BadRequest:
        return
    if isinstance(offset, Offset) and offset > (generation, position):
        raise NotExpressible(
            f"Event {seqno} of the stream is a reset that skips events after it, which rows cannot."
        )
