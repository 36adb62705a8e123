"""Changes of this process's streams, sent to peers that want to know of them.

A peer opens one response for good and names paths and patterns; it gets every stream that matches,
and then what becomes of them, coalesced: of many appends the last tail is enough.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.errors import PenstockError, StreamTrimmed
from penstock.http.message import EventBody, Response, Sink
from penstock.log.mutations import AppendMutation, CreateMutation, DeleteMutation
from penstock.log.requests import Append
from penstock.protocol.globs import PatternIndex, literal_prefix, matches

if TYPE_CHECKING:
    from penstock.http.forwarding.control import Control
    from penstock.log.engine import Engine
    from penstock.log.mutations import Mutation
    from penstock.log.stream import Stream

QUESTION: Final = "changes"
PAGE: Final = 500
ROUTES_MAX: Final = 100_000
"""Paths of which it is remembered whether a peer wants to know of them."""
APPENDED: Final = "a"
CREATED: Final = "c"
ENDED: Final = "d"
FOUND: Final = "f"
MARK: Final = "m"
_JSON: Final = "application/json"

_encode = msgspec.json.Encoder().encode
_OWN: Final = "__ds/"


class ChangeFeeds:
    """The feeds of all peers, and what peers ask about streams that they know by them."""

    def __init__(self, engine: Engine, control: Control) -> None:
        self._engine = engine
        self._feeds: dict[str, Feed] = {}
        control.add_stream(QUESTION, self._open)
        control.add("interest", self._interest)
        control.add("mark", self._mark)
        control.add("position", self._position)
        control.add("append", self._append)

    async def _open(self, question: dict[str, Any]) -> Response:
        """Begin a feed; one of the same name ends."""
        name = question["feed"]
        before = self._feeds.pop(name, None)
        if before is not None:
            before.finish()
        feed = self._feeds[name] = Feed(self._engine, name, self._closed)
        self._engine.listen(self._committed)
        await feed.want(question["patterns"], question["paths"])
        return Response(200, [(b"content-type", b"application/x-ndjson")], feed)

    def _closed(self, feed: Feed) -> None:
        if self._feeds.get(feed.name) is feed:
            del self._feeds[feed.name]
        if not self._feeds:
            self._engine.unlisten(self._committed)

    def _committed(self, batch: Sequence[Mutation]) -> None:
        for feed in self._feeds.values():
            feed.committed(batch)

    async def _interest(self, question: dict[str, Any]) -> int:
        """Widen a feed; return the mark that comes after all that is new in it."""
        feed = self._feed(question)
        await feed.want(question["patterns"], question["paths"])
        return feed.mark()

    async def _mark(self, question: dict[str, Any]) -> int:
        return self._feed(question).mark()

    def _feed(self, question: dict[str, Any]) -> Feed:
        feed = self._feeds.get(question["feed"])
        if feed is None:
            raise PenstockError("There is no such feed.")
        return feed

    async def _position(self, question: dict[str, Any]) -> dict[str, Any]:
        """Return the position of an offset, or why it is none."""
        try:
            stream = self._engine.find(question["path"], touch=False)
            return {"position": await self._engine.position(stream, question["offset"])}
        except PenstockError as error:
            return {"detail": error.detail, "trimmed": isinstance(error, StreamTrimmed)}

    async def _append(self, question: dict[str, Any]) -> bool:
        body = _encode(question["messages"])
        await self._engine.append(question["path"], Append(body, _JSON))
        return True


class Feed(EventBody):
    """One peer's feed: a line of JSON for every change."""

    __slots__ = (
        "_appended",
        "_engine",
        "_lines",
        "_marks",
        "_on_closed",
        "_paths",
        "_patterns",
        "_routes",
        "_scheduled",
        "_sink",
        "_wanted",
        "name",
    )

    def __init__(self, engine: Engine, name: str, on_closed: Any) -> None:
        self.name = name
        self._engine = engine
        self._on_closed = on_closed
        self._sink: Sink | None = None
        self._paths: set[str] = set()
        self._patterns: PatternIndex[str] = PatternIndex()
        self._wanted: set[str] = set()
        self._routes: dict[str, bool] = {}
        self._lines: list[bytes] = []
        self._appended: dict[str, Stream] = {}
        self._marks = itertools.count(1)
        self._scheduled = False

    # -- what the peer wants

    async def want(self, patterns: Iterable[str], paths: Iterable[str]) -> None:
        """Add patterns and paths, and write all streams that are new by them."""
        new_patterns = [pattern for pattern in patterns if pattern not in self._wanted]
        new_paths = [path for path in paths if path not in self._paths]
        # Before anything is looked up: what is committed meanwhile is written by `committed`.
        for pattern in new_patterns:
            self._wanted.add(pattern)
            self._patterns.add(pattern, pattern)
        self._paths.update(new_paths)
        self._routes.clear()
        for pattern in new_patterns:
            await self._find_matching(pattern)
        for path in new_paths:
            await self._find(path)

    async def _find_matching(self, pattern: str) -> None:
        after = ""
        while page := await self._engine.list_streams(literal_prefix(pattern), after, PAGE):
            for info in page:
                if matches(pattern, info.path):
                    await self._find(info.path)
            after = page[-1].path

    async def _find(self, path: str) -> None:
        if path.startswith(_OWN):
            return
        await self._engine.fetch(path)
        try:
            stream = self._engine.find(path, touch=False)
        except PenstockError:
            return
        self._put(_line(FOUND, stream))

    def mark(self) -> int:
        """Write a mark behind everything so far; return its number."""
        self._settle()
        number = next(self._marks)
        self._put(_encode({"k": MARK, "n": number}) + b"\n")
        return number

    # -- commits

    def committed(self, batch: Sequence[Mutation]) -> None:
        for mutation in batch:
            stream, kind = mutation.stream, type(mutation)
            if not self._wants(stream.path):
                continue
            if kind is AppendMutation:
                self._appended[stream.path] = stream
                self._schedule()
            elif kind is CreateMutation:
                self._settle()
                self._put(_line(CREATED, stream))
            elif kind is DeleteMutation:
                self._settle()
                self._put(_line(ENDED, stream))

    def _wants(self, path: str) -> bool:
        wants = self._routes.get(path)
        if wants is None:
            if len(self._routes) >= ROUTES_MAX:
                self._routes.clear()
            wants = not path.startswith(_OWN) and (
                path in self._paths or next(self._patterns.find(path), None) is not None
            )
            self._routes[path] = wants
        return wants

    def _settle(self) -> None:
        """Put the appends so far in line."""
        for stream in self._appended.values():
            self._lines.append(_line(APPENDED, stream))
        self._appended.clear()

    def _put(self, line: bytes) -> None:
        self._lines.append(line)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        sink = self._sink
        # While the peer is behind, appends go on to be coalesced.
        if sink is None or sink.congested:
            return
        self._settle()
        if self._lines:
            sink.write(b"".join(self._lines))
            self._lines.clear()

    # -- EventBody

    def attach(self, sink: Sink) -> None:
        self._sink = sink
        self._flush()

    def drained(self) -> None:
        self._flush()

    def finish(self) -> None:
        sink, self._sink = self._sink, None
        self._on_closed(self)
        if sink is not None:
            sink.close()

    def detach(self) -> None:
        self._sink = None
        self._on_closed(self)


def _line(kind: str, stream: Stream) -> bytes:
    fork = stream.fork
    return (
        _encode(
            {
                "k": kind,
                "path": stream.path,
                "id": stream.id,
                "type": stream.config.content_type,
                "created_us": stream.created_us,
                "tail": stream.tail,
                "earliest": stream.earliest,
                "closed": stream.closed,
                "fork": None if fork is None else list(fork),
                "renewals": stream.renewals,
            }
        )
        + b"\n"
    )
