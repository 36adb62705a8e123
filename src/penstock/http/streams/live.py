"""Live reads of streams: long-polls and SSE responses, their cursors and their time limits.

What is written when a stream moves is decided by the channel.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import TYPE_CHECKING

from penstock.errors import PenstockError, ShuttingDown, StreamNotFound
from penstock.http.headers import CLOSED, NO_CACHE, NO_STORE, UP_TO_DATE, filter_header
from penstock.http.live.channel import Channel, Channels
from penstock.http.live.comments import Comments
from penstock.http.message import Headers, Request, Response
from penstock.http.streams.filtered import FilteredEncoder, search
from penstock.http.streams.read import Answer, ReadOptions, Reads
from penstock.http.streams.sse import RETRY, SseEncoder, SseReader, form_of
from penstock.log.lineage import trimmed
from penstock.protocol.cursor import next_cursor
from penstock.protocol.sse import PLAIN, SseForm

if TYPE_CHECKING:
    from penstock.clock import Clock
    from penstock.config.settings import Settings
    from penstock.http.live.readers import LiveReaders
    from penstock.http.traffic import Traffic
    from penstock.log.engine import Engine
    from penstock.log.stream import Stream
    from penstock.state.filtering import EventFilter

EVENT_HEADERS = (
    (b"content-type", b"text/event-stream"),
    NO_CACHE,
    (b"x-accel-buffering", b"no"),
)
SWEEP_S = 1.0  # between two checks of the time limits of SSE responses
SWEEP_READERS_MAX = 500  # that are ended in one turn of the loop


class Live:
    """The live reads of an App."""

    __slots__ = (
        "_channels",
        "_clock",
        "_comments",
        "_deadlines",
        "_engine",
        "_readers",
        "_reads",
        "_settings",
        "_sweeper",
        "_traffic",
    )

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        reads: Reads,
        traffic: Traffic,
        readers: LiveReaders,
        *,
        clock: Clock,
    ) -> None:
        self._engine = engine
        self._traffic = traffic
        self._readers = readers
        self._settings = settings
        self._reads = reads
        self._clock = clock
        self._channels = Channels(engine, traffic, buffer_bytes_max=settings.sse_buffer_bytes_max)
        self._comments = Comments(settings.sse_keepalive_s, traffic)
        # Every reader gets the same time, so the queue is in the order of deadlines.
        self._deadlines: deque[SseReader] = deque()
        self._sweeper: asyncio.TimerHandle | None = None

    async def long_poll(
        self, stream: Stream, request: Request, offset: str, client_cursor: str | None
    ) -> Response:
        """Answer with what follows `offset`, as soon as there is something or the time is up."""
        start = self._reads.known_position(stream, offset)
        if start is None:
            start = await self._reads.start(stream, offset)
            stream = self._reload(stream)
        if stream.tail <= start and not (
            stream.closed or stream.is_gone or self._channels.draining
        ):
            await self._wait(self.polled(stream), request, self._settings.long_poll_timeout_s)
        if stream.tail <= start:
            await self._until_current()
        self._check_after_wait(stream, start)
        cursor = self.first_cursor(client_cursor)
        if stream.tail > start:
            end = await self._reads.chunk_end(stream, start)
            answer = self._reads.answer(stream, start, end, request, cursor=cursor)
            return answer if isinstance(answer, Response) else await answer
        return self.nothing_new(stream, cursor)

    async def filtered_poll(
        self,
        stream: Stream,
        request: Request,
        offset: str,
        client_cursor: str | None,
        event_filter: EventFilter,
    ) -> Response:
        """Answer with what passes a filter after `offset`: as soon as there is something, the time
        is up, or as much was searched as one request may search."""
        start = position = await self._reads.start(stream, offset)
        stream = self._reload(stream)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.long_poll_timeout_s
        bytes_max = self._settings.filter_scan_bytes_max
        while True:
            page = await search(
                self._engine,
                stream,
                event_filter,
                position,
                until=stream.tail,
                count=None,
                bytes_max=bytes_max,
            )
            bytes_max -= page.end - position
            position = page.end
            if page.wire or bytes_max <= 0:
                break
            if position < stream.tail:
                continue  # It has moved while it was searched.
            timeout_s = deadline - loop.time()
            if stream.closed or self._channels.draining or timeout_s <= 0:
                break
            channel = self._channel(stream, form_of(stream, PLAIN), event_filter)
            await self._wait(channel, request, timeout_s)
            self._check_after_wait(stream, position)
            if isinstance(channel.encoder, FilteredEncoder):
                position = channel.encoder.after_quiet(position)
        if not (page.wire or position < stream.tail):
            await self._until_current()
        cursor = self.first_cursor(client_cursor)
        if page.wire or position < stream.tail:
            return await self._reads.answer_page(
                stream, start, page, request, event_filter, cursor=cursor
            )
        response = self.nothing_new(stream, cursor)
        response.headers.append(filter_header(event_filter))
        return response

    def events(
        self, stream: Stream, offset: str, client_cursor: str | None, options: ReadOptions
    ) -> Answer:
        """Return an SSE response; the transport attaches its reader after sending the head.

        A browser that had an earlier one stops for good at any status but 200: at the end of a
        closed stream that is what 204 is for, and a server that stops has an empty response for it.
        """
        if self._channels.draining:
            if options.resumed:
                return Response(200, list(EVENT_HEADERS), RETRY)
            raise ShuttingDown("The server is stopping; reconnect to another or retry shortly.")
        position = self._reads.known_position(stream, offset)
        if position is None:
            return self._events_later(stream, offset, client_cursor, options)
        return self.events_at(stream, position, client_cursor, options)

    def attached(self, reader: SseReader) -> None:
        """Add a reader to the channel of its stream, and start its time limit."""
        if self._channels.draining:
            reader.finish()
            return
        try:
            stream = self._reload(reader.stream)
        except PenstockError:  # The stream was deleted while the head was sent.
            reader.finish()
            return
        reader.stream = stream
        channel = reader.channel = self._channel(stream, reader.form, reader.filter)
        loop = asyncio.get_running_loop()
        reader.deadline = loop.time() + self._settings.sse_timeout_s
        self._deadlines.append(reader)
        if self._sweeper is None:
            self._sweeper = loop.call_later(SWEEP_S, self._sweep)
        self._comments.add(reader)
        channel.add(reader)

    def cursor(self, floor: int) -> int:
        """Return the cursor of the current time, and never one below `floor`."""
        current = int(next_cursor(self._now_s(), None, random.randint))
        return max(current, floor)

    def drain(self) -> None:
        """Answer every long-poll and end every SSE response; new ones do not wait."""
        self._channels.drain()
        self._comments.close()
        self._deadlines.clear()
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None

    async def _wait(self, channel: Channel[SseReader], request: Request, timeout_s: float) -> None:
        future = channel.wait()
        loop = asyncio.get_running_loop()
        timer = loop.call_later(timeout_s, _resolve, future)
        self._traffic.long_polls += 1
        try:
            with self._readers.waiting(request):
                await future
        finally:  # This also runs when the client disconnects and the wait is cancelled.
            self._traffic.long_polls -= 1
            timer.cancel()
            channel.stop_waiting(future)

    async def _until_current(self) -> None:
        """Hold the answer that there is nothing new until that is known."""
        if not self._engine.is_current():
            await self._engine.until_current(self._settings.long_poll_timeout_s)

    def _check_after_wait(self, stream: Stream, position: int) -> None:
        """Refuse to go on at a position that has gone during a wait, or whose stream has."""
        if stream.is_gone:
            self._reload(stream)
            raise StreamNotFound("The stream was deleted, or has expired, during the wait.")
        if position < stream.earliest:
            raise trimmed(stream)

    def nothing_new(self, stream: Stream, cursor: str) -> Response:
        """Return the answer to a long-poll at the tail."""
        headers: Headers = [
            (b"stream-next-offset", self._engine.token(stream, stream.tail).encode()),
            UP_TO_DATE,
            NO_STORE,
        ]
        if stream.closed:
            headers.append(CLOSED)
        else:
            headers.append((b"stream-cursor", cursor.encode()))
        return Response(204, headers)

    async def _events_later(
        self, stream: Stream, offset: str, client_cursor: str | None, options: ReadOptions
    ) -> Response:
        position = await self._reads.start(stream, offset)
        return self.events_at(stream, position, client_cursor, options)

    def events_at(
        self, stream: Stream, position: int, client_cursor: str | None, options: ReadOptions
    ) -> Response:
        """Return an SSE response that starts at a position."""
        end: Headers = []
        if stream.closed and position == stream.tail:
            offset = self._engine.token(stream, position)
            end = [(b"stream-next-offset", offset.encode()), UP_TO_DATE, CLOSED]
            if options.resumed:
                return Response(204, [*end, NO_STORE])
        form = form_of(stream, options.form)
        headers: Headers = list(EVENT_HEADERS)
        if form.base64:
            headers.append((b"stream-sse-data-encoding", b"base64"))
        if options.filter is not None:
            headers.append(filter_header(options.filter))
        cursor = int(self.first_cursor(client_cursor))
        floor = 0 if cursor <= self.cursor(0) else cursor
        reader = SseReader(self, stream, position, floor, form, options.filter)
        return Response(200, headers + end, reader)

    def _reload(self, stream: Stream) -> Stream:
        """Return the stream's current object: an idle stream may leave memory during a wait."""
        current = self._engine.find(stream.path, touch=False)
        if current.id != stream.id:
            raise StreamNotFound("The stream was deleted, and another one is at its path now.")
        return current

    def polled(self, stream: Stream) -> Channel[SseReader]:
        """Return the channel at which long-polls of a stream wait."""
        return self._channel(stream, form_of(stream, PLAIN))

    def _channel(
        self, stream: Stream, form: SseForm, event_filter: EventFilter | None = None
    ) -> Channel[SseReader]:
        key = (stream.id, form, event_filter)
        channel = self._channels.get(key)
        if channel is None:
            channel = self._channels.open(key, stream, self._encoder(stream, form, event_filter))
        return channel

    def _encoder(
        self, stream: Stream, form: SseForm, event_filter: EventFilter | None
    ) -> SseEncoder:
        if event_filter is None:
            return SseEncoder(self._engine, self._traffic, stream, form, cursor=self.cursor)
        return FilteredEncoder(
            self._engine,
            self._traffic,
            stream,
            form,
            event_filter,
            cursor=self.cursor,
            bytes_max=self._settings.filter_scan_bytes_max,
        )

    def _sweep(self) -> None:
        """End the responses whose time is up: clients reconnect, and caches can collapse them."""
        loop = asyncio.get_running_loop()
        now, deadlines = loop.time(), self._deadlines
        for _ in range(SWEEP_READERS_MAX):
            if not deadlines or (deadlines[0].sink is not None and deadlines[0].deadline > now):
                pause_s = SWEEP_S
                break
            deadlines.popleft().finish()
        else:
            pause_s = 0.0
        self._sweeper = loop.call_later(pause_s, self._sweep) if deadlines else None

    def first_cursor(self, client_cursor: str | None) -> str:
        """Return the cursor of an answer to a client that has sent one, or none."""
        return next_cursor(self._now_s(), client_cursor, random.randint)

    def _now_s(self) -> float:
        return self._clock.now_us() / 1_000_000


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
