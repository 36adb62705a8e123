"""One stream that another node owns, followed once for all live readers at this node.

The tail comes from the owner, wherever that is by now, and goes on after the last byte that is
here. Knows the cluster and frames; who reads, and what they may, is decided before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from penstock.clock import SYSTEM_CLOCK
from penstock.errors import PenstockError
from penstock.http.cluster.hold import is_elsewhere
from penstock.http.cluster.owners import NOWHERE, address_of, shard_name
from penstock.http.cluster.replica import ReplicaEngine, replica_of
from penstock.http.forwarding.control import PREFIX
from penstock.http.forwarding.many import EndedEvents
from penstock.http.forwarding.owners import Peer, unowned
from penstock.http.forwarding.tail_frames import Hello, TailFrame, TailParser
from penstock.http.forwarding.tails import ONE_BY_ONE, TAIL, WORD, beat_s
from penstock.http.live.readers import LiveReaders
from penstock.http.message import EventBody, Response
from penstock.http.streams.live import Live
from penstock.http.streams.read import Reads

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.http.compression import Compressor
    from penstock.http.forwarding.forwarder import Forwarder
    from penstock.http.forwarding.owners import Address
    from penstock.http.traffic import Traffic
    from penstock.log.cluster.node import Node
    from penstock.log.stream import Stream

SILENT_BEATS: Final = 2.5
"""After so many beats of a tail that did not come the owner is asked anew."""


class Cluster(NamedTuple):
    """What relays need of their node."""

    node: Node
    forwarder: Forwarder
    settings: Settings
    compressor: Compressor
    traffic: Traffic

    @property
    def ask_s(self) -> float:
        """How long an owner may take to answer: after that another node owns the stream, or
        none."""
        return self.settings.cluster_takeover_s + self.settings.cluster_hold_s

    @property
    def look_s(self) -> float:
        """How long a look at the shards is waited for, and the time between two checks of all
        relays: whatever they could find out comes with the beats of nodes."""
        return self.settings.cluster_beat_s


class Word(NamedTuple):
    """How far a stream is, as its owner has said: after the question was asked."""

    tail: int
    earliest: int
    closed: bool
    current: bool
    positions: dict[str, int | None]


class Relay:
    """`on_over` is called once, when the stream is followed no more."""

    def __init__(
        self,
        cluster: Cluster,
        path: str,
        shard: int,
        first_offset: str,
        on_over: Callable[[Relay], None],
    ) -> None:
        self._cluster = cluster
        self.path = path
        self._shard = shard
        self._first_offset = first_offset
        self._on_over = on_over
        loop = asyncio.get_running_loop()
        self._loop = loop
        self.engine: ReplicaEngine | None = None
        self.live: Live
        self.reads: Reads
        self.is_over = False
        self.was_refused = False
        """Whether the owner wants to see each reader of the stream."""
        self._opened: asyncio.Future[None] = loop.create_future()
        self._moved = asyncio.Event()
        self._upstream: Upstream | None = None
        self._users = 0
        self._timer: asyncio.TimerHandle | None = None
        self._asking: dict[bool, asyncio.Task[Word]] = {}
        self._next: dict[bool, tuple[set[str], asyncio.Task[Word]]] = {}
        self._task = loop.create_task(self._follow())

    @property
    def stream(self) -> Stream:
        assert self.engine is not None
        return self.engine.stream

    # -- readers

    def enter(self) -> None:
        """Count somebody who is about to read."""
        self._users += 1

    def leave(self) -> None:
        self._users -= 1
        self._linger()

    def _linger(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # At the owner a stream is read until its tail is followed no more: by nobody here, that
        # would let one with a TTL live longer.
        has_ttl = self.engine is not None and self.stream.config.ttl_s is not None
        linger_s = 0.0 if has_ttl else self._cluster.settings.cluster_relay_linger_s
        self._timer = self._loop.call_later(linger_s, self._end_unless_used)

    def _end_unless_used(self) -> None:
        self._timer = None
        if not self._users and (self.engine is None or not self.stream.watchers):
            self.stop()

    async def locate(self, offset: str) -> int | None:
        """Return the position of an offset when everything is here that the owner had when this was
        called; None if the owner has to answer."""
        await asyncio.shield(self._opened)
        if self.is_over:
            return None
        word = await self.word(offset)
        position = word.positions.get(offset)
        if position is None or word.closed or not await self.reaches(word.tail) or self.is_over:
            return None
        assert self.engine is not None
        self.engine.says_current = word.current
        self.engine.forget_before(word.earliest)
        return position if position >= self.stream.earliest else None

    async def reaches(self, position: int) -> bool:
        """Wait until the tail is at a position; False if that takes too long."""
        try:
            async with asyncio.timeout(self._cluster.ask_s):
                while self.stream.tail < position and not self.is_over:
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            return False
        return not self.is_over

    # -- questions

    async def word(self, offset: str, *, sure: bool = False) -> Word:
        """Return what the owner says after this was called; with `sure` only when it knows that
        there is no more. One question is asked at a time, for all who wait."""
        following = self._next.get(sure)
        if following is None:
            offsets: set[str] = set()
            task = self._loop.create_task(self._ask_next(offsets, sure=sure))
            task.add_done_callback(_retrieve)
            following = self._next[sure] = (offsets, task)
        following[0].add(offset)
        return await asyncio.shield(following[1])

    async def _ask_next(self, offsets: set[str], *, sure: bool) -> Word:
        before = self._asking.get(sure)
        if before is not None:
            await asyncio.wait((before,))
        task = self._asking[sure] = self._next.pop(sure)[1]
        try:
            return await self._ask_word(sorted(offsets), sure=sure)
        finally:
            if self._asking.get(sure) is task:
                del self._asking[sure]

    async def _ask_word(self, offsets: list[str], *, sure: bool) -> Word:
        timeout_s = self._cluster.ask_s
        if sure:
            timeout_s += self._cluster.settings.long_poll_timeout_s
        question = {
            "path": self.path,
            "id": self.stream.id,
            "offsets": offsets,
            "sure": sure,
            "reads": not sure,
        }
        response = await self._ask(WORD, question, timeout_s)
        if response.status != 200 or not isinstance(response.body, bytes):
            raise unowned("The owner of the stream has not answered.")
        answer = msgspec.json.decode(response.body)["answer"]
        positions = dict(zip(offsets, answer.pop("positions"), strict=True))
        return Word(**answer, positions=positions)

    async def _ask(self, name: str, question: dict[str, Any], timeout_s: float) -> Response:
        address = self._address()
        try:
            async with asyncio.timeout(timeout_s):
                return await self._cluster.forwarder.ask(
                    Peer(shard_name(self._shard), address),
                    "POST",
                    PREFIX + name.encode(),
                    msgspec.json.encode(question),
                )
        except TimeoutError:
            raise unowned("The owner of the stream does not answer.") from None

    def _address(self) -> Address:
        address = address_of(self._cluster.node, self._shard)
        if address == NOWHERE:
            raise unowned("No node of the cluster owns the stream at the moment.")
        return address

    # -- the tail

    async def _follow(self) -> None:
        try:
            while (upstream := await self._open()) is not None:
                self._upstream = upstream
                try:
                    await upstream.ended
                finally:
                    self._upstream = None
                    upstream.leave()
                if self.engine is None or self.stream.closed:
                    return
        finally:
            self._over()

    async def _open(self) -> Upstream | None:
        """Return the tail at the owner, when there is one; None if there is none to be had."""
        while True:
            address = address_of(self._cluster.node, self._shard)
            look = self._cluster.node.next_look()
            try:
                response = await self._ask(TAIL, self._question(), self._cluster.ask_s)
            except PenstockError:
                response = None
            if response is not None and not is_elsewhere(response) and response.status < 500:
                self.was_refused = response.status == ONE_BY_ONE
                body = _body(response)
                return None if body is None else Upstream(self, body, address)
            if self.engine is None:
                return None
            try:
                async with asyncio.timeout(self._cluster.look_s):
                    await look.wait()
            except TimeoutError:
                pass  # PostgreSQL does not answer; the owner may.

    def _question(self) -> dict[str, Any]:
        if self.engine is None:
            return {"path": self.path, "offset": self._first_offset}
        return {"path": self.path, "id": self.stream.id, "position": self.stream.tail}

    def check(self, now_s: float) -> None:
        """Ask for the tail anew if its owner is silent, or another node owns the shard."""
        upstream = self._upstream
        if upstream is None:
            return
        if now_s - upstream.heard_s > SILENT_BEATS * beat_s(self._cluster.settings):
            self._cluster.forwarder.drop_idle(upstream.address)
            upstream.close()
        elif address_of(self._cluster.node, self._shard) not in (upstream.address, NOWHERE):
            upstream.close()

    def begin(self, hello: Hello) -> bool:
        """Take up a tail; False if it does not follow what is here."""
        if self.engine is not None:
            return hello.id == self.stream.id and hello.start == self.stream.tail
        cluster = self._cluster
        engine = self.engine = ReplicaEngine(replica_of(self.path, hello), self._linger)
        self.reads = Reads(
            engine, cluster.settings, cluster.compressor, cluster.traffic, clock=SYSTEM_CLOCK
        )
        self.live = Live(
            engine,
            cluster.settings,
            self.reads,
            cluster.traffic,
            LiveReaders(cluster.settings),
            clock=SYSTEM_CLOCK,
        )
        self._opened.set_result(None)
        return True

    def add(self, frames: list[TailFrame]) -> bool:
        """Pass frames on to the readers; False if one does not follow what is here."""
        assert self.engine is not None
        is_next = all(frame.is_beat or self.engine.add(frame) for frame in frames)
        self._moved.set()
        return is_next

    # -- the end

    def stop(self) -> None:
        """Follow the stream no more."""
        self._task.cancel()

    def drain(self) -> None:
        """Answer long-polls and end events: the node stops."""
        if self.engine is not None:
            self.live.drain()

    def _over(self) -> None:
        self.is_over = True
        if self._timer is not None:
            self._timer.cancel()
        if not self._opened.done():
            self._opened.set_result(None)
        self._moved.set()
        self._on_over(self)
        if self.engine is not None and not self.stream.closed:
            self.engine.end()


class Upstream:
    """One response of an owner with the tail of a stream. The Sink of its body."""

    congested = False
    buffered = 0

    def __init__(self, relay: Relay, body: EventBody, address: Address) -> None:
        self._relay = relay
        self._body = body
        self._parser = TailParser()
        self._loop = asyncio.get_running_loop()
        self.address = address
        self.heard_s = self._loop.time()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        body.attach(self)

    def write(self, data: bytes) -> None:
        if self.ended.done():
            return
        self.heard_s = self._loop.time()
        is_new = self._parser.hello is None
        try:
            frames = self._parser.feed(data)
        except ValueError:
            self.close()
            return
        hello = self._parser.hello
        if hello is None:
            return
        is_next = not is_new or self._relay.begin(hello)
        if not is_next or not self._relay.add(frames):
            self.close()

    def close(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def abort(self) -> None:
        self.close()

    def leave(self) -> None:
        """Let the owner send no more."""
        self.close()
        self._body.detach()


def _retrieve(task: asyncio.Task[Word]) -> None:
    """Those who have asked may have gone: then nobody else looks at the error."""
    if not task.cancelled():
        task.exception()


def _body(response: Response) -> EventBody | None:
    if response.status != 200:
        return None
    body = response.body
    if isinstance(body, bytes):
        return EndedEvents(body)
    return body if isinstance(body, EventBody) else None
