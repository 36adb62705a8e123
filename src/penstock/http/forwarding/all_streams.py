"""The streams of all processes as subscriptions see them: those of this one, and copies of what
peers say about theirs.

A copy has what a subscription asks about: the id, the tail, where it begins. It never has bytes.
"""

from __future__ import annotations

import asyncio
import logging
from binascii import a2b_base64
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.errors import BadRequest, PenstockError, StreamTrimmed
from penstock.http.forwarding.changes import CREATED, ENDED, FOUND, MARK, QUESTION
from penstock.http.forwarding.owners import unowned
from penstock.http.forwarding.peer_lines import lines_of, read_again
from penstock.log.lineage import token
from penstock.log.requests import Appended
from penstock.log.stream import ForkPoint, Stream, StreamInfo
from penstock.protocol.lifecycle import StreamConfig
from penstock.subscriptions.streams import Change, Listener, OnChange

if TYPE_CHECKING:
    from penstock.http.forwarding.forwarder import Forwarder
    from penstock.http.forwarding.owners import Owners, Peer
    from penstock.http.forwarding.peers import Peers
    from penstock.log.engine import Engine
    from penstock.log.requests import Append

MARK_S: Final = 10.0
"""How long a peer may take to say all that it has committed."""
SYNC_S: Final = 2.0
"""How long a request waits for a peer that is being started."""

_log = logging.getLogger("penstock.http")


class AllStreams:
    """`Streams` over several processes. `first` is the peer that keeps what there is once, None for
    this process itself; `locate` names the process where a path's stream lives."""

    def __init__(
        self,
        engine: Engine,
        owners: Owners,
        forwarder: Forwarder,
        peers: Peers,
        *,
        first: Peer | None,
    ) -> None:
        self._first = first
        self._engine = engine
        self._owners = owners
        self._forwarder = forwarder
        self._peers = peers
        self._patterns: dict[str, None] = {}
        self._paths: dict[str, None] = {}
        self._follower: OnChange | None = None
        self._copies: dict[str, Stream] = {}
        self._sorted: list[str] | None = []
        self._feeds: dict[str, PeerFeed] = {}
        self.locate: Callable[[str], Awaitable[str]] | None = None
        self.listen: Callable[[Listener], None] = engine.listen
        self.unlisten: Callable[[Listener], None] = engine.unlisten

    @property
    def restore_generation(self) -> int:
        return self._engine.restore_generation

    async def secret(self) -> bytes | None:
        first = self._first
        if first is None:
            return None
        return a2b_base64(await self._peers.ask(first, "subscription-secret", None))

    def follow(self, on_change: OnChange) -> None:
        self._follower = on_change

    def close(self) -> None:
        for feed in self._feeds.values():
            feed.close()

    # -- what is known

    async def cover(self, patterns: Iterable[str], paths: Iterable[str]) -> None:
        patterns = [each for each in patterns if each not in self._patterns]
        paths = [each for each in paths if each not in self._paths]
        if not patterns and not paths:
            return
        self._patterns.update(dict.fromkeys(patterns))
        self._paths.update(dict.fromkeys(paths))
        try:
            await asyncio.gather(
                *(self._feed(peer).want(patterns, paths) for peer in self._owners.peers())
            )
        except BaseException:
            # Asked for again by the next one; a feed that begins anew has all of it anyway.
            for each in patterns:
                self._patterns.pop(each, None)
            for each in paths:
                self._paths.pop(each, None)
            raise

    async def caught_up(self) -> None:
        """Wait until everything is known that peers have committed before; NotOwner if one of them
        is not there."""
        if self._feeds:
            await asyncio.gather(*(feed.caught_up() for feed in self._feeds.values()))

    def _feed(self, peer: Peer) -> PeerFeed:
        feed = self._feeds.get(peer.name)
        if feed is None:
            feed = self._feeds[peer.name] = PeerFeed(self, peer, self._forwarder, self._peers)
        return feed

    def interest(self) -> dict[str, Any]:
        """Return all that peers are asked about."""
        return {
            "feed": self._owners.name,
            "patterns": list(self._patterns),
            "paths": list(self._paths),
        }

    # -- copies

    def changed(self, kind: str, line: dict[str, Any], known: dict[str, Stream]) -> None:
        """Take over what a peer says of a stream; `known` are the copies from that peer."""
        path = line["path"]
        copy = known.get(path)
        if kind == ENDED:
            if copy is not None:
                self.ended(copy, known)
            return
        if copy is not None and copy.id == line["id"] and kind != CREATED:
            is_longer = line["tail"] > copy.tail
            _update(copy, line)
            if is_longer:
                self._tell(Change.APPENDED, copy)
            return
        if copy is not None:
            copy.deleted = True
        copy = self._copies[path] = known[path] = _copy(line)
        self._sorted = None
        # A stream that was there before the peer was asked is no news.
        self._tell(Change.APPENDED if kind == FOUND else Change.CREATED, copy)

    def ended(self, copy: Stream, known: dict[str, Stream]) -> None:
        copy.deleted = True
        known.pop(copy.path, None)
        if self._copies.get(copy.path) is copy:
            del self._copies[copy.path]
            self._sorted = None
            self._tell(Change.ENDED, copy)

    def _tell(self, change: Change, copy: Stream) -> None:
        if self._follower is not None:
            self._follower(change, copy)

    # -- Streams

    def find(self, path: str, *, touch: bool) -> Stream:
        copy = self._copies.get(path)
        return self._engine.find(path, touch=touch) if copy is None else copy

    async def fetch(self, path: str) -> None:
        if path not in self._copies:
            await self._engine.fetch(path)

    async def list_streams(self, prefix: str, after: str, limit: int) -> list[StreamInfo]:
        here = await self._engine.list_streams(prefix, after, limit)
        if self._sorted is None:
            self._sorted = sorted(self._copies)
        paths = self._sorted
        start = bisect_right(paths, after) if after >= prefix else bisect_right(paths, prefix) - 1
        there: list[StreamInfo] = []
        for path in islice(paths, max(start, 0), None):
            if len(there) == limit or (path > prefix and not path.startswith(prefix)):
                break
            if path > after and path.startswith(prefix):
                there.append(self._copies[path].info())
        return list(islice(merge(here, there), limit))

    def token(self, stream: Stream, position: int) -> str:
        return token(stream, position)

    async def position(self, stream: Stream, offset: str) -> int:
        if self._copies.get(stream.path) is not stream:
            return await self._engine.position(stream, offset)
        peer = self._peer_of(stream)
        if peer is None:
            raise unowned(f"{stream.path!r} has moved.")
        question = {"path": stream.path, "offset": offset}
        answer = await self._peers.ask(peer, "position", question)
        if "position" in answer:
            return int(answer["position"])
        raise (StreamTrimmed if answer["trimmed"] else BadRequest)(answer["detail"])

    def _peer_of(self, copy: Stream) -> Peer | None:
        for feed in self._feeds.values():
            if feed.known.get(copy.path) is copy:
                return feed.peer
        return None

    def append(self, path: str, request: Append) -> asyncio.Future[Appended]:
        """Append JSON messages of the server itself to a stream, wherever it is."""
        if self._owners.owner(path) is None and path not in self._copies:
            return self._engine.append(path, request)
        return asyncio.ensure_future(self._append_elsewhere(path, request))

    async def _append_elsewhere(self, path: str, request: Append) -> Appended:
        assert self.locate is not None
        name = await self.locate(path)
        if name == self._owners.name:
            return await self._engine.append(path, request)
        peer = self._owners.peer(name)
        assert peer is not None
        messages = msgspec.json.decode(request.body)
        await self._peers.ask(peer, "append", {"path": path, "messages": messages})
        return Appended("", False, False, None, 0)


class PeerFeed:
    """What one peer says of its streams; it is asked again whenever it comes back."""

    def __init__(self, streams: AllStreams, peer: Peer, forwarder: Forwarder, peers: Peers) -> None:
        self.peer = peer
        self.known: dict[str, Stream] = {}
        self._streams = streams
        self._forwarder = forwarder
        self._peers = peers
        self._task: asyncio.Task[None] | None = None
        self._synced: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._seen: set[str] | None = None  # while a feed begins: the paths that it has named
        self._marks: dict[int, asyncio.Future[None]] = {}
        self._last_mark = 0

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def want(self, patterns: list[str], paths: list[str]) -> None:
        """Be told of more streams; return when all of them that there are now are known."""
        if self._task is None:
            reading = read_again(self._read, self.peer, on_ended=self._has_ended)
            self._task = asyncio.get_running_loop().create_task(reading)
            await self._in_time(asyncio.shield(self._synced), SYNC_S)
            return
        await self._in_time(asyncio.shield(self._synced), SYNC_S)
        question = {"feed": self._streams.interest()["feed"], "patterns": patterns, "paths": paths}
        await self._marked(await self._peers.ask(self.peer, "interest", question))

    async def caught_up(self) -> None:
        await self._in_time(asyncio.shield(self._synced), SYNC_S)
        question = {"feed": self._streams.interest()["feed"]}
        await self._marked(await self._peers.ask(self.peer, "mark", question))

    async def _marked(self, number: int) -> None:
        if number <= self._last_mark:
            return
        future = self._marks.setdefault(number, asyncio.get_running_loop().create_future())
        await self._in_time(asyncio.shield(future))

    async def _in_time(self, future: asyncio.Future[None], timeout_s: float = MARK_S) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            raise unowned(f"{self.peer.name} does not say what it has.") from None

    # -- the feed

    def _has_ended(self) -> None:
        """Nobody gets a mark of a feed that has ended, and what it says next is waited for."""
        for future in self._marks.values():
            if not future.done():
                future.set_exception(unowned(f"{self.peer.name} has gone."))
                future.exception()
        self._marks.clear()
        self._last_mark = 0
        if self._synced.done():
            self._synced = asyncio.get_running_loop().create_future()

    async def _read(self) -> None:
        question = msgspec.json.encode(self._streams.interest())
        self._seen = set()
        async with lines_of(self.peer, self._forwarder, QUESTION, question, self._line) as lines:
            # All streams that it has now are before this mark.
            number = await self._peers.ask(
                self.peer, "mark", {"feed": self._streams.interest()["feed"]}
            )
            await self._marked(number)
            for path in [path for path in self.known if path not in self._seen]:
                self._streams.ended(self.known[path], self.known)
            self._seen = None
            if not self._synced.done():
                self._synced.set_result(None)
            await lines.ended

    def _line(self, line: dict[str, Any]) -> None:
        kind = line["k"]
        if kind == MARK:
            number = line["n"]
            self._last_mark = number
            future = self._marks.pop(number, None)
            if future is not None and not future.done():
                future.set_result(None)
            return
        if self._seen is not None:
            self._seen.add(line["path"])
        try:
            self._streams.changed(kind, line, self.known)
        except PenstockError:
            _log.exception("a change of %s cannot be taken over", self.peer.name)


def _copy(line: dict[str, Any]) -> Stream:
    fork = line["fork"]
    stream = Stream(
        line["id"],
        line["path"],
        StreamConfig(line["type"], None, None),
        line["created_us"],
        fork=None if fork is None else ForkPoint(*fork),
    )
    stream.durable = True
    _update(stream, line)
    return stream


def _update(stream: Stream, line: dict[str, Any]) -> None:
    stream.tail = max(stream.tail, line["tail"])
    stream.earliest = line["earliest"]
    stream.closed = line["closed"]
    stream.renewals = tuple((at, generation) for at, generation in line["renewals"])
