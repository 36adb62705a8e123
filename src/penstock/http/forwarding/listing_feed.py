"""Which streams this process has, told to a peer that keeps a list of all: each of them once, and
then what is created and what ends.

A peer opens one response for good. What it is told is coalesced by path: the last word counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.errors import PenstockError
from penstock.http.message import EventBody, Response, Sink
from penstock.http.streams.registry import Entry, is_listed

if TYPE_CHECKING:
    from penstock.http.forwarding.control import Control
    from penstock.log.engine import Engine
    from penstock.log.mutations import Mutation

QUESTION: Final = "listing"
PAGE: Final = 500
LISTED: Final[list[Any]] = []
"""The line after all streams that there were: what was not named is not there."""

_encode = msgspec.json.Encoder().encode


class ListingFeeds:
    """The feeds of all peers that keep a list."""

    def __init__(self, engine: Engine, control: Control) -> None:
        self._engine = engine
        self._feeds: set[ListingFeed] = set()
        control.add_stream(QUESTION, self._open)

    async def _open(self, question: Any) -> Response:
        feed = ListingFeed(self._engine, self._closed)
        self._feeds.add(feed)
        self._engine.listen(self._committed)
        return Response(200, [(b"content-type", b"application/x-ndjson")], feed)

    def _committed(self, batch: Sequence[Mutation]) -> None:
        for feed in self._feeds:
            feed.committed(batch)

    def _closed(self, feed: ListingFeed) -> None:
        self._feeds.discard(feed)
        if not self._feeds:
            self._engine.unlisten(self._committed)

    def close(self) -> None:
        for feed in list(self._feeds):
            feed.finish()


class ListingFeed(EventBody):
    """Lines of JSON: a path with its content type and its time of creation, or a path alone that
    has no stream any more."""

    __slots__ = ("_changed", "_engine", "_has_room", "_on_closed", "_scheduled", "_sink", "_task")

    def __init__(self, engine: Engine, on_closed: Callable[[ListingFeed], None]) -> None:
        self._engine = engine
        self._on_closed = on_closed
        self._sink: Sink | None = None
        self._changed: dict[str, Entry | None] = {}
        self._has_room = asyncio.Event()
        self._scheduled = False
        self._task: asyncio.Task[None] | None = None

    def committed(self, batch: Sequence[Mutation]) -> None:
        for mutation in batch:
            for stream in mutation.ended:
                self._changed[stream.path] = None
            if mutation.creates:
                stream = mutation.stream
                self._changed[stream.path] = Entry(
                    stream.config.content_type, stream.created_us // 1000
                )
        if self._changed and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        sink = self._sink
        # While the peer is behind, changes go on to be coalesced; those of a listing wait for it.
        if sink is None or sink.congested or self._task is not None:
            return
        self._write(self._changed)
        self._changed = {}

    def _write(self, entries: dict[str, Entry | None]) -> None:
        lines = [
            _encode([path] if entry is None else [path, *entry]) + b"\n"
            for path, entry in entries.items()
            if is_listed(path)
        ]
        if lines and self._sink is not None:
            self._sink.write(b"".join(lines))

    async def _list(self) -> None:
        """Write all streams that there are, and then what has changed meanwhile."""
        after = ""
        while True:
            page = await self._engine.list_streams("", after, PAGE)
            self._write(
                {each.path: Entry(each.content_type, each.created_us // 1000) for each in page}
            )
            await self._drained()
            if len(page) < PAGE:
                break
            after = page[-1].path
        self._task = None
        if self._sink is not None:
            # A page may be older than a commit beside it: the commits have the last word.
            self._write(self._changed)
            self._changed = {}
            self._sink.write(_encode(LISTED) + b"\n")

    async def _drained(self) -> None:
        await asyncio.sleep(0)
        while self._sink is not None and self._sink.congested:
            self._has_room.clear()
            await self._has_room.wait()

    async def _run(self) -> None:
        try:
            await self._list()
        except PenstockError:
            self.finish()  # It is asked for again.

    # -- EventBody

    def attach(self, sink: Sink) -> None:
        self._sink = sink
        self._task = asyncio.get_running_loop().create_task(self._run())

    def drained(self) -> None:
        self._has_room.set()
        self._flush()

    def finish(self) -> None:
        sink = self._sink
        self.detach()
        if sink is not None:
            sink.close()

    def detach(self) -> None:
        self._sink = None
        if self._task is not None:
            self._task.cancel()
        self._on_closed(self)
