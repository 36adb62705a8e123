"""`GET /v1/streams/live`: one SSE response over several streams.

Finds the streams of a request, where each is read from, and the group that its reader belongs to;
notices new streams; ends responses whose time is up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from penstock.access.rules import Verb
from penstock.errors import (
    BadRequest,
    InvalidCursor,
    PenstockError,
    ShuttingDown,
    StreamRecreated,
    StreamTrimmed,
    TooManyStreams,
)
from penstock.http.headers import NO_STORE, header_text
from penstock.http.live.comments import Comments
from penstock.http.message import Request, Response
from penstock.http.permission import principal_of
from penstock.http.router import RESERVED
from penstock.http.streams.live import EVENT_HEADERS, SWEEP_READERS_MAX, SWEEP_S
from penstock.http.streams.many import entries
from penstock.http.streams.many.feed import Feed
from penstock.http.streams.many.group import RETRY, Group, ManyReader
from penstock.http.streams.many.positions import Positions, parse_cursor
from penstock.http.streams.many.selection import Selection, parse_selection
from penstock.http.streams.read import Answer
from penstock.protocol.globs import PatternIndex, listing, matches
from penstock.protocol.offsets import NOW, START

if TYPE_CHECKING:
    from penstock.access.principal import Principal
    from penstock.config.settings import Settings
    from penstock.http.traffic import Traffic
    from penstock.log.engine import Engine
    from penstock.log.mutations import Mutation
    from penstock.log.stream import Stream

PAGE: Final = 1000
"""Streams listed at a time to find those that match."""
WELCOMES_MAX: Final = 200
"""Groups that new streams join in one turn of the event loop."""
LINGER_S: Final = 5.0
"""Time that a group without readers stays, because readers come back: a response has a limit."""


class ManyLive:
    """The live responses of an App over several streams."""

    def __init__(self, engine: Engine, settings: Settings, traffic: Traffic) -> None:
        self.engine = engine
        self.traffic = traffic
        self.buffer_bytes_max = settings.sse_buffer_bytes_max
        self._settings = settings
        self._comments = Comments(settings.sse_keepalive_s, traffic)
        self._groups: dict[tuple[bytes, Principal], Group] = {}
        self._feeds: dict[int, Feed] = {}
        self._names: dict[str, dict[Group, None]] = {}
        self._patterns: PatternIndex[Group] = PatternIndex()
        self._created: deque[tuple[Stream, Iterator[Group]]] = deque()
        self._news: list[Stream] = []
        self._welcoming: asyncio.Handle | None = None
        self._turn = 0  # the number of streams that were noticed when they were created
        # Every reader gets the same time, so the queue is in the order of deadlines.
        self._deadlines: deque[ManyReader] = deque()
        self._sweeper: asyncio.TimerHandle | None = None
        self._draining = False

    def get(self, path: str, request: Request) -> Answer:
        """Return an SSE response; the transport attaches its reader after sending the head."""
        selection = parse_selection(
            request.query,
            parameters_max=self._settings.live_parameters_max,
            path_bytes_max=self._settings.path_bytes_max,
        )
        # A browser that reconnects sends the URL as it was, and where it is by now.
        last_id = header_text(request.headers, b"last-event-id")
        selection = selection._replace(cursor=last_id or selection.cursor)
        cursor = None
        if selection.cursor is not None:
            cursor = parse_cursor(selection.cursor, selection.key)
        if self._draining:
            if last_id:
                return Response(200, list(EVENT_HEADERS), RETRY)
            raise ShuttingDown("The server is stopping; reconnect to another or retry shortly.")
        return self._open(selection, cursor, request)

    def attached(self, reader: ManyReader) -> None:
        """Let a reader begin, and start its time limit."""
        if self._draining or reader.group.is_closed:
            reader.finish()  # The client comes again.
            return
        assert reader.sink is not None
        reader.sink.write(RETRY)
        loop = asyncio.get_running_loop()
        reader.deadline = loop.time() + self._settings.sse_timeout_s
        self._deadlines.append(reader)
        self._comments.add(reader)
        reader.group.add(reader)

    def drain(self) -> None:
        """End every response; new ones are refused."""
        self._draining = True
        self._comments.close()
        self._deadlines.clear()
        for group in list(self._groups.values()):
            group.finish_readers()
            self._close(group)
        for handle in (self._sweeper, self._welcoming):
            if handle is not None:
                handle.cancel()
        self._sweeper = self._welcoming = None

    # -- a request

    async def _open(
        self, selection: Selection, cursor: Positions | None, request: Request
    ) -> Response:
        turn = self._turn
        group = await self._group(selection, principal_of(request))
        if cursor is None:
            reader = await self._first(group, selection, turn)
        else:
            reader = await self._resumed(group, selection, cursor)
            if group.is_over(reader.positions):
                return Response(204, [NO_STORE])
        return Response(200, list(EVENT_HEADERS), reader)

    async def _first(self, group: Group, selection: Selection, turn: int) -> ManyReader:
        """Return the reader of a request without a cursor: it starts where its parameters say."""
        missing = [path for path in selection.streams if path not in group.paths]
        positions, notices = Positions(), [entries.not_found(path) for path in missing]
        feeds: dict[int, Feed] = {}
        for generation, feed in sorted(group.feeds.items()):
            if group.since.get(generation, 0) > turn:
                continue  # It was created after the request: the reader is to find it as new.
            await self._begin(feed, selection, positions, notices)
            feeds[generation] = feed
        group.renew(positions)
        return ManyReader(self, group, positions, notices, feeds)

    async def _resumed(self, group: Group, selection: Selection, cursor: Positions) -> ManyReader:
        """Return the reader of a cursor. What the cursor does not know and is not newer than it
        starts as the parameters say: it could not be read before."""
        positions, notices = Positions(cursor.newest), []
        feeds: dict[int, Feed] = {}
        lost = sum(1 for generation in cursor if generation not in group.feeds)
        if lost:
            notices.append(entries.members(group.paths))
        for generation, feed in sorted(group.feeds.items()):
            stream = feed.stream
            if generation in cursor:
                position = cursor.position(generation)
                _check_restored(stream, position, cursor.newest)
                await self._check(stream, position)
                positions.set(generation, position, closed=cursor.knows_closed(generation))
            elif generation > cursor.newest:
                continue
            else:
                await self._begin(feed, selection, positions, notices)
            feeds[generation] = feed
        group.renew(positions)
        return ManyReader(self, group, positions, notices, feeds)

    async def _check(self, stream: Stream, position: int) -> None:
        """Refuse a cursor that is beyond a stream, or within a message."""
        if position == stream.tail or position <= stream.earliest:
            return
        try:
            await self.engine.position(stream, self.engine.token(stream, position))
        except StreamTrimmed:
            return
        except BadRequest as error:
            raise InvalidCursor(
                f"The cursor does not fit {stream.path!a}: {error.detail}"
            ) from None

    async def _begin(
        self, feed: Feed, selection: Selection, positions: Positions, notices: list[bytes]
    ) -> None:
        """Set where a stream is read from as its parameter says."""
        stream = feed.stream
        offset = selection.start(stream.path)
        position = stream.earliest
        if offset == NOW:
            position = stream.tail
        elif offset != START:
            try:
                position = await self.engine.read_start(stream, offset)
            except StreamTrimmed:
                notices.append(entries.trimmed(stream, self.engine.earliest(stream).offset))
            except StreamRecreated:
                notices.append(entries.deleted(stream.path))
            except BadRequest as error:
                error.detail = f"`stream={stream.path}`: {error.detail}"
                raise
        positions.set(stream.id, position)
        is_at_tail = position == stream.tail and not stream.closed and self.engine.is_current()
        token = self.engine.token(stream, position)
        notices.append(entries.joined(stream, token, up_to_date=is_at_tail))

    # -- groups

    async def _group(self, selection: Selection, principal: Principal) -> Group:
        """Return the group of a selection, with all of its streams."""
        group = self._groups.get((selection.key, principal))
        if group is None:
            streams_max = self._settings.live_streams_max
            group = Group(self, selection, principal, streams_max=streams_max)
            self._register(group)
            group.filling = asyncio.get_running_loop().create_task(self._fill(group))
        assert group.filling is not None
        await asyncio.shield(group.filling)
        return group

    async def _fill(self, group: Group) -> None:
        try:
            for path in group.selection.streams:
                await self.engine.fetch(path)
                self._add(group, path)
            for pattern in group.selection.patterns:
                prefix, exact = listing(pattern)
                if exact is not None:
                    await self.engine.fetch(exact)
                    self._add(group, exact)
                after = ""
                while page := await self.engine.list_streams(prefix, after, PAGE):
                    for info in page:
                        if matches(pattern, info.path):
                            await self.engine.fetch(info.path)
                            self._add(group, info.path)
                    after = page[-1].path
                    await asyncio.sleep(0)
        except BaseException:
            self._close(group)
            raise

    def _add(self, group: Group, path: str) -> None:
        if path in group.paths or _is_reserved(path) or not group.principal.may(Verb.READ, path):
            return
        try:
            stream = self.engine.find(path, touch=True)
        except PenstockError:
            return
        if group.is_full:
            raise TooManyStreams(
                f"More than {self._settings.live_streams_max} streams match, the most that one "
                "response may have on this server. Use a narrower pattern, or several requests."
            )
        group.add_stream(self._feed(stream))

    def _feed(self, stream: Stream) -> Feed:
        feed = self._feeds.get(stream.id)
        if feed is None:
            feed = self._feeds[stream.id] = Feed(self, stream)
            self.engine.watch(stream, feed)
        return feed

    def _register(self, group: Group) -> None:
        if not self._groups:
            self.engine.listen(self._committed)
        self._groups[group.key, group.principal] = group
        for path in group.selection.streams:
            self._names.setdefault(path, {})[group] = None
        for pattern in group.selection.patterns:
            self._patterns.add(pattern, group)
        group.left_s = asyncio.get_running_loop().time()
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    def _close(self, group: Group) -> None:
        if group.is_closed:
            return
        feeds = list(group.feeds.values())
        group.close()
        del self._groups[group.key, group.principal]
        for path in group.selection.streams:
            self._names[path].pop(group, None)
            if not self._names[path]:
                del self._names[path]
        for pattern in group.selection.patterns:
            self._patterns.remove(pattern, group)
        for feed in feeds:
            self.release(feed)
        if not self._groups:
            self.engine.unlisten(self._committed)

    def release(self, feed: Feed) -> None:
        """Watch a stream no longer that no group has."""
        if not feed.groups and self._feeds.get(feed.stream.id) is feed:
            del self._feeds[feed.stream.id]
            self.engine.unwatch(feed.stream, feed)

    # -- new streams

    def _committed(self, batch: Sequence[Mutation]) -> None:
        """Note the streams that a commit has created. It runs in every commit."""
        for mutation in batch:
            if mutation.creates:
                self._news.append(mutation.stream)
        if self._news and self._welcoming is None:
            self._welcoming = asyncio.get_running_loop().call_soon(self._welcome)

    def _welcome(self) -> None:
        """Let new streams join the groups that cover them, some in each turn of the loop."""
        self._welcoming = None
        for stream in self._news:
            self._created.append((stream, iter(self._covering(stream.path))))
        self._news = []
        for _ in range(WELCOMES_MAX):
            if not self._created:
                return
            stream, groups = self._created[0]
            group = next(groups, None)
            if group is None or stream.is_gone:
                self._created.popleft()
            elif self._may_join(group, stream):
                self._join(group, stream)
        self._welcoming = asyncio.get_running_loop().call_soon(self._welcome)

    def _covering(self, path: str) -> list[Group]:
        if _is_reserved(path):
            return []
        return list({**dict.fromkeys(self._patterns.find(path)), **self._names.get(path, {})})

    def _may_join(self, group: Group, stream: Stream) -> bool:
        if group.is_closed or stream.id in group.feeds:
            return False
        return group.principal.may(Verb.READ, stream.path)

    def _join(self, group: Group, stream: Stream) -> None:
        if group.is_full:
            # The clients come again, and are answered what is wrong.
            group.finish_readers()
            self._close(group)
            return
        self._turn += 1
        feed = self._feed(stream)
        try:
            group.welcome(feed, self._turn)
        except Exception as error:  # noqa: BLE001 - the other groups get the stream all the same
            self.traffic.failed(error)
            group.abort_readers()

    # -- time

    def _sweep(self) -> None:
        """End the responses whose time is up, and the groups to which no reader came back."""
        loop = asyncio.get_running_loop()
        now, deadlines, pause_s = loop.time(), self._deadlines, SWEEP_S
        for _ in range(SWEEP_READERS_MAX):
            if not deadlines or (deadlines[0].sink is not None and deadlines[0].deadline > now):
                break
            deadlines.popleft().finish()
        else:
            pause_s = 0.0
        for group in list(self._groups.values()):
            is_filled = group.filling is not None and group.filling.done()
            if not group and is_filled and now - group.left_s >= LINGER_S:
                self._close(group)
        is_idle = not self._groups and not deadlines
        self._sweeper = None if is_idle else loop.call_later(pause_s, self._sweep)


def _is_reserved(path: str) -> bool:
    return path.startswith(f"{RESERVED}/")


def _check_restored(stream: Stream, position: int, newest: int) -> None:
    """Refuse a cursor that a server gave out after the backup that it was restored from."""
    for start, generation in stream.renewals:
        if newest < generation and position > start:
            raise InvalidCursor(
                f"The cursor does not fit {stream.path!a}: the server was restored from a backup, "
                "and does not have that data. Begin again without the cursor."
            )
