"""Decides about creations: a new stream, the one that is there already, or a conflict."""

from __future__ import annotations

import asyncio

from penstock.errors import PathBlocked, PenstockError, StreamExists
from penstock.log.decide.context import Context, is_large
from penstock.log.decide.delete import expire_stream
from penstock.log.held_stream import HeldStream
from penstock.log.lineage import token
from penstock.log.mutations import CreateMutation
from penstock.log.requests import Created, NotYet
from penstock.log.stream import Stream
from penstock.protocol.headers import is_json
from penstock.protocol.lifecycle import StreamConfig, create_matches


def create_stream(
    context: Context,
    path: str,
    config: StreamConfig,
    body: bytes,
    *,
    closed: bool,
    framed: tuple[bytes, int] | None = None,
) -> asyncio.Future[Created]:
    """Create a stream; `framed` is its body in wire shape, if that was made already."""
    try:
        return _create(context, path, config, body, closed, framed)
    except NotYet as later:
        return context.run(_create_when(later, context, path, config, body, closed, framed))


async def _create_when(
    later: NotYet,
    context: Context,
    path: str,
    config: StreamConfig,
    body: bytes,
    closed: bool,
    framed: tuple[bytes, int] | None,
) -> Created:
    """Create a stream when its room in the quotas is granted."""
    await later.ready()
    return await create_stream(context, path, config, body, closed=closed, framed=framed)


def _create(
    context: Context,
    path: str,
    config: StreamConfig,
    body: bytes,
    closed: bool,
    framed: tuple[bytes, int] | None,
) -> asyncio.Future[Created]:
    now_us = context.clock.now_us()
    existing = context.streams.pending(path)
    replaces: Stream | None = None
    if existing is not None and not existing.deleting:
        if not context.streams.is_expired(existing, now_us):
            return _create_again(context, existing, config, closed, now_us)
        context.check_running()
        if existing.fork is None and not existing.pending_forks:
            replaces = existing
        else:
            expire_stream(context, existing)
    if existing is not None and existing.pending_soft_deleted:
        return context.refuse(existing, path_blocked(path))
    context.admit(len(body))
    json = is_json(config.content_type)
    if framed is None and is_large(body, is_json=json):
        return context.run(_create_later(context, path, config, body, closed))
    payload, count = framed or context.frame(body, is_json=json, allow_empty=True)
    if context.quotas is not None:
        context.quotas.admit(path, streams=int(replaces is None), size=len(payload))
    stream = HeldStream(context.store.next_id(), path, config, now_us)
    stream.pending_tail, stream.pending_count = len(payload), count
    stream.pending_closed = closed
    stream.previous = existing
    context.streams.add(stream)
    result = Created(token(stream, len(payload)), True, closed, config.content_type)
    return context.submit(
        CreateMutation(
            stream, result, payload=payload, count=count, closed=closed, replaces=replaces
        )
    )


async def _create_later(
    context: Context, path: str, config: StreamConfig, body: bytes, closed: bool
) -> Created:
    """Create a stream after its body was framed; which stream is there is looked up again."""
    framed = await context.frame_later(body, allow_empty=True)
    return await create_stream(context, path, config, body, closed=closed, framed=framed)


def _create_again(
    context: Context, existing: Stream, config: StreamConfig, closed: bool, now_us: int
) -> asyncio.Future[Created]:
    try:
        if existing.fork is not None:
            raise StreamExists(
                f"The stream at {existing.path!r} is a fork of {existing.fork.source_path!r}. "
                "Send Stream-Forked-From, use another path, or delete the fork first."
            )
        create_matches(existing.config, existing.pending_closed, config, closed)
    except PenstockError as error:
        return context.refuse(existing, error)
    return answer_existing(context, existing, now_us)


def answer_existing(context: Context, existing: Stream, now_us: int) -> asyncio.Future[Created]:
    """Answer a creation with the stream that is there already."""
    context.streams.touch(existing, now_us)
    offset = token(existing, existing.pending_tail)
    content_type = existing.config.content_type
    return context.answer(existing, Created(offset, False, existing.pending_closed, content_type))


def path_blocked(path: str) -> PathBlocked:
    return PathBlocked(
        f"The stream at {path!r} was deleted, but forks still read from it. Delete those first, or "
        "use another path."
    )
