"""Decides how a stream ends: at once, or only when the last fork that reads from it is gone.

One record ends a fork and every soft-deleted stream whose last fork it was.
"""

from __future__ import annotations

import asyncio

from penstock.errors import StreamNotFound
from penstock.log.decide.context import Context, gone, soft_deleted
from penstock.log.mutations import DeleteMutation
from penstock.log.stream import Stream


def delete_stream(context: Context, path: str) -> asyncio.Future[None]:
    context.check_running()
    now_us = context.clock.now_us()
    stream = living_stream(context, path, now_us)
    if stream.deleting:
        return context.refuse(stream, gone(stream))
    return _end(context, stream, now_us, expired=False)


def expire_stream(context: Context, stream: Stream) -> None:
    """End a stream whose time is over."""
    if stream.deleting or stream.deleted or context.is_stopping:
        return
    future = _end(context, stream, context.clock.now_us(), expired=True)
    future.add_done_callback(_ignore)


def living_stream(context: Context, path: str, now_us: int) -> Stream:
    """Return the stream that decisions about `path` are made on. It may be on its way out, but has
    not expired: one that has is ended here."""
    stream = context.streams.pending(path)
    if stream is None:
        raise StreamNotFound.at(path)
    if not stream.deleting and context.streams.is_expired(stream, now_us):
        expire_stream(context, stream)
        raise gone(stream)
    return stream


def readable_stream(context: Context, path: str, *, touch: bool) -> Stream:
    """Return the stream at `path` as readers see it; with `touch` its TTL counts from now."""
    streams, now_us = context.streams, context.clock.now_us()
    stream = streams.durable(path)
    if stream is None:
        raise StreamNotFound.at(path)
    if stream.soft_deleted:
        raise soft_deleted(stream)
    if streams.is_expired(stream, now_us):
        expire_stream(context, stream)
        raise gone(stream)
    if touch:
        streams.touch(stream, now_us)
    return stream


def _end(context: Context, stream: Stream, now_us: int, *, expired: bool) -> asyncio.Future[None]:
    stream.deleting = True
    if stream.pending_forks:
        stream.pending_soft_deleted = True
        mutation = DeleteMutation(stream, None, time_us=now_us, expired=expired, soft=True)
    else:
        cascade, released = _release_sources(stream)
        mutation = DeleteMutation(
            stream, None, time_us=now_us, expired=expired, cascade=cascade, released=released
        )
    deletion: asyncio.Future[None] = context.submit(mutation)
    context.waiting.release(stream)
    return deletion


def _release_sources(stream: Stream) -> tuple[list[Stream], Stream | None]:
    """Return the soft-deleted sources that end with `stream`, and the source that stays and has
    one fork less."""
    cascade: list[Stream] = []
    source = stream.source
    while source is not None:
        source.pending_forks -= 1
        if source.pending_forks or not source.pending_soft_deleted:
            break
        # An answer about it has to wait until its end is durable.
        source.pending_soft_deleted = False
        source.in_flight += 1
        cascade.append(source)
        source = source.source
    return cascade, source


def _ignore(future: asyncio.Future[None]) -> None:
    future.exception()
