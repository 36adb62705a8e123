"""Live reads of streams that other nodes own: one relay for all readers of a stream at this node.

A shard of this node lets each reader in; what a relay cannot answer is forwarded to the owner by
itself. Knows requests and relays; nothing of frames.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from prometheus_client.core import GaugeMetricFamily

from penstock.access.authenticator import unauthorized
from penstock.errors import PenstockError
from penstock.http.bodies import SMALL_BYTES_MAX
from penstock.http.cluster.relay import Cluster, Relay
from penstock.http.cluster.shards import shard_of_request
from penstock.http.compression import Compressor
from penstock.http.forwarding.forwarder import kept
from penstock.http.forwarding.owners import unowned
from penstock.http.headers import header_text
from penstock.http.live.response import LiveReader
from penstock.http.message import Request, Response
from penstock.http.permission import principal_of
from penstock.http.query import parse_query
from penstock.http.streams.read import ReadOptions
from penstock.http.traffic import Traffic
from penstock.protocol.sse import PLAIN, SseForm, parse_form

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from penstock.config.settings import Settings
    from penstock.http.cluster.front import Front
    from penstock.http.cluster.host import ShardHost
    from penstock.http.cluster.shards import LocalShards
    from penstock.log.cluster.node import Node

PREFIX: Final = b"/v1/stream/"
ONE_BY_ONE_S: Final = 10.0
"""How long it is remembered that the owner of a stream has no tail to follow: it is closed, and its
readers come only once."""
REMEMBERED_MAX: Final = 10_000
_LIVE: Final = b"live="
_OWN: Final = b"__ds"
_NAMES: Final = frozenset(("offset", "live", "cursor", "sse"))
"""The parameters of reads that are relayed; one with others is forwarded by itself."""


class Reading(NamedTuple):
    """What a live read asks for."""

    is_sse: bool
    offset: str
    cursor: str | None
    form: SseForm
    resumed: bool


class Relays:
    """All relays of a node. Belongs to its event loop."""

    def __init__(self, node: Node, shards: LocalShards, front: Front, settings: Settings) -> None:
        self._node = node
        self._shards = shards
        self._front = front
        self._traffic = Traffic()
        self._cluster = Cluster(
            node,
            front.forwarder,
            settings,
            Compressor(settings.compress_bytes_min),
            self._traffic,
        )
        self._settings = settings
        self._relays: dict[str, Relay] = {}
        self._one_by_one: dict[str, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_draining = False

    def metrics(self) -> list[Metric]:
        return [
            GaugeMetricFamily(
                "penstock_cluster_relays",
                "Streams of other nodes that this one follows for its live readers.",
                value=len(self._relays),
            ),
            GaugeMetricFamily(
                "penstock_cluster_relayed_readers",
                "Live readers that these relays feed.",
                value=self._traffic.sse_readers + self._traffic.long_polls,
            ),
        ]

    def takes(self, request: Request) -> bool:
        """Whether a request about a stream that is elsewhere may be answered by a relay. A node
        without shards has nobody who could let a reader in."""
        return (
            request.method == "GET"
            and _LIVE in request.query
            and request.path.startswith(PREFIX)
            and _OWN not in request.path
            and bool(self._shards.hosts)
            and not self._is_draining
        )

    async def answer(self, request: Request) -> Response:
        """Answer a live read, here or by its owner. Never raises."""
        host = next(iter(self._shards.hosts.values()), None)
        if host is None:
            return await self._front.forward(request)  # The last shard has left meanwhile.
        head = kept(request)
        refusal = host.app.refuse(head)
        if refusal is not None:
            return refusal
        reading = _reading(head)
        shard = shard_of_request(request.path, self._node.about.shards)
        if reading is not None and shard is not None:
            try:
                response = await self._relayed(host, head, reading, head.route[1], shard)
            except Exception as error:  # noqa: BLE001 - becomes the response
                response = host.app.traffic.failed(error, head)
            if response is not None:
                return host.app.traffic.count(head.method, response)
        return await self._front.forward(request)

    async def _relayed(
        self, host: ShardHost, head: Request, reading: Reading, path: str, shard: int
    ) -> Response | None:
        """Return the answer of a relay; None if the owner has to be asked for it."""
        relay = self._relay(path, shard, reading.offset)
        if relay is None:
            return None
        relay.enter()
        try:
            try:
                start = await relay.locate(reading.offset)
            except PenstockError:
                return None  # The owner is not there: whoever forwards the request waits for it.
            if start is None or not self._has(host):
                return None
            if not reading.is_sse:
                return await self._poll(relay, host, head, reading, start)
            options = ReadOptions(reading.form, None, resumed=reading.resumed)
            response = relay.live.events_at(relay.stream, start, reading.cursor, options)
            if isinstance(response.body, LiveReader):
                host.app.readers.add(head, response.body)
            return response
        finally:
            relay.leave()

    def _relay(self, path: str, shard: int, offset: str) -> Relay | None:
        relay = self._relays.get(path)
        if relay is None:
            if self._one_by_one.get(path, 0.0) > asyncio.get_running_loop().time():
                return None
            relay = Relay(self._cluster, path, shard, offset, self._over)
            self._relays[path] = relay
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(
                    self._cluster.look_s, self._check
                )
        return relay

    def _check(self) -> None:
        """Look after all relays: one timer, however many there are."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._cluster.look_s, self._check) if self._relays else None
        now_s = loop.time()
        for relay in list(self._relays.values()):
            relay.check(now_s)

    def _over(self, relay: Relay) -> None:
        if self._relays.get(relay.path) is relay:
            del self._relays[relay.path]
        if relay.was_refused:
            if len(self._one_by_one) >= REMEMBERED_MAX:
                self._one_by_one.clear()
            self._one_by_one[relay.path] = asyncio.get_running_loop().time() + ONE_BY_ONE_S

    def _has(self, host: ShardHost) -> bool:
        """Whether the shard that has let a reader in still knows what the reader may."""
        return self._shards.hosts.get(host.shard) is host

    # -- long-polls

    async def _poll(
        self, relay: Relay, host: ShardHost, head: Request, reading: Reading, start: int
    ) -> Response | None:
        stream, live = relay.stream, relay.live
        if stream.tail <= start:
            await self._wait(relay, host, head)
            if self._is_draining:
                raise unowned("The node that was asked is stopping.")
            if not self._has(host) or stream.is_gone:
                return None
            if principal_of(head).until_s <= asyncio.get_running_loop().time():
                raise unauthorized("The token has ended meanwhile.")
        if stream.tail <= start and not stream.closed:
            # "There is no more" is the owner's word, and what it had then has to be here.
            word = await relay.word(reading.offset, sure=True)
            if not await relay.reaches(word.tail) or (word.closed and not stream.closed):
                return None
        if start < stream.earliest or stream.tail - start > SMALL_BYTES_MAX:
            return None
        cursor = live.first_cursor(reading.cursor)
        if stream.tail == start:
            return live.nothing_new(stream, cursor)
        answer = relay.reads.answer(stream, start, stream.tail, head, cursor=cursor)
        return answer if isinstance(answer, Response) else await answer

    async def _wait(self, relay: Relay, host: ShardHost, head: Request) -> None:
        """Return when the stream moves or ends, or the time of a long-poll is over."""
        channel = relay.live.polled(relay.stream)
        future = channel.wait()
        timer = asyncio.get_running_loop().call_later(
            self._settings.long_poll_timeout_s, _resolve, future
        )
        self._traffic.long_polls += 1
        try:
            with host.app.readers.waiting(head):
                await future
        finally:  # This also runs when the client disconnects and the wait is cancelled.
            self._traffic.long_polls -= 1
            timer.cancel()
            channel.stop_waiting(future)

    # -- the end

    def drain(self) -> None:
        """Let no read wait any longer."""
        self._is_draining = True
        for relay in list(self._relays.values()):
            relay.drain()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for relay in list(self._relays.values()):
            relay.stop()
        self._cluster.compressor.close()


def _reading(head: Request) -> Reading | None:
    """Return what a live read asks for; None if its owner has to look at it."""
    names = [part.partition(b"=")[0].decode("latin-1") for part in head.query.split(b"&")]
    if not _NAMES.issuperset(names):
        return None
    try:
        query = parse_query(head.query, _NAMES)
        form = parse_form(query["sse"]) if "sse" in query else PLAIN
    except PenstockError:
        return None
    live, offset, resumed = query.get("live"), query.get("offset"), False
    if live not in ("sse", "long-poll") or not offset or ("sse" in query and live != "sse"):
        return None
    last_id = header_text(head.headers, b"last-event-id") if live == "sse" else None
    if last_id:
        offset, resumed = last_id, True
    return Reading(live == "sse", offset, query.get("cursor"), form, resumed)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
