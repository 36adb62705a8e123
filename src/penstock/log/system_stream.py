"""A JSON stream that the server itself writes: its own records, kept in the log like any others.

It is created when it is first needed and is exempt from retention. Knows the log; what the events
mean is the owner's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.errors import PenstockError, StreamNotFound
from penstock.log import retention
from penstock.log.requests import Append, Appended, Writer
from penstock.protocol.json_mode import unframe
from penstock.protocol.lifecycle import StreamConfig
from penstock.protocol.retention import FOREVER

if TYPE_CHECKING:
    from penstock.log.engine import Engine
    from penstock.log.mutations import Mutation
    from penstock.log.stream import Stream

PIECE_BYTES: Final = 256 * 1024
"""Bytes of events that are read at a time."""

_JSON: Final = "application/json"

Event = dict[str, Any]
Undo = Callable[[], None]


class SystemStream:
    """One server-owned stream. `prepare` completes its creation, with meta values for example.

    An owner changes its memory and calls `write` in the same step, so that the events have the
    order of the changes. If a write fails, its `undo` puts memory back before anybody can see that
    it failed; when several fail, the last is undone first. An undo must leave alone what somebody
    has changed since.

    Whoever answers a request from memory without a write of its own calls `caught_up` first: what
    it has seen may not be durable yet.
    """

    def __init__(
        self,
        engine: Engine,
        path: str,
        *,
        prepare: Callable[[Stream], Awaitable[None]] | None = None,
    ) -> None:
        self.path = path
        self._engine = engine
        self._prepare = prepare
        self._creation: asyncio.Future[None] | None = None
        self._last: asyncio.Future[Appended] | None = None
        self._undos: dict[asyncio.Future[Appended], Undo] = {}
        self.undone = 0
        """The number of changes that were undone."""
        self.failed = 0
        """The number of writes that failed after they were queued: the stream is shorter then than
        `Engine.pending` said."""

    # -- reading

    @property
    def exists(self) -> bool:
        try:
            self.find()
        except StreamNotFound:
            return False
        return True

    def find(self) -> Stream:
        """Return the stream; raise StreamNotFound before it is created."""
        return self._engine.find(self.path, touch=False)

    async def pieces(self) -> AsyncIterator[list[Event]]:
        """Yield all durable events, in their order, some at a time."""
        engine, stream = self._engine, self.find()
        start = stream.earliest
        while start < stream.tail:
            end = await engine.plan(stream, start, max_bytes=PIECE_BYTES)
            wire = await self._read(stream, start, end)
            yield msgspec.json.decode(unframe(wire), type=list[Event])
            start = end

    async def _read(self, stream: Stream, start: int, end: int) -> bytes:
        wire = self._engine.read_now(stream, start, end)
        return await self._engine.read(stream, start, end) if wire is None else wire

    def meta(self, name: str) -> bytes | None:
        """Return a durable value of the stream, if there is one."""
        try:
            return self.find().meta.get(name)
        except StreamNotFound:
            return None

    # -- writing

    async def ensure(self) -> None:
        """Create the stream unless it is there. Concurrent callers wait for the same creation."""
        creation = self._creation
        if creation is None or (creation.done() and _has_failed(creation)):
            creation = self._creation = asyncio.ensure_future(self._create())
        await asyncio.shield(creation)

    async def _create(self) -> None:
        engine = self._engine
        await engine.create(self.path, StreamConfig(_JSON, None, None), b"", closed=False)
        # A retention rule for all streams must not delete the server's own records.
        await engine.set_meta(self.path, retention.META, retention.encode(FOREVER))
        if self._prepare is not None:
            await self._prepare(self.find())

    def set_meta(self, name: str, value: bytes) -> asyncio.Future[None]:
        return self._engine.set_meta(self.path, name, value)

    def write(self, events: list[Event], *, undo: Undo | None = None) -> asyncio.Future[Appended]:
        """Queue events; the future is done when they are durable, or have failed and are undone.

        Cancelling it does not take the events back.
        """
        # At once: whoever writes next rests on memory, which a late refusal would have to change.
        request = Append(msgspec.json.encode(events), _JSON, writer=Writer.SERVER, at_once=True)
        self._engine.listen_to_failures(self._undo_failed)
        try:
            appended = self._last = self._engine.append(self.path, request)
        except PenstockError as error:
            if undo is not None:
                self.undone += 1
                undo()
            refused: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
            refused.set_exception(error)
            return refused
        if undo is not None:
            self._undos[appended] = undo
            # Before the shield: memory is settled when its owner goes on.
            appended.add_done_callback(self._settle)
        return asyncio.shield(appended)

    async def caught_up(self) -> None:
        """Wait for what is queued now: then memory, as it is now, is what a crash would leave.

        If a change that memory has now fails and is undone, its error is raised: an answer that
        rests on it would be false.
        """
        last, change = self._last, next(reversed(self._undos), None)
        queued = {each for each in (last, change) if each is not None and not each.done()}
        if queued:
            await asyncio.wait(queued)
        # What is queued behind a write that fails fails with it, so that the last tells of all.
        if change is not None and _has_failed(change):
            change.result()

    def _undo_failed(self, batch: Sequence[Mutation]) -> None:
        for mutation in reversed(batch):
            if mutation.stream.path == self.path:
                self.failed += 1
            if mutation.future is not None:
                self._undo(mutation.future)

    def _settle(self, appended: asyncio.Future[Appended]) -> None:
        if _has_failed(appended):
            self._undo(appended)  # It was cancelled.
        else:
            self._undos.pop(appended, None)

    def _undo(self, appended: asyncio.Future[Any]) -> None:
        undo = self._undos.pop(appended, None)
        if undo is not None:
            self.undone += 1
            undo()


def _has_failed(future: asyncio.Future[Any]) -> bool:
    return future.cancelled() or future.exception() is not None
