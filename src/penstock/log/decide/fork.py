"""Decides about forks: where they leave their source, and what they take from it.

What is before the fork point stays in the source; the fork refers to it, and the source counts
its forks.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from penstock.errors import (
    ForkSourceDeleted,
    ForkTooDeep,
    InvalidForkOffset,
    OffsetBeyondTail,
    PenstockError,
    StreamExists,
    StreamNotFound,
)
from penstock.log.decide.context import Context, gone, is_large
from penstock.log.decide.create import answer_existing, path_blocked
from penstock.log.decide.delete import expire_stream
from penstock.log.held_stream import HeldStream
from penstock.log.lineage import ancestors, source_of, token, trimmed
from penstock.log.mutations import CreateMutation
from penstock.log.ranges import check_generation
from penstock.log.requests import Created, Fork, NotYet
from penstock.log.stream import ForkPoint, Stream
from penstock.protocol.lifecycle import ForkConfig, create_matches, fork_config
from penstock.protocol.offsets import NOW, Offset, parse_offset


class _Request(NamedTuple):
    path: str
    fork: Fork
    config: ForkConfig
    body: bytes
    closed: bool
    framed: tuple[bytes, int] | None = None
    """The body in wire shape, if that was made already."""


class _Position(NamedTuple):
    """Where a fork leaves its source; `is_default` if the request names no offset."""

    position: int
    ordinal: int
    is_default: bool = False


def fork_stream(
    context: Context,
    path: str,
    fork: Fork,
    config: ForkConfig,
    body: bytes,
    *,
    closed: bool,
    framed: tuple[bytes, int] | None = None,
) -> asyncio.Future[Created]:
    """Create a stream that begins with what another one has, up to an offset of that one."""
    request = _Request(path, fork, config, body, closed, framed)
    now_us = context.clock.now_us()
    existing = _stream_at(context, path, now_us)
    if existing is not None and existing.pending_soft_deleted:
        return context.refuse(existing, path_blocked(path))
    if existing is not None and not existing.deleting:
        if existing.fork is None or existing.fork.source_path != fork.source:
            return context.refuse(existing, _is_other(existing, fork))
        source = source_of(existing)
    else:
        source_or_refusal = _source(context, fork.source, now_us)
        if isinstance(source_or_refusal, asyncio.Future):
            return source_or_refusal
        source = source_or_refusal
    try:
        position = _decided_position(source, fork)
    except PenstockError as error:
        return context.refuse(source, error)
    if position is not None:
        return _fork_at(context, request, source, position)
    return context.run(_fork_later(context, request, source))


async def _fork_later(context: Context, request: _Request, source: Stream) -> Created:
    """Fork at a position that only the log can tell. What the log says of it never changes."""
    fork, ranges = request.fork, context.ranges
    assert fork.offset is not None
    position = await ranges.position(source, fork.offset)
    ordinal = await ranges.ordinal(source, position)
    if fork.sub_offset:
        ordinal += fork.sub_offset
        if ordinal > source.count:
            raise _overshoot(fork)
        position = await ranges.seek(source, ordinal)
    return await _fork_at(context, request, source, _Position(position, ordinal))


async def _fork_framed(context: Context, request: _Request) -> Created:
    """Fork after the body was framed; everything else is decided again."""
    framed = await context.frame_later(request.body, allow_empty=True)
    path, fork, config, body, closed, _ = request
    return await fork_stream(context, path, fork, config, body, closed=closed, framed=framed)


async def _fork_when(later: NotYet, context: Context, request: _Request) -> Created:
    """Fork when the room of the fork in the quotas is granted; everything is decided again."""
    await later.ready()
    path, fork, config, body, closed, framed = request
    return await fork_stream(context, path, fork, config, body, closed=closed, framed=framed)


def _decided_position(source: Stream, fork: Fork) -> _Position | None:
    """Return where the fork begins, or None if the log has to be read for that."""
    if fork.offset is None:
        if fork.sub_offset:
            raise _overshoot(fork)
        return _Position(source.pending_tail, source.pending_count, is_default=True)
    offset = parse_offset(fork.offset)
    if offset == NOW:
        position = source.pending_tail
    elif not isinstance(offset, Offset) or offset == (0, 0):
        position = source.pending_earliest
    else:
        check_generation(source, offset)
        position = offset.position
    if position > source.pending_tail:
        raise OffsetBeyondTail(
            f"{fork.offset} is beyond the tail of {fork.source!r}, "
            f"{token(source, source.pending_tail)}. Fork at an offset that it has."
        )
    if position < source.pending_earliest:
        raise trimmed(source, fork.offset)
    if not source.is_json:
        if position + fork.sub_offset > source.pending_tail:
            raise _overshoot(fork)
        return _Position(position + fork.sub_offset, 0)
    if fork.sub_offset:
        return None
    if position == source.pending_tail:
        return _Position(position, source.pending_count)
    if position == source.pending_earliest:
        return _Position(position, source.pending_earliest_ordinal)
    return None


def _fork_at(
    context: Context, request: _Request, source: Stream, position: _Position
) -> asyncio.Future[Created]:
    now_us = context.clock.now_us()
    existing = _stream_at(context, request.path, now_us)
    if existing is not None and existing.pending_soft_deleted:
        return context.refuse(existing, path_blocked(request.path))
    if existing is not None and not existing.deleting:
        return _fork_again(context, request, existing, position, now_us)
    current = _source(context, request.fork.source, now_us)
    if isinstance(current, asyncio.Future):
        return current
    if current is not source:
        raise StreamNotFound.at(request.fork.source)
    try:
        return _new_fork(context, request, existing, source, position, now_us)
    except NotYet as later:
        return context.run(_fork_when(later, context, request))
    except PenstockError as error:
        return context.refuse(source, error)


def _new_fork(
    context: Context,
    request: _Request,
    existing: Stream | None,
    source: Stream,
    position: _Position,
    now_us: int,
) -> asyncio.Future[Created]:
    config = fork_config(source.config, request.config)
    if position.position < source.pending_earliest:
        raise trimmed(source)
    _check_depth(context, source)
    context.admit(len(request.body))
    if request.framed is None and is_large(request.body, is_json=source.is_json):
        return context.run(_fork_framed(context, request))
    payload, count = request.framed or context.frame(
        request.body, is_json=source.is_json, allow_empty=True
    )
    if context.quotas is not None:
        context.quotas.admit(request.path, streams=1, size=len(payload))
    ordinal = position.ordinal if source.is_json else 0
    point = ForkPoint(source.id, source.path, position.position, ordinal)
    stream = HeldStream(context.store.next_id(), request.path, config, now_us, fork=point)
    stream.source = source
    stream.pending_earliest = source.pending_earliest
    stream.pending_earliest_ordinal = source.pending_earliest_ordinal
    stream.pending_tail += len(payload)
    stream.pending_count += count
    stream.pending_closed = request.closed
    stream.previous = existing
    source.pending_forks += 1
    context.streams.add(stream)
    offset = token(stream, stream.pending_tail)
    return context.submit(
        CreateMutation(
            stream,
            Created(offset, True, request.closed, config.content_type),
            payload=payload,
            count=count,
            closed=request.closed,
            replaces=None,
            source=source,
        )
    )


def _check_depth(context: Context, source: Stream) -> None:
    depth = sum(1 for _ in ancestors(source))
    if depth > context.settings.fork_depth_max:
        raise ForkTooDeep(
            f"{source.path!r} is the end of a chain of {depth - 1} forks, as long as "
            "fork_depth_max allows. Fork one that is nearer to the first, or raise the setting."
        )


def _fork_again(
    context: Context, request: _Request, existing: Stream, position: _Position, now_us: int
) -> asyncio.Future[Created]:
    """Answer a repeated fork. Without an offset, any fork of that source is a match."""
    point = existing.fork
    try:
        if point is None or point.source_path != request.fork.source:
            raise _is_other(existing, request.fork)
        if not position.is_default and position.position != point.position:
            raise StreamExists(
                f"The fork at {existing.path!r} leaves its source at "
                f"{token(existing, point.position)}, not where the request says. Send its "
                "Stream-Fork-Offset, use another path, or delete the fork first."
            )
        config = fork_config(source_of(existing).config, request.config)
        create_matches(existing.config, existing.pending_closed, config, request.closed)
    except PenstockError as error:
        return context.refuse(existing, error)
    return answer_existing(context, existing, now_us)


def _stream_at(context: Context, path: str, now_us: int) -> Stream | None:
    """Return the stream at a path, if there is one. An expired one is on its way out."""
    existing = context.streams.pending(path)
    if (
        existing is not None
        and not existing.deleting
        and context.streams.is_expired(existing, now_us)
    ):
        context.check_running()
        expire_stream(context, existing)
    return existing


def _source(context: Context, path: str, now_us: int) -> Stream | asyncio.Future[Created]:
    """Return the source of a new fork, or the refusal if there is none to fork from."""
    source = _stream_at(context, path, now_us)
    if source is None:
        raise StreamNotFound.at(path)
    if source.pending_soft_deleted:
        return context.refuse(
            source,
            ForkSourceDeleted(
                f"The stream at {path!r} was deleted and is kept only for its forks. Fork one of "
                "those."
            ),
        )
    if source.deleting:
        return context.refuse(source, gone(source))
    return source


def _is_other(existing: Stream, fork: Fork) -> StreamExists:
    point = existing.fork
    what = "no fork" if point is None else f"a fork of {point.source_path!r}"
    return StreamExists(
        f"The stream at {existing.path!r} is {what}; the request wants a fork of "
        f"{fork.source!r}. Use another path, or delete the stream first."
    )


def _overshoot(fork: Fork) -> InvalidForkOffset:
    return InvalidForkOffset(
        f"Stream-Fork-Sub-Offset {fork.sub_offset} goes beyond the end of {fork.source!r}. It "
        "counts messages of a JSON stream, bytes of any other, from Stream-Fork-Offset on."
    )
