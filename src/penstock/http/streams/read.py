"""GET of a stream: the read modes, and catch-up reads, which return one range as one response.

Also bounded reads (`until`, `count`) and `splits` for parallel readers. Live modes build on
`Reads.answer`.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import ClusterUnavailable, InvalidOffset, InvalidParameter
from penstock.http.bodies import SMALL_BYTES_MAX, LogBody, read_range, whole
from penstock.http.compression import EncodedBody, encode
from penstock.http.documents import document
from penstock.http.headers import (
    CLOSED,
    NO_CACHE,
    NO_STORE,
    UP_TO_DATE,
    VARY,
    content_headers,
    filter_header,
    has_tag,
    header_text,
    is_personal,
    weak,
)
from penstock.http.message import Body, Headers, Request, Response
from penstock.http.query import parse_count, parse_lists, parse_query
from penstock.http.streams.filtered import Page, check_filterable, filter_of, search
from penstock.http.streams.ready import ReadyAnswers
from penstock.http.streams.start import STARTS, mark_start, start_of, start_offset
from penstock.http.streams.yjs import start_after_snapshot
from penstock.log.lineage import generation_at
from penstock.protocol import etag
from penstock.protocol.offsets import NOW, START
from penstock.protocol.sse import PLAIN, SseForm, parse_form

if TYPE_CHECKING:
    from penstock.clock import Clock
    from penstock.config.settings import Settings
    from penstock.http.compression import Compressor
    from penstock.http.streams.live import Live
    from penstock.http.streams.resource import Streams
    from penstock.http.traffic import Traffic
    from penstock.log.engine import Engine
    from penstock.log.stream import Stream
    from penstock.state.filtering import EventFilter

MAX_AGE_S = 60
STALE_S = 300

Answer = Response | Coroutine[Any, Any, Response]


_FILTERS = frozenset({"type", "key"})
_PARAMETERS = frozenset(
    {"offset", "live", "cursor", "until", "count", "splits", "bytes", "sse", "positions"}
    | {*STARTS, *_FILTERS}
)
_STARTS = frozenset(STARTS)
_BOUNDS = ("until", "count", "splits")


class ReadOptions(NamedTuple):
    """How a reader gets what it reads. `resumed` is a browser that had an earlier SSE response."""

    form: SseForm = PLAIN
    filter: EventFilter | None = None
    resumed: bool = False


_OFFSET = b"offset="
_PLAIN_READ = ReadOptions()


class ReadModes:
    """GET and HEAD of a stream: the read mode that a query asks for, and the parameters that each
    takes."""

    __slots__ = ("_engine", "_live", "_reads", "_ready", "_streams")

    def __init__(self, engine: Engine, reads: Reads, live: Live, streams: Streams) -> None:
        self._ready = ReadyAnswers()
        self._engine = engine
        self._reads = reads
        self._live = live
        self._streams = streams

    def head(self, path: str, request: Request) -> Answer:
        query = parse_query(request.query, _STARTS)
        response = self._streams.head(path, request)
        name = start_of(query)
        if name is None:
            return response
        return self._describe(self._engine.find(path, touch=False), response, name, query[name])

    def get(self, path: str, request: Request) -> Answer:
        ready = self._ready.get(path, request)
        if (
            ready is not None
            and ready.is_for(request, self._engine.find(path, touch=True))
            and self._engine.is_current()
        ):
            return self._reads.again(ready.response)
        return self._get(path, request)

    def _get(self, path: str, request: Request) -> Answer:
        raw = request.query
        if raw.startswith(_OFFSET) and raw[7:].replace(b"_", b"").isdigit():  # the usual one
            stream = self._engine.find(path, touch=True)
            return self._read(stream, request, {"offset": raw[7:].decode()}, _PLAIN_READ)
        query, lists = parse_lists(request.query, _PARAMETERS, repeated=_FILTERS)
        event_filter = filter_of(lists)
        offset = query.get("offset")
        if offset == "":
            raise InvalidOffset(
                "`offset` is empty; leave it out to read from the start, or use -1 or now."
            )
        start = start_of(query)
        live, form, resumed = query.get("live"), PLAIN, False
        if "sse" in query:
            if live != "sse":
                raise InvalidParameter("`sse` is the form of events; it needs `live=sse`.")
            form = parse_form(query["sse"])
        if "positions" in query and (
            query["positions"] != "true" or event_filter is None or live not in (None, "false")
        ):
            raise InvalidParameter(
                "`positions` is true, for a catch-up read with `type` or `key`; others have every "
                "message."
            )
        if live not in (None, "false", "long-poll", "sse"):
            raise InvalidParameter(
                "`live` is long-poll or sse; false, or leaving it out, is a catch-up read."
            )
        if live in ("long-poll", "sse"):
            if live == "sse" and (last_id := header_text(request.headers, b"last-event-id")):
                # A browser that reconnects sends the URL as it was, and where it is by now.
                query, start, resumed = {**query, "offset": last_id}, None, True
            elif offset is None and start is None:
                raise InvalidParameter(
                    "A live read needs `offset`: a Stream-Next-Offset, -1 or now. `at` and `tail` "
                    "stand for one."
                )
            for name in _BOUNDS:
                if name in query:
                    raise InvalidParameter(f"`{name}` bounds a read; a live read has no end.")
        # In every mode a read restarts the stream's TTL, also one that ends in a 304.
        stream = self._engine.find(path, touch=True)
        if event_filter is not None:
            check_filterable(stream)
        options = ReadOptions(form, event_filter, resumed=resumed)
        if start is not None:
            return self._from_start(stream, request, query, start, options)
        return self._read(stream, request, query, options)

    def _read(
        self, stream: Stream, request: Request, query: dict[str, str], options: ReadOptions
    ) -> Answer:
        live, event_filter = query.get("live"), options.filter
        if live is None or live == "false":
            if event_filter is not None:
                return self._reads.filtered(stream, request, query, event_filter)
            answer = self._reads.catch_up(stream, request, query)
            if isinstance(answer, Response) and self._engine.is_current():
                self._ready.add(stream.path, request, stream, answer)
            return answer
        offset, cursor = query["offset"], query.get("cursor")
        if live == "sse":
            return self._live.events(stream, offset, cursor, options)
        if event_filter is not None:
            return self._live.filtered_poll(stream, request, offset, cursor, event_filter)
        return self._live.long_poll(stream, request, offset, cursor)

    async def _from_start(
        self,
        stream: Stream,
        request: Request,
        query: dict[str, str],
        name: str,
        options: ReadOptions,
    ) -> Response:
        offset = await start_offset(self._engine, stream, name, query[name])
        answer = self._read(stream, request, {**query, "offset": offset}, options)
        return mark_start(answer if isinstance(answer, Response) else await answer, offset)

    async def _describe(self, stream: Stream, response: Response, name: str, text: str) -> Response:
        return mark_start(response, await start_offset(self._engine, stream, name, text))


class Reads:
    """Catch-up reads."""

    __slots__ = ("_clock", "_compressor", "_engine", "_is_private", "_settings", "_traffic")

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        compressor: Compressor,
        traffic: Traffic,
        *,
        clock: Clock,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._compressor = compressor
        self._traffic = traffic
        self._clock = clock
        self._is_private = bool(settings.auth_token)

    def catch_up(self, stream: Stream, request: Request, query: dict[str, str]) -> Answer:
        if "splits" in query:
            return self._splits(stream, query)
        offset = query.get("offset", START)
        start = self.known_position(stream, offset)
        if start is None or "until" in query or "count" in query:
            return self._bounded(stream, request, query)
        if offset == NOW:
            return self._now(stream)
        if stream.tail - start > self._settings.chunk_bytes:
            return self._bounded(stream, request, query)
        return self.answer(stream, start, stream.tail, request)

    def again(self, response: Response) -> Response:
        """Count a response with a whole body that is given once more."""
        assert isinstance(response.body, bytes)
        self._traffic.reads += 1
        self._traffic.bytes_out += len(response.body)
        return response

    def known_position(self, stream: Stream, offset: str) -> int | None:
        """Return the position of an offset that needs no look into the log, else None."""
        if offset == START:
            return stream.earliest
        if offset == NOW or offset == self._engine.token(stream, stream.tail):
            return stream.tail
        return self._engine.position_in_memory(stream, offset)

    async def start(self, stream: Stream, offset: str) -> int:
        """Return where a read from an offset starts, also if the client has added one to it."""
        position = await self._engine.read_start(stream, offset)
        return await start_after_snapshot(self._engine, stream, position)

    async def chunk_end(self, stream: Stream, start: int) -> int:
        """Return where a response that starts at `start` ends: at the tail, or a chunk further."""
        if stream.tail - start <= self._settings.chunk_bytes:
            return stream.tail
        return await self._engine.plan(stream, start, max_bytes=self._settings.chunk_bytes)

    def answer(
        self, stream: Stream, start: int, end: int, request: Request, *, cursor: str | None = None
    ) -> Answer:
        """Return the range [start, end) as 200, or 304 for a client that has it already."""
        if start == end == stream.tail and not stream.closed and not self._engine.is_current():
            # The one thing that such an answer says is that there is no more.
            raise ClusterUnavailable(
                "This node does not know whether there is more. Try again.", Retry_After="1"
            )
        tag = etag.make(
            generation_at(stream, end), start, end, stream.closed and end == stream.tail
        )
        headers = self._headers(stream, start, end, request)
        if cursor is not None:
            headers.append((b"stream-cursor", cursor.encode()))
        size = end - start
        if self._compressor.applies(stream.config.content_type, size):
            headers.append(VARY)
            coding = self._compressor.choose(request.headers.get(b"accept-encoding"))
        else:
            coding = None
        if has_tag(request, tag):
            headers.append((b"etag", tag.encode()))
            return Response(304, headers)
        headers += content_headers(stream.config.content_type)
        wire = None
        if end - start <= SMALL_BYTES_MAX:
            wire = self._engine.read_now(stream, start, end) if end > start else b""
        if coding is None:
            return self._plain(stream, start, end, headers, tag, wire)
        if wire is None:
            return self._encoded(stream, start, end, headers, tag, coding)
        packed = encode(coding, whole(stream, wire))
        return self._packed(headers, tag, coding, packed, packed)

    async def filtered(
        self, stream: Stream, request: Request, query: dict[str, str], event_filter: EventFilter
    ) -> Response:
        """Return the events from an offset on that pass a filter."""
        if "splits" in query:
            raise InvalidParameter(
                "`splits` cuts a range whatever is in it; send `type` and `key` with the reads of "
                "its parts."
            )
        start, until = await self._range(stream, query)
        page = await search(
            self._engine,
            stream,
            event_filter,
            start,
            until=stream.tail if until is None else until,
            count=parse_count("count", query["count"]) if "count" in query else None,
            bytes_max=self._settings.filter_scan_bytes_max,
        )
        ordinal = await self._engine.ordinal(stream, start) if "positions" in query else None
        return await self.answer_page(stream, start, page, request, event_filter, ordinal=ordinal)

    async def answer_page(
        self,
        stream: Stream,
        start: int,
        page: Page,
        request: Request,
        event_filter: EventFilter,
        *,
        cursor: str | None = None,
        ordinal: int | None = None,
    ) -> Response:
        """Return a page as 200, or 304 for a client that has it already.

        With `ordinal`, that of the first message from `start` on, it has the positions too.
        """
        is_end = stream.closed and page.end == stream.tail
        variant = event_filter.digest + ("" if ordinal is None else "p")
        tag = etag.make(generation_at(stream, page.end), start, page.end, is_end, variant=variant)
        # An empty page is no chunk either, however far it goes.
        headers = self._headers(stream, start if page.wire else page.end, page.end, request)
        headers.append(filter_header(event_filter, located=ordinal is not None))
        if cursor is not None:
            headers.append((b"stream-cursor", cursor.encode()))
        data, coding = whole(stream, page.wire), None
        if ordinal is not None:
            data = page.located(ordinal, data)
        if self._compressor.applies(stream.config.content_type, len(data)):
            headers.append(VARY)
            coding = self._compressor.choose(request.headers.get(b"accept-encoding"))
        if has_tag(request, tag):
            return Response(304, [*headers, (b"etag", tag.encode())])
        headers += content_headers(stream.config.content_type)
        if coding is not None and self._compressor.reserve(len(data)):
            try:
                packed = await self._compressor.encode(coding, data)
            finally:
                self._compressor.release(len(data))
            return self._packed(headers, tag, coding, packed, packed)
        self._traffic.reads += 1
        self._traffic.bytes_out += len(data)
        return Response(200, [*headers, (b"etag", tag.encode())], data)

    def _headers(self, stream: Stream, start: int, end: int, request: Request) -> Headers:
        headers: Headers = [(b"stream-next-offset", self._engine.token(stream, end).encode())]
        at_tail = end == stream.tail
        if at_tail:
            if self._engine.is_current():
                headers.append(UP_TO_DATE)
            if stream.closed:
                headers.append(CLOSED)
        if start == end and not (at_tail and stream.closed):
            # "Nothing here yet" is no chunk: cached for a minute it would hide appends and closure.
            headers.append(NO_CACHE)
        else:
            is_private = self._is_private or is_personal(request)
            scope = "private" if is_private else "public"
            headers.append((b"cache-control", self._cache_control(stream, scope)))
        return headers

    def _cache_control(self, stream: Stream, scope: str) -> bytes:
        age = MAX_AGE_S
        config = stream.config
        if config.ttl_s is not None:
            age = min(age, config.ttl_s)
        elif config.expires_at_us is not None:
            remaining_s = (config.expires_at_us - self._clock.now_us()) // 1_000_000
            age = min(age, max(0, remaining_s))
        if age < MAX_AGE_S:  # a cache must not outlive the stream
            return f"{scope}, max-age={age}".encode()
        return f"{scope}, max-age={age}, stale-while-revalidate={STALE_S}".encode()

    def _plain(
        self,
        stream: Stream,
        start: int,
        end: int,
        headers: Headers,
        tag: str,
        wire: bytes | None = None,
    ) -> Response:
        """Return the bytes as they are; without `wire` they are read while they are sent."""
        self._traffic.reads += 1
        self._traffic.bytes_out += end - start
        headers.append((b"etag", tag.encode()))
        if wire is not None:
            return Response(200, headers, whole(stream, wire))
        return Response(200, headers, LogBody(self._engine, stream, start, end))

    async def _encoded(
        self, stream: Stream, start: int, end: int, headers: Headers, tag: str, coding: str
    ) -> Response:
        """Return the bytes encoded off the loop, if there is memory for it and it saves some."""
        size = end - start
        if not self._compressor.reserve(size):
            return self._plain(stream, start, end, headers, tag)
        try:
            data = whole(stream, await read_range(self._engine, stream, start, end))
            packed = await self._compressor.encode(coding, data)
        except BaseException:
            self._compressor.release(size)
            raise
        if len(packed) >= len(data):
            self._compressor.release(size)
            return self._plain(stream, start, end, headers, tag)
        self._compressor.release(size - len(packed))
        body = EncodedBody(packed, self._compressor, len(packed))
        return self._packed(headers, tag, coding, packed, body)

    def _packed(
        self, headers: Headers, tag: str, coding: str, packed: bytes, body: Body
    ) -> Response:
        self._traffic.reads += 1
        self._traffic.bytes_out += len(packed)
        headers.append((b"content-encoding", coding.encode()))
        headers.append((b"etag", weak(tag)))
        return Response(200, headers, body)

    def _now(self, stream: Stream) -> Response:
        """Return the empty response at the tail: never cached, since the tail moves."""
        self._traffic.reads += 1
        headers: Headers = [
            *content_headers(stream.config.content_type),
            (b"stream-next-offset", self._engine.token(stream, stream.tail).encode()),
            NO_STORE,
        ]
        if self._engine.is_current():
            headers.append(UP_TO_DATE)
        if stream.closed:
            headers.append(CLOSED)
        return Response(200, headers, whole(stream, b""))

    async def _bounded(self, stream: Stream, request: Request, query: dict[str, str]) -> Response:
        count = None
        if "count" in query:
            _check_countable(stream)
            count = parse_count("count", query["count"])
        start, until = await self._range(stream, query)
        if start >= (stream.tail if until is None else until):
            end = start
        else:
            chunk = self._settings.chunk_bytes
            end = await self._engine.plan(stream, start, max_bytes=chunk, until=until, count=count)
        answer = self.answer(stream, start, end, request)
        return answer if isinstance(answer, Response) else await answer

    async def _splits(self, stream: Stream, query: dict[str, str]) -> Response:
        ranges = parse_count("splits", query["splits"], maximum=self._settings.splits_max)
        start, end = await self._bounds(stream, query)
        positions = await self._engine.splits(stream, ranges, start, end)
        content: dict[str, Any] = {
            "offsets": [self._engine.token(stream, position) for position in positions]
        }
        if stream.is_json:
            content["ordinals"] = await self._engine.ordinals(stream, positions)
        return document(content)

    async def _bounds(self, stream: Stream, query: dict[str, str]) -> tuple[int, int]:
        """Return the range to split: up to `until`, at most `bytes` and `count` messages long."""
        start, until = await self._range(stream, query)
        end = stream.tail if until is None else until
        if "bytes" in query and end > start:
            size = parse_count("bytes", query["bytes"])
            end = await self._engine.plan(stream, start, max_bytes=size, until=end)
        if "count" in query:
            _check_countable(stream)
            first = await self._engine.ordinal(stream, start)
            after = await self._engine.seek(stream, first + parse_count("count", query["count"]))
            end = min(end, after)
        return start, end

    async def _range(self, stream: Stream, query: dict[str, str]) -> tuple[int, int | None]:
        start = await self.start(stream, query.get("offset", START))
        if "until" not in query:
            return start, None
        until = await self._engine.position(stream, query["until"])
        if until < start:
            raise InvalidParameter("`until` is before `offset`; a read goes forward only.")
        return start, until


def _check_countable(stream: Stream) -> None:
    if not stream.is_json:
        raise InvalidParameter(
            "`count` counts messages, and only application/json streams have messages; "
            "use `until` instead."
        )
