"""Decides changes of the named values that a stream carries."""

from __future__ import annotations

import asyncio

from penstock.log.decide.context import Context, gone
from penstock.log.decide.delete import living_stream
from penstock.log.mutations import MetaMutation, with_meta


def set_meta(context: Context, path: str, name: str, value: bytes | None) -> asyncio.Future[None]:
    """Set a named value of a stream; None removes it."""
    stream = living_stream(context, path, context.clock.now_us())
    if stream.deleting:
        return context.refuse(stream, gone(stream))
    if stream.pending_meta.get(name) == value:
        return context.answer(stream, None)
    context.admit(len(value or b""))
    stream.pending_meta = with_meta(stream.pending_meta, name, value)
    return context.submit(MetaMutation(stream, None, name=name, value=value))
